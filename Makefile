# Krater: what can be built, run and tested. `make help` lists the targets.
SHELL := /bin/bash
export GOTOOLCHAIN := go1.27.3

BIN     := build/krater
LISTEN  ?= 127.0.0.1:8080
COMMIT  := $(shell git describe --always --abbrev=12 --dirty --exclude='*' 2>/dev/null)
DATE    := $(shell TZ=UTC git log -1 --date=format-local:%Y-%m-%d --format=%cd 2>/dev/null)
LDFLAGS := -s -w -X krater/cmd/krater/version.commit=$(COMMIT) -X krater/cmd/krater/version.date=$(DATE)
PACKAGES := ./...
comma   := ,
# All builds but those of the race detector agree on this, so that most packages are compiled
# once for all of them: net and os/user without C, and no paths of this machine.
TAGS    := netgo,osusergo
PLAIN   := CGO_ENABLED=0 GOFLAGS='$(GOFLAGS) -trimpath -tags=$(TAGS)'
LINT    := $(PLAIN) go run ./cmd/lint
FUZZTIME ?= 20s

.DEFAULT_GOAL := help
.PHONY: help build check-build run test short fmt vet race plain purego lint gen licenses advisories gen-check cuda goldens vectors clients page perfetto pictures fuzz scripts soak soak-hour batch-crash metrics long bench bench-gate clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

build: ## build the program into build/krater, a static one that needs nothing of the system
	@mkdir -p build
	$(PLAIN) go build -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/krater

check-build: build ## fail when build/krater needs a library of the system, or does not say what it was built from
	@out=$$(LC_ALL=C ldd $(BIN) 2>&1 || true); grep -q 'not a dynamic executable' <<<"$$out" || { echo "$(BIN) is not static: $$out"; exit 1; }
	@out=$$($(BIN) version); grep -qF '($(if $(COMMIT),commit $(COMMIT)$(comma) $(DATE)$(comma) )go' <<<"$$out" || { echo "$(BIN) says: $$out"; exit 1; }

run: build ## build and start the server on LISTEN with the embedded model
	$(BIN) serve --listen $(LISTEN)

test: fmt vet lint race plain ## what a change is held to: format, vet, lint, and every short test once, with the race detector where goroutines are

fmt: ## fail when a file is not gofmt clean
	@bad=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$bad" ]; then echo "not gofmt clean:"; echo "$$bad"; exit 1; fi

# go test vets again what it tests: -vet=off there.
vet: ## go vet, with and without the assembly and the embedded model
	$(PLAIN) go vet $(PACKAGES)
	$(PLAIN) go vet -tags $(TAGS),purego ./kernels/cpu/...
	$(PLAIN) go vet -tags $(TAGS),nomodel ./models/...
	$(PLAIN) go vet -tags $(TAGS),soak ./cmd/krater/...

lint: ## the import table, lengths, words and commit messages; prints the counts that may only fall
	$(LINT)

# cmd/lint/race.go says which tests run with the detector. A package cannot be left out of
# it (-gcflags=PACKAGE=-race=false): memory that it allocates looks to others like what was
# there before. Long arithmetic says //go:norace.
race: ## the short tests of code that runs on several goroutines, under the race detector
	@set -o pipefail; $(LINT) race | { bad=0; while read -r tests; do (set -x; go test -race -short -vet=off -timeout 20m $$tests </dev/null) || bad=1; done; exit $$bad; }

plain: ## all other short tests
	@set -o pipefail; $(LINT) plain | { bad=0; while read -r tests; do (set -x; $(PLAIN) go test -short -vet=off -timeout 20m $$tests </dev/null) || bad=1; done; exit $$bad; }

# What the tag purego changes is in kernels/cpu. Above, the recorded bits of all goldens show it.
purego: ## kernels and the recorded bits without any assembly
	$(PLAIN) KRATER_EXPECT_LEVEL=pure go test -tags $(TAGS),purego -short -vet=off ./kernels/cpu/...
	$(PLAIN) KRATER_EXPECT_LEVEL=pure go test -tags $(TAGS),purego -short -vet=off -run TestBits ./stages/direct

long: ## every test in full, which takes long, and all short ones under the race detector
	$(PLAIN) go test -vet=off -timeout 90m $(PACKAGES)
	go test -race -short -vet=off -timeout 40m $(PACKAGES)

gen: ## generate the assembly again (needs the module proxy for avo)
	kernels/cpu/_gen/gen.sh

licenses: ## make the file of licence texts again, after a module was added or raised
	go run ./cmd/licenses

advisories: ## list known advisories of code that the program reaches; fails for none, and says when the database cannot be reached
	bench/advisories.sh

gen-check: ## fail when generated sources are not what their generators make
	kernels/cpu/_gen/gen.sh check
	@mkdir -p build && python3 kernels/cuda/src/gen_wgmma.py build/wgmma.cuh && cmp build/wgmma.cuh kernels/cuda/src/wgmma.cuh

cuda: vet-cuda build-cuda cuda-emu test-cuda ## the CUDA engine without a GPU: it builds, says that there is none, and passes its tests on an emulated card
	@if ldconfig -p | grep -q libcuda.so.1; then echo "there is a driver here: its absence is not tried"; \
	else out=$$($(BIN)-cuda run --device cuda --max-tokens 2 hello 2>&1) && grep -q 'no CUDA driver' <<<"$$out" || { echo "$$out"; exit 1; }; fi

goldens: ## every golden model on every device, in all combinations of layer groups, chunks and batches: some minutes
	KRATER_GOLDENS=all go test -count 1 -timeout 60m -run TestGoldens ./stages/direct ./actors

vectors: ## fetch the real tokenizers and chat templates that the vector tests use
	testdata/vectors/fetch.sh

clients: build ## the official client libraries and a browser against a running server
	bench/clients/run.sh

page: build ## the page /trace in a headless browser: both widths, light and dark, keyboard, frame rate; pictures in build/page
	bench/clients/run.sh page

perfetto: build ## Perfetto's own trace processor and page read traces of a running server
	bench/clients/run.sh perfetto

pictures: page ## the pictures of docs/trace.md, from those of the page's test
	@mkdir -p docs/pictures
	cp build/page/fake-1280.png docs/pictures/trace-load.png
	cp build/page/timeline.png docs/pictures/trace-request.png
	cp build/page/fake-390.png docs/pictures/trace-narrow.png
	cp build/page/copies-1280-light.png docs/pictures/trace-copies.png
	cp build/page/phases.png docs/pictures/trace-phases.png

fuzz: ## every fuzz target for FUZZTIME
	bench/fuzz.sh $(FUZZTIME)

scripts: ## 100,000 random scripts of the scheduler with and without shared memory, 33,000 with much in host memory: some eight minutes of one core
	go test -count 1 -timeout 60m -run 'TestRandom|TestReuse|TestStage' ./scheduler -long

soak: build ## 200 clients that come and go for a minute; then a load with disconnects over every door
	go test -tags soak -run TestSoak -count 1 -v -timeout 10m ./cmd/krater/...

SOAK ?= 1h

soak-hour: build ## a load with disconnects over every door for SOAK; fails when memory grows or something is left
	bench/soak.sh $(BIN) $(SOAK)

BATCH_REPORT ?= $(CURDIR)/bench/results/batch-crash.md

batch-crash: ## a batch of 2,000 lines whose server is killed 50 times; writes BATCH_REPORT
	go test -tags soak -run TestBatchCrashWhole -count 1 -v -timeout 25m ./cmd/krater \
		-batch.report $(BATCH_REPORT) -batch.commit $$(git describe --always --dirty)

metrics: build ## a real Prometheus scrapes the server with deploy/'s config and rules (needs prometheus and promtool)
	deploy/prometheus/check.sh $(BIN)

bench-gate: ## this commit against BASE (origin/main): fails when a benchmark is slower by more than 5 %
	bench/gate.sh

bench: build ## the benchmark tables of the default model on this machine
	$(BIN) bench --actors-vs-direct

clean: ## remove what was built
	rm -rf build

include kernels/cuda/cuda.mk
