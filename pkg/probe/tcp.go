// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"context"
	"io"
	"net"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// tcp connects and, if the pair has a size, sends that many bytes and reads
// them back. A witness is asked for the source address first, and reports at the end how long it
// kept the data: neither is part of the measurement.
func tcp(ctx context.Context, m Measurement, s *Session) checkup.Observation {
	return series(ctx, m, s, tcpOnce)
}

func tcpOnce(ctx context.Context, m Measurement) (sample, error) {
	timeout := time.Duration(m.Probe.Timeout)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	s, conn, err := connectFrom(ctx, m)
	if conn == nil {
		return s, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	began := s.start
	if m.Witness || m.Identify {
		err = s.ask(conn, m.Pair.Size, m.Identify)
	}
	if m.Pair.Size == 0 {
		if m.Identify && err != nil {
			s.end = time.Now()
			s.fail(checkup.StageEcho, err, timeout)
		}
		return s, nil
	}
	sent := time.Now()
	s.start = sent
	if err == nil {
		err = echo(conn, m.Pair.Size)
	}
	s.end = time.Now()
	s.rtt, s.kernel = s.end.Sub(sent), false
	if err != nil {
		s.start = began // one timeout is for all of it: a hold-up in any part of it may have used it up
		s.fail(checkup.StageEcho, err, timeout)
		conn.SetLinger(0) // discard data that the peer did not accept
	} else if s.seen.IsValid() {
		s.residence = hold(conn)
	}
	return s, nil
}

// echo writes size bytes and reads them back.
func echo(conn *net.TCPConn, size int) error {
	block := appendFill(nil, 0, min(size, 16<<10))
	wrote := make(chan error, 1)
	go func() {
		var err error
		for left := size; left > 0 && err == nil; left -= len(block) {
			_, err = conn.Write(block[:min(left, len(block))])
		}
		wrote <- err
	}()
	readErr := readBack(conn, block, size)
	if readErr != nil {
		conn.SetWriteDeadline(time.Unix(1, 0)) // the peer does not read: end the write
		<-wrote
		return readErr
	}
	return <-wrote
}

// readBack reads size bytes, which must be repetitions of the block.
func readBack(r io.Reader, block []byte, size int) error {
	buf := make([]byte, len(block))
	for done := 0; done < size; {
		want := block[done%len(block):]
		n, err := r.Read(buf[:min(len(want), size-done)])
		if !bytes.Equal(buf[:n], want[:n]) {
			return errWrongAnswer
		}
		done += n
		if err != nil && done < size {
			return err
		}
	}
	return nil
}
