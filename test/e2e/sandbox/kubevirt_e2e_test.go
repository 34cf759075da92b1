// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package main

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport/websocket"
)

// TestKubeVirt boots a guest from its disk in the users' namespace, which is
// restricted, and talks to it on its console through the API server.
func TestKubeVirt(t *testing.T) {
	s := newTrial(t)
	s.must(t, "up", "--nodes=1", "--with=kubevirt")

	manifest := filepath.Join(t.TempDir(), "vmi.yaml")
	err := os.WriteFile(manifest, []byte(`
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: one}
spec:
  terminationGracePeriodSeconds: 30
  domain:
    devices:
      disks:
      - {name: root, disk: {bus: virtio}}
      - {name: seed, disk: {bus: virtio}}
      interfaces: [{name: default, masquerade: {}, macAddress: "02:00:00:00:00:01"}]
    resources: {requests: {memory: 256Mi}}
  networks: [{name: default, pod: {}}]
  volumes:
  - name: root
    containerDisk: {image: "`+image("guest")+`"}
  - name: seed
    cloudInitNoCloud:
      userData: "#cloud-config\nuser: tester\npassword: secret\n"
      networkData: |
        version: 2
        ethernets:
          default:
            match: {macaddress: "02:00:00:00:00:01"}
            addresses: [10.0.2.2/24]
            gateway4: 10.0.2.1
`), 0o644)
	if err != nil {
		t.Fatal(err)
	}
	s.must(t, "kubectl", "create", "-f", manifest)
	s.must(t, "kubectl", "wait", "vmi/one", "--for=jsonpath={.status.phase}=Running", "--timeout=120s")

	config, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	transport, holder, err := websocket.RoundTripperFor(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	url := config.Host + "/apis/subresources.kubevirt.io/v1/namespaces/" + userNamespace + "/virtualmachineinstances/one/console"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := websocket.Negotiate(transport, holder, req, "plain.kubevirt.io")
	if err != nil {
		t.Fatalf("connecting to the console: %v", err)
	}
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	// The guest says nothing by itself once it has said that one may log in.
	send := func(line string) {
		t.Helper()
		if err := conn.WriteMessage(2, []byte(line+"\n")); err != nil {
			t.Fatalf("writing to the console: %v", err)
		}
	}
	said := ""
	await := func(want string) {
		t.Helper()
		for !strings.Contains(said, want) {
			_, b, err := conn.ReadMessage()
			if err != nil {
				t.Fatalf("the console does not say %q but %q: %v", want, said, err)
			}
			said += string(b)
		}
		_, said, _ = strings.Cut(said, want)
	}
	send("")
	await("one login: ")
	send("tester")
	await("Password: ")
	send("secret")
	await("tester@one:~$ ")
	send("ping -c 1 10.0.2.1")
	await(" 0% packet loss")

	// It hears the power button, so it does not wait for the end of its grace.
	start := time.Now()
	s.must(t, "kubectl", "delete", "vmi", "one", "--timeout=60s")
	if took := time.Since(start); took > 25*time.Second {
		t.Errorf("the guest took %s to go", took)
	}
}
