# checkplan. `make demo` runs the main job on this machine, `make test` the tests;
# each does all of its own set-up. `make help` lists the targets.

VERSION    := v0.1.0
REPOSITORY := ghcr.io/checkplan/checkplan

# One set of flags for everything, the sandbox's Kubernetes included, so that the
# build cache is shared.
export CGO_ENABLED := 0
export GOFLAGS     := -trimpath -buildvcs=false

# Pinned tools that are not part of the module's own graph.
GOLANGCI_LINT := v2.12.0
KO            := v0.18.1

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

SANDBOX  := bin/sandbox
IMAGES   := setup probe teardown report agent

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

.PHONY: test
test: ## run the tests: hermetic, offline once modules are there, race detector on
	CGO_ENABLED=1 go test -race ./...
	cd test/e2e/sandbox && go test -short ./...

.PHONY: verify
verify: bin/golangci-lint build ## everything that is checked without running: format, lint, arrows, generated files
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$unformatted" || { echo "gofmt: $$unformatted"; exit 1; }
	go vet ./...
	go vet -tags e2e ./test/e2e
	go mod tidy -diff
	bin/golangci-lint run ./...
	go tool cue fmt --check --files schema plans
	CUE_REGISTRY=none go tool cue vet -c ./plans
	bin/planner vet ./plans
	bin/planner catalog catalog --check
	go test -run TestImportArrows ./pkg

bin/golangci-lint:
	GOBIN=$(CURDIR)/bin go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT)

bin/ko:
	GOBIN=$(CURDIR)/bin go install github.com/google/ko@$(KO)

.PHONY: update
update: build ## write the golden files, the catalog and the formatting anew
	gofmt -w $$(git ls-files '*.go')
	go tool cue fmt --files schema plans
	UPDATE=1 go test ./...
	bin/planner catalog catalog

.PHONY: bench
bench: ## run the benchmarks, those against cue vet and fping included
	go test -run '^$$' -bench . -benchtime 1x ./...

.PHONY: clean
clean: ## remove what the build made (make sandbox-down ends the cluster)
	rm -rf bin dist
