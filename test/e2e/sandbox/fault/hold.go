// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/florianl/go-nfqueue/v2"
	"github.com/mdlayher/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// HoldVerb is the first argument of the process that Add starts to delay packets: the calling
// program itself. A program that calls Add must pass the arguments after HoldVerb to [Hold], before
// it does anything else.
const HoldVerb = "fault-delay"

// inHolder is set in the environment of a holder. It stops a program that does not know HoldVerb
// and would call Add again, without end.
const inHolder = "CHECKPLAN_FAULT_HOLDER"

const (
	startTime = 10 * time.Second // timeout for a holder to report that it is ready
	stopTime  = 5 * time.Second  // timeout for a holder to exit after SIGTERM, and again after SIGKILL
	lookAgain = time.Second      // how often a holder checks whether it is still needed
	// bufferBytes holds about ten thousand packet notices of the kernel (about 800 bytes each, as
	// the kernel counts) while the holder is not scheduled.
	bufferBytes = 8 << 20
)

// startHolder starts the process that holds the packets of r, and records it. The process waits for
// confirmation that it is recorded, and exits without it: nobody could find it to stop it.
func startHolder(ctx context.Context, dir string, r *Record) (err error) {
	if os.Getenv(inHolder) != "" {
		return fmt.Errorf("this program (%s) must call fault.Hold when its first argument is %s", os.Args[0], HoldVerb)
	}
	log, err := os.Create(logPath(dir, r.ID))
	if err != nil {
		return err
	}
	defer log.Close()
	word, wordIn, err := os.Pipe()
	if err != nil {
		return err
	}
	defer word.Close()
	defer wordIn.Close()
	ready, readyIn, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	defer readyIn.Close()

	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{os.Args[0], HoldVerb, dir, r.ID}
	cmd.Env = append(os.Environ(), inHolder+"=1")
	cmd.Dir = "/"
	cmd.Stdin, cmd.Stdout, cmd.Stderr = word, readyIn, log
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start a process to hold packets: %w", err)
	}
	defer func() {
		if err != nil {
			r.Holder = nil
			_ = cmd.Process.Kill() // the process may have exited already
			_ = cmd.Wait()         // its exit status does not matter
		}
	}()
	readyIn.Close()
	if err := ready.SetReadDeadline(time.Now().Add(startTime)); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = ready.SetReadDeadline(time.Now()) })()
	if _, err := io.ReadFull(ready, make([]byte, len(readyWord))); err != nil {
		logged, _ := os.ReadFile(log.Name()) // an empty log is valid
		return fmt.Errorf("start a process to hold packets: it did not become ready: %w",
			errors.Join(ctx.Err(), err, errors.New(strings.TrimSpace(string(logged)))))
	}
	_, start, err := procStat(cmd.Process.Pid)
	if err != nil {
		return err
	}
	r.Holder = &Process{PID: cmd.Process.Pid, Start: start}
	if err := r.write(dir); err != nil {
		return err
	}
	if _, err := wordIn.Write([]byte{1}); err != nil {
		return fmt.Errorf("start a process to hold packets: it exited too early: %w", err)
	}
	return nil
}

const readyWord = "ready\n"

// stop ends the process and waits until it has exited. It does nothing to a process that has the
// same PID but another start time.
func (p Process) stop() error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// The descriptor refers to the process that had this PID when it was opened. Only now a check
	// of the start time is reliable.
	if !p.alive() {
		return p.reap()
	}
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
		ended, err := pollFor(fd, stopTime)
		if err != nil {
			return err
		}
		if ended {
			return p.reap()
		}
	}
	return errors.New("it did not exit after SIGKILL")
}

// reap waits for the process if it is an exited child of this one.
func (p Process) reap() error {
	if _, start, err := procStat(p.PID); err != nil || start != p.Start {
		return nil
	}
	_, err := unix.Wait4(p.PID, nil, unix.WNOHANG, nil)
	if errors.Is(err, unix.ECHILD) {
		return nil
	}
	return err
}

// pollFor waits until a descriptor is readable, at most for d. It reports whether it is.
func pollFor(fd int, d time.Duration) (bool, error) {
	until := time.Now().Add(d)
	for {
		left := max(time.Until(until), 0)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds()))
		if !errors.Is(err, unix.EINTR) {
			return n > 0, err
		}
	}
}

// Hold is the main function of the process that delays packets without netem. args are the
// arguments after [HoldVerb]. Hold writes to stdout when it is ready, and waits on stdin for
// confirmation that it is recorded. It then delays packets until ctx ends, until the record of its
// fault is gone or names another process, or until a namespace that it serves is gone. When ctx
// ends, it releases the packets that it holds.
func Hold(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	if len(args) != 2 {
		return fmt.Errorf("%s: want a directory and a fault ID; only fault add calls this", HoldVerb)
	}
	dir, id := args[0], args[1]
	r, err := readRecord(dir, id)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	defer g.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, p := range r.Places {
		h := holder{delay: r.Fault.Delay, arrived: make(chan packet, maxHeld)}
		if err := h.bind(p.NetNS, queueNumber(r.ID)); err != nil {
			return fmt.Errorf("hold packets of node %s: %w", p.Node, err)
		}
		g.Go(func() error { return h.run(ctx) })
	}
	if _, err := io.WriteString(stdout, readyWord); err != nil {
		return err
	}
	if _, err := io.ReadFull(stdin, make([]byte, 1)); err != nil {
		return fmt.Errorf("fault %s was not recorded: %w", id, err)
	}
	g.Go(func() error {
		defer cancel()
		look := time.NewTicker(lookAgain)
		defer look.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-look.C:
			}
			now, err := readRecord(dir, id)
			if err != nil || now.Holder == nil || now.Holder.PID != os.Getpid() || now.status() == NodeGone {
				return nil
			}
		}
	})
	return g.Wait()
}

// holder holds back the packets of one netfilter queue.
type holder struct {
	delay   time.Duration
	queue   *nfqueue.Nfqueue
	arrived chan packet // in order of arrival
	failed  chan error  // why no more packets will arrive
	stop    context.CancelFunc
}

// packet is a packet that the kernel holds for the holder.
type packet struct {
	id  uint32
	due time.Time
}

// bind opens the queue of a network namespace and starts to receive from it.
func (h *holder) bind(netns string, number uint16) error {
	f, err := openNetNS(netns)
	if err != nil {
		return err
	}
	defer f.Close()
	// Copy only notices, not packets. Large segments stay whole.
	h.queue, err = nfqueue.Open(&nfqueue.Config{
		NetNS:       int(f.Fd()),
		NfQueue:     number,
		MaxQueueLen: maxHeld,
		Copymode:    nfqueue.NfQnlCopyMeta,
		Flags:       nfqueue.NfQaCfgFlagGSO,
	})
	if err != nil {
		return err
	}
	if err := errors.Join(
		h.queue.Con.SetReadBuffer(bufferBytes),
		h.queue.SetOption(netlink.NoENOBUFS, true),
	); err != nil {
		return errors.Join(err, h.queue.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	h.failed, h.stop = make(chan error, 1), cancel
	err = h.queue.RegisterWithErrorFunc(ctx,
		func(a nfqueue.Attribute) int {
			if a.PacketID == nil {
				return 0
			}
			select {
			case h.arrived <- packet{id: *a.PacketID, due: time.Now().Add(h.delay)}:
				return 0
			case <-ctx.Done():
				return 1
			}
		},
		func(err error) int {
			// ENOENT: the verdict came too late, the link of the packet is gone.
			if errors.Is(err, unix.ENOENT) {
				return 0
			}
			if ctx.Err() == nil {
				h.failed <- err
			}
			return 1
		})
	if err != nil {
		cancel()
		return errors.Join(fmt.Errorf("bind to netfilter queue %d: %w", number, err), h.queue.Close())
	}
	return nil
}

// run releases each packet when it is due, and the rest when ctx ends.
func (h *holder) run(ctx context.Context) error {
	defer h.queue.Close()
	defer h.stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var p packet
	for {
		select {
		case p = <-h.arrived:
		case err := <-h.failed:
			return fmt.Errorf("receive from a netfilter queue: %w", err)
		case <-ctx.Done():
			return h.pass(afterAll(p))
		}
		// Packets leave in the order of arrival: if the last one is due, all before it are due too,
		// and one verdict serves them all.
		for more := true; more; {
			timer.Reset(time.Until(p.due))
			select {
			case <-timer.C:
			case <-ctx.Done():
				return h.pass(afterAll(p))
			}
			last, late := p, true
			for late {
				select {
				case p = <-h.arrived:
					if late = !p.due.After(time.Now()); late {
						last = p
					}
				default:
					more, late = false, false
				}
			}
			if err := h.pass(last); err != nil {
				return err
			}
		}
	}
}

// afterAll returns a packet after all that the kernel holds, of which p has arrived here. Others may be in the queue
// whose notices were not received yet. The kernel numbers packets from 1 and compares numbers as a circle (nfq_id_after).
func afterAll(p packet) packet {
	p.id += 1 << 30
	return p
}

// pass releases a packet and all packets before it.
func (h *holder) pass(p packet) error {
	if err := h.queue.SetVerdictBatch(p.id, nfqueue.NfAccept); err != nil {
		return fmt.Errorf("release packets: %w", err)
	}
	return nil
}
