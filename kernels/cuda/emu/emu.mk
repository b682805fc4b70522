# The emulated GPU: build/cudaemu/libcuda.so.1 from this folder and every kernel source.
# Needs g++ only. A stamp by content: a source that only got a new time is not compiled
# again, and an edited one alone is.
#
# Only some kernels, aside (while others edit the rest):
#   make cuda-emu EMU_OUT=/tmp/emu EMU_KERNELS='kernels/cuda/src/a.cu kernels/cuda/src/b.cu'
EMU_DIR   := kernels/cuda/emu
EMU_OUT   ?= build/cudaemu
EMU_LIB   := $(EMU_OUT)/libcuda.so.1
EMU_CXX   ?= g++
EMU_ARCH  := $(if $(filter x86_64,$(shell uname -m)),-march=x86-64-v3 -mtls-dialect=gnu2 -mno-red-zone -fcf-protection=none)
EMU_FLAGS := -std=c++17 -O2 -g1 -fPIC -fvisibility=hidden -fno-stack-protector \
             -ffp-contract=off $(EMU_ARCH) -Wall -DKR_EMU
# -O1 takes 25 % less time to compile than -O2, and tests run 5 % longer.
# Kernels trap on what a GPU does not allow either: misaligned access, indices out of bounds.
EMU_KERNEL_FLAGS := $(EMU_FLAGS) -fno-exceptions -fno-strict-aliasing -Wno-unused-function -Wno-unused-variable -Wno-unknown-pragmas -Wno-sign-compare -O1 \
             -fsanitize=alignment,bounds -fsanitize-undefined-trap-on-error
# EMU_RACE=1: every access is looked at (race.h). make cuda-emu-race builds that aside.
ifneq ($(EMU_RACE),)
EMU_FLAGS += -DKR_EMU_RACE=1
EMU_KERNEL_FLAGS += -DKR_EMU_RACE=1 -fsanitize=thread -Wno-tsan --param=tsan-instrument-func-entry-exit=0
endif
EMU_KERNELS ?= $(wildcard kernels/cuda/src/*.cu)
# The builds of each kernel: 90 is the default of the emulated GPU, 80 is chosen by KR_EMU_CC=80.
EMU_ARCHS   ?= 80 90
# A folder of objects by the hash of all they are made from, of earlier builds elsewhere.
EMU_CACHE   ?=
EMU_LIBSRC  := $(wildcard $(EMU_DIR)/*.cpp)
EMU_OBJS    := $(patsubst $(EMU_DIR)/%.cpp,$(EMU_OUT)/lib_%.o,$(filter-out %/tls_last.cpp %/tls_first.cpp,$(EMU_LIBSRC)) $(EMU_DIR)/tls_first.cpp) \
               $(foreach k,$(EMU_KERNELS),$(foreach a,$(EMU_ARCHS),$(EMU_OUT)/$(basename $(notdir $(k)))_$(a).o)) \
               $(EMU_OUT)/lib_tls_last.o
EMU_HEADERS := $(wildcard kernels/cuda/src/*.cuh) $(wildcard $(EMU_DIR)/*.h)

.PHONY: cuda-emu cuda-emu-race cuda-emu-test
cuda-emu: $(EMU_LIB) ## build the emulated GPU, build/cudaemu/libcuda.so.1: LD_LIBRARY_PATH=build/cudaemu

# $(call emu_compile,object,source,what writes the source to stdin,compiler's arguments,folder of a precompiled header).
# What is compared is the contents of all files that the compiler reads, and the arguments.
define emu_compile
$(EMU_OUT)/$(1).o: $(2) $(EMU_HEADERS) $(EMU_DIR)/emu.mk$(if $(5), | $(5)/after.h.gch)
	@mkdir -p $(EMU_OUT)
	@new=$$$$( (echo '$(EMU_CXX) $(4)'; cat $$$$($(3) $(EMU_CXX) $(4) -MM -MT x | sed 's/^x://; s/\\$$$$//')) | sha256sum | cut -c1-32); \
	if [ -f $$@ ] && [ "$$$$(cat $$@.sum 2>/dev/null)" = "$$$$new" ]; then touch $$@; exit 0; fi; \
	rm -f $$@.sum; kept='$(EMU_CACHE)'/$$$$new-$$$$($(EMU_CXX) -dumpfullversion).o; \
	if [ -n '$(EMU_CACHE)' ] && cp "$$$$kept" $$@.$$$$$$$$ 2>/dev/null; then echo "kept $(1)"; \
	else echo "$(EMU_CXX) $(1)"; $(3) $(EMU_CXX) $(if $(5),-I $(5)) $(4) -c -o $$@.$$$$$$$$ || exit 1; \
		if [ -n '$(EMU_CACHE)' ]; then mkdir -p '$(EMU_CACHE)' && cp $$@.$$$$$$$$ "$$$$kept.$$$$$$$$" && mv "$$$$kept.$$$$$$$$" "$$$$kept"; fi; fi; \
	mv $$@.$$$$$$$$ $$@ && echo $$$$new > $$@.sum
endef
$(foreach s,$(EMU_LIBSRC),$(eval $(call emu_compile,lib_$(basename $(notdir $(s))),$(s),,$(EMU_FLAGS) -O3 $(s))))
# A kernel source is wrapped in an anonymous namespace, after what it includes.
emu_wrap = printf '\#include "after.h"\nnamespace {\n\#include "$(CURDIR)/$(1)"\n}\n' |
emu_hopper_80 := 0
emu_hopper_90 := 1
# Kernels of many formats: -Og takes half the time to compile them, and tests run as long.
emu_many := gemv% moe% gqa% native% same
emu_kind = $(if $(filter $(emu_many),$(1)),many,few)
emu_flags_many := -Og -Wno-maybe-uninitialized
# $(call emu_args,architecture,kind)
emu_args = $(EMU_KERNEL_FLAGS) $(emu_flags_$(2)) -I kernels/cuda/src -I $(EMU_DIR) -DKR_EMU_HOPPER=$(emu_hopper_$(1)) -x c++
# What the kernels of an architecture and a kind include is compiled once: g++ takes it for after.h.
define emu_header
$(EMU_OUT)/$(2)_$(1)/after.h.gch: $(EMU_HEADERS) $(EMU_DIR)/emu.mk
	@mkdir -p $$(@D) && echo '#include "after.h"' >$$(@D)/all.h && $(EMU_CXX) $(call emu_args,$(1),$(2))-header $$(@D)/all.h -o $$@.$$$$$$$$ && mv $$@.$$$$$$$$ $$@
endef
$(foreach a,$(EMU_ARCHS),$(foreach k,few many,$(eval $(call emu_header,$(a),$(k)))))
# $(call emu_kernel,source,architecture,kind)
emu_kernel = $(call emu_compile,$(basename $(notdir $(1)))_$(2),$(1),$(call emu_wrap,$(1)),$(call emu_args,$(2),$(3)) -,$(EMU_OUT)/$(3)_$(2))
$(foreach k,$(EMU_KERNELS),$(foreach a,$(EMU_ARCHS),$(eval $(call emu_kernel,$(k),$(a),$(call emu_kind,$(basename $(notdir $(k))))))))

$(EMU_LIB): $(EMU_OBJS)
	@$(EMU_CXX) -shared -Wl,-soname,libcuda.so.1 -Wl,-z,now,-z,defs -o $@.$$$$ $^ -lpthread -ldl && mv $@.$$$$ $@

cuda-emu-race: ## build the emulated GPU that finds races, which is slower: LD_LIBRARY_PATH=build/cudaemu-race
	@$(MAKE) --no-print-directory -f $(EMU_DIR)/emu.mk EMU_RACE=1 EMU_OUT=build/cudaemu-race

# The emulator's own test, with kernels of its own; without and with the search for races.
EMU_TEST = $(MAKE) --no-print-directory -f $(EMU_DIR)/emu.mk EMU_KERNELS='$(wildcard $(EMU_DIR)/selftest/*.cu)'
cuda-emu-test: ## test the emulator against plain formulas
	@$(EMU_TEST) EMU_OUT=build/cudaemu-test build/cudaemu-test/selftest
	build/cudaemu-test/selftest
	@$(EMU_TEST) EMU_OUT=build/cudaemu-test/race EMU_RACE=1 build/cudaemu-test/race/selftest
	build/cudaemu-test/race/selftest
$(EMU_OUT)/selftest: $(wildcard $(EMU_DIR)/selftest/*.cpp $(EMU_DIR)/selftest/*.h) $(EMU_LIB)
	$(EMU_CXX) -std=c++17 -O1 -g -Wall $(if $(EMU_RACE),-DKR_EMU_RACE=1) -o $@ $(filter %.cpp,$^) $(EMU_LIB) -Wl,-rpath,'$$ORIGIN' -lpthread
