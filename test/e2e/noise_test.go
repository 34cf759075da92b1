// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
)

var noisyRuns = flag.Int("noisy", 1, "runs of TestNoise in which only 0.3% of all packets are lost")

// A network that loses 0.3% of all packets passes, also if it is interrupted for two seconds: the second look finds
// that gone. With the ingress of one node dead beside the noise, that is the only finding.
func TestNoise(t *testing.T) {
	fault(t, "loss", "--percent", "0.3")
	inTime := false
	for try := 0; try < 3 && !inTime; try++ { // on a busy machine an interruption can come when pairs are measured already
		inTime = interrupted(t)
	}
	if !inTime {
		t.Error("no interruption ended before agents had measured a pair")
	}

	for i := range *noisyRuns {
		r := runPlan(t, "noise", 0)
		background := r.Checks[0].Background
		if r.Verdict != checkup.RunPass || len(findings(r)) > 0 || len(background) != 1 || background[0].Failed == 0 {
			t.Errorf("run %d: want pass, with the background loss:\n%s", i+1, describe(t, r))
		}
	}

	fault(t, "drop", "--node", "worker-2", "--direction", "ingress")
	r := runPlan(t, "noise", 3)
	all := findings(r)
	if len(all) != 1 || all[0].Cause != checkup.CauseNodeIngress || all[0].Subject != "worker-2" ||
		all[0].Confirmation != checkup.Confirmed {
		t.Errorf("want one finding, nodeIngress of worker-2, confirmed:\n%s", describe(t, r))
	}
	nothingLeft(t)
}

// interrupted runs the plan noise, which must pass, and interrupts the network for two seconds once all agents measure.
// It reports whether the interruption was over before an agent had measured a pair. Then some pairs must have failed
// first, and passed in the second look.
func interrupted(t *testing.T) bool {
	t.Helper()
	c := start(t, "run", plans, "--plan", "noise", "--output", "json")
	uid := string(pipelineRun(t, c.started(t)).UID)
	eventually(t, 2*time.Minute, func() error { return controlled(t, uid) })
	const interruption = 2 * time.Second
	fault(t, "drop", "--for", interruption.String())
	time.Sleep(interruption)
	logs, err := agentLogs(t, uid)
	inTime := err == nil
	for _, log := range logs {
		inTime = inTime && !bytes.Contains(log, []byte(`"observation":`))
	}
	if code := c.wait(t); code != 0 {
		t.Errorf("exit code %d, want 0: %s", code, c.stderr.String())
	}
	r := reportOf(t, c)
	if r.Verdict != checkup.RunPass || len(findings(r)) > 0 {
		t.Errorf("want pass without findings:\n%s", describe(t, r))
	}
	gone := 0
	for _, u := range r.Checks[0].Units {
		if u.Confirmation == checkup.Gone && u.Verdict == checkup.Pass {
			gone++
		}
	}
	if inTime && (gone == 0 || !strings.Contains(describe(t, r), "gone")) {
		t.Errorf("want pairs that are gone:\n%s", describe(t, r))
	}
	checkResults(t, r)
	return inTime
}

// controlled returns nil if each agent of a run, of which there are some, has reported control pairs, and so measures
// pairs of its worksheet now.
func controlled(t *testing.T, uid string) error {
	logs, err := agentLogs(t, uid)
	for name, log := range logs {
		if !bytes.Contains(log, []byte(`"control":`)) {
			return fmt.Errorf("%s has reported no control pair: %.200q", name, log)
		}
	}
	return err
}

// agentLogs returns the logs of a run's agents by the names of their pods. It fails if there is no agent.
func agentLogs(t *testing.T, uid string) (map[string][]byte, error) {
	pods := cluster(t).Kube.CoreV1().Pods
	list, err := pods(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{
		LabelSelector: fmt.Sprintf("%s=%s,%s=%s", checkup.LabelRun, uid, checkup.LabelRole, checkup.RoleAgent)})
	if err == nil && len(list.Items) == 0 {
		err = errors.New("no agents")
	}
	if err != nil {
		return nil, err
	}
	logs := map[string][]byte{}
	for _, p := range list.Items {
		if logs[p.Name], err = pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{}).DoRaw(t.Context()); err != nil {
			return nil, err
		}
	}
	return logs, nil
}
