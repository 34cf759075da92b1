// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// messages of an agent that carries out an order for tables.
func tablesOf(t *testing.T, ctx context.Context, table func(checkup.IPFamily, io.Writer) *checkup.Cause) []checkup.Message {
	t.Helper()
	var out bytes.Buffer
	order := checkup.Order{
		Source: 3, Deadline: checkup.Duration(time.Minute), IPFamilies: checkup.IPFamilies,
		Tables: &checkup.TableSheet{Interval: checkup.Duration(time.Millisecond)},
	}
	if err := checkOrder(order); err != nil {
		t.Fatal(err)
	}
	if err := (Agent{Order: order, Version: "v", Out: &out, Table: table}).Run(ctx); err != nil {
		t.Fatal(err)
	}
	return messages(t, out.Bytes())
}

// TestReadTables: each family is read twice, in parts; what is the same is not sent again, and what cannot be read has
// the cause.
func TestReadTables(t *testing.T) {
	noise := make([]byte, 3*tablePart/2) // it cannot be compressed
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	reads := map[checkup.IPFamily]int{}
	got := tablesOf(t, t.Context(), func(f checkup.IPFamily, w io.Writer) *checkup.Cause {
		if reads[f]++; f == checkup.IPv6 {
			fmt.Fprintf(w, "look %d", reads[f])
			if reads[f] == 2 {
				return &checkup.Cause{Stage: checkup.StageRules, Reason: checkup.ReasonForbidden, Message: "no right"}
			}
			return nil
		}
		_, _ = w.Write(noise)
		return nil
	})
	var lines []string
	for _, m := range got {
		switch {
		case m.Start != nil:
			lines = append(lines, fmt.Sprintf("start of %d", m.Start.Source))
		case m.Table != nil:
			line := fmt.Sprintf("%s look %d part %d", m.Table.Family, m.Table.Look, m.Table.Part)
			if m.Table.Last {
				line += " last"
			}
			if m.Table.Same {
				line += " same"
			}
			if m.Table.Unmeasured != nil {
				line += " " + m.Table.Unmeasured.String()
			}
			if (len(m.Table.Data) > 0) == (m.Table.Same || m.Table.Unmeasured != nil) || len(m.Table.Data) > tablePart {
				t.Errorf("%s: %d bytes", line, len(m.Table.Data))
			}
			lines = append(lines, line)
		case m.End != nil:
			lines = append(lines, fmt.Sprintf("end of %d", m.End.Tables))
		}
	}
	const want = `start of 3
IPv4 look 0 part 0
IPv4 look 0 part 1 last
IPv6 look 0 part 0 last
IPv4 look 1 part 0 last same
IPv6 look 1 part 0 last rules: no right
end of 4`
	if text := strings.Join(lines, "\n"); text != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
}

// TestReadTablesStopped: an agent that is stopped between the looks reports no end.
func TestReadTablesStopped(t *testing.T) {
	ctx, stop := context.WithCancelCause(t.Context())
	got := tablesOf(t, ctx, func(f checkup.IPFamily, w io.Writer) *checkup.Cause {
		if f == checkup.IPv6 {
			stop(errors.New("stopped"))
		}
		return nil
	})
	if last := got[len(got)-1]; last.Table == nil || last.Table.Look != 0 || last.Table.Family != checkup.IPv6 {
		t.Errorf("the last message is %+v", last)
	}
}
