// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"io"
	"net"
	nethttp "net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// httpCases are servers and the expected observations, of three measurements.
var httpCases = []struct {
	name    string
	server  nethttp.HandlerFunc // nil means peer
	peer    func(net.Conn)      // nil means that nothing listens
	size    int
	timeout checkup.Duration
	want    checkup.Observation
}{
	{name: "ok", server: status(200), want: checkup.Observation{Sent: 3, Received: 3}},
	{name: "no content", server: status(204), want: checkup.Observation{Sent: 3, Received: 3}},
	{name: "redirect", server: func(w nethttp.ResponseWriter, r *nethttp.Request) {
		nethttp.Redirect(w, r, "/else", nethttp.StatusMovedPermanently)
	},
		want: checkup.Observation{Sent: 3, Failure: cause(checkup.StageResponse, "HTTP status 301 Moved Permanently")}},
	{name: "not found", server: status(404), want: checkup.Observation{Sent: 3, Failure: cause(checkup.StageResponse, "HTTP status 404 Not Found")}},
	{name: "unavailable", server: status(503), want: checkup.Observation{Sent: 3, Failure: cause(checkup.StageResponse, "HTTP status 503 Service Unavailable")}},
	{name: "bytes", server: serveBytes, size: 100_000, want: checkup.Observation{Sent: 3, Received: 3}},
	{name: "too few bytes", server: func(w nethttp.ResponseWriter, _ *nethttp.Request) { io.WriteString(w, "hello") }, size: 100,
		want: checkup.Observation{Sent: 3, Failure: cause(checkup.StageEcho, "the body has 5 bytes, want 100")}},
	{name: "refused", want: checkup.Observation{Sent: 3, Failure: noConnection(checkup.ReasonRefused, "connection refused")}},
	{name: "silent", peer: silentPeer, timeout: silence,
		want: checkup.Observation{Sent: 3, Failure: cause(checkup.StageEcho, "timed out after 300ms")}},
	{name: "body that does not end", timeout: silence, server: func(w nethttp.ResponseWriter, r *nethttp.Request) {
		w.Header().Set("Content-Length", "100")
		w.WriteHeader(200)
		w.(nethttp.Flusher).Flush()
		<-r.Context().Done()
	}, want: checkup.Observation{Sent: 3, Failure: cause(checkup.StageEcho, "timed out after 300ms")}},
	{name: "closed", peer: func(c net.Conn) { io.CopyN(io.Discard, c, 1) },
		want: checkup.Observation{Sent: 3, Failure: &checkup.Cause{Stage: checkup.StageEcho}}},
	{name: "not HTTP", peer: func(c net.Conn) { c.Read(make([]byte, 1<<10)); fmt.Fprint(c, "SSH-2.0-OpenSSH\r\n"); silentPeer(c) },
		want: checkup.Observation{Sent: 3, Failure: cause(checkup.StageEcho, "the answer is not HTTP")}},
	{name: "body cut off", peer: func(c net.Conn) {
		c.Read(make([]byte, 1<<10))
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello")
		c.(*net.TCPConn).CloseWrite()
		silentPeer(c)
	}, want: checkup.Observation{Sent: 3, Failure: cause(checkup.StageEcho, "closed by the peer before the whole answer")}},
}

func status(code int) nethttp.HandlerFunc {
	return func(w nethttp.ResponseWriter, r *nethttp.Request) {
		if r.URL.Path != "/some/path" {
			code = 599
		}
		w.WriteHeader(code)
	}
}

func TestHTTP(t *testing.T) {
	for _, test := range httpCases {
		for _, family := range checkup.IPFamilies {
			t.Run(test.name+"/"+string(family), func(t *testing.T) {
				t.Parallel()
				m := Measurement{
					Pair:  pairOf(checkup.HTTP, family, test.size),
					Probe: checkup.Probe{Count: 3, Timeout: patience, Path: "/some/path"},
				}
				if test.timeout > 0 {
					m.Probe.Timeout = test.timeout
				}
				if test.server != nil {
					m.Address = listenHTTP(t, family, test.server)
				} else {
					m.Address = listenTCP(t, family, test.peer)
				}
				got := http(t.Context(), m, session())
				want := test.want
				want.Pair = m.Pair
				if want.Failure != nil && want.Failure.Message == "" && got.Failure != nil { // reset or closed, by chance
					want.Failure = &checkup.Cause{Stage: want.Failure.Stage, Message: got.Failure.Message}
				}
				if diff := diffObservations(want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		}
	}
}

func TestHTTPTarget(t *testing.T) {
	for _, test := range []struct {
		address, path string
		size          int
		want          string
	}{
		{"10.0.0.1:7080", "", 0, "http://10.0.0.1:7080/"},
		{"10.0.0.1:7080", "/healthz?a=b", 0, "http://10.0.0.1:7080/healthz?a=b"},
		{"[fd00::1]:7080", "/healthz", 5, "http://[fd00::1]:7080/bytes?n=5"},
	} {
		m := Measurement{Address: netip.MustParseAddrPort(test.address), Probe: checkup.Probe{Path: test.path}, Pair: checkup.Pair{Size: test.size}}
		if got := target(m); got != test.want {
			t.Errorf("target = %s, want %s", got, test.want)
		}
	}
}

func listenHTTP(t *testing.T, family checkup.IPFamily, handler nethttp.HandlerFunc) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", anyPort(family))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(handler)
	server.Listener.Close()
	server.Listener = l
	server.Start()
	t.Cleanup(server.Close)
	return l.Addr().(*net.TCPAddr).AddrPort()
}
