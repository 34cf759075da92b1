// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// asAgent in the environment makes the test binary the agent.
const asAgent = "CHECKPLAN_TEST_AS_AGENT"

func TestMain(m *testing.M) {
	if os.Getenv(asAgent) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// agent is a command that runs the agent.
func agent(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), asAgent+"=1")
	return cmd
}

func TestExitCodes(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	empty := write("empty.json", "")
	bad := write("bad.json", `{"deadline": "1s"}`)
	good := write("good.json", `{"deadline": "1m", "limits": {"packetsPerSecond": 1000, "concurrency": 1, "startJitter": "0s"},
"probes": [{"transport": "tcp", "sizes": [0], "count": 1, "interval": "0s", "timeout": "1m"}],
"targets": [{"target": 0, "addresses": {"IPv4": "127.0.0.1"}, "ports": {"tcp": 1}}]}`)
	const usage = "agent: usage: agent probe --order FILE | agent probe --order-env NAME | agent respond [--echo ADDRESS] [--http ADDRESS] [--health ADDRESS] [--linger DURATION] | agent version\n"
	for _, test := range []struct {
		args   []string
		code   int
		stderr string // its end
	}{
		{nil, 2, usage},
		{[]string{"help"}, 2, usage},
		{[]string{"probe"}, 2, "agent: probe: want one of --order FILE and --order-env NAME\n"},
		{[]string{"probe", "--order", good, "more"}, 2, "agent: probe: unexpected argument \"more\"\n"},
		{[]string{"probe", "--ordre", good}, 2, "agent: probe: flag provided but not defined: -ordre\n"},
		{[]string{"probe", "--help"}, 0, "with the order, as JSON\n"},
		{[]string{"probe", "--order", filepath.Join(dir, "none.json")}, 1, "agent: cannot read the order: open " + dir + "/none.json: no such file or directory\n"},
		{[]string{"probe", "--order", empty}, 1, "empty.json: cannot read the order: EOF\n"},
		{[]string{"probe", "--order", bad}, 1, "limits.packetsPerSecond: must be at least 1\nlimits.concurrency: must be at least 1\n"},
		{[]string{"probe", "--order", good, "--order-env", "GOOD"}, 2, "want one of --order FILE and --order-env NAME\n"},
		{[]string{"probe", "--order-env", "UNSET"}, 1, "agent: UNSET: cannot read the order: EOF\n"},
		{[]string{"probe", "--order-env", "GOOD"}, 0, ""},
		{[]string{"probe", "--order", good}, 0, ""}, // to a port that refuses: the network, not the tool
		{[]string{"respond", "--echo", "nonsense"}, 1, "agent: cannot listen for TCP echo: listen tcp4: address nonsense: missing port in address\n"},
		{[]string{"version"}, 0, ""},
	} {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			cmd := agent(t.Context(), test.args...)
			order, err := os.ReadFile(good)
			if err != nil {
				t.Fatal(err)
			}
			cmd.Env = append(cmd.Environ(), "GOOD="+string(order))
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			err = cmd.Run()
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			if code := cmd.ProcessState.ExitCode(); code != test.code || !strings.HasSuffix(stderr.String(), test.stderr) || (test.stderr == "") != (stderr.Len() == 0) {
				t.Errorf("exit code %d, %q; want %d, ...%q", code, stderr.String(), test.code, test.stderr)
			}
		})
	}
}

func TestResponderEndsOnSIGTERM(t *testing.T) {
	const echo, http = "127.0.7.7:7007", "127.0.7.7:7080" // loopback addresses that no other test uses
	cmd := agent(t.Context(), "respond", "--echo", echo, "--http", http)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	conn := dialUntil(t, echo)
	defer conn.Close()
	if _, err := io.WriteString(conn, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || stderr.Len() > 0 {
		t.Errorf("got error %v and output %q, want exit code 0 and no output", err, stderr.String())
	}
}

// A responder whose pod terminates goes on answering.
func TestResponderLingers(t *testing.T) {
	const echo, http = "127.0.7.8:7007", "127.0.7.8:7080" // loopback addresses that no other test uses
	cmd := agent(t.Context(), "respond", "--echo", echo, "--http", http, "--health", "127.0.7.8:7081", "--linger", "1h")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	conn := dialUntil(t, echo)
	defer conn.Close()
	for range 2 {
		if _, err := io.WriteString(conn, "x"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("%v, %s: want that only SIGKILL ends it", err, cmd.ProcessState)
	}
}

// On SIGTERM the agent reports known results; it does not report open measurements as failures.
func TestProbeReportsKnownResultsOnSIGTERM(t *testing.T) {
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
	counted, silent := listen(), listen()
	connected := make(chan net.Conn)
	go func() {
		for {
			conn, err := counted.Accept()
			if err != nil {
				return
			}
			conn.Close()
			select {
			case connected <- conn:
			case <-t.Context().Done():
			}
		}
	}()
	order := checkup.Order{
		Limits:     checkup.Limits{PacketsPerSecond: 1000, Concurrency: 1},
		IPFamilies: []checkup.IPFamily{checkup.IPv4},
		Deadline:   checkup.Duration(time.Hour),
		Connections: &checkup.ConnectionSheet{Deadlines: checkup.StageDeadlines{
			Resolve: checkup.Duration(time.Hour), Connect: checkup.Duration(time.Hour), Handshake: checkup.Duration(time.Hour), Response: checkup.Duration(time.Hour)}},
	}
	for i, transport := range []checkup.Transport{checkup.TCP, checkup.TLS} {
		order.Probes = append(order.Probes, checkup.TransportProbe{Transport: transport, Probe: checkup.Probe{
			Sizes: []int{0}, Count: 1000, Interval: checkup.Duration(100 * time.Millisecond), Timeout: checkup.Duration(time.Hour)}})
		order.Targets = append(order.Targets, checkup.OrderTarget{Target: i, Peer: &checkup.Peer{
			Host: "127.0.0.1", Port: []net.Listener{counted, silent}[i].Addr().(*net.TCPAddr).Port, Family: checkup.IPv4, Transport: transport}})
	}
	order.Probes[1].Interval = checkup.Duration(time.Hour)
	b, err := json.Marshal(order)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "order.json")
	if err := os.WriteFile(file, b, 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := agent(t.Context(), "probe", "--order", file)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	reported := make(chan int)
	go func() {
		results := 0
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			var m checkup.Message
			if err := json.Unmarshal(lines.Bytes(), &m); err != nil || m.End != nil || m.Observation != nil {
				t.Errorf("reported %s, %v", lines.Text(), err)
			}
			for _, r := range m.Results {
				if r.Target != 0 || r.Failure != nil || r.Unmeasured != nil {
					t.Errorf("reported %+v", r)
				}
				results++
			}
		}
		reported <- results
	}()
	const connections = 7 // two more than fit in a batch
	for range connections {
		<-connected
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	// The agent may not know the result of the last one yet.
	if n := <-reported; n < connections-1 {
		t.Errorf("got %d results of %d connections", n, connections)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("got %v, want exit code 0", err)
	}
}

// dialUntil connects as soon as something listens.
func dialUntil(t testing.TB, address string) net.Conn {
	t.Helper()
	retry := time.NewTicker(10 * time.Millisecond)
	defer retry.Stop()
	for {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			return conn
		}
		select {
		case <-retry.C:
		case <-t.Context().Done():
			t.Fatal(err)
		}
	}
}
