// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/ingest"
)

// streams is how many logs are followed at once: each is a connection through
// the API server to a kubelet. What agents beyond it report stays in their log until
// a stream is free.
const streams = 64

// clockSlack is how far a node's clock may be set back without a loss: the log is
// read again from so long before its newest result.
const clockSlack = time.Minute

// collect reads the log of one agent until its end message arrived, or nothing more
// can arrive, or ctx is done. It returns what went wrong with reading: the last error,
// or empty.
func (m *measuring) collect(ctx context.Context, a *agent) (trouble string) {
	for last := 0; ; {
		pod, gone := a.state()
		if gone {
			return ""
		}
		ended := pod != nil && over(pod)
		if pod != nil && started(pod) {
			err := m.read(ctx, a, !ended)
			switch {
			case a.reported.End() != nil:
				return ""
			case errors.Is(err, ingest.ErrGarbage):
				return OneLine(err.Error())
			case ctx.Err() != nil:
				return trouble
			case err == nil:
				trouble = ""
			default:
				trouble = OneLine(err.Error())
			}
			// The log of a pod that is over is complete, unless its kubelet could not
			// be asked, or the last lines are late: an agent that exits with code 0
			// has written its end message, but containerd reports the exit without
			// waiting for its logger (NewCRILogger in its package pkg/cri/io).
			if last++; ended && (err == nil && pod.Status.Phase == corev1.PodFailed || last >= tries) {
				return trouble
			}
			if !ended {
				last = 0
			}
		} else if ended {
			return ""
		}
		wait := time.Hour
		if pod != nil && started(pod) {
			wait = m.retry()
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return trouble
		case <-a.changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// read reads the log of an agent. What the log repeats is ignored (package ingest), so
// that a stream that broke is simply opened again. It begins where the newest result
// was taken, because a log may be long, and at the beginning before there is one. The
// kubelet begins a new file when a log has grown to 10 MiB or so: an open stream
// continues with it, and one that is opened then begins there.
//
// read leaves a log at the agent's end message: the kubelet ends the stream only when it has noticed, up to a second
// later, that the container has exited. It also leaves a log that is silent for a while, to read another one, and to
// detect a dead connection, and a log that grows all the time while others wait.
func (m *measuring) read(ctx context.Context, a *agent, follow bool) error {
	m.waiting.Add(1)
	select {
	case m.slots <- struct{}{}:
		m.waiting.Add(-1)
		defer func() { <-m.slots }()
	case <-m.stopping: // there is no time left to wait
		m.waiting.Add(-1)
	case <-ctx.Done():
		m.waiting.Add(-1)
		return ctx.Err()
	}
	stall := cmp.Or(m.Stall, 30*time.Second)
	stream, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(stall, cancel)
	defer silence.Stop()
	opened, left, ended := time.Now(), false, false
	log, err := m.Log(stream, a.name, a.logFrom(follow))
	a.set(func() { a.mute = m.mute(err) })
	m.consider()
	if err != nil {
		return fmt.Errorf("open its log: %w", err)
	}
	defer log.Close()
	defer context.AfterFunc(stream, func() { log.Close() })()
	garbage, err := ingest.Lines(ingest.Limited(log, a.reported.MaxLog()), func(message checkup.Message) bool {
		if ended {
			return true
		}
		silence.Reset(stall)
		ok := m.take(a, message)
		ended = a.reported.End() != nil
		left = left || follow && m.waiting.Load() > 0 && time.Since(opened) > stall
		if ended || left {
			cancel()
		}
		return ok
	})
	a.garbage = max(a.garbage, garbage)
	switch {
	case ended || left:
		return nil
	case errors.Is(err, ingest.ErrGarbage):
		return fmt.Errorf("read its log: %w", err)
	case stream.Err() != nil:
		return fmt.Errorf("its log was silent for %s", stall)
	case err != nil:
		return fmt.Errorf("read its log: %w", err)
	}
	return nil
}

// logFrom says from where a log is to be read. A line is written after its results were
// measured, by the same clock.
func (a *agent) logFrom(follow bool) *corev1.PodLogOptions {
	options := &corev1.PodLogOptions{Follow: follow}
	if a.inside != nil {
		options.Container = a.inside.container.Name
	}
	if newest := a.reported.Newest(); !newest.IsZero() {
		options.SinceTime = new(metav1.NewTime(newest.Add(-clockSlack)))
	}
	return options
}

// mute reports whether an error of opening a log means that the agent's kubelet does
// not return it, so that waiting rarely helps. An API server that is away comes back;
// and while pairs are watched, a kubelet may be away for a time, too: the agent goes on
// without it.
func (m *measuring) mute(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && (m.w.Connections == nil || m.w.Connections.For == 0)
}

// take takes one message of an agent, and reports whether it is a valid one.
func (m *measuring) take(a *agent, message checkup.Message) bool {
	fresh, ok := a.reported.Take(message)
	if fresh.Observation == nil && len(fresh.Results) == 0 && fresh.Table == nil {
		return ok
	}
	settled := len(fresh.Results)
	if fresh.Observation != nil && a.expected > 0 { // the pair will have no results
		settled += m.w.Measurements(fresh.Observation.Pair)
	}
	a.settled += settled
	fresh.To(m.sink)
	m.advance(func(p *Progress) {
		if fresh.Observation != nil || fresh.Table != nil {
			p.Measured++
		}
		p.Results += settled
	})
	return ok
}
