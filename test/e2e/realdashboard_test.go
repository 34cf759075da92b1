// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/test/browser"
)

// dashboardLabels select the Deployment, Service and pod of Tekton's dashboard, in all of its releases.
const dashboardLabels = "app.kubernetes.io/part-of=tekton-dashboard,app.kubernetes.io/name=dashboard"

// A person at the real Tekton Dashboard creates runs in the form, watches them, reads verdict and findings, and
// repeats a run by the dashboard's own action, with a fault and without.
func TestRealDashboard(t *testing.T) {
	d := openDashboard(t)
	dir := t.TempDir()
	if c := start(t, "compile", "../../plans/pod-mesh.cue", "--output-dir", dir); c.wait(t) != 0 {
		t.Fatal(c.stderr.String())
	}
	sandbox(t, "kubectl", "apply", "-k", dir)

	// Someone who leaves out the optional account sees no verdict, and reads at once which account to choose.
	lost := d.create("", "")
	d.open(lost)
	d.ends(lost, "False")
	d.open(lost)
	d.shows("choose the service account pod-mesh: account default has no rights")
	d.shows("Failed: 2")
	if text := d.Text(); strings.Contains(text, checkup.LabelVerdict) {
		t.Errorf("the page shows a verdict: %s", text)
	}
	d.keep("no-account")

	broken := d.create("pod-mesh", "mesh.no-such-setting=1")
	d.open(broken)
	d.ends(broken, "False")
	d.open(broken)
	d.shows(checkup.LabelVerdict + ": " + checkup.VerdictError)
	d.shows("mesh.no-such-setting")
	d.keep("error")

	// With 200 pings per pair, probing takes 20 s: long enough to be seen by a browser on a busy machine.
	passed := d.create("pod-mesh", "mesh.icmp.count=200")
	d.open(passed)
	d.Click(`document.querySelector(".tkn--task[title='Probe mesh'][data-reason='Running']")`)
	d.keep("running")
	d.ends(passed, "True") // in the page that was opened while it ran
	d.shows(checkup.LabelVerdict + ": pass")
	d.open(passed)
	d.shows(checkup.LabelVerdict + ": pass")
	d.logged()
	d.keep("pass")
	d.report(passed, "pass-report")

	// A rerun has the labels of the run that it repeats, until setup removes its verdict.
	fault(t, "drop", "--node", d.faulty, "--direction", "ingress")
	failed := d.rerun()
	d.ends(failed, "False")
	d.shows(checkup.LabelVerdict + ": fail")
	d.open(failed)
	d.shows(checkup.LabelVerdict + ": fail")
	d.logged()
	d.keep("fail")
	d.report(failed, "fail-report")
	sandbox(t, "fault", "clear")

	again := d.rerun()
	d.ends(again, "True")
	d.shows(checkup.LabelVerdict + ": pass")
	d.keep("again")

	d.list()
	d.Wait(30*time.Second, named("td a", again), nil)
	d.keep("list")
	d.filter(string(checkup.RunFail))
	d.keep("list-fail")
	d.list()
	d.filter(checkup.VerdictError)

	for _, name := range []string{lost, broken, passed, failed, again} {
		nothingLeft(t, string(pipelineRun(t, name).UID))
	}
}

// dashboard is a person's view of the dashboard.
type dashboard struct {
	*browser.Browser
	t      *testing.T
	faulty string   // a worker that the dashboard does not run on
	known  []string // names of runs
}

// openDashboard opens the runs of the namespace in the cluster's dashboard. It skips the test if there is none.
func openDashboard(t *testing.T) *dashboard {
	t.Helper()
	c := cluster(t)
	selected := metav1.ListOptions{LabelSelector: dashboardLabels}
	services, err := c.Kube.CoreV1().Services("").List(t.Context(), selected)
	if err != nil {
		t.Fatal(err)
	}
	if len(services.Items) == 0 {
		if os.Getenv("CHECKPLAN_BROWSER") != "" {
			t.Fatal("no Tekton Dashboard in this cluster: want a Service with the labels " + dashboardLabels)
		}
		t.Skip("no Tekton Dashboard in this cluster: make e2e-dashboard, or sandbox up --with dashboard, has one")
	}
	service := services.Items[0]
	t.Logf("Tekton Dashboard %s", service.Labels["app.kubernetes.io/version"])
	d := &dashboard{t: t}
	if d.faulty, err = otherWorker(t, selected); err != nil {
		t.Fatal(err)
	}
	runs, err := c.Tekton.TektonV1().PipelineRuns(c.Namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range runs.Items {
		d.known = append(d.known, r.Name)
	}
	d.Browser = browser.Start(t, 10*time.Minute)
	d.Screen(1280, false)
	out := portForward(t, service.Namespace, "service/"+service.Name, fmt.Sprintf(":%d", service.Spec.Ports[0].Port))
	var address []string
	eventually(t, time.Minute, func() error {
		if address = regexp.MustCompile(`127\.0\.0\.1:\d+`).FindAllString(out.String(), 1); address == nil {
			return fmt.Errorf("port-forward to the dashboard: %s", out.String())
		}
		return nil
	})
	d.Open("http://" + address[0] + "/")
	return d
}

// otherWorker returns a node that is no control plane, and on which none of the selected pods runs.
func otherWorker(t *testing.T, pods metav1.ListOptions) (string, error) {
	t.Helper()
	c := cluster(t)
	running, err := c.Kube.CoreV1().Pods("").List(t.Context(), pods)
	if err != nil {
		return "", err
	}
	nodes, err := c.Kube.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{LabelSelector: "!node-role.kubernetes.io/control-plane"})
	if err != nil {
		return "", err
	}
	for _, n := range nodes.Items {
		if !slices.ContainsFunc(running.Items, func(p corev1.Pod) bool { return p.Spec.NodeName == n.Name }) {
			return n.Name, nil
		}
	}
	return "", errors.New("the dashboard runs on every worker: give it one node, because a fault must not concern its own packets")
}

// named is the expression of the first element that a selector finds, and that shows exactly this text.
func named(selector, text string) string {
	return fmt.Sprintf("[...document.querySelectorAll(%q)].find(e => e.innerText.trim() === %q)", selector, text)
}

// keep keeps what the first screen shows.
func (d *dashboard) keep(name string) {
	d.t.Helper()
	d.Keep("dashboard-"+name+".png", "Page.captureScreenshot", nil)
}

// shows waits until a text is in the first screen.
func (d *dashboard) shows(text string) {
	d.t.Helper()
	d.Wait(30*time.Second, fmt.Sprintf(`[...document.querySelectorAll("*")].some(e => {
		const r = e.getBoundingClientRect();
		return !e.children.length && e.innerText?.includes(%q) && r.top >= 0 && r.bottom <= innerHeight && r.right <= innerWidth && r.height;
	})`, text), nil)
}

// list opens the list of the namespace's runs.
func (d *dashboard) list() {
	d.t.Helper()
	d.Evaluate(fmt.Sprintf(`location.hash = "/namespaces/%s/pipelineruns"`, cluster(d.t).Namespace), nil)
	d.Wait(30*time.Second, named("button", "Create"), nil)
}

// create fills the form of a run of pod-mesh, and returns the run's name. Account "" leaves the field as it is.
func (d *dashboard) create(account, settings string) string {
	d.t.Helper()
	d.list()
	d.Click(named("button", "Create"))
	d.choose("create-pipelinerun--pipelines-dropdown", "pod-mesh")
	d.param("mesh.latency.p99", "5s")
	d.param(checkup.SettingsParam, settings)
	if account != "" {
		d.choose("create-pipelinerun--sa-dropdown", account)
	}
	d.Evaluate("scrollTo(0, 0)", nil) // the header stays at the top of the window
	d.Keep("dashboard-form.png", "Page.captureScreenshot", map[string]any{"captureBeyondViewport": true, "clip": d.Whole(1280)})
	d.Click(named("form button", "Create"))
	return d.appears()
}

// param types a value into the field of a param.
func (d *dashboard) param(name, value string) {
	d.t.Helper()
	d.Click(fmt.Sprintf("document.getElementById(%q)", "create-pipelinerun--param-"+name))
	d.Type(value)
}

// choose chooses an item in one of the form's boxes.
func (d *dashboard) choose(id, item string) {
	d.t.Helper()
	d.Click(fmt.Sprintf("document.querySelector('input#%s')", id)) // another element has this ID while the items load
	d.Type(item)
	d.Click(named("[role=option]", item))
}

// appears waits for a link to a run that was not known, and returns the run's name.
func (d *dashboard) appears() string {
	d.t.Helper()
	var name string
	d.Wait(30*time.Second, fmt.Sprintf(`[...document.querySelectorAll("a[href*='/pipelineruns/pod-mesh-']")]
		.map(e => e.getAttribute("href").split("/").pop().split("?")[0]).find(name => !%q.split(" ").includes(name))`,
		strings.Join(d.known, " ")), &name)
	d.known = append(d.known, name)
	return name
}

// open opens a run from the list, as a person does who comes later: a page that was opened before the run's first
// TaskRun existed shows no task until one is clicked (0.71).
func (d *dashboard) open(name string) {
	d.t.Helper()
	d.list()
	d.Click(named("a[href*='/pipelineruns/']", name))
}

// ends waits for the end of the run that the page shows.
func (d *dashboard) ends(name, succeeded string) {
	d.t.Helper()
	d.shows(name)
	d.Evaluate("scrollTo(0, 0)", nil) // a click may have scrolled
	d.Wait(5*time.Minute, `["True", "False"].includes(document.querySelector("header[data-succeeded]")?.dataset.succeeded)`, nil)
	var got string
	d.Evaluate(`document.querySelector("header[data-succeeded]").dataset.succeeded`, &got)
	if got != succeeded {
		d.t.Errorf("run %s: succeeded is %s, want %s", name, got, succeeded)
	}
}

// logged waits for the end of the log that the page shows, of a step that has ended.
func (d *dashboard) logged() {
	d.t.Helper()
	d.Wait(30*time.Second, `document.querySelector(".tkn--log-trailer")?.innerText`, nil)
}

// report opens the log of the report step. It expects the run's summary and findings in it without unfolding anything,
// and no line that is cut.
func (d *dashboard) report(name, screenshot string) {
	d.t.Helper()
	c := start(d.t, "report", name, "--output", "json")
	c.wait(d.t) // the code is that of the verdict
	r := reportOf(d.t, c)
	d.Click(named(".tkn--task-title", "Tear down and report"))
	d.Click(named(".tkn--step-name", "Report"))
	d.logged()
	d.keep(screenshot)
	var lines []string
	d.Evaluate(`[...document.querySelectorAll(".tkn--log-line--content")].map(e => e.innerText)`, &lines)
	log := strings.Join(strings.Fields(strings.Join(lines, " ")), " ")
	want := []string{r.Summary}
	for _, f := range findings(r) {
		want = append(want, f.Message)
	}
	for _, s := range want {
		if !strings.Contains(log, s) {
			d.t.Errorf("the log of step report does not show %q but %s", s, log)
		}
	}
	for range r.Checks { // what is folded is not in the page
		d.Click(`document.querySelector(".tkn--log-container details:not([open]) summary")`)
	}
	var panel struct{ Shown, Width int }
	d.Evaluate(`(e => ({shown: e.clientWidth, width: e.scrollWidth}))(document.querySelector(".tkn--log-container"))`, &panel)
	if panel.Width > panel.Shown {
		d.t.Errorf("the log of step report is %d pixels wide, its panel %d: %q", panel.Width, panel.Shown, lines)
	}
}

// rerun repeats the run that the page shows, opens the new one by the link of the notification, and returns its name.
func (d *dashboard) rerun() string {
	d.t.Helper()
	d.Click(named("button", "Actions"))
	d.Click(named("[role=menuitem]", "Rerun"))
	name := d.appears()
	d.Click(named("a", "View status"))
	return name
}

// filter filters the list by a verdict, and expects exactly the runs that have it.
func (d *dashboard) filter(verdict string) {
	d.t.Helper()
	c := cluster(d.t)
	label := metav1.ListOptions{LabelSelector: checkup.LabelVerdict + "=" + verdict}
	runs, err := c.Tekton.TektonV1().PipelineRuns(c.Namespace).List(d.t.Context(), label)
	if err != nil {
		d.t.Fatal(err)
	}
	d.Click(`document.querySelector(".tkn--label-filter input")`)
	d.Type(checkup.LabelVerdict + ":" + verdict)
	d.Evaluate(`document.querySelector(".tkn--label-filter form").requestSubmit()`, nil)
	var want []string
	for _, r := range runs.Items {
		want = append(want, r.Name)
	}
	slices.Sort(want)
	d.Wait(30*time.Second, fmt.Sprintf(`[...document.querySelectorAll("td a[href*='/pipelineruns/']")].map(e => e.innerText).sort().join(" ") === %q`,
		strings.Join(want, " ")), nil)
}
