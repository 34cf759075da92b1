// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// quick is the timing of guests that are on this machine.
var quick = timing{
	wake: 500 * time.Millisecond, quiet: 50 * time.Millisecond, prompt: 3 * time.Second,
	refusals: []time.Duration{10 * time.Millisecond, 20 * time.Millisecond}, command: 10 * time.Second, poll: 50 * time.Millisecond,
}

// fakePing is a ping in a guest: as iputils', for users other than root, or as
// BusyBox', by its name. 10.0.0.1 and fd00::1 are the guest's own addresses,
// those that end in 6 nobody has, and of others every fourth request is lost.
const fakePing = `#!/bin/sh
kind=%s
case "$*" in
*-V*) [ $kind = iputils ] && echo "ping from iputils 20221126" && exit 0; echo "ping: invalid option -- 'V'"; echo "BusyBox v1.36.1 multi-call binary."; exit 1;;
esac
interval=1 count=1000 six=
while [ $# -gt 1 ]; do
	case $1 in
	-n) [ $kind = iputils ] || { echo "ping: invalid option -- 'n'"; exit 1; };;
	-6) [ $kind = old ] && { echo "ping: invalid option -- '6'"; exit 1; }; six=1;;
	-i) interval=$2; shift;;
	-c) count=$2; shift;;
	-[sW]) shift;;
	esac
	shift
done
case $kind-$interval in
iputils-0.1) echo "ping: cannot flood; minimal interval allowed for user is 200ms"; exit 2;;
old-0*) echo "ping: invalid number '$interval'"; exit 1;;
esac
case $kind-$0-$1 in old-*ping-*:*) echo "ping: bad address '$1'"; exit 1;; esac
echo "PING $1 ($1): 56 data bytes"
i=0 received=0
while [ $i -lt $count ]; do
	case $1 in
	*[.:]6) ;;
	*[.:]1) echo "64 bytes from $1: seq=$i ttl=64 time=0.050 ms"; received=$((received + 1));;
	*) [ $((i %% 4)) = 3 ] || { echo "64 bytes from $1: seq=$i ttl=64 time=1.$i ms"; received=$((received + 1)); };;
	esac
	i=$((i + 1))
done
sleep %s
echo "--- $1 ping statistics ---"
echo "$count packets transmitted, $received packets received, $(( 100 - 100 * received / count ))%% packet loss"
`

// guestOf is a guest with a login and a shell on its console.
type guestOf struct {
	shell []string
	ping  string // kind of fakePing; empty is none
	took  string // seconds that a ping takes
	// loggedIn says that the shell is there already.
	loggedIn bool
	password string
	// motd comes before the shell.
	motd string
	ps1  string
}

// serve puts the guest on the line, until the test ends.
func (g guestOf) serve(t *testing.T, l *line) {
	t.Helper()
	home := t.TempDir()
	bin := filepath.Join(home, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ping", "ping6"} {
		if g.ping == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(bin, name), fmt.Appendf(nil, fakePing, g.ping, g.took), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// Interactive shells read $ENV: this machine's own ping is not to be found, nor
	// the one that is built into BusyBox.
	env := filepath.Join(home, "env")
	hide := "command() { return 1; }\n"
	if g.ping != "" {
		hide = fmt.Sprintf("ping() { %[1]s/ping \"$@\"; }\nping6() { %[1]s/ping6 \"$@\"; }\n", bin)
	}
	if err := os.WriteFile(env, []byte(hide), 0o644); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	stop := make(chan func(), 1)
	go func() {
		defer close(ended)
		if !g.loggedIn && !g.getty(l) {
			return
		}
		l.say([]byte(g.motd))
		master, slave, err := openPTY()
		if err != nil {
			t.Error(err)
			return
		}
		cmd := exec.Command(g.shell[0], g.shell[1:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		cmd.Dir = home
		cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "HOME=" + home, "PS1=" + g.ps1, "TERM=vt220", "ENV=" + env, "TMPDIR=" + home}
		if err := cmd.Start(); err != nil {
			t.Error(err)
			return
		}
		slave.Close()
		stop <- func() {
			cmd.Process.Kill()
			master.Close()
		}
		var wg sync.WaitGroup
		wg.Go(func() { io.Copy(onlyWriter{l.guest}, master) })
		wg.Go(func() { io.Copy(master, onlyReader{l.guest}) })
		cmd.Wait() // killed
		wg.Wait()
	}()
	t.Cleanup(func() {
		l.hangUp()
		select {
		case kill := <-stop:
			kill()
		case <-ended:
		}
		<-ended
	})
}

type (
	onlyReader struct{ io.Reader }
	onlyWriter struct{ io.Writer }
)

// getty asks for the user and the password until they are right, as a terminal
// does: with an echo, and lines that can be killed.
func (g guestOf) getty(l *line) bool {
	typed := bufio.NewReader(onlyReader{l.guest})
	ask := func(prompt string, echo bool) (string, bool) {
		l.say([]byte(prompt))
		s, err := typed.ReadString('\n')
		if i := strings.LastIndexAny(s, killLine+interrupt); i >= 0 {
			s = s[i+1:]
		}
		s = strings.TrimSpace(s)
		if echo {
			l.say([]byte(s))
		}
		l.say([]byte("\r\n"))
		return s, err == nil
	}
	for {
		user, ok := ask("\r\nWelcome to a guest\r\n\r\nguest login: ", true)
		if !ok {
			return false
		}
		if user == "" {
			continue
		}
		password, ok := ask("Password: ", false)
		if !ok {
			return false
		}
		if user == "fedora" && password == g.password {
			return true
		}
		l.say([]byte("Login incorrect\r\n"))
	}
}

// openPTY opens a terminal: what is written to the one end is what is typed at the
// other.
func openPTY() (master, slave *os.File, err error) {
	// Without O_NONBLOCK a close would wait for the read that is under way.
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	master = os.NewFile(uintptr(fd), "/dev/ptmx")
	var unlock int32
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCSPTLCK, uintptr(unsafe.Pointer(&unlock))); errno != 0 {
		return nil, nil, errno
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		return nil, nil, err
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	return master, slave, err
}

// shells of guests, those that this machine has.
func shells(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for name, shell := range map[string][]string{"sh": {"sh", "-i"}, "bash": {"bash", "--norc", "-i"}, "ash": {"busybox", "ash", "-i"}} {
		if path, err := exec.LookPath(shell[0]); err == nil {
			all[name] = append([]string{path}, shell[1:]...)
		}
	}
	if all["sh"] == nil {
		t.Fatal("this machine has no sh")
	}
	return all
}

func loginOrder(interval time.Duration) checkup.Order {
	address := func(n int) map[checkup.IPFamily]string {
		return map[checkup.IPFamily]string{checkup.IPv4: fmt.Sprintf("10.0.0.%d", n), checkup.IPv6: fmt.Sprintf("fd00::%d", n)}
	}
	return checkup.Order{
		Source: 4, Deadline: checkup.Duration(time.Minute), IPFamilies: checkup.IPFamilies, Own: address(1), Unused: address(6),
		Targets: []checkup.OrderTarget{{Target: 5, Addresses: address(2)}},
		Probes: []checkup.TransportProbe{{Transport: checkup.ICMP, Probe: checkup.Probe{
			Sizes: []int{56}, Count: 8, Interval: checkup.Duration(interval), Timeout: checkup.Duration(5 * time.Second)}}},
	}
}

// loginMessages of it, by fakePing.
func loginMessages(version string) []checkup.Message {
	ms := []checkup.Message{{Start: &checkup.AgentStart{Source: 4, Version: version, Pairs: 2}}}
	for _, f := range checkup.IPFamilies {
		own, unused := "10.0.0.1", "10.0.0.6"
		if f == checkup.IPv6 {
			own, unused = "fd00::1", "fd00::6"
		}
		ms = append(ms, checkup.Message{Control: &checkup.Control{Family: f, Name: "self", OK: true, Message: own + ": 3 of 3 answered"}},
			checkup.Message{Control: &checkup.Control{Family: f, Name: "closed", OK: true, Message: unused + ": 0 of 3 answered"}})
	}
	for _, f := range checkup.IPFamilies {
		ms = append(ms, checkup.Message{Observation: &checkup.Observation{
			Pair: checkup.Pair{Source: 4, Target: 5, Family: f, Transport: checkup.ICMP, Size: 56}, Sent: 8, Received: 6,
			RTTs: []int64{1000, 1100, 1200, 1400, 1500, 1600}, Failure: &checkup.Cause{Stage: checkup.StageEcho, Message: "timed out after 5s"}}})
	}
	return append(ms, checkup.Message{End: &checkup.AgentEnd{Observations: 2}})
}

func TestLogin(t *testing.T) {
	for name, shell := range shells(t) {
		for _, tt := range []struct {
			name    string
			guest   guestOf
			set     func(*line)
			version string
		}{
			{name: "iputils", guest: guestOf{ping: "iputils", took: "0.2", ps1: `[fedora@guest ~]$ `, motd: "Last login: Mon Jan  1 00:00:00 on ttyS0\r\n"}, version: "ping from iputils 20221126"},
			{name: "busybox", guest: guestOf{ping: "busybox", took: "0.2", ps1: "guest:~# ", motd: "Welcome to Alpine!\r\n\r\n"}, version: "BusyBox v1.36.1 multi-call binary."},
			{name: "old busybox", guest: guestOf{ping: "old", took: "0.2", ps1: "\x1b[32m$\x1b[0m "}, version: "BusyBox v1.36.1 multi-call binary."},
			{name: "logged in already", guest: guestOf{ping: "busybox", took: "0.2", ps1: "# ", loggedIn: true}, version: "BusyBox v1.36.1 multi-call binary."},
			{name: "cuts and noise", guest: guestOf{ping: "iputils", took: "1", ps1: "$ "}, version: "ping from iputils 20221126",
				set: func(l *line) { l.cut, l.noise = 3000, rand.New(rand.NewPCG(7, 7)) }},
		} {
			t.Run(name+"/"+tt.name, func(t *testing.T) {
				t.Parallel()
				l := newLine()
				tt.guest.shell, tt.guest.password = shell, "secret"
				if tt.set != nil {
					tt.set(l)
				}
				tt.guest.serve(t, l)
				var transcript bytes.Buffer
				g := &Guest{Dial: l.dial, Login: &checkup.GuestLogin{User: "fedora", Password: "secret"}, Logf: t.Logf, Transcript: &transcript, times: &quick}
				defer g.Close()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := g.Ready(ctx); err != nil {
					t.Fatalf("%v\n%s", err, plain(transcript.String()))
				}
				var reported []checkup.Message
				if err := g.Measure(ctx, loginOrder(100*time.Millisecond), func(m checkup.Message) { reported = append(reported, m) }); err != nil {
					t.Fatalf("%v\n%s", err, plain(transcript.String()))
				}
				if diff := cmp.Diff(loginMessages(tt.version), reported); diff != "" {
					t.Errorf("(-want +reported):\n%s\n%s", diff, plain(transcript.String()))
				}
			})
		}
	}
}

func TestLoginErrors(t *testing.T) {
	shell := shells(t)["sh"]
	for _, tt := range []struct {
		name  string
		guest guestOf
		want  []string
	}{
		{"wrong password", guestOf{password: "other", ping: "busybox"}, []string{`refused the login of user "fedora" 3 times`, "Login incorrect", "guest login:"}},
		{"no ping", guestOf{password: "secret", ps1: "$ "}, []string{"the guest has no ping"}},
		{"no shell", guestOf{password: "secret", motd: "Enter your token: "}, []string{`no shell on the guest's console: waiting for`, "deadline exceeded", "Enter your token:"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := newLine()
			tt.guest.shell, tt.guest.took = shell, "0"
			if tt.name == "no shell" {
				tt.guest.shell = []string{"/bin/sleep", "60"}
			}
			tt.guest.serve(t, l)
			g := &Guest{Dial: l.dial, Login: &checkup.GuestLogin{User: "fedora", Password: "secret"}, times: &quick}
			defer g.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			err := g.Ready(ctx)
			for _, want := range tt.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v\nwant it to say %q", err, want)
				}
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("%v\nholds the password", err)
			}
		})
	}
}

// A guest that shows nothing at all.
func TestLoginSilent(t *testing.T) {
	l := newLine()
	t.Cleanup(l.hangUp)
	g := &Guest{Dial: l.dial, Login: &checkup.GuestLogin{User: "fedora", Password: "secret"}, times: &quick}
	defer g.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err := g.Ready(ctx)
	if err == nil || !strings.Contains(err.Error(), "no shell on the guest's console: waiting for a login prompt or a shell: context deadline exceeded, after 1s; the console showed nothing") {
		t.Error(err)
	}
}

// Of a line that the console did not accept before the deadline, that is reported,
// and not that the connection was closed for it.
func TestSendOutOfTime(t *testing.T) {
	ours, theirs := net.Pipe() // from which nobody reads
	defer theirs.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	c := &connection{rw: ours, gone: make(chan struct{})}
	if err := c.send(ctx, []byte("id\n")); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errLost) {
		t.Errorf("%v", err)
	}
	if c.alive() {
		t.Error("half a line may have been written, and the connection is still used")
	}
}

// A connection that is closed because the time is over is not reported as lost.
func TestLostOutOfTime(t *testing.T) {
	c := &connection{err: io.ErrClosedPipe}
	if err := c.lost(t.Context()); !errors.Is(err, errLost) {
		t.Errorf("%v, want that the connection was lost", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	if err := c.lost(ctx); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errLost) {
		t.Errorf("%v, want that the deadline was exceeded", err)
	}
}

func TestLoginOrders(t *testing.T) {
	good := loginOrder(time.Second)
	for name, spoil := range map[string]func(*checkup.Order){
		"measures only icmp":                         func(o *checkup.Order) { o.Probes[0].Transport = checkup.UDP },
		"the order has no IPv4 address of the guest": func(o *checkup.Order) { o.Own = nil },
		"has an invalid address":                     func(o *checkup.Order) { o.Targets[0].Addresses[checkup.IPv4] = "10.0.0.1; reboot" },
	} {
		o := good
		o.Probes = slices.Clone(o.Probes)
		o.Targets = []checkup.OrderTarget{{Addresses: map[checkup.IPFamily]string{checkup.IPv4: "10.0.0.2"}}}
		spoil(&o)
		g := &Guest{Login: &checkup.GuestLogin{}}
		if err := g.Measure(t.Context(), o, func(checkup.Message) {}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, want it to say %q", err, name)
		}
	}
}
