# checkplan. `make demo` runs a plan on this machine, `make test` runs the tests. Both
# install what they need. `make help` lists the targets.

VERSION    := v0.1.0
REPOSITORY := ghcr.io/checkplan/checkplan

# All builds, the sandbox's Kubernetes included, use the same flags, because builds
# with other flags do not share the build cache. Without DWARF, which only debuggers
# read, compilers take a twentieth less time.
export CGO_ENABLED := 0
export GOFLAGS     := -trimpath -buildvcs=false -gcflags=all=-dwarf=false

# Versions of tools that go.mod does not list.
GOLANGCI_LINT := v2.12.0
KO            := v0.18.1
TKN           := v0.46.0

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

SANDBOX := bin/sandbox

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

.PHONY: build
build: bin/planner ## build bin/planner

.PHONY: bin/planner
bin/planner:
	go build -ldflags '-X main.version=$(VERSION)' -o $@ ./cmd/planner

.PHONY: $(SANDBOX)
$(SANDBOX):
	cd test/e2e/sandbox && go build -o ../../../$@ .

# What nodes of a sandbox run instead of kube-proxy.
.PHONY: bin/node-state bin/service-proxy
bin/node-state bin/service-proxy:
	go build -ldflags '-X main.version=$(VERSION)' -o $@ ./tasks/$(@F)

# ko's arguments for the five task images, planner's, node-state's and service-proxy's, by .ko.yaml.
KO_BUILD := build --base-import-paths --tags $(VERSION) ./tasks/setup ./tasks/probe ./tasks/teardown ./tasks/report ./tasks/agent ./tasks/node-state ./tasks/service-proxy ./cmd/planner
dist/images.tar release-images: export VERSION := $(VERSION)
dist/images.tar release-images: export KO_DOCKER_REPO := $(REPOSITORY)

.PHONY: images
images: dist/images.tar ## build the images of the tasks, planner, node-state and service-proxy for this machine into dist/images.tar, without any registry

dist/images.tar: bin/ko Makefile .ko.yaml go.mod go.sum $(wildcard $(shell git ls-files -co --exclude-standard pkg tasks cmd schema))
	mkdir -p dist
	go run ./tasks/internal/images bin/ko $(KO_BUILD) --push=false --platform linux/$$(go env GOARCH) --sbom none --tarball dist/images.tar

.PHONY: release-images
release-images: bin/ko ## build the multi-arch images, push them to REPOSITORY, with the guest for this architecture, and list them in dist/images.txt
	mkdir -p dist
	@# ko prints one reference per image, that of all architectures. With --image-refs it adds one of each, which
	@# --image-digests refuses: an image with several digests.
	bin/ko $(KO_BUILD) > dist/images.txt
	go run ./tasks/internal/guestimage -tag $(GUEST) -push dist/images.txt

GUEST := $(REPOSITORY)/guest:$(VERSION)

.PHONY: guest-image
guest-image: ## build the guest of VMs, Debian's kernel and the agent, into dist/guest.tar (needs apt)
	go run ./tasks/internal/guestimage -tag $(GUEST) -o dist/guest.tar

.PHONY: sandbox-up
sandbox-up: $(SANDBOX) images ## start the sandbox and load the images (Linux, root; installs missing Debian packages)
	$(SANDBOX) preflight --install $(SANDBOX_UP)
	$(SANDBOX) up $(SANDBOX_UP)
	$(SANDBOX) load dist/images.tar

.PHONY: sandbox-down
sandbox-down: $(SANDBOX) ## stop the sandbox and remove everything of it
	$(SANDBOX) down

# With KUBECONFIG set, the demo uses that cluster, which must be able to pull the
# images from REPOSITORY. Else it starts the sandbox, and leaves it running.
.PHONY: demo
ifdef KUBECONFIG
demo: build ## run plans/pod-mesh.cue on the cluster of KUBECONFIG, or on a sandbox
	bin/planner run --image-repository $(REPOSITORY) --image-tag $(VERSION) plans/pod-mesh.cue
else
demo: build sandbox-up
	KUBECONFIG=$$($(SANDBOX) kubeconfig) bin/planner run plans/pod-mesh.cue
	@echo
	@echo 'The sandbox is still running. Break its network, and run the plan again:'
	@echo '  export KUBECONFIG=$$($(SANDBOX) kubeconfig)'
	@echo '  $(SANDBOX) fault add drop --node worker-2 --direction ingress'
	@echo '  bin/planner run plans/pod-mesh.cue'
	@echo '  $(SANDBOX) fault clear'
	@echo 'The PipelineRuns: $(SANDBOX) kubectl get pipelineruns'
	@echo 'To stop the sandbox: make sandbox-down'
endif

# Packages that start no goroutine, which TestPure holds: the race detector finds nothing there, and their tests compute,
# which takes it six times as long.
PURE := pkg/dataplane pkg/dataplane/want pkg/history pkg/judge pkg/localise pkg/podmesh pkg/print pkg/servicecanary \
	pkg/servicerules pkg/stats pkg/vmlatency

# Files of tests that compute, in packages of which other tests start goroutines: they are not part of a build with the
# race detector, and say so.
WITHOUT_RACE := cmd/planner/explain_script_test.go cmd/planner/kustomize_test.go \
	pkg/dataplane/iptables/write/many_test.go pkg/dataplane/nftables/write/many_test.go pkg/load/broken_test.go \
	pkg/record/large_test.go

# The race detector is on in all packages of its build. If one is compiled without it, the linker may use that package's
# copy of generic code, such as sync.Map's, for all packages, and tests report races that do not exist.
#
# Without vet, which would check the types of all that is imported once more: verify runs it, among its linters, and
# e2e-sandbox that of the sandbox, whose imports are Kubernetes.
.PHONY: test
test: ## run the tests: hermetic, offline once modules are downloaded, race detector on where goroutines run
	@# The tests of PURE and WITHOUT_RACE compute. The others, and those of the sandbox, mostly wait. So all of them run at
	@# once. Those of the sandbox start when what they share with PURE and WITHOUT_RACE is compiled, because two builds that
	@# run at once compile the same package twice; if it does not compile, the tests say so. Nothing is written into this
	@# directory: go test repeats a test that listed a directory in which something changed.
	failed=0; logs=$$(mktemp -d); \
	{ go list -export -deps -test $(PURE:%=./%) $(addprefix ./,$(sort $(dir $(WITHOUT_RACE)))) > /dev/null || true; \
		(cd test/e2e/sandbox && go test -short -vet=off ./...) > $$logs/sandbox 2>&1 & sandbox=$$!; \
		go test -vet=off $(PURE:%=./%) || failed=1; go test -vet=off \
			-run "^($$(sed -nE 's/^func ((Test|Fuzz)\w*)\(.*/\1/p' $(WITHOUT_RACE) | paste -sd '|'))$$" \
			$(addprefix ./,$(sort $(dir $(WITHOUT_RACE)))) || failed=1; \
		wait $$sandbox && test $$failed = 0; \
	} > $$logs/pure 2>&1 & pure=$$!; \
	CGO_ENABLED=1 GORACE=atexit_sleep_ms=10 go test -race -vet=off \
		$$(go list ./... | grep -vxFf <(printf 'github.com/checkplan/checkplan/%s\n' $(PURE))) || failed=1; \
	wait $$pure || failed=1; \
	cat $$logs/pure $$logs/sandbox; rm -r $$logs; test $$failed = 0

# Each part of the end-to-end tests has a sandbox of its own, so that no fault of one disturbs another.
PODS   := /var/lib/checkplan-e2e-pods
FAULTY := /var/lib/checkplan-e2e-faults
VMS    := /var/lib/checkplan-e2e-vms
PROXY  := /var/lib/checkplan-e2e-proxy
DASHBOARD := /var/lib/checkplan-e2e-dashboard

.PHONY: e2e
e2e: e2e-pages e2e-pods e2e-faults e2e-vms e2e-sandbox ## run the end-to-end tests, with injected faults, on three sandboxes

.PHONY: bin/e2e.test
bin/e2e.test:
	go test -c -vet=off -tags e2e -o $@ ./test/e2e

.PHONY: e2e-ready
e2e-ready: build $(SANDBOX) images bin/e2e.test ## install the Debian packages that e2e needs, and build what its parts share
	$(SANDBOX) preflight --install --with aggregated,resolvers,multus,kubevirt
	command -v qemu-system-x86_64 || apt-get install --yes --quiet --no-install-recommends qemu-system-x86
	@# Each sandbox needs more than 50, and the kernel's default is 128.
	test $$(sysctl -n fs.inotify.max_user_instances) -ge 1024 || sysctl -w fs.inotify.max_user_instances=1024
	$(SANDBOX) build --with aggregated,resolvers

# Two API servers and etcd members, and an aggregated API server, for the tests of the control plane. The one of an
# outage compares times, so it runs first; .ci/run waits for the marker before it starts other clusters.
TIMED        := ^TestWatchOverRestart$$
TIMED_MARKER := bin/e2e-timed

# Tests of which each needs a network of its own, because it breaks the network of all pods or measures all of it: they
# run one after the other, on a sandbox beside that of the other tests.
FAULTS := ^Test(CleanNetwork|ServiceFaults|Faults|Regression|StoppedKubelet|PodNetworkHealth|Unreachable|Noise|Rack)$$

# Not empty on a machine with slow cores: fewer tests run at once on a sandbox. What they need may take twice as long
# beside other sandboxes, and three times on slow cores. What they promise may not.
SLOW :=
PATIENCE = -patience $(if $(SLOW),3,2)
AT_ONCE  = -test.parallel $(if $(SLOW),2,4)

# A directory of files: the parts together run at most one test for each file at once, and start one sandbox after the
# other. Empty: each part runs as many tests as it can.
TURNS :=
UP = $(if $(TURNS),flock --close $(TURNS).up) $(SANDBOX)

# Names of tests that .ci/run does not repeat, with | between them.
PASSED    :=
NOT_AGAIN = $(if $(PASSED),-test.skip '^($(PASSED))$$')

# The end-to-end tests: as go test -v, but built once for all parts.
E2E = env -C test/e2e ../../bin/e2e.test -test.v $(PATIENCE) $(if $(TURNS),-turns $(abspath $(TURNS)))

# What programs the Services of e2e-pods and e2e-services: a value of the sandbox's --service-proxy. Empty: kube-proxy, in
# its mode nftables in e2e-pods and iptables in e2e-services.
SERVICE_PROXY  :=
PROXY_PROGRAMS := $(if $(filter-out kube-proxy%,$(SERVICE_PROXY)),bin/node-state bin/service-proxy)

# Only e2e-services runs it.
PROXY_FAULTS := ^TestServiceProxyFaults$$

.PHONY: e2e-pods
e2e-pods: e2e-ready $(PROXY_PROGRAMS) ## that of them which needs neither VMs nor a network of its own; on another service proxy with SERVICE_PROXY
	trap '$(SANDBOX) --state $(PODS) down' EXIT; \
	$(if $(SERVICE_PROXY),$(SANDBOX) preflight --install --service-proxy $(SERVICE_PROXY);) \
	$(UP) --state $(PODS) up --control-planes 2 --with aggregated,resolvers $(if $(SERVICE_PROXY),--service-proxy $(SERVICE_PROXY)); \
	$(SANDBOX) --state $(PODS) load dist/images.tar; \
	export KUBECONFIG=$(PODS)/kubeconfig; failed=0; rm -f $(TIMED_MARKER); \
	$(E2E) -test.timeout 30m -test.run '$(TIMED)' $(NOT_AGAIN) || failed=1; \
	touch $(TIMED_MARKER); \
	$(E2E) -test.timeout 60m $(AT_ONCE) -test.skip '$(TIMED)|$(FAULTS)|$(PROXY_FAULTS)|^TestVM|^TestSoak$(if $(PASSED),|^($(PASSED))$$)' || failed=1; \
	test $$failed = 0

.PHONY: e2e-faults
e2e-faults: e2e-ready ## that of them which breaks the network of all pods
	trap '$(SANDBOX) --state $(FAULTY) down' EXIT; \
	$(UP) --state $(FAULTY) up; \
	$(SANDBOX) --state $(FAULTY) load dist/images.tar; \
	export KUBECONFIG=$(FAULTY)/kubeconfig; $(E2E) -test.timeout 60m -test.run '$(FAULTS)' $(NOT_AGAIN)

# The tests of Services with another service proxy than that of the other parts. Not part of e2e, because of its time.
.PHONY: e2e-services
e2e-services: PROXY_OF_SERVICES := $(or $(SERVICE_PROXY),kube-proxy:iptables)
e2e-services: e2e-ready $(PROXY_PROGRAMS) ## the tests of Services with SERVICE_PROXY, by default kube-proxy in its mode iptables
	trap '$(SANDBOX) --state $(PROXY) down' EXIT; \
	$(SANDBOX) preflight --install --service-proxy $(PROXY_OF_SERVICES); \
	$(SANDBOX) --state $(PROXY) up --service-proxy $(PROXY_OF_SERVICES); \
	$(SANDBOX) --state $(PROXY) load dist/images.tar; \
	export KUBECONFIG=$(PROXY)/kubeconfig; $(E2E) -test.timeout 40m \
		-test.run '$(PROXY_FAULTS)|^Test(Services|ServiceFaults|ServiceCanary|DNS|State|NodeState)$$'

# Kubernetes' own tests of Services, on one sandbox with each of these service proxies in turn. Not part of e2e, because
# of its time.
CONFORMANCE := /var/lib/checkplan-conformance
.PHONY: conformance
conformance: SERVICE_PROXY := kube-proxy nftables iptables userspace
conformance: $(SANDBOX) bin/node-state bin/service-proxy ## Kubernetes' own tests of Services with each SERVICE_PROXY, by default all but kube-proxy:iptables; reports in dist/conformance
	trap '$(SANDBOX) --state $(CONFORMANCE) down' EXIT; \
	for proxy in $(SERVICE_PROXY); do $(SANDBOX) preflight --install --with conformance --service-proxy $$proxy; done; \
	$(SANDBOX) --state $(CONFORMANCE) conformance --output dist/conformance $(SERVICE_PROXY)

# The tests keep screenshots in bin/ci/screenshots.
.PHONY: e2e-pages
e2e-pages: bin/promtool build chromium ## reports and planner serve in a real Chromium, alert rules and metrics by promtool
	bin/promtool test rules docs/serve/alerts_test.yaml
	for r in pkg/print/testdata/*.json; do \
		bin/planner report --output prometheus $$r > bin/metrics.prom || true; test -s bin/metrics.prom; \
		bin/promtool check metrics < bin/metrics.prom || { echo "promtool refuses the metrics of $$r"; exit 1; }; \
	done
	CHECKPLAN_BROWSER=required go test -tags e2e -count 1 -run RealBrowser -v ./pkg/serve

# One worker is enough: the dashboard runs on the control plane, and the fault is on the worker. Not part of e2e, because
# of its time.
.PHONY: e2e-dashboard
e2e-dashboard: e2e-ready chromium ## the Tekton Dashboard in a real Chromium, on a sandbox: form, verdicts, findings, rerun
	trap '$(SANDBOX) --state $(DASHBOARD) down' EXIT; \
	$(SANDBOX) preflight --install --with dashboard; \
	$(SANDBOX) --state $(DASHBOARD) up --nodes 1 --with dashboard; \
	$(SANDBOX) --state $(DASHBOARD) load dist/images.tar; \
	export KUBECONFIG=$(DASHBOARD)/kubeconfig CHECKPLAN_BROWSER=required; $(E2E) -test.timeout 15m -test.run '^TestRealDashboard$$'

# Its go.mod replaces a module, so "go install" refuses it, and it is built from a module that requires it.
bin/tkn:
	mkdir -p bin/tkn.mod
	cd bin/tkn.mod && { test -e go.mod || go mod init tkn; } && go mod edit -require github.com/tektoncd/cli@$(TKN) \
		-replace github.com/alibabacloud-go/cr-20160607=github.com/vdemeester/cr-20160607@v1.0.1
	cd bin/tkn.mod && go build -mod=mod -o ../tkn github.com/tektoncd/cli/cmd/tkn

.PHONY: tkn
tkn: bin/tkn ## build tkn, and see which runs it makes of our Pipelines
	CHECKPLAN_TKN=$(TKN) go test -count 1 -run '^TestTkn$$' ./cmd/planner

.PHONY: chromium
chromium:
	command -v chromium || { apt-get update --quiet && apt-get install --yes --quiet --no-install-recommends chromium; }

# Debian's promtool, without the service of its package.
bin/promtool:
	mkdir -p bin/deb
	cd bin/deb && { apt-get download --quiet prometheus || { apt-get update --quiet && apt-get download --quiet prometheus; }; }
	dpkg-deb --fsys-tarfile bin/deb/prometheus_*.deb | tar -xO ./usr/bin/promtool > $@.part
	chmod +x $@.part && mv $@.part $@
	rm -r bin/deb

# Runs that e2e has no time for, more than an hour: clean ones on a busy machine, ones of which a part is killed, ones
# during which a Deployment restarts all the time, a schedule with a fault and an outage of the API, a comparison with 20
# earlier runs, and ones on a network that loses 0.3% of all packets. "make soak SERVICE_PROXY=..." makes them on another
# service proxy.
.PHONY: soak
soak: e2e-ready $(PROXY_PROGRAMS) ## 100 clean runs on a busy machine, 200 with a part killed, 20 while endpoints roll, 12 of a schedule, 21 compared with earlier ones, 20 with loss everywhere
	trap '$(SANDBOX) --state $(PODS) down' EXIT; \
	$(if $(SERVICE_PROXY),$(SANDBOX) preflight --install --service-proxy $(SERVICE_PROXY);) \
	$(SANDBOX) --state $(PODS) up $(if $(SERVICE_PROXY),--service-proxy $(SERVICE_PROXY)); \
	$(SANDBOX) --state $(PODS) load dist/images.tar; \
	export KUBECONFIG=$(PODS)/kubeconfig; $(E2E) -test.timeout 240m -test.run '^Test(Soak|Noise$$)' \
		-clean 100 -killed 200 -rolling 20 -schedule -regression 20 -noisy 20

.PHONY: e2e-vms-ready
e2e-vms-ready: e2e-ready guest-image ## build what only the VMs' half needs: KubeVirt, Multus and the guest
	$(SANDBOX) build --with multus,kubevirt

# $(call unless-passed,NAME,INPUTS) ends a recipe if its file $$passed exists in the sandbox's cache, one for each output of
# the commands INPUTS. A recipe that goes on creates this file at its end.
unless-passed = inputs=$$($(2)); passed=$$(dirname $$($(SANDBOX) build))/$(1)-passed-$$inputs; \
	if test -e $$passed; then echo "$@: nothing changed since it passed ($$passed)"; exit; fi

# What the guests in QEMU depend on. They run again when any of it changed: a pass is noted in the sandbox's cache.
GUESTS_INPUTS = { sha256sum bin/console.test dist/guest.tar $$(command -v qemu-system-x86_64); uname -r; } | sha256sum | cut -c -16

.PHONY: e2e-guests
e2e-guests: ## guests in QEMU, if they have not passed with the same test, guest, QEMU and kernel (after make e2e-vms-ready)
	go test -c -vet=off -tags e2e -o bin/console.test ./pkg/console
	$(call unless-passed,guests,$(GUESTS_INPUTS)); \
	(cd pkg/console && ../../bin/console.test -test.run RealGuests -test.v); touch $$passed

.PHONY: e2e-vms
e2e-vms: e2e-vms-ready ## that of them which needs VMs: guests in QEMU, then real KubeVirt and Multus
	@# Guests in QEMU alone need no cluster: they run while one starts, on slow cores before. They wait for a turn.
	$(if $(TURNS),flock --no-fork $(lastword $(sort $(wildcard $(TURNS)/*)))) $(MAKE) --no-print-directory e2e-guests > bin/real-guests.log 2>&1 & guests=$$!; \
	trap 'kill $$guests 2> /dev/null || true; $(SANDBOX) --state $(VMS) down' EXIT; \
	failed=0; $(if $(SLOW),wait $$guests || failed=1;) \
	$(UP) --state $(VMS) up --worker-names node01,node02 --with multus,kubevirt; \
	$(SANDBOX) --state $(VMS) load dist/images.tar dist/guest.tar; \
	wait $$guests || failed=1; cat bin/real-guests.log; \
	export KUBECONFIG=$(VMS)/kubeconfig; $(E2E) -test.timeout 60m $(AT_ONCE) -test.run '^TestVM' $(NOT_AGAIN) || failed=1; \
	test $$failed = 0

# Tests on another kernel than this machine's, in a virtual machine with Debian's: it has IPVS, which many machines do
# not. A test that is skipped there is a failure. Not part of e2e, because of its time.
.PHONY: e2e-ipvs
e2e-ipvs: ## what needs a kernel with IPVS, in QEMU: traffic of our mode ipvs, and kube-proxy's as the audit reads it (needs apt)
	command -v qemu-system-x86_64 || apt-get install --yes --quiet --no-install-recommends qemu-system-x86
	go run ./test/kernel -run '^TestKernel' ./pkg/dataplane/ipvs ./pkg/dataplane/ipvs/write
	go run ./test/kernel -run '^TestTraffic$$/^ipvs$$' ./tasks/service-proxy
	go run ./test/kernel -memory 768 -timeout 40m -run '^Test(Tables|Captured)$$/^ipvs' -with ./test/dataplane \
		-files pkg/dataplane/want/testdata/cluster.yaml -keep pkg/dataplane/want/testdata ./test/e2e/sandbox/kubeproxy

# What the sandbox's own tests depend on. They run again when any of it changed: a pass is noted in the sandbox's cache.
# pkg/nodestate, which test/e2e/sandbox/kubeproxy compares with kube-proxy, is a link there; pkg/dataplane it calls as a
# program.
SANDBOX_INPUTS = { find test/e2e/sandbox pkg/nodestate pkg/dataplane test/dataplane -type f -print0 | sort -z | xargs -0 sha256sum; go version; uname -r; \
	sha256sum $$(command -v containerd crun nft ip); } | sha256sum | cut -c -16

.PHONY: e2e-sandbox
e2e-sandbox: e2e-ready ## the sandbox's own tests, if they have not passed with the same sources, Go, kernel and commands
	$(call unless-passed,tests,$(SANDBOX_INPUTS)); \
	(cd test/e2e/sandbox && go test -tags e2e -count 1 -timeout 20m -v ./...); touch $$passed

# Each checkout has its own cache. In a shared cache, findings name files of the checkout that wrote them, and exclusions
# by source line cannot read these files. Checkouts at the same path, as in .ci/run, can share one.
LINT_CACHE = $(CURDIR)/bin/lint-cache

.PHONY: verify
verify: bin/golangci-lint build ## check format, lint, import arrows, plans and generated files
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$unformatted" || { echo "gofmt: $$unformatted"; exit 1; }
	go mod tidy -diff
	GOLANGCI_LINT_CACHE=$(LINT_CACHE) bin/golangci-lint run --allow-parallel-runners ./...
	go tool cue fmt --check --files schema plans
	CUE_REGISTRY=none go tool cue vet -c ./plans
	bin/planner vet ./plans
	bin/planner catalog catalog --check
	go test -count 1 -run 'TestImportArrows|TestGenerated' ./pkg ./pkg/nodestate/api

bin/golangci-lint:
	GOBIN=$(CURDIR)/bin go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT)

bin/ko:
	GOBIN=$(CURDIR)/bin go install github.com/google/ko@$(KO)

.PHONY: update
update: build ## write golden files, catalog and formatting again
	gofmt -w $$(git ls-files '*.go')
	go tool cue fmt --files schema plans
	UPDATE=1 go test ./...
	bin/planner catalog catalog

# FUZZTIME is the time of all targets together. An input that crashes one is a file in its testdata/fuzz: commit it.
# Go's default of one minute for minimising each interesting input would leave no time for others.
FUZZTIME := 600

.PHONY: fuzz
fuzz: ## run all fuzz targets, FUZZTIME seconds in all (default 600)
	@targets=$$(git grep -n '^func Fuzz' -- '*_test.go' | sed -E 's|^(.*)/[^/]*_test.go:[0-9]+:func (Fuzz[A-Za-z0-9]*).*|\1 \2|'); \
	each=$$(( $(FUZZTIME) / $$(wc -l <<< "$$targets") )); test $$each -ge 1 || each=1; failed=0; \
	while read -r package target; do \
		echo "== $$package $$target, $${each}s"; \
		go -C $$package test -run '^$$' -fuzz "^$$target\$$" -fuzztime $${each}s -fuzzminimizetime 10x . || failed=1; \
	done <<< "$$targets"; \
	git status --short -- ':(glob)**/testdata/fuzz/**'; exit $$failed

.PHONY: bench
bench: ## run the benchmarks, including those against cue vet, fping and kube-proxy
	go test -run '^$$' -bench . ./...
	cd test/e2e/sandbox && go test -run '^$$' -bench . ./kubeproxy

# Clean networks have 1,000 runs, because a false alarm must be as rare.
.PHONY: accuracy
accuracy: ## simulate runs with known faults and noise, and print how right verdicts and findings are (hours)
	mkdir -p bin
	go run ./test/accuracy -keep bin/accuracy.cells
	go run ./test/accuracy -keep bin/accuracy.cells -cases clean -nodes 200 -degrees 10 -seeds 1000
	go run ./test/accuracy -cost -nodes 1000 -degrees 10 -seeds 3

.PHONY: clean
clean: ## remove bin and dist (to stop the sandbox: make sandbox-down)
	rm -rf bin dist
