// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	nethttp "net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Default ports of a responder.
const (
	EchoPort   = 7007 // TCP and UDP
	HTTPPort   = 7080
	HealthPort = 7081 // HTTP, for the kubelet
)

// echoIdle and echoLife limit the idle time and the lifetime of a TCP echo connection.
const (
	echoIdle = 10 * time.Second
	echoLife = time.Minute
)

// Responder answers measurements: TCP echo of any data, UDP echo of our own requests, and HTTP with /healthz and
// /bytes?n=SIZE. It counts the distinct UDP requests of every pair, and reports the source addresses that it sees (see
// witness.go). Each listener has a budget of connections of its own (see crowd).
type Responder struct {
	// One socket per IP family that both the address and the host have. health serves the same pages as http.
	tcp, http, health []net.Listener
	udp               []*net.UDPConn
	receptions        receptions
}

// Listen opens the sockets of a responder. Each address is host:port; an empty host means all addresses of both IP
// families, port 0 any free port. TCP and UDP echo have the same host and, unless it is 0, the same port. Without a
// health address there is no such listener.
func Listen(ctx context.Context, echoAddress, httpAddress, healthAddress string) (*Responder, error) {
	r := &Responder{}
	if err := r.listen(ctx, echoAddress, httpAddress, healthAddress); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *Responder) listen(ctx context.Context, echoAddress, httpAddress, healthAddress string) error {
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	// One socket per family: Go guesses whether a socket for both serves IPv4, wrongly if the loopback is down, and the
	// answer to a datagram must come from the address that it was sent to.
	for _, digit := range []string{"4", "6"} {
		echo, err := listenStream(ctx, lc, "tcp"+digit, echoAddress, &r.tcp)
		if err != nil {
			return fmt.Errorf("cannot listen for TCP echo: %w", err)
		}
		if _, err := listenStream(ctx, lc, "tcp"+digit, httpAddress, &r.http); err != nil {
			return fmt.Errorf("cannot listen for HTTP: %w", err)
		}
		if healthAddress != "" {
			if _, err := listenStream(ctx, lc, "tcp"+digit, healthAddress, &r.health); err != nil {
				return fmt.Errorf("cannot listen for health checks: %w", err)
			}
		}
		if !echo {
			continue
		}
		packets, err := lc.ListenPacket(ctx, "udp"+digit, echoAddress)
		if err != nil {
			return fmt.Errorf("cannot listen for UDP echo: %w", err)
		}
		conn := packets.(*net.UDPConn)
		r.udp = append(r.udp, conn)
		_ = conn.SetReadBuffer(responderBuffer) // the kernel limits it to what the host allows
		if err := askBeside(conn, digit); err != nil {
			return fmt.Errorf("cannot listen for UDP echo: %w", err)
		}
	}
	if len(r.tcp) == 0 {
		return fmt.Errorf("cannot listen for TCP echo: this host lacks the IP family of %s", echoAddress)
	}
	if len(r.http) == 0 {
		return fmt.Errorf("cannot listen for HTTP: this host lacks the IP family of %s", httpAddress)
	}
	return nil
}

// listenStream appends a listener. It returns false if the address or the host lacks the network's family.
func listenStream(ctx context.Context, lc net.ListenConfig, network, address string, to *[]net.Listener) (bool, error) {
	l, err := lc.Listen(ctx, network, address)
	var wrongFamily *net.AddrError
	switch {
	case errors.As(err, &wrongFamily) && wrongFamily.Err == "no suitable address found",
		errors.Is(err, syscall.EAFNOSUPPORT), errors.Is(err, syscall.EADDRNOTAVAIL):
		return false, nil
	case err != nil:
		return false, err
	}
	*to = append(*to, newCrowd(l))
	return true, nil
}

// askBeside makes the kernel report, with each datagram, its destination address and its arrival time. The latter is
// optional.
func askBeside(conn *net.UDPConn, digit string) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	level, option := unix.SOL_IP, unix.IP_PKTINFO
	if digit == "6" {
		level, option = unix.SOL_IPV6, unix.IPV6_RECVPKTINFO
	}
	var serr error
	if err := raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPING,
			unix.SOF_TIMESTAMPING_SOFTWARE|unix.SOF_TIMESTAMPING_RX_SOFTWARE)
		serr = unix.SetsockoptInt(int(fd), level, option, 1)
	}); err != nil {
		return err
	}
	return serr
}

// Ports returns the ports of the responder, by transport. With port 0, each family has its own port: those of the first
// family are returned.
func (r *Responder) Ports() map[checkup.Transport]int {
	return map[checkup.Transport]int{
		checkup.TCP:  r.tcp[0].Addr().(*net.TCPAddr).Port,
		checkup.UDP:  r.udp[0].LocalAddr().(*net.UDPAddr).Port,
		checkup.HTTP: r.http[0].Addr().(*net.TCPAddr).Port,
	}
}

// Serve answers until ctx ends, then closes the sockets and returns nil. It writes its start and, on every tick and
// once at the end, the receptions that changed, as Message lines. A nil tick means only at the end.
func (r *Responder) Serve(ctx context.Context, out io.Writer, tick <-chan time.Time) error {
	g, ctx := errgroup.WithContext(ctx)
	stop := context.AfterFunc(ctx, func() { r.noteDrops(); r.close() })
	defer stop()
	lines := &lineWriter{w: out}
	g.Go(func() error { return lines.write(checkup.Message{Start: &checkup.AgentStart{Source: -1}}) })
	for _, conn := range r.udp {
		g.Go(func() error { return unlessEnded(ctx, r.serveUDP(conn)) })
	}
	for _, l := range r.tcp {
		g.Go(func() error { return unlessEnded(ctx, serveTCP(ctx, l)) })
	}
	for _, l := range slices.Concat(r.http, r.health) {
		g.Go(func() error { return unlessEnded(ctx, serveHTTP(ctx, l)) })
	}
	g.Go(func() error {
		for {
			select {
			case <-tick:
				r.noteDrops()
				if err := r.receptions.write(lines); err != nil {
					return err
				}
			case <-ctx.Done():
				return nil
			}
		}
	})
	err := g.Wait()
	return errors.Join(err, r.receptions.write(lines))
}

// noteDrops records how many packets the sockets have dropped so far.
func (r *Responder) noteDrops() {
	for _, conn := range r.udp {
		raw, err := conn.SyscallConn()
		if err != nil {
			continue // closed
		}
		family := familyOf(conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr())
		r.receptions.drop(family, noRoom(drops(raw), family, os.DirFS("/")))
	}
}

// unlessEnded returns the error, or nil if ctx has ended: the error is then caused by closing the socket.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (r *Responder) close() {
	for _, l := range slices.Concat(r.tcp, r.http, r.health) {
		l.Close()
	}
	for _, conn := range r.udp {
		conn.Close()
	}
}

// serveTCP echoes on every connection, until the listener is closed.
func serveTCP(ctx context.Context, l net.Listener) error {
	var connections sync.WaitGroup
	defer connections.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			if isLocal(err) && ctx.Err() == nil && sleepUntil(ctx, time.Now().Add(100*time.Millisecond)) == nil {
				continue // no free file descriptor: wait for connections to end
			}
			return fmt.Errorf("cannot accept for TCP echo: %w", err)
		}
		connections.Go(func() {
			defer conn.Close()
			stop := context.AfterFunc(ctx, func() { conn.Close() })
			defer stop()
			end := time.Now().Add(echoLife)
			buf := make([]byte, 16<<10)
			first := true
			var echoes echoed
			for {
				deadline := time.Now().Add(echoIdle)
				if deadline.After(end) {
					deadline = end
				}
				conn.SetDeadline(deadline)
				n, err := conn.Read(buf)
				data := buf[:n]
				waited := waited(conn)
				if first {
					var unanswered error
					if data, unanswered = echoes.answer(conn, data); unanswered != nil {
						return
					}
					first = false
				}
				if len(data) > 0 {
					if _, err := conn.Write(data); err != nil {
						return
					}
				}
				if echoes.add(conn, len(data), waited) != nil {
					return
				}
				if err != nil {
					return
				}
			}
		})
	}
}

// serveUDP answers requests until the socket is closed.
func (r *Responder) serveUDP(conn *net.UDPConn) error {
	buf, oob := make([]byte, 1<<16), make([]byte, 256)
	for {
		n, oobn, _, from, err := conn.ReadMsgUDPAddrPort(buf, oob)
		if err != nil {
			return fmt.Errorf("cannot receive for UDP echo: %w", err)
		}
		p, err := parsePacket(buf[:n])
		if err != nil || p.kind != request || n != p.pair.Size {
			continue
		}
		r.receptions.count(p)
		arrived, own, source := beside(oob[:oobn])
		buf[kindOffset] = byte(answer)
		setAddress(buf[:n], seenOffset, from.Addr())
		setAddress(buf[:n], ownOffset, own)
		setResidence(buf[:n], residence(arrived))
		// An answer that cannot be sent is a lost answer: a result, not an error.
		_, _, _ = conn.WriteMsgUDPAddrPort(buf[:n], source, from)
	}
}

// residence returns the time since the arrival of a request by the kernel's timestamp, 0 without one. Both times are of
// this host's wall clock. If the clock was set in between, the value is either reported as unknown or so long that the
// agent ignores it.
func residence(arrived time.Time) time.Duration {
	if arrived.IsZero() {
		return 0
	}
	return time.Since(arrived)
}

// beside reads the control messages of a request: its arrival time, zero if unknown; and its destination address, from
// which it makes the control message that sends the answer from that address, on any interface.
func beside(oob []byte) (arrived time.Time, own netip.Addr, source []byte) {
	for len(oob) >= unix.CmsgLen(0) {
		header, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			break
		}
		message := oob[:len(oob)-len(rest)]
		oob = rest
		switch {
		case header.Level == unix.SOL_SOCKET && header.Type == unix.SCM_TIMESTAMPING:
			arrived = timespec(data)
		case header.Level == unix.SOL_IP && header.Type == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
			clear(data[:4])
			own, source = netip.AddrFrom4([4]byte(data[8:12])), message
		case header.Level == unix.SOL_IPV6 && header.Type == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
			// Link-local addresses need their interface.
			if own = netip.AddrFrom16([16]byte(data[:16])); !own.IsLinkLocalUnicast() {
				clear(data[16:20])
			}
			source = message
		}
	}
	return arrived, own, source
}

// serveHTTP serves /healthz and /bytes until ctx ends.
func serveHTTP(ctx context.Context, l net.Listener) error {
	mux := nethttp.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w nethttp.ResponseWriter, _ *nethttp.Request) {
		_, _ = io.WriteString(w, "ok\n") // fails only if the client has gone
	})
	mux.HandleFunc("GET /bytes", serveBytes)
	server := nethttp.Server{
		Handler: nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
			if from, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
				w.Header().Set(sourceHeader, from.Addr().Unmap().WithZone("").String())
			}
			if conn, ok := r.Context().Value(connKey{}).(net.Conn); ok {
				w.Header().Set(heldHeader, strconv.FormatInt(waited(conn).Milliseconds(), 10))
			}
			mux.ServeHTTP(w, r)
		}),
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, conn)
		},
		ReadHeaderTimeout: echoIdle,
		WriteTimeout:      echoLife,
		IdleTimeout:       echoIdle,
		MaxHeaderBytes:    8 << 10,
	}
	ctx, cancel := context.WithCancel(ctx)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		<-ctx.Done()
		patience, done := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer done()
		if server.Shutdown(patience) != nil {
			server.Close()
		}
	}()
	err := server.Serve(l)
	cancel()
	<-closed
	return fmt.Errorf("cannot serve HTTP: %w", err)
}

// serveBytes responds with n bytes.
func serveBytes(w nethttp.ResponseWriter, r *nethttp.Request) {
	n, err := strconv.Atoi(r.URL.Query().Get("n"))
	if err != nil || n < 0 || n > checkup.MaxStreamSize {
		nethttp.Error(w, fmt.Sprintf("n: want a number from 0 to %d", checkup.MaxStreamSize), nethttp.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(n))
	block := make([]byte, min(n, 16<<10))
	for n > 0 {
		sent, err := w.Write(block[:min(n, len(block))])
		if err != nil {
			return
		}
		n -= sent
	}
}

// maxReceptions and maxSeen limit the memory of a responder to about 16 MiB: the number of pairs, and of the words that
// record their requests. Requests beyond the limits are answered, but not counted, and the count says so.
const (
	maxReceptions = 50_000
	maxSeen       = 1 << 20
)

// receptions counts distinct requests by pair and look.
type receptions struct {
	mu     sync.Mutex // guards following
	pairs  map[counted]*reception
	words  int  // of all pairs' seen
	newest int  // look
	partly bool // some requests are not counted
	// dropped packets of all pairs of a family, in all looks and by look.
	dropped map[checkup.IPFamily]int
	inLook  map[dropping]int
}

// counted is what is counted for itself.
type counted struct {
	checkup.Pair
	look int
}

// dropping is a look at a family.
type dropping struct {
	family checkup.IPFamily
	look   int
}

type reception struct {
	nonce    uint64
	seen     []uint64 // a bit per sequence number
	packets  int
	reported bool
}

// count records a request. Another nonce means that the agent was restarted: the count starts again.
func (r *receptions) count(p packet) {
	if p.sequence >= maxTries*checkup.MaxCount {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	key := counted{p.pair, p.look()}
	r.newest = max(r.newest, key.look)
	of := r.pairs[key]
	if of == nil || of.nonce != p.nonce {
		if of == nil && len(r.pairs) >= maxReceptions {
			r.skip()
			return
		}
		if r.pairs == nil {
			r.pairs = map[counted]*reception{}
		}
		if of != nil {
			r.words -= len(of.seen)
		}
		of = &reception{nonce: p.nonce}
		r.pairs[key] = of
	}
	word, bit := int(p.sequence/64), uint64(1)<<(p.sequence%64)
	if grow := word + 1 - len(of.seen); grow > 0 {
		if r.words+grow > maxSeen {
			r.skip()
			return
		}
		r.words += grow
		of.seen = append(of.seen, make([]uint64, grow)...)
	}
	if of.seen[word]&bit == 0 {
		of.seen[word] |= bit
		of.packets++
		of.reported = false
	}
}

// skip records that a request is not counted: any one pair is reported again.
func (r *receptions) skip() {
	if r.partly {
		return
	}
	r.partly = true
	for _, of := range r.pairs {
		of.reported = false
		return
	}
}

// drop records the number of dropped packets of a family so far, in all looks. The increase belongs to the newest look:
// any one pair of that look and family is reported again with the number.
func (r *receptions) drop(family checkup.IPFamily, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n <= r.dropped[family] {
		return
	}
	if r.dropped == nil {
		r.dropped, r.inLook = map[checkup.IPFamily]int{}, map[dropping]int{}
	}
	r.inLook[dropping{family, r.newest}] += n - r.dropped[family]
	r.dropped[family] = n
	for key, of := range r.pairs {
		if key.Family == family && key.look == r.newest {
			of.reported = false
			return
		}
	}
}

// write writes the receptions that changed since the last call.
func (r *receptions) write(lines *lineWriter) error {
	for _, m := range r.changed() {
		if err := lines.write(m); err != nil {
			return err
		}
	}
	return nil
}

func (r *receptions) changed() []checkup.Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ms []checkup.Message
	for key, of := range r.pairs {
		if !of.reported {
			of.reported = true
			ms = append(ms, checkup.Message{Reception: &checkup.Reception{
				Pair: key.Pair, Look: key.look, Packets: of.packets, Dropped: r.inLook[dropping{key.Family, key.look}],
				Incomplete: r.partly,
			}})
		}
	}
	slices.SortFunc(ms, func(a, b checkup.Message) int {
		p, q := a.Reception, b.Reception
		return cmp.Or(cmp.Compare(p.Look, q.Look), cmp.Compare(p.Source, q.Source), cmp.Compare(p.Target, q.Target),
			cmp.Compare(p.Family, q.Family), cmp.Compare(p.Size, q.Size))
	})
	return ms
}
