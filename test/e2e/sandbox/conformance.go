// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// conformanceFocus matches the names of the tests of Services. Other tests do not depend on the service proxy, or also
// depend on something else.
var conformanceFocus = regexp.MustCompile(`\[sig-network\] (Services|EndpointSlice|EndpointSliceMirroring) `)

//go:embed conformance/not-run.yaml
var notRunYAML []byte

// notRun is a test that does not run.
type notRun struct {
	// Test is the name that e2e.test has for it.
	Test string `json:"test"`
	// Proxies are the service proxies with which it does not run. Empty: it runs with none.
	Proxies []string `json:"proxies"`
	Reason  string   `json:"reason"`
}

func (n notRun) on(proxy string) bool {
	return len(n.Proxies) == 0 || slices.Contains(n.Proxies, proxy)
}

// readNotRun reads conformance/not-run.yaml. The error names every bad entry.
func readNotRun(b []byte) ([]notRun, error) {
	var list []notRun
	if err := yaml.UnmarshalStrict(b, &list); err != nil {
		return nil, fmt.Errorf("conformance/not-run.yaml: %w", err)
	}
	var errs []error
	for _, n := range list {
		if !conformanceFocus.MatchString(n.Test) {
			errs = append(errs, fmt.Errorf("%q is not in the focus %s", n.Test, conformanceFocus))
		}
		if n.Reason == "" {
			errs = append(errs, fmt.Errorf("%s: no reason", n.Test))
		}
		for _, proxy := range n.Proxies {
			errs = append(errs, checkServiceProxy(proxy))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("conformance/not-run.yaml: %w", err)
	}
	return list, nil
}

// outcome is what a test did. The zero value is a test that a report does not have.
type outcome struct {
	state string // of ginkgo: passed, skipped, failed, timedout, ...
	why   string // first line of the message; empty if it passed or was not asked to run
}

func (o outcome) String() string {
	state := cmp.Or(o.state, "not in the report")
	if o.why != "" {
		return state + ": " + o.why
	}
	return state
}

// conformanceRun is what the tests did with one service proxy.
type conformanceRun struct {
	proxy    string
	outcomes map[string]outcome // of all tests of the focus, by name
}

// readJUnit reads the outcomes of the tests of the focus from a report of e2e.test.
func readJUnit(b []byte) (map[string]outcome, error) {
	var report struct {
		Suites []struct {
			Cases []struct {
				Name    string `xml:"name,attr"`
				Status  string `xml:"status,attr"`
				Skipped struct {
					Message string `xml:"message,attr"`
				} `xml:"skipped"`
				Failure string `xml:"failure"`
				Error   string `xml:"error"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(b, &report); err != nil {
		return nil, err
	}
	outcomes := map[string]outcome{}
	for _, suite := range report.Suites {
		for _, c := range suite.Cases {
			// Others are steps before and after all tests. Some names end with a space.
			test, ok := strings.CutPrefix(c.Name, "[It] ")
			if !ok || !conformanceFocus.MatchString(test) {
				continue
			}
			// The message of a test that was not asked to run is "skipped".
			reason := strings.TrimPrefix(strings.TrimPrefix(c.Skipped.Message, "skipped"), " - ")
			why, _, _ := strings.Cut(strings.TrimSpace(c.Failure+c.Error+reason), "\n")
			outcomes[strings.TrimSpace(test)] = outcome{c.Status, why}
		}
	}
	return outcomes, nil
}

// reportConformance writes by name which tests passed with which service proxies, and why not with the others. The
// error is about tests that did not pass although they are not in the list of those that do not run, and about entries
// of the list that are wrong.
func reportConformance(w io.Writer, runs []conformanceRun, list []notRun) error {
	tests := map[string]bool{}
	for _, run := range runs {
		for test := range run.outcomes {
			tests[test] = true
		}
	}
	var errs []error
	for _, n := range list {
		if !tests[n.Test] {
			errs = append(errs, fmt.Errorf("conformance/not-run.yaml has a test that does not exist: %s", n.Test))
		}
	}
	lines := map[string][]string{} // by the proxies with which they passed
	counts := map[string]int{}
	for _, test := range slices.Sorted(maps.Keys(tests)) {
		var passed, others []string
		for _, run := range runs {
			o := run.outcomes[test]
			i := slices.IndexFunc(list, func(n notRun) bool { return n.Test == test && n.on(run.proxy) })
			switch {
			case o.state == "passed" && i >= 0:
				errs = append(errs, fmt.Errorf("%s ran on %s, although conformance/not-run.yaml has it", test, run.proxy))
				fallthrough
			case o.state == "passed":
				passed = append(passed, run.proxy)
			case i >= 0:
				others = append(others, fmt.Sprintf("    %s: not run: %s", run.proxy, list[i].Reason))
			default:
				errs = append(errs, fmt.Errorf("%s did not pass on %s: %s", test, run.proxy, o))
				others = append(others, fmt.Sprintf("    %s: %s", run.proxy, o))
			}
		}
		group := strings.Join(passed, ", ")
		counts[group]++
		lines[group] = append(append(lines[group], "  "+test), others...)
	}
	// That of the most proxies comes first. Fields of its name are proxies.
	groups := slices.SortedFunc(maps.Keys(lines), func(a, b string) int {
		return cmp.Or(len(strings.Fields(b))-len(strings.Fields(a)), strings.Compare(a, b))
	})
	for _, group := range groups {
		fmt.Fprintf(w, "%d passed on %s:\n%s\n", counts[group], cmp.Or(group, "none"), strings.Join(lines[group], "\n"))
	}
	return errors.Join(errs...)
}

// runConformance runs the tests on the cluster and reads their outcomes. What they print is in a file NAME.log of the
// directory, their report in junit_NAME_01.xml.
func (c *cluster) runConformance(ctx context.Context, dir string, list []notRun) (conformanceRun, error) {
	run := conformanceRun{proxy: c.ServiceProxy}
	name := strings.ReplaceAll(run.proxy, ":", "-")
	junit, log := filepath.Join(dir, "junit_"+name+"_01.xml"), filepath.Join(dir, name+".log")
	if err := os.Remove(junit); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return run, fmt.Errorf("remove the report of an earlier run: %w", err)
	}
	out, err := os.Create(log)
	if err != nil {
		return run, fmt.Errorf("create the log of the tests: %w", err)
	}
	defer out.Close() // the command has a copy
	bin := filepath.Join(c.build().addonDir("conformance"), "bin")
	// Tests mostly wait: several fit on one CPU.
	args := []string{
		fmt.Sprintf("--procs=%d", 3*runtime.NumCPU()), "--timeout=3h", "--no-color", "--silence-skips",
		"--focus=" + conformanceFocus.String(),
	}
	for _, n := range list {
		if n.on(run.proxy) {
			args = append(args, "--skip="+regexp.QuoteMeta(n.Test)+`\s*$`)
		}
	}
	workers := len(c.Nodes) - len(c.controlPlanes())
	args = append(args, filepath.Join(bin, "e2e.test"), "--",
		"--kubeconfig="+c.kubeconfig(), "--kubectl-path="+filepath.Join(c.BinDir, "kubectl"),
		// Only the first of the processes counts the nodes. The others would skip tests that need two.
		"--num-nodes="+strconv.Itoa(workers),
		"--report-dir="+dir, "--report-prefix="+name+"_")
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "ginkgo"), args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, out, out
	// Its processes have a group of their own: none of them may stay, in whatever way it ends.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = time.Minute
	failed := cmd.Run() // also because a test failed
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // fails if all have ended
	}
	if ctx.Err() != nil {
		return run, ctx.Err()
	}
	b, err := os.ReadFile(junit)
	if err != nil {
		tail, _ := lastLines(log, 20)
		return run, fmt.Errorf("run e2e.test on %s: %w: its log %s ends with:\n%s", run.proxy, cmp.Or(failed, err), log, tail)
	}
	if run.outcomes, err = readJUnit(b); err != nil {
		return run, fmt.Errorf("read the report %s: %w", junit, err)
	}
	return run, nil
}

func conformanceCommand(f *flags) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "conformance PROXY...",
		Short: "Run Kubernetes' own tests of Services on the cluster, with each of these service proxies in turn",
		Args:  usage(cobra.MinimumNArgs(1)),
	}
	cmd.Flags().StringVar(&dir, "output", ".", "directory for the logs and the JUnit reports of the tests")
	cmd.RunE = func(cmd *cobra.Command, proxies []string) error {
		var errs []error
		for _, proxy := range proxies {
			errs = append(errs, checkServiceProxy(proxy))
		}
		if err := errors.Join(errs...); err != nil {
			return usageError{err}
		}
		return conformance(cmd.Context(), *f, proxies, dir, cmd.OutOrStdout(), cmd.ErrOrStderr())
	}
	return cmd
}

// conformance runs the tests on the cluster with each service proxy, and prints the outcomes. It creates the cluster if
// there is none.
func conformance(ctx context.Context, f flags, proxies []string, dir string, stdout, stderr io.Writer) error {
	list, err := readNotRun(notRunYAML)
	if err != nil {
		return err
	}
	if dir, err = filepath.Abs(dir); err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		return fmt.Errorf("create the directory of the reports: %w", err)
	}
	p, err := newPlan(1, 3, 2, "dual")
	if err != nil {
		return err
	}
	var runs []conformanceRun
	for _, proxy := range proxies {
		if err := up(ctx, f, wanted{plan: p, serviceProxy: proxy, with: []string{"conformance"}}, stderr); err != nil {
			return err
		}
		c, err := f.cluster(stderr)
		if err != nil {
			return err
		}
		err = c.progress.step("Kubernetes' tests of Services on "+proxy, func(func(string)) error {
			run, err := c.runConformance(ctx, dir, list)
			runs = append(runs, run)
			return err
		})
		if err != nil {
			return err
		}
	}
	return reportConformance(stdout, runs, list)
}
