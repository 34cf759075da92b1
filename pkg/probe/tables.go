// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"compress/gzip"
	"context"
	mathrand "math/rand/v2"
	"slices"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// tablePart is the most bytes of a table in one message. In JSON it is a third longer: less than the longest line that
// the probe task reads (pkg/ingest MaxLine).
const tablePart = 96 << 10

// readTables reads the table of each family of the order, twice, with the order's interval between the starts, and
// reports each in parts. What could not be read is reported as unmeasured. The end message follows, unless ctx ends.
func (a Agent) readTables(ctx context.Context, lines *lineWriter) error {
	random := mathrand.New(mathrand.NewPCG(a.Order.Seed, uint64(a.Order.Source)))
	start := time.Now()
	if jitter := a.Order.Limits.StartJitter; jitter > 0 {
		start = start.Add(time.Duration(random.Int64N(int64(jitter))))
	}
	var end checkup.AgentEnd
	first := map[checkup.IPFamily][]byte{}
	for look := range checkup.TableLooks {
		if sleepUntil(ctx, start.Add(time.Duration(look)*time.Duration(a.Order.Tables.Interval))) != nil {
			return nil
		}
		for _, family := range a.Order.IPFamilies {
			var compressed bytes.Buffer
			zip := gzip.NewWriter(&compressed)
			cause := a.Table(family, zip)
			_ = zip.Close() // a bytes.Buffer does not fail
			data := compressed.Bytes()
			report := func(p checkup.TablePart) error {
				p.Look, p.Family = look, family
				return lines.write(checkup.Message{Table: &p})
			}
			var err error
			switch {
			case cause != nil:
				err = report(checkup.TablePart{Last: true, Unmeasured: cause})
			case look > 0 && bytes.Equal(data, first[family]):
				err = report(checkup.TablePart{Last: true, Same: true})
			default:
				if look == 0 {
					first[family] = data
				}
				parts := slices.Collect(slices.Chunk(data, tablePart))
				for i := 0; i < len(parts) && err == nil; i++ {
					err = report(checkup.TablePart{Part: i, Last: i == len(parts)-1, Data: parts[i]})
				}
			}
			if err != nil {
				return err
			}
			end.Tables++
		}
	}
	return lines.write(checkup.Message{End: &end})
}
