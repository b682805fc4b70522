# How the CUDA build is made. Included by the Makefile; paths are from the repository's
# root. A bare `go build -tags cuda` lacks headers and libcuda: use `make build-cuda`, or
# `eval $(make -s cuda-env)` and then go as usual.
#
# CUDA_HOME is a toolkit (13, or 12.4 and later) that is there already, such as
# /usr/local/cuda. Without it the headers (2 MB) and, for the kernels alone, the compiler
# (100 MB) come from wheels into build/cuda.
CUDA := kernels/cuda
CUDA_HOME ?=
CUDA_PACKAGES ?= ./kernels/cuda/... ./bench/cards

ifeq ($(CUDA_HOME),)
CUDA_HEADERS := build/cuda/headers-$(shell sha256sum <$(CUDA)/toolkit/headers.txt | cut -c1-10)
CUDA_TOOLS   := build/cuda/nvcc-$(shell sha256sum <$(CUDA)/toolkit/nvcc.txt | cut -c1-10)
CUDA_INCLUDE := $(CURDIR)/$(CUDA_HEADERS)/nvidia/cu13/include
NVCC         := $(CURDIR)/$(CUDA_TOOLS)/nvidia/cu13/bin/nvcc

$(CUDA_HEADERS):
	$(CUDA)/toolkit/fetch.sh $(CUDA)/toolkit/headers.txt $@
$(CUDA_TOOLS):
	$(CUDA)/toolkit/fetch.sh $(CUDA)/toolkit/nvcc.txt $@
else
CUDA_HEADERS :=
CUDA_TOOLS   :=
CUDA_INCLUDE := $(CUDA_HOME)/include
NVCC         := $(CUDA_HOME)/bin/nvcc
endif

# Go's build cache does not see a changed archive, but it does see a changed flag: so the
# folder carries a hash of what the archive is made from.
CUDA_FORWARDER := build/cuda/forwarder-$(shell cat $(CUDA)/forwarder/* | sha256sum | cut -c1-10)
CUDA_LIB       := $(CUDA_FORWARDER)/libcuda.a

$(CUDA_LIB): $(wildcard $(CUDA)/forwarder/*)
	@mkdir -p $(CUDA_FORWARDER)
	$(CUDA)/forwarder/make.sh $(CUDA)/forwarder $(CUDA_FORWARDER) >&2

CUDA_READY := $(CUDA_LIB) $(CUDA_HEADERS)
CUDA_ENV = CGO_ENABLED=1 GOTOOLCHAIN=$(GOTOOLCHAIN) \
	CGO_CFLAGS='-O2 -I$(CURDIR)/$(CUDA)/shim -I$(CUDA_INCLUDE)' CGO_LDFLAGS='-L$(CURDIR)/$(CUDA_FORWARDER)'

.PHONY: cuda-env build-cuda vet-cuda test-cuda test-cuda-80 cuda-headers cuda-kernels build-cuda-assembled gpu-bundle

cuda-env: $(CUDA_READY) ## print the variables for go with -tags cuda: eval $$(make -s cuda-env)
	@echo "export $(CUDA_ENV)"

build-cuda: $(CUDA_READY) ## build the program with CUDA into build/krater-cuda (no GPU or toolkit needed)
	@mkdir -p build
	$(CUDA_ENV) go build -tags $(TAGS),cuda -trimpath -ldflags '$(LDFLAGS)' -o build/krater-cuda ./cmd/krater

vet-cuda: $(CUDA_READY) ## run go vet with the tag cuda
	$(CUDA_ENV) $(VET) -trimpath -tags $(TAGS),cuda $(CUDA_PACKAGES) ./cmd/...

# Go's cache of test results does not see a changed emulator: -count 1.
EMU_TESTS = LD_LIBRARY_PATH=$(CURDIR)/build/cudaemu $(CUDA_ENV) go test -count 1 -trimpath -vet=off -tags $(TAGS),cuda $(SHORT) -timeout 60m
SHORT ?= -short
# What the tag cuda adds: all other tests run without it. The longest package comes first.
CUDA_TEST_FILES = $(shell git ls-files -co --exclude-standard '*_test.go' | xargs grep -l '^//go:build cuda')
CUDA_TESTS      = $(shell sed -n 's/^func \(Test[A-Za-z0-9_]*\).*/\1/p' $(CUDA_TEST_FILES) | paste -sd '|')
CUDA_TESTED     = $(shell printf './%s\n' $(dir $(CUDA_TEST_FILES)) | sort -u)

test-cuda: $(CUDA_READY) ## run the short tests of GPU code, on the emulator if it was built (make cuda-emu)
	$(EMU_TESTS) -run '^($(CUDA_TESTS))$$' $(CUDA_TESTED)

test-cuda-80: $(CUDA_READY) ## the operators' short tests with the kernels for GPUs before Hopper, on the emulator
	KR_EMU_CC=80 $(EMU_TESTS) ./bench/cards

cuda-headers: $(CUDA_HEADERS) ## fetch CUDA's headers, 2 MB, into build/cuda, unless CUDA_HOME has them

cuda-kernels: $(CUDA_TOOLS) ## compile the kernels whose sources have changed (fetches nvcc, 100 MB, if missing)
	go run ./$(CUDA)/bin/compile $(NVCC)

build-cuda-assembled: $(CUDA_READY) $(CUDA_TOOLS) ## build build/krater-cuda-assembled: on a Hopper GPU its --portable-kernels start at once
	$(CUDA)/bundle/assembled.sh $(dir $(NVCC))ptxas build/assembled
	$(CUDA_ENV) go build -overlay build/assembled/overlay.json -tags $(TAGS),cuda -trimpath -ldflags '$(LDFLAGS)' -o build/krater-cuda-assembled ./cmd/krater

gpu-bundle: $(CUDA_READY) ## build/gpu/krater-gpu.tgz: program, tests, model, goldens and a script for a machine with a GPU
	$(CUDA_ENV) $(CUDA)/bundle/bundle.sh $(or $(COMMIT),unknown)

-include $(CUDA)/emu/emu.mk
