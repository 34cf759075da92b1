// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	nethttp "net/http"
	"net/http/httptrace"
	"sync"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// http makes a GET request: of Probe.Path ("/" if empty), or, if the pair has a
// size, of that many bytes from a Responder. Redirects are not followed, no proxy
// is asked, and each request has a connection of its own. Only a status of 2xx
// is an answer, and only with the whole body.
func http(ctx context.Context, m Measurement, s *Session) checkup.Observation {
	return series(ctx, m, s, httpOnce)
}

func httpOnce(ctx context.Context, m Measurement) (sample, error) {
	timeout := time.Duration(m.Probe.Timeout)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	s := sample{start: time.Now()}
	conn, err := dial(ctx, m)
	s.end = time.Now()
	switch {
	case isLocal(err):
		return s, localTrouble(err)
	case err != nil:
		s.fail(checkup.StageConnect, err, timeout)
		return s, nil
	}
	defer conn.Close()

	var t trip
	request, err := nethttp.NewRequestWithContext(httptrace.WithClientTrace(ctx, t.trace()), nethttp.MethodGet, target(m), nil)
	if err != nil {
		return s, err
	}
	request.Header.Set("User-Agent", "checkplan")
	transport := &nethttp.Transport{
		DialContext:        func(context.Context, string, string) (net.Conn, error) { return conn, nil },
		DisableKeepAlives:  true,
		DisableCompression: true,
	}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	switch {
	case err == nil:
		defer response.Body.Close()
		err = readBody(response, m.Pair.Size)
	case !fromNetwork(err):
		err = errNotHTTP
	}
	s.end = time.Now()
	s.rtt = t.delay()
	var status statusError
	switch {
	case errors.As(err, &status):
		s.fail(checkup.StageResponse, err, timeout)
	case err != nil:
		s.fail(checkup.StageEcho, err, timeout)
	}
	return s, nil
}

// errNotHTTP stands for whatever net/http says of an answer that it cannot read:
// its words quote the answer, and differ with the moment at which it came.
var errNotHTTP = errors.New("the answer is not HTTP")

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

// readBody reads the body of a response, which must be of the given size if
// that is not 0, and else is read up to checkup.MaxStreamSize.
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

// trip notes when a request was written and its first byte came back.
type trip struct {
	mu             sync.Mutex // guards following
	written, first time.Time
}

func (t *trip) trace() *httptrace.ClientTrace {
	note := func(at *time.Time) {
		t.mu.Lock()
		defer t.mu.Unlock()
		*at = time.Now()
	}
	return &httptrace.ClientTrace{
		WroteRequest:         func(httptrace.WroteRequestInfo) { note(&t.written) },
		GotFirstResponseByte: func() { note(&t.first) },
	}
}

// delay is the time between the two, 0 if there was no response.
func (t *trip) delay() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.written.IsZero() {
		return 0
	}
	return max(t.first.Sub(t.written), 0)
}
