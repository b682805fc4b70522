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
# All builds agree on this, those of the race detector but for the paths, so that most packages are compiled
# once for all of them: net and os/user without C, and no paths of this machine.
TAGS    := netgo,osusergo
PLAIN   := CGO_ENABLED=0 GOFLAGS='$(GOFLAGS) -trimpath -tags=$(TAGS)'
LINT    := $(PLAIN) go run ./cmd/lint
FUZZTIME ?= 20s

.DEFAULT_GOAL := help
.PHONY: help build check-build run test short fmt vet race race-long plain purego lint gen licenses advisories gen-check gen-sums cuda goldens vectors public-gguf clients schemas page perfetto pictures fuzz scripts soak soak-hour batch-crash metrics long bench bench-gate quality release module clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

build: ## build the program into build/krater, a static file
	@mkdir -p build
	$(PLAIN) go build -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/krater

check-build: build ## fail if build/krater needs a system library, or does not name the commit it was built from
	@out=$$(LC_ALL=C ldd $(BIN) 2>&1 || true); grep -q 'not a dynamic executable' <<<"$$out" || { echo "$(BIN) is not static: $$out"; exit 1; }
	@out=$$($(BIN) version); grep -qF '($(if $(COMMIT),commit $(COMMIT)$(comma) $(DATE)$(comma) )go' <<<"$$out" || { echo "$(BIN) says: $$out"; exit 1; }

run: build ## build and start the server on LISTEN with the built-in model
	$(BIN) serve --listen $(LISTEN)

test: fmt vet lint race plain ## format, vet, lint, and every short test once, with the race detector if it uses goroutines; run it before each commit

fmt: ## fail if a file is not formatted by gofmt
	@bad=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$bad" ]; then echo "not gofmt clean:"; echo "$$bad"; exit 1; fi

# go vet keeps what it knows of a package by its tool's flags, and -tags is one of them. .ci/vet leaves it
# out, so that dependencies are looked at once and not for each line below.
VET := VET_TOOL="$$(go env GOTOOLDIR)/vet" go vet -vettool=$(CURDIR)/.ci/vet

# go test vets again what it tests: -vet=off there.
vet: ## go vet, with and without the assembly and the embedded model
	$(PLAIN) $(VET) -tags $(TAGS),soak $(PACKAGES)
	$(PLAIN) $(VET) -tags $(TAGS),purego ./kernels/cpu/...
	$(PLAIN) $(VET) -tags $(TAGS),nomodel ./models/...

lint: ## check imports, lengths, phrases and commit messages; print the counts that may only fall
	$(LINT)

# cmd/lint/race.go says which tests run with the detector. A package cannot be left out of
# it (-gcflags=PACKAGE=-race=false): memory that it allocates looks to others like what was
# there before. Long arithmetic says //go:norace.
# $(call RACE,LIST,FLAGS) runs a list that cmd/lint prints.
RACE = @set -o pipefail; $(LINT) $(1) | { bad=0; while read -r tests; do (set -x; go test -race -tags $(TAGS) -vet=off $(2) $$tests </dev/null) || bad=1; done; exit $$bad; }

race: ## run the short tests of code with goroutines under the race detector
	$(call RACE,race,-short -timeout 20m)

race-long: ## run the tests of code with goroutines in full, and more of them, under the race detector
	$(call RACE,race-nightly,-timeout 90m)

plain: ## run all other short tests
	@set -o pipefail; $(LINT) plain | { bad=0; while read -r tests; do (set -x; $(PLAIN) go test -short -vet=off -timeout 20m $$tests </dev/null) || bad=1; done; exit $$bad; }

# What the tag purego changes is in kernels/cpu and below. The tests of kernels/cpu itself run nearly the same
# code as level pure of the usual build; here the recorded bits of all goldens run through it.
purego: ## test kernels and recorded bits without assembly
	$(PLAIN) KRATER_EXPECT_LEVEL=pure go test -tags $(TAGS),purego -short -vet=off ./kernels/cpu/[a-z]*/
	$(PLAIN) KRATER_EXPECT_LEVEL=pure go test -tags $(TAGS),purego -short -vet=off -run TestBits ./stages/direct

long: ## run every test in full, without the race detector
	$(PLAIN) go test -vet=off -timeout 90m $(PACKAGES)
	$(PLAIN) KRATER_EXPECT_LEVEL=pure go test -tags $(TAGS),purego -short -vet=off ./kernels/cpu

gen: ## generate the assembly again (needs the module proxy for avo)
	kernels/cpu/_gen/gen.sh

licenses: ## write the file of licence texts again, after a module was added or updated
	go run ./cmd/licenses

advisories: ## list known vulnerabilities of code that the program uses; never fails, and reports if the database cannot be reached
	bench/advisories.sh

gen-check: gen-sums ## generate the assembly again and fail if it differs from what is here
	$(PLAIN) kernels/cpu/_gen/gen.sh check

gen-sums: ## fail if a generator or what it wrote has changed since it was run
	kernels/cpu/_gen/gen.sh sums
	@mkdir -p build && python3 kernels/cuda/src/gen_wgmma.py build/wgmma.cuh && cmp build/wgmma.cuh kernels/cuda/src/wgmma.cuh

cuda: vet-cuda build-cuda cuda-emu test-cuda ## build and test the CUDA engine without a GPU: it must report that there is none, and pass its tests on an emulated GPU
	@if ldconfig -p | grep -q libcuda.so.1; then echo "there is a driver here: its absence is not tried"; \
	else out=$$($(BIN)-cuda run --device cuda --max-tokens 2 hello 2>&1) && grep -q 'no CUDA driver' <<<"$$out" || { echo "$$out"; exit 1; }; fi

goldens: ## test every golden model on every device, in all combinations of layer groups, chunks and batches; takes minutes
	KRATER_GOLDENS=all go test -count 1 -timeout 60m -run TestGoldens ./stages/direct ./actors

public-gguf: ## fetch a published GGUF model, 90 MB, and ask it
	testdata/gguf/public.sh
	go test -vet=off -count=1 -run TestPublicGGUF -v ./cmd/krater

vectors: ## fetch the real tokenizers and chat templates that the vector tests use
	testdata/vectors/fetch.sh

clients: build ## run the official client libraries and a browser against a server
	bench/clients/run.sh

schemas: ## hold grammars of JSON schemas against a validator, XGrammar and the JSON Schema Test Suite
	bench/clients/schemas/run.sh

chart: build ## lint the Helm chart, render it, and start the program with the arguments that come out
	deploy/helm/check.sh $(BIN)

page: build ## test the page /trace in a headless browser: both widths, light and dark, keyboard, frame rate; pictures in build/page
	bench/clients/run.sh page

perfetto: build ## read traces of a server with Perfetto's trace processor and page
	bench/clients/run.sh perfetto

pictures: page ## make the pictures of docs/trace.md from those of the page's test
	@mkdir -p docs/pictures
	cp build/page/fake-1280.png docs/pictures/trace-load.png
	cp build/page/timeline.png docs/pictures/trace-request.png
	cp build/page/fake-390.png docs/pictures/trace-narrow.png
	cp build/page/copies-1280-light.png docs/pictures/trace-copies.png
	cp build/page/phases.png docs/pictures/trace-phases.png

fuzz: ## run every fuzz target for FUZZTIME
	bench/fuzz.sh $(FUZZTIME)

scripts: ## run 100,000 random scripts of the scheduler with and without shared memory, and 33,000 with much in host memory; takes eight minutes of one core
	go test -count 1 -timeout 60m -run 'TestRandom|TestReuse|TestStage' ./scheduler -long

soak: build ## run 200 clients that connect and leave for a minute, then a load with disconnects over every API
	go test -tags soak -run TestSoak -count 1 -v -timeout 10m ./cmd/krater/...

SOAK ?= 1h

soak-hour: build ## run a load with disconnects over every API for SOAK; fails if memory grows or anything leaks
	bench/soak.sh $(BIN) $(SOAK)

BATCH_REPORT ?= $(CURDIR)/bench/results/batch-crash.md

batch-crash: ## run a batch of 2,000 lines whose server is killed 50 times; writes BATCH_REPORT
	go test -tags soak -run TestBatchCrashWhole -count 1 -v -timeout 25m ./cmd/krater \
		-batch.report $(BATCH_REPORT) -batch.commit $$(git describe --always --dirty)

metrics: build ## scrape a server with a real Prometheus and the config and rules of deploy/ (needs prometheus and promtool)
	deploy/prometheus/check.sh $(BIN)

quality: ## print KL divergence and top-1 agreement of the built-in model with experts in each number format, and what INT8 costs the golden models
	$(PLAIN) go run ./bench/quality

bench-gate: ## compare this commit with BASE (origin/main); fails if a benchmark is slower by more than 5 %
	bench/gate.sh

bench: build ## print the benchmark tables of the default model on this machine
	$(BIN) bench --actors-vs-direct

release: ## build tarballs, a package for Debian, checksums and a list of modules into build/release
	deploy/release/release.sh

module: ## change the module's path to MODULE, such as example.org/krater, in every import and build flag
	deploy/release/module.sh '$(MODULE)'

clean: ## remove build results
	rm -rf build

include kernels/cuda/cuda.mk
