// SPDX-License-Identifier: Apache-2.0

package console

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// The transcripts of iputils 20221126 and BusyBox 1.35 are of real pings, between
// network namespaces; the others were written after their sources.
func TestObservation(t *testing.T) {
	pair := checkup.Pair{Source: 1, Target: 2, Family: checkup.IPv4, Transport: checkup.ICMP, Size: 56}
	timedOut := &checkup.Cause{Stage: checkup.StageEcho, Message: "timed out after 5s"}
	connect := func(words string) *checkup.Cause {
		return &checkup.Cause{Stage: checkup.StageConnect, Message: words}
	}
	echo := func(words string) *checkup.Cause { return &checkup.Cause{Stage: checkup.StageEcho, Message: words} }
	unmeasured := func(stage checkup.Stage, words string) checkup.Observation {
		return checkup.Observation{Unmeasured: &checkup.Cause{Stage: stage, Message: words}}
	}
	tests := map[string]struct {
		ordered int
		want    checkup.Observation
	}{
		"iputils-20221126-ipv4":                      {5, checkup.Observation{Sent: 5, Received: 5, RTTs: []int64{124, 51, 70, 35, 54}}},
		"iputils-20221126-ipv6":                      {5, checkup.Observation{Sent: 5, Received: 5, RTTs: []int64{58, 80, 52, 47, 76}}},
		"iputils-20221126-loss":                      {10, checkup.Observation{Sent: 10, Received: 7, RTTs: []int64{38, 56, 46, 38, 37, 44, 52}, Failure: timedOut}},
		"iputils-20221126-all-lost":                  {3, checkup.Observation{Sent: 3, Failure: timedOut}},
		"iputils-20221126-ipv6-all-lost":             {3, checkup.Observation{Sent: 3, Failure: timedOut}},
		"iputils-20221126-host-unreachable":          {5, checkup.Observation{Sent: 5, Failure: timedOut}}, // it ended before the kernel gave up
		"iputils-20221126-ipv6-unreachable":          {5, checkup.Observation{Sent: 5, Failure: timedOut}},
		"iputils-20221126-filtered":                  {3, checkup.Observation{Sent: 3, Failure: connect("From 10.77.0.2 icmp_seq=3 Packet filtered")}},
		"iputils-20221126-network-unreachable":       {5, checkup.Observation{Sent: 5, Failure: connect("ping: connect: Network is unreachable")}},
		"iputils-20221126-ipv6-network-unreachable":  {5, checkup.Observation{Sent: 5, Failure: connect("ping: connect: Network is unreachable")}},
		"iputils-s20121221-duplicates":               {3, checkup.Observation{Sent: 3, Received: 3, Duplicates: 2, RTTs: []int64{345, 1234000, 12300}}},
		"iputils-s20161105-host-unreachable":         {4, checkup.Observation{Sent: 4, Failure: connect("From 10.77.0.1 icmp_seq=1 Destination Host Unreachable")}},
		"iputils-s20161105-ipv6-address-unreachable": {2, checkup.Observation{Sent: 2, Failure: connect("From fd77::1: icmp_seq=2 Destination unreachable: Address unreachable")}},
		"iputils-20180629-interval":                  {3, unmeasured(checkup.StageSocket, "the guest's ping did not measure; it wrote: ping: cannot flood; minimal interval allowed for user is 200ms")},
		"iputils-20210202-german":                    {3, checkup.Observation{Sent: 3, Received: 2, RTTs: []int64{388, 412}, Failure: timedOut}},
		"iputils-reordered":                          {3, checkup.Observation{Sent: 3, Received: 3, Reordered: 1, RTTs: []int64{201000, 500, 700}}},
		"iputils-damaged":                            {3, unmeasured(checkup.StageCollect, "the guest's ping cannot be trusted: ping reports 3 answers received, but lists 2")},
		"iputils-slow":                               {2, checkup.Observation{Sent: 2, Received: 1, RTTs: []int64{4999000}, Failure: timedOut}},
		"busybox-1.35-ipv4":                          {5, checkup.Observation{Sent: 5, Received: 5, RTTs: []int64{37, 49, 66, 61, 48}}},
		"busybox-1.35-ipv6":                          {5, checkup.Observation{Sent: 5, Received: 5, RTTs: []int64{49, 65, 58, 388, 62}}},
		"busybox-1.35-loss":                          {10, checkup.Observation{Sent: 10, Received: 6, RTTs: []int64{69, 80, 109, 62, 83, 71}, Failure: timedOut}},
		"busybox-1.35-all-lost":                      {3, checkup.Observation{Sent: 3, Failure: timedOut}},
		"busybox-1.35-host-unreachable":              {3, checkup.Observation{Sent: 3, Failure: timedOut}},
		"busybox-1.35-network-unreachable":           {3, checkup.Observation{Sent: 3, Failure: connect("ping: sendto: Network is unreachable")}},
		"busybox-1.35-ipv6-network-unreachable":      {3, checkup.Observation{Sent: 3, Failure: connect("ping: sendto: Network is unreachable")}},
		"busybox-1.31-duplicates":                    {2, checkup.Observation{Sent: 2, Received: 2, Duplicates: 1, RTTs: []int64{345, 401}}},
		"busybox-1.31-permission":                    {2, unmeasured(checkup.StageSocket, "the guest's ping did not measure; it wrote: ping: permission denied (are you root?)")},
		"busybox-stopped":                            {2, unmeasured(checkup.StageCollect, "the guest's ping stopped before its end; it wrote: ping: sendto: Network is unreachable")},
		"iputils-different-address":                  {3, checkup.Observation{Sent: 3, Received: 1, RTTs: []int64{401}, Failure: echo("an answer came from another address")}},
		"iputils-corrupted":                          {3, checkup.Observation{Sent: 3, Received: 1, RTTs: []int64{401}, Failure: echo("an answer had other data than its request")}},
		"inetutils-2.4":                              {2, checkup.Observation{Sent: 2, Received: 2, RTTs: []int64{318, 291}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b, err := os.ReadFile(filepath.Join("testdata/ping", name+".txt"))
			if err != nil {
				t.Fatal(err)
			}
			for _, end := range []string{"\n", "\r\n"} {
				tt.want.Pair = pair
				text := strings.ReplaceAll(string(b), "\n", end)
				if diff := cmp.Diff(tt.want, parsePing(text).observation(pair, tt.ordered, 5*time.Second)); diff != "" {
					t.Errorf("lines ending in %q (-want +got):\n%s", end, diff)
				}
			}
			if got := parsePing(string(b)).observation(pair, tt.ordered-1, 5*time.Second); tt.want.Unmeasured == nil && parsePing(string(b)).summary && got.Unmeasured == nil {
				t.Errorf("more echo requests than were ordered are believed: %+v", got)
			}
		})
	}
	files, err := filepath.Glob("testdata/ping/*.txt")
	if err != nil || len(files) != len(tests) {
		t.Errorf("%d transcripts, of which %d are tested, %v", len(files), len(tests), err)
	}
}

// Whatever a ping writes, what is made of it is an observation that the report
// takes.
func FuzzPing(f *testing.F) {
	files, err := filepath.Glob("testdata/ping/*.txt")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(b), 5)
	}
	f.Fuzz(func(t *testing.T, text string, ordered int) {
		ordered = min(max(1, ordered), checkup.MaxEchoes)
		o := parsePing(text).observation(checkup.Pair{}, ordered, 5*time.Second)
		switch {
		case o.Unmeasured != nil && o.Unmeasured.Message != "":
		case o.Sent < 0 || o.Sent > ordered || o.Received > o.Sent || o.Received != len(o.RTTs) || o.Duplicates < 0 || o.Reordered < 0,
			o.Received < o.Sent && o.Failure == nil,
			slices.ContainsFunc(o.RTTs, func(rtt int64) bool { return rtt < 0 || rtt > 5_000_000 }):
			t.Errorf("%q: %+v", text, o)
		}
	})
}

func FuzzPlain(f *testing.F) {
	for _, s := range []string{"localhost:~# \x1b[6n", "\x1b]0;title\x07$ ", "\x1b[?2004h\x1b[01;32muser\x1b[0m\r\n", "\x1b", "\x1b[", "\x1bP\x1b", "\xff\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if got := plain(s); strings.ContainsAny(got, "\x1b\x00\r\x07") || strings.Count(got, "\n") > strings.Count(s, "\n") {
			t.Errorf("%q reads %q", s, got)
		}
		tail := tail{[]byte(s)}
		if strings.Contains(tail.lines(), "\n") {
			t.Errorf("%q: %q is not one line", s, tail.lines())
		}
	})
}

func TestPlain(t *testing.T) {
	for s, want := range map[string]string{
		"localhost:~# \x1b[6n":                    "localhost:~# ",
		"\x1b]0;root@vm\x07root# ":                "root# ",
		"\x1b]0;root@vm\x1b\\root# ":              "root# ",
		"\x1b[?2004h\x1b[01;32muser\x1b[0m$ \r\n": "user$ \n",
		"\x1b(B\x1b[m a \x1bc":                    " a ",
		"\x1b]0;cut off":                          "",
		"\x1b]0;cut off\nnext":                    "\nnext",
		"caf\xe9 caf\xc3\xa9":                     "caf? caf\u00e9",
		"plain":                                   "plain",
	} {
		if got := plain(s); got != want {
			t.Errorf("%q reads %q, want %q", s, got, want)
		}
	}
}

func TestPromptOf(t *testing.T) {
	for text, want := range map[string]prompt{
		"":          noPrompt,
		"Booting\n": noPrompt,
		"Debian GNU/Linux 12 vm ttyS0\n\nvm login: ": loginPrompt,
		"Last login: ":                      passwordPrompt, // what follows says that it is no prompt
		"Last login: Mon Jan 1 on ttyS0\n":  noPrompt,
		"Password: ":                        passwordPrompt,
		"Passwort: ":                        passwordPrompt,
		"パスワード：":                            passwordPrompt,
		"localhost:~# ":                     otherPrompt,
		"user@vm:~$ ":                       otherPrompt,
		"login: [   12.3] a kernel message": otherPrompt,
	} {
		if got := promptOf(text); got != want {
			t.Errorf("%q is prompt %d, want %d", text, got, want)
		}
	}
}
