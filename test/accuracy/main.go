// SPDX-License-Identifier: Apache-2.0

// Command accuracy measures how right the verdicts and findings of a pod mesh are: it simulates networks with known
// faults and noise, packet by packet, and has the real sampler, judge and localiser work on them. docs/accuracy.md
// describes it and has its table.
package main

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

func main() {
	nodes := flag.String("nodes", "12,50,200,1000", "numbers of nodes, separated by commas")
	degrees := flag.String("degrees", "3,5,10", "degrees of the sample, separated by commas")
	seeds := flag.Uint64("seeds", 50, "runs of each cell")
	cases := flag.String("cases", "", "cases, separated by commas; empty means all")
	only := flag.String("noise", "", "noises, separated by commas; empty means all")
	wrong := flag.Bool("v", false, "print each run whose verdict or findings are wrong")
	file := flag.String("keep", "", "a file that keeps the cells: those in it are not measured again by the same program")
	cost := flag.Bool("cost", false, "print time and memory of judging instead, one run at a time")
	flag.Parse()
	settings, err := settingsOf(*nodes, *degrees, *cases, *only)
	switch {
	case err != nil:
	case *cost:
		err = costs(settings, *seeds)
	default:
		debug.SetGCPercent(400) // a worker has at most 250 MB: time matters more
		var k *kept
		if *file != "" {
			k, err = keep(*file)
		}
		if err == nil {
			err = table(settings, *seeds, k, *wrong)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "accuracy:", err)
		os.Exit(1)
	}
}

// settingsOf returns the cells of the table that the flags select.
func settingsOf(nodes, degrees, cases, only string) ([]setting, error) {
	numbers := func(list string) (numbers []int, err error) {
		for s := range strings.SplitSeq(list, ",") {
			n, e := strconv.Atoi(s)
			numbers, err = append(numbers, n), errors.Join(err, e)
		}
		return numbers, err
	}
	sizes, err := numbers(nodes)
	samples, err2 := numbers(degrees)
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	selected := func(list, name string) bool {
		return list == "" || slices.Contains(strings.Split(list, ","), name)
	}
	var settings []setting
	for _, c := range scenarios {
		for _, n := range noises {
			for _, size := range sizes {
				for _, degree := range samples {
					if selected(cases, c.name) && selected(only, n.name) {
						settings = append(settings, setting{c, n, size, degree})
					}
				}
			}
		}
	}
	if len(settings) == 0 {
		return nil, errors.New("no such case or noise")
	}
	return settings, nil
}

// cell is what was measured in one cell of the table.
type cell struct {
	Runs, Mistaken int // runs, and those with a wrong verdict
	Most           int // findings in one run
	Open, Opened   int // alternatives in the first look, and the runs in which they were counted
	Left           int // alternatives after the second look
	Ours           score
	Slowest        time.Duration
	Baselines      []score           // of the algorithms
	Duels          []duel            // of each algorithm with ours
	Wrong          map[uint64]string `json:",omitempty"` // runs with a wrong verdict or finding, by seed
}

// table prints one row for each setting, as soon as it is measured, and before it the wrong runs if they are wanted. In
// the end it prints one row for each case and noise, for all sizes and degrees together. It returns an error if one of
// the algorithms is better than ours in any of these, beyond chance.
func table(settings []setting, seeds uint64, k *kept, wrong bool) error {
	printHead()
	var joined []setting
	cells := map[string]*cell{}
	for _, s := range settings {
		if key := s.scenario.name + "/" + s.noise.name; cells[key] == nil {
			joined, cells[key] = append(joined, setting{scenario: s.scenario, noise: s.noise}), newCell()
		}
	}
	comparisons := len(settings) + len(joined)
	var single, rows tally
	for _, s := range settings {
		c, err := k.measure(s, seeds)
		if err != nil {
			return err
		}
		if wrong {
			for _, seed := range slices.Sorted(maps.Keys(c.Wrong)) {
				fmt.Printf("seed %d: %s\n", seed, c.Wrong[seed])
			}
		}
		s.print(c, single.compare(c, comparisons))
		cells[s.scenario.name+"/"+s.noise.name].join(c)
	}
	if len(joined) < len(settings) {
		fmt.Println()
		printHead()
		for _, s := range joined {
			c := cells[s.scenario.name+"/"+s.noise.name]
			s.print(c, rows.compare(c, comparisons))
		}
	}
	fmt.Printf("\nbelow the best algorithm: %s\n                          %s\n", single.in("cell"), rows.in("row"))
	if n := single.beyond + rows.beyond; n > 0 {
		return fmt.Errorf("one of the algorithms is better in %s", checkup.Count(n, "cell or row"))
	}
	return nil
}

func printHead() {
	fmt.Printf("| %-18s | %-5s | nodes | deg | runs | wrong | finds |  most | alts before, after |", "case", "noise")
	fmt.Print(" ours P / R  | or among    |")
	for _, a := range algorithms {
		fmt.Printf(" %-11s |", a.name)
	}
	fmt.Printf(" slowest | below |\n|---|---|---|---|---|---|---|---|---|---|---|%s---|---|\n", strings.Repeat("---|", len(algorithms)))
}

// print prints a row, with what compare says of it. A setting of no size is for all of them.
func (s setting) print(c *cell, below string) {
	size, degree := strconv.Itoa(s.nodes), strconv.Itoa(s.degree)
	if s.nodes == 0 {
		size, degree = "all", "all"
	}
	mean := func(of int) float64 { return float64(of) / float64(c.Runs) }
	open := "-"
	if c.Opened > 0 {
		open = fmt.Sprintf("%.2f", float64(c.Open)/float64(c.Opened))
	}
	fmt.Printf("| %-18s | %-5s | %5s | %3s | %4d | %5d | %5.1f | %5d | %11s, %5.2f | %s | %s |",
		s.scenario.name, s.noise.name, size, degree, c.Runs, c.Mistaken,
		mean(c.Ours.Findings), c.Most, open, mean(c.Left), c.Ours.both(c.Ours.Exact), c.Ours.both(c.Ours.Among))
	for _, b := range c.Baselines {
		fmt.Printf(" %s |", b.both(b.Exact))
	}
	fmt.Printf(" %7v | %s |\n", c.Slowest.Round(time.Millisecond), below)
}

func newCell() *cell {
	return &cell{
		Baselines: make([]score, len(algorithms)), Duels: make([]duel, len(algorithms)), Wrong: map[uint64]string{},
	}
}

// join adds the runs of another cell, but not which of them were wrong.
func (c *cell) join(o *cell) {
	c.Runs, c.Mistaken = c.Runs+o.Runs, c.Mistaken+o.Mistaken
	c.Open, c.Opened, c.Left = c.Open+o.Open, c.Opened+o.Opened, c.Left+o.Left
	c.Most, c.Slowest = max(c.Most, o.Most), max(c.Slowest, o.Slowest)
	c.Ours.add(o.Ours)
	for i := range c.Baselines {
		c.Baselines[i].add(o.Baselines[i])
		c.Duels[i].Better += o.Duels[i].Better
		c.Duels[i].Worse += o.Duels[i].Worse
	}
}

// best returns the algorithm with the highest f1, and whether that is above ours.
func (c *cell) best() (i int, above bool) {
	for k := range c.Baselines {
		if c.Baselines[k].f1() > c.Baselines[i].f1() {
			i = k
		}
	}
	return i, c.Baselines[i].f1() > c.Ours.f1()
}

// tally counts the cells and rows in which the best algorithm is above ours, and those in which that is beyond chance.
type tally struct{ all, below, beyond int }

// in counts them in words.
func (t tally) in(noun string) string {
	return fmt.Sprintf("%d of %s, %d of them beyond chance", t.below, checkup.Count(t.all, noun), t.beyond)
}

// compare adds a cell of a table with so many cells and rows, and returns what to print of it: the best algorithm if it
// is above ours, with its chance (see duel), and an exclamation mark if that is at most significance of the whole
// table.
func (t *tally) compare(c *cell, cells int) string {
	t.all++
	i, above := c.best()
	if !above {
		return ""
	}
	t.below++
	mark, chance := "", c.Duels[i].chance()
	if chance <= significance/float64(cells*len(algorithms)) {
		t.beyond++
		mark = "!"
	}
	return fmt.Sprintf("%s %.2g%s", algorithms[i].name, chance, mark)
}

// significance is the probability that chance alone puts an algorithm above ours beyond chance, anywhere in a table in
// which all are alike. It is divided by the number of comparisons (Bonferroni).
const significance = 0.05

// measure makes the runs of a setting, on all cores.
func (s setting) measure(seeds uint64) (*cell, error) {
	var mu sync.Mutex
	c := newCell()
	var problem error
	next := make(chan uint64)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for seed := range next {
				t, err := s.run(seed)
				mu.Lock()
				if err != nil {
					problem = err
				} else {
					c.add(seed, t)
				}
				mu.Unlock()
			}
		})
	}
	for seed := range seeds {
		next <- seed
	}
	close(next)
	workers.Wait()
	return c, problem
}

// withoutPaths has zones in place of paths between them: the components of the published algorithms have no paths.
func withoutPaths(causes []string) []string {
	causes = slices.Clone(causes)
	for i, c := range causes {
		if rest, ok := strings.CutPrefix(c, "paths "); ok {
			causes[i] = "zones " + rest
		}
	}
	return causes
}

// add adds a run.
func (c *cell) add(seed uint64, t *trial) {
	want := checkup.RunFail
	if len(t.causes) == 0 {
		want = checkup.RunPass
	}
	c.Runs++
	if t.report.Verdict != want {
		c.Mistaken++
	}
	found := standing(t.report.Findings)
	graded := grade(t.causes, found)
	c.Ours.add(graded)
	c.Most = max(c.Most, graded.Findings)
	c.Slowest = max(c.Slowest, t.took)
	c.Left += t.left
	if t.open >= 0 {
		c.Open, c.Opened = c.Open+t.open, c.Opened+1
	}
	for i, b := range t.baselines {
		other := grade(withoutPaths(t.causes), b)
		c.Baselines[i].add(other)
		switch {
		case other.f1() > graded.f1():
			c.Duels[i].Better++
		case other.f1() < graded.f1():
			c.Duels[i].Worse++
		}
	}
	if t.report.Verdict != want || graded.Exact < max(graded.Causes, graded.Findings) {
		var got []string
		for _, g := range found {
			got = append(got, g.name)
		}
		c.Wrong[seed] = fmt.Sprintf("%s, want %s\n    want %s\n    got  %s",
			t.report.Verdict, want, strings.Join(t.causes, "; "), strings.Join(got, "; "))
	}
}
