//go:build cuda

package cudatest

/*
#include <dlfcn.h>
#include <stdlib.h>

// kr_fail calls the emulated driver's kr_emu_fail; -1: the driver is not emulated.
static int kr_fail(const char *faults) {
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	int (*fail)(const char *) = lib ? (int (*)(const char *))dlsym(lib, "kr_emu_fail") : 0;
	int fired = fail ? fail(faults) : -1;
	if (lib) dlclose(lib);
	return fired;
}

// kr_peer calls the emulated driver's kr_emu_peer; -1: the driver is not emulated.
static long kr_peer(const char *fault) {
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	long (*peer)(const char *) = lib ? (long (*)(const char *))dlsym(lib, "kr_emu_peer") : 0;
	long copies = peer ? peer(fault) : -1;
	if (lib) dlclose(lib);
	return copies;
}

// kr_wild launches a kernel that writes where no memory is, in the context of the calling thread: a context that has run it
// is lost. The result is the driver's, or -1 for a missing call.
static int kr_wild(void) {
	static const char ptx[] = ".version 6.3\n.target sm_70\n.address_size 64\n"
		".visible .entry wild() { .reg .b64 %at; mov.u64 %at, 64; st.global.u32 [%at], 1; ret; }\n";
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	int (*load)(void **, const void *) = lib ? (int (*)(void **, const void *))dlsym(lib, "cuModuleLoadData") : 0;
	int (*find)(void **, void *, const char *) = lib ? (int (*)(void **, void *, const char *))dlsym(lib, "cuModuleGetFunction") : 0;
	int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **) =
		lib ? (int (*)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **))dlsym(lib, "cuLaunchKernel") : 0;
	void *module, *kernel;
	int err = load && find && launch ? load(&module, ptx) : -1;
	if (!err) err = find(&kernel, module, "wild");
	if (!err) err = launch(kernel, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0);
	if (lib) dlclose(lib);
	return err;
}

// kr_reset destroys the primary context of the calling thread's GPU.
static int kr_reset(void) {
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	int (*current)(int *) = lib ? (int (*)(int *))dlsym(lib, "cuCtxGetDevice") : 0;
	int (*reset)(int) = lib ? (int (*)(int))dlsym(lib, "cuDevicePrimaryCtxReset_v2") : 0;
	int gpu, err = current && reset ? current(&gpu) : -1;
	if (!err) err = reset(gpu);
	if (lib) dlclose(lib);
	return err;
}
*/
import "C"

import (
	"fmt"
	"testing"
	"unsafe"

	"krater/kernels/cuda/driver"
)

// Fail makes calls of the emulated driver fail from now on. The argument is as in KR_EMU_FAIL:
// "cuMemcpy:3:1" is the third copy, with CUDA_ERROR_INVALID_VALUE; "" means no fault. It returns how
// many of the faults requested before have occurred. With a real driver the test is skipped. The
// faults end with the test.
func Fail(t testing.TB, faults string) (fired int) {
	t.Helper()
	c := C.CString(faults)
	defer C.free(unsafe.Pointer(c))
	if fired = int(C.kr_fail(c)); fired < 0 {
		t.Skip("faults are the emulated GPU's")
	}
	if faults != "" {
		t.Cleanup(func() {
			none := C.CString("")
			C.kr_fail(none)
			C.free(unsafe.Pointer(none))
		})
	}
	return fired
}

// A Loss is a way in which a GPU's context ends.
type Loss int

const (
	Kept      Loss = iota
	Destroyed      // by a call
	Faulted        // by a kernel that writes where no memory is; the driver's documentation has no way on for the process
)

// Lose ends the context of a GPU. The owner is the GPU's. An emulated GPU has one kind of loss.
func Lose(t testing.TB, owner *driver.Owner, how Loss) {
	t.Helper()
	c := C.CString("launch:1:700")
	defer C.free(unsafe.Pointer(c))
	err := owner.Do(func() error {
		if C.kr_fail(c) >= 0 {
			return nil // the next launch, of any GPU, ends a context
		}
		lose := func() C.int { return C.kr_reset() }
		if how == Faulted {
			lose = func() C.int { return C.kr_wild() }
		}
		if err := lose(); err != 0 {
			return fmt.Errorf("the context was not lost: error %d of the driver", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// Peer gives copies between emulated GPUs a fault from now on. The argument is as in KR_EMU_PEER; ""
// is no fault, and ends copies that hang. It returns how many such copies there were since the last
// call. With a real driver the test is skipped. The fault ends with the test.
func Peer(t testing.TB, fault string) (copies int) {
	t.Helper()
	set := func(fault string) int {
		c := C.CString(fault)
		defer C.free(unsafe.Pointer(c))
		return int(C.kr_peer(c))
	}
	if copies = set(fault); copies < 0 {
		t.Skip("faults are the emulated GPU's")
	}
	if fault != "" {
		t.Cleanup(func() { set("") })
	}
	return copies
}
