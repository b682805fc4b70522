# The emulated card: build/cudaemu/libcuda.so.1 from this folder and every kernel source.
# Needs g++ only. A stamp by content: a source that only got a new time is not compiled
# again, and an edited one alone is.
#
# Only some kernels, aside (while others edit the rest):
#   make cuda-emu EMU_OUT=/tmp/emu EMU_KERNELS='kernels/cuda/src/a.cu kernels/cuda/src/b.cu'
EMU_DIR   := kernels/cuda/emu
EMU_OUT   ?= build/cudaemu
EMU_LIB   := $(EMU_OUT)/libcuda.so.1
EMU_CXX   ?= g++
EMU_ARCH  := $(if $(filter x86_64,$(shell uname -m)),-march=x86-64-v3 -mtls-dialect=gnu2)
EMU_FLAGS := -std=c++17 -O2 -g1 -fPIC -fvisibility=hidden -mno-red-zone -fno-stack-protector -fcf-protection=none \
             -ffp-contract=off $(EMU_ARCH) -Wall -DKR_EMU
# Kernels trap on what a card does not allow either: misaligned access, indices out of bounds.
EMU_KERNEL_FLAGS := $(EMU_FLAGS) -fno-exceptions -fno-strict-aliasing -Wno-unused-function -Wno-unused-variable -Wno-unknown-pragmas -Wno-sign-compare \
             -fsanitize=alignment,bounds -fsanitize-undefined-trap-on-error
EMU_KERNELS ?= $(wildcard kernels/cuda/src/*.cu)
EMU_LIBSRC  := $(wildcard $(EMU_DIR)/*.cpp)
EMU_OBJS    := $(patsubst $(EMU_DIR)/%.cpp,$(EMU_OUT)/lib_%.o,$(EMU_LIBSRC)) \
               $(foreach k,$(EMU_KERNELS),$(EMU_OUT)/$(basename $(notdir $(k)))_80.o $(EMU_OUT)/$(basename $(notdir $(k)))_90.o)
EMU_HEADERS := $(wildcard kernels/cuda/src/*.cuh) $(wildcard $(EMU_DIR)/*.h)

.PHONY: cuda-emu cuda-emu-test
cuda-emu: $(EMU_LIB) ## the emulated card, build/cudaemu/libcuda.so.1: LD_LIBRARY_PATH=build/cudaemu

# $(call emu_compile,object,source,command)
define emu_compile
$(EMU_OUT)/$(1).o: $(2) $(EMU_HEADERS) $(EMU_DIR)/emu.mk
	@mkdir -p $(EMU_OUT)
	@new=$$$$(cat $$(filter %.cu %.cpp %.cuh %.h %.mk,$$^) | sha256sum | cut -c1-32); \
	if [ -f $$@ ] && [ "$$$$(cat $$@.sum 2>/dev/null)" = "$$$$new" ]; then touch $$@; exit 0; fi; \
	echo "$(EMU_CXX) $(1)"; rm -f $$@.sum; \
	$(3) -o $$@.$$$$$$$$ && mv $$@.$$$$$$$$ $$@ && echo $$$$new > $$@.sum
endef
$(foreach s,$(EMU_LIBSRC),$(eval $(call emu_compile,lib_$(basename $(notdir $(s))),$(s),$(EMU_CXX) $(EMU_FLAGS) -O3 -c $(s))))
# A kernel source is wrapped in an anonymous namespace, after what it includes.
emu_kernel = printf '\#include "kr.cuh"\nnamespace {\n\#include "$(CURDIR)/$(1)"\n}\n' | \
	$(EMU_CXX) $(EMU_KERNEL_FLAGS) -I kernels/cuda/src -DKR_EMU_HOPPER=$(2) -x c++ -c -
$(foreach k,$(EMU_KERNELS),\
	$(eval $(call emu_compile,$(basename $(notdir $(k)))_80,$(k),$(call emu_kernel,$(k),0)))\
	$(eval $(call emu_compile,$(basename $(notdir $(k)))_90,$(k),$(call emu_kernel,$(k),1))))

$(EMU_LIB): $(EMU_OBJS)
	@$(EMU_CXX) -shared -Wl,-soname,libcuda.so.1 -Wl,-z,now -o $@.$$$$ $^ -lpthread -ldl && mv $@.$$$$ $@

# The emulator's own test, with kernels of its own.
cuda-emu-test: ## the emulator against plain formulas
	@$(MAKE) --no-print-directory -f $(EMU_DIR)/emu.mk EMU_OUT=build/cudaemu-test EMU_KERNELS='$(wildcard $(EMU_DIR)/selftest/*.cu)' build/cudaemu-test/selftest
	LD_LIBRARY_PATH=build/cudaemu-test build/cudaemu-test/selftest
$(EMU_OUT)/selftest: $(wildcard $(EMU_DIR)/selftest/*.cpp $(EMU_DIR)/selftest/*.h) $(EMU_LIB)
	$(EMU_CXX) -std=c++17 -O1 -g -Wall -o $@ $(filter %.cpp,$^) $(EMU_LIB) -Wl,-rpath,'$$ORIGIN' -lpthread
