// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	nethttp "net/http"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// http sends a GET request: for Probe.Path ("/" if empty) or, if the pair has a size, for that many bytes from a
// Responder. It follows no redirects and uses no proxy; each request has a new connection. Only a status of 2xx with
// the whole body is an answer.
func http(ctx context.Context, m Measurement, s *Session) checkup.Observation {
	return series(ctx, m, s, httpOnce)
}

func httpOnce(ctx context.Context, m Measurement) (sample, error) {
	timeout := time.Duration(m.Probe.Timeout)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request, err := newRequest(ctx, target(m))
	if err != nil {
		return sample{}, err
	}
	s, conn, err := connectFrom(ctx, m)
	if conn == nil {
		return s, err
	}
	defer conn.Close()
	var header nethttp.Header
	s.rtt, header, err = get(conn, request, m.Pair.Size)
	s.seen, s.residence = parseSeen(header.Get(sourceHeader)), parseHeld(header.Get(heldHeader))
	s.kernel, s.end = false, time.Now()
	var status statusError
	switch {
	case errors.As(err, &status):
		s.fail(checkup.StageResponse, err, timeout)
	case err != nil:
		s.fail(checkup.StageEcho, err, timeout)
	}
	return s, nil
}

// newRequest returns a GET request that closes its connection.
func newRequest(ctx context.Context, url string) (*nethttp.Request, error) {
	request, err := nethttp.NewRequestWithContext(ctx, nethttp.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("User-Agent", "checkplan")
	request.Close = true
	return request, nil
}

// maxHeader is the maximum length of a response's header.
const maxHeader = 64 << 10

// get sends a request on a connection and reads the whole response, until the request's context ends. The body must
// have the given size if that is not 0. The delay is the time from sending the request to the first byte of the
// response, 0 without a response. The header is that of the response, nil without one.
func get(conn net.Conn, request *nethttp.Request, size int) (time.Duration, nethttp.Header, error) {
	stop := context.AfterFunc(request.Context(), func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var out bytes.Buffer
	if err := request.Write(&out); err != nil {
		return 0, nil, err
	}
	// Before the write, not after: on a busy machine, the write may return after the answer has arrived.
	sent := time.Now()
	_, unsent := conn.Write(out.Bytes())
	heard := &listener{Conn: conn}
	limited := &io.LimitedReader{R: heard, N: maxHeader}
	reader := bufio.NewReader(limited)
	_, err := reader.Peek(1)
	switch {
	case err != nil && unsent != nil && !isAlert(err):
		return 0, nil, unsent
	case err != nil:
		return 0, nil, readable(err)
	}
	delay := max(time.Since(sent), 1)
	response, err := nethttp.ReadResponse(reader, request)
	for err == nil && response.StatusCode < 200 && response.StatusCode != nethttp.StatusSwitchingProtocols {
		response.Body.Close() // empty: the final response follows (RFC 9110, section 15.2)
		response, err = nethttp.ReadResponse(reader, request)
	}
	switch {
	case err != nil && heard.err != nil:
		return delay, nil, readable(heard.err) // net/http may report the incomplete line instead
	case err != nil || limited.N <= 0:
		return delay, nil, errNotHTTP
	}
	defer response.Body.Close()
	limited.N = math.MaxInt64
	return delay, response.Header, readBody(response, size)
}

// errNotHTTP replaces net/http's errors for an answer that it cannot parse, because they quote the answer.
var errNotHTTP = errors.New("the answer is not HTTP")

// readable returns an error of reading a response without quotes from it.
func readable(err error) error {
	if fromNetwork(err) || isAlert(err) {
		return err
	}
	return errNotHTTP
}

// target is the URL of a measurement.
func target(m Measurement) string {
	switch {
	case m.Pair.Size > 0:
		return fmt.Sprintf("http://%v/bytes?n=%d", m.Address, m.Pair.Size)
	case m.Probe.Path == "":
		return fmt.Sprintf("http://%v/", m.Address)
	}
	return fmt.Sprintf("http://%v%s", m.Address, m.Probe.Path)
}

// statusError is a status that is not 2xx, such as "404 Not Found".
type statusError string

func (e statusError) Error() string { return "HTTP status " + string(e) }

// readBody reads the body of a response. It must have the given size if that is not 0, and otherwise at most
// checkup.MaxStreamSize bytes.
func readBody(response *nethttp.Response, size int) error {
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return statusError(fmt.Sprintf("%d %s", response.StatusCode, nethttp.StatusText(response.StatusCode)))
	}
	n, err := io.Copy(io.Discard, io.LimitReader(response.Body, checkup.MaxStreamSize+1))
	switch {
	case err != nil:
		return err
	case size > 0 && n != int64(size):
		return fmt.Errorf("the body has %d bytes, want %d", n, size)
	case n > checkup.MaxStreamSize:
		return fmt.Errorf("the body has more than %d bytes", checkup.MaxStreamSize)
	}
	return nil
}
