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
*/
import "C"

import (
	"testing"
	"unsafe"
)

// Fail makes calls of the emulated driver fail from now on. The argument is as in KR_EMU_FAIL:
// "cuMemcpy:3:1" is the third copy, with CUDA_ERROR_INVALID_VALUE; "" is no fault. It returns how
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
