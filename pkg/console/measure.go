// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// pings is an order that a guest carries out by its own ping.
type pings struct {
	g     *Guest
	order checkup.Order
	// report is called with each message.
	report func(checkup.Message)
	// id of the files, in directory; empty before there is one.
	id, directory string
	version       string
	// jobs are reported in this order, once each: reported is how many were.
	jobs     []*job
	started  bool // the start was reported
	reported int
	// deadline is when what is not measured is reported as unmeasured.
	deadline time.Time
}

// job is one ping.
type job struct {
	address string
	count   int
	timeout time.Duration
	// command is chosen once per family.
	command string
	output  string
	done    bool
	// finish makes the message of what the ping wrote.
	finish func(p pinged) checkup.Message
}

const (
	// controlCount is the number of echo requests to an address whose outcome is known,
	// and controlTimeout how long their answers are waited for.
	controlCount   = 3
	controlTimeout = 2 * time.Second
	// tries is how often output is read that may be damaged on the way.
	tries = 3
)

// loginMeasure carries out an order by the guest's own ping.
func (g *Guest) loginMeasure(ctx context.Context, order checkup.Order, report func(checkup.Message)) error {
	p := &pings{g: g, order: order, report: report, id: rand.Text()}
	if err := p.plan(); err != nil {
		return err
	}
	limit := time.Duration(order.Deadline) + graceOfGuest
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the guest did not finish its order within %s", limit))
	defer cancel()
	p.deadline = time.Now().Add(time.Duration(order.Deadline))
	return g.persist(ctx, false, p.carryOut)
}

// plan makes the jobs of the order: control pairs, then pairs.
func (p *pings) plan() error {
	if len(p.order.Probes) != 1 || p.order.Probes[0].Transport != checkup.ICMP || len(p.order.Probes[0].Sizes) != 1 {
		return errors.New("the guest's own ping measures only icmp, of one size")
	}
	probe := p.order.Probes[0]
	for _, f := range p.order.IPFamilies {
		if !isAddress(p.order.Own[f]) || !isAddress(p.order.Unused[f]) {
			return fmt.Errorf("the order has no %s address of the guest, or no unused one", f)
		}
	}
	control := func(family checkup.IPFamily, name, address string, right func(pinged) bool) {
		p.jobs = append(
			p.jobs,
			&job{address: address, count: controlCount, timeout: controlTimeout, finish: func(out pinged) checkup.Message {
				_, unreachable := out.hasNoWay()
				said := fmt.Sprintf("%s: %d of %d answered", address, len(out.replies), out.sent)
				if !out.summary {
					said = fmt.Sprintf("%s: ping did not finish; %s", address, out.said())
				}
				return checkup.Message{Control: &checkup.Control{Family: family, Name: name, Message: said,
					OK: (out.summary || unreachable) && right(out)}}
			}},
		)
	}
	for _, f := range p.order.IPFamilies {
		control(f, "self", p.order.Own[f], func(out pinged) bool { return len(out.replies) == controlCount })
		control(f, "closed", p.order.Unused[f], func(out pinged) bool { return len(out.replies) == 0 })
	}
	for _, t := range p.order.Targets {
		for _, f := range checkup.IPFamilies {
			address, ok := t.Addresses[f]
			if !ok {
				continue
			}
			if !isAddress(address) {
				return fmt.Errorf("the order's target has an invalid address %q", address)
			}
			pair := checkup.Pair{
				Source:    p.order.Source,
				Target:    t.Target,
				Family:    f,
				Transport: checkup.ICMP,
				Size:      probe.Sizes[0],
			}
			p.jobs = append(
				p.jobs,
				&job{
					address: address,
					count:   probe.Count,
					timeout: time.Duration(probe.Timeout),
					finish: func(out pinged) checkup.Message {
						return checkup.Message{Observation: new(out.observation(pair, probe.Count, time.Duration(probe.Timeout)))}
					},
				},
			)
		}
	}
	return nil
}

func isAddress(s string) bool {
	a, err := netip.ParseAddr(s)
	return err == nil && a.Zone() == ""
}

// carryOut does what is still to be done, on one connection.
func (p *pings) carryOut(ctx context.Context, c *connection, heard func()) error {
	s, err := p.g.loggedIn(ctx, c)
	if err != nil {
		return err
	}
	run := func(patience time.Duration, format string, args ...any) (string, int, error) {
		output, code, err := s.run(ctx, patience, fmt.Sprintf(format, args...))
		if err == nil {
			heard()
		}
		return output, code, err
	}
	t := p.g.timing()
	if p.version == "" {
		output, _, err := run(t.command, "ping -V 2>&1 || ping6 -V 2>&1")
		if err != nil {
			return err
		}
		p.version = versionOf(output)
	}
	if !p.started {
		p.started = true
		p.report(
			checkup.Message{
				Start: &checkup.AgentStart{
					Source:  p.order.Source,
					Version: p.version,
					Pairs:   len(p.jobs) - 2*len(p.order.IPFamilies),
				},
			},
		)
	}
	for _, f := range p.order.IPFamilies {
		if err := p.choose(f, run); err != nil {
			return err
		}
	}
	for try := 0; p.directory == ""; try++ {
		output, _, err := run(
			t.command,
			`for d in "${TMPDIR:-/tmp}" /run /dev/shm /var/tmp "$HOME" .; do mkdir -p "$d/checkplan-%s" 2>/dev/null && cd "$d/checkplan-%s" && pwd && break; done`,
			p.id,
			p.id,
		)
		if err != nil {
			return err
		}
		// A kernel message may be before it, or in the middle of it.
		for line := range strings.Lines(output) {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, "/") && strings.HasSuffix(line, "/checkplan-"+p.id) &&
				!strings.Contains(line, "'") {
				p.directory = line
			}
		}
		if p.directory == "" && try == tries-1 {
			return fmt.Errorf(
				"the guest has no directory to write to: tried ${TMPDIR:-/tmp}, /run, /dev/shm, /var/tmp and its home %s",
				saidLast(output),
			)
		}
	}
	// A job that was started is not started again.
	for i, j := range p.jobs {
		if j.done {
			continue
		}
		if _, _, err := run(t.command, `cd '%s' && { [ -e s%d ] || { : >s%d; ( { %s >o%d 2>&1; echo $? >r%d; } </dev/null & ) ; }; }`, p.directory, i, i, j.command, i, i); err != nil {
			return err
		}
	}
	return p.gather(ctx, run)
}

// gather waits for the pings, and reports what they wrote.
func (p *pings) gather(ctx context.Context, run func(time.Duration, string, ...any) (string, int, error)) error {
	t := p.g.timing()
	for p.reported < len(p.jobs) {
		late := time.Now().After(p.deadline)
		output, code, err := run(
			t.command,
			`cd '%s' && for i in r*; do [ -s "$i" ] && echo "$i"; done; [ -d '%s' ]`,
			p.directory,
			p.directory,
		)
		if err != nil {
			return err
		}
		if code != 0 {
			return errors.New("the guest restarted while it measured: its files are gone")
		}
		ended := strings.Fields(output)
		for i, j := range p.jobs {
			if j.done || !slices.Contains(ended, "r"+strconv.Itoa(i)) {
				continue
			}
			if err := p.fetch(i, j, run); err != nil {
				return err
			}
		}
		for p.reported < len(p.jobs) && (p.jobs[p.reported].done || late) {
			j := p.jobs[p.reported]
			p.reported++
			out := parsePing(j.output)
			if !j.done {
				out.errors = []string{"ping did not finish before the guest's deadline"}
			}
			p.report(j.finish(out))
		}
		if p.reported < len(p.jobs) {
			if err := sleep(ctx, t.poll); err != nil {
				return err
			}
		}
	}
	p.report(checkup.Message{End: &checkup.AgentEnd{Observations: len(p.jobs) - 2*len(p.order.IPFamilies)}})
	return nil
}

// fetch reads what a ping wrote, again if it seems to be damaged: a kernel message may
// be in the middle of it.
func (p *pings) fetch(i int, j *job, run func(time.Duration, string, ...any) (string, int, error)) error {
	for try := range tries {
		output, _, err := run(p.g.timing().command, "cat '%s/o%d'", p.directory, i)
		if err != nil {
			return err
		}
		j.output = output
		if out := parsePing(output); out.summary && out.consistent(j.count) == nil {
			break
		} else if !out.summary && try > 0 {
			break // the second reading has no summary either
		}
	}
	j.done = true
	return nil
}

// versionOf is the version of a ping, in its own words.
func versionOf(output string) string {
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if strings.Contains(line, "iputils") || strings.HasPrefix(line, "BusyBox") {
			return line
		}
	}
	return "unknown ping"
}

// choose finds out how to call the guest's ping for a family, with an interval that it
// accepts: it measures the first job of the family, the guest's own address. The ping
// of iputils refuses intervals below 200 ms to users other than root, and older
// BusyBoxes refuse fractions of a second.
func (p *pings) choose(family checkup.IPFamily, run func(time.Duration, string, ...any) (string, int, error)) error {
	var jobs []*job
	for _, j := range p.jobs {
		if strings.Contains(j.address, ":") == (family == checkup.IPv6) {
			jobs = append(jobs, j)
		}
	}
	if len(jobs) == 0 || jobs[0].command != "" {
		return nil
	}
	numeric := ""
	if strings.Contains(p.version, "iputils") {
		numeric = " -n"
	}
	programs := []string{"ping" + numeric, "ping -4" + numeric}
	if family == checkup.IPv6 {
		programs = []string{"ping -6" + numeric, "ping6" + numeric, "ping" + numeric}
	}
	wanted := time.Duration(p.order.Probes[0].Interval)
	intervals := []time.Duration{wanted}
	for _, i := range []time.Duration{200 * time.Millisecond, time.Second} {
		if i > wanted {
			intervals = append(intervals, i)
		}
	}
	size := p.order.Probes[0].Sizes[0]
	command := func(j *job, program string, interval time.Duration) string {
		return fmt.Sprintf(
			"%s -s %d -i %s -c %d -W %d %s",
			program,
			size,
			seconds(interval),
			j.count,
			int((j.timeout+time.Second-1)/time.Second),
			j.address,
		)
	}
	program, interval := programs[0], wanted
search:
	for _, i := range intervals {
		for _, candidate := range programs {
			output, _, err := run(p.g.timing().command+controlCount*i+controlTimeout, "%s 2>&1", command(jobs[0], candidate, i))
			if err != nil {
				return err
			}
			if out := parsePing(output); out.summary {
				program, interval = candidate, i
				break search
			}
		}
	}
	if interval != wanted {
		p.g.logf(
			"the guest's ping refuses an interval of %s: measuring every %s instead, which takes longer",
			wanted,
			interval,
		)
	}
	for _, j := range jobs {
		// A count that does not fit the deadline is reduced: the report says how many
		// measurements were made.
		if room := time.Until(p.deadline) - j.timeout; j.count > controlCount && time.Duration(j.count)*interval > room {
			j.count = max(1, int(room/interval))
		}
		j.command = command(j, program, interval)
	}
	return nil
}

// seconds writes a duration as ping reads it, without trailing zeros.
func seconds(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64)
}
