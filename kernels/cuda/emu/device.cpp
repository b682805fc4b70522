// The GPUs: their properties, contexts, modules and functions, errors.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>

#include "driver.h"

using namespace kr_emu;

typedef struct CUmod_st *CUmodule;
typedef Function *CUfunction;

static std::atomic<bool> initialised{false};
static thread_local std::vector<Gpu *> contexts; // pushed by the thread, the current one last

// The GPU's address is the handle of its context.
static CUcontext handle(Gpu *g) { return reinterpret_cast<CUcontext>(g); }
static Gpu *gpus() {
	static Gpu *list = [] {
		Gpu *all = new Gpu[DEVICES_MAX];
		for (int i = 0; i < settings().devices; i++) {
			all[i].index = i;
			for (const Kernel &k : kernels()) all[i].functions.push_back({k, &all[i]});
		}
		return all;
	}();
	return list;
}

namespace kr_emu {
Gpu *gpu_at(int i) { return i >= 0 && i < settings().devices ? gpus() + i : nullptr; }
Gpu *current() { return contexts.empty() ? nullptr : contexts.back(); }
Gpu *of(CUcontext c) {
	for (int i = 0; i < settings().devices; i++)
		if (c == handle(gpus() + i)) return gpus() + i;
	return nullptr;
}
} // namespace kr_emu


// --- KR_EMU_FAIL=call:count:error[,...], or kr_emu_fail by a test in the same process: the
// count-th call from then on fails; launch: the count-th launch ends with the sticky error

namespace {
struct Fault {
	std::string call;
	long count;
	int error;
};
std::vector<Fault> faults_of(const char *v) {
	std::vector<Fault> f;
	for (std::string s = v ? v : ""; !s.empty();) {
		size_t end = s.find(',');
		std::string one = s.substr(0, end);
		size_t a = one.find(':'), b = one.find(':', a + 1);
		if (a != std::string::npos && b != std::string::npos) f.push_back({one.substr(0, a), atol(one.c_str() + a + 1), atoi(one.c_str() + b + 1)});
		s = end == std::string::npos ? "" : s.substr(end + 1);
	}
	return f;
}
struct Faults {
	std::mutex m;
	std::vector<Fault> list = faults_of(getenv("KR_EMU_FAIL"));
	std::atomic<bool> some{!list.empty()};
	int fired = 0; // since the list was set
};
Faults &faults() {
	static Faults *f = new Faults;
	return *f;
}
} // namespace

extern "C" __attribute__((visibility("default"))) int kr_emu_fail(const char *list) {
	Faults &x = faults();
	std::lock_guard<std::mutex> k(x.m);
	int fired = x.fired;
	x.list = faults_of(list);
	x.some = !x.list.empty();
	x.fired = 0;
	return fired;
}

namespace kr_emu {
int entered(const char *call) {
	if (!initialised) return CUDA_ERROR_NOT_INITIALIZED;
	Gpu *g = current();
	if (!g) return CUDA_ERROR_INVALID_CONTEXT;
	if (g->sticky) return g->sticky;
	Faults &x = faults();
	if (x.some) {
		std::lock_guard<std::mutex> k(x.m);
		for (Fault &f : x.list) {
			bool launch = f.call == "launch" && !strcmp(call, "cuLaunchKernel");
			if (f.call != call && !launch) continue;
			if (--f.count) continue;
			x.fired++;
			if (f.error < 700 || f.error >= 800) return f.error;
			int error = f.error; // comes out later, as a fault of a kernel does
			stream(nullptr)->push([error] { return error; });
			return 0;
		}
	}
	return 0;
}
} // namespace kr_emu

KR_API cuInit(unsigned) {
	initialised = true;
	return 0;
}
KR_API cuDriverGetVersion(int *v) {
	*v = 13000;
	return 0;
}

// --- errors

namespace {
struct Name {
	int code;
	const char *name, *text;
};
} // namespace
static const Name names[] = {
	{0, "CUDA_SUCCESS", "no error"},
	{1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	{2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	{3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	{100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	{101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
	{200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
	{201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
	{209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
	{217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
	{214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
	{400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
	{500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
	{600, "CUDA_ERROR_NOT_READY", "device not ready"},
	{700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
	{701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
	{702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
	{704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
	{705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled"},
	{710, "CUDA_ERROR_ASSERT", "device-side assert triggered"},
	{712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
	{713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
	{715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "an illegal instruction was encountered"},
	{716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
	{719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
	{801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
	{900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
	{901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
	{903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began"},
	{904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
	{905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream"},
	{906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream"},
	{907, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"},
	{910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", "the graph update was not performed because it included changes which violated constraints specific to instantiated graph update"},
	{999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};
static CUresult look_up(int r, const char **s, bool text) {
	for (const Name &n : names)
		if (n.code == r) {
			*s = text ? n.text : n.name;
			return 0;
		}
	*s = nullptr;
	return CUDA_ERROR_INVALID_VALUE;
}
KR_API cuGetErrorName(int r, const char **s) { return look_up(r, s, false); }
KR_API cuGetErrorString(int r, const char **s) { return look_up(r, s, true); }

// --- the device

#define DEVICE(d)                                    \
	if (!initialised) return CUDA_ERROR_NOT_INITIALIZED; \
	if (!gpu_at(d)) return CUDA_ERROR_INVALID_DEVICE

KR_API cuDeviceGetCount(int *n) {
	if (!initialised) return CUDA_ERROR_NOT_INITIALIZED;
	*n = settings().devices;
	return 0;
}
KR_API cuDeviceGet(CUdevice *d, int i) {
	DEVICE(i);
	*d = i;
	return 0;
}
KR_API cuDeviceGetName(char *s, int n, CUdevice d) {
	DEVICE(d);
	snprintf(s, (size_t)n, "Krater emulated card");
	return 0;
}
KR_API cuDeviceGetUuid_v2(unsigned char *u, CUdevice d) {
	DEVICE(d);
	memcpy(u, "kr-emulated-card", 16);
	u[15] = (unsigned char)(u[15] + d);
	return 0;
}
KR_API cuDeviceGetUuid(unsigned char *u, CUdevice d) { return cuDeviceGetUuid_v2(u, d); }
KR_API cuDeviceTotalMem_v2(size_t *n, CUdevice d) {
	DEVICE(d);
	*n = settings().memory;
	return 0;
}
KR_API cuDeviceComputeCapability(int *major, int *minor, CUdevice d) {
	DEVICE(d);
	*major = settings().cc / 10, *minor = settings().cc % 10;
	return 0;
}
KR_API cuDeviceGetPCIBusId(char *s, int n, CUdevice d) {
	DEVICE(d);
	snprintf(s, (size_t)n, "0000:0%d:00.0", d);
	return 0;
}
static unsigned shared_optin() { return settings().cc >= 90 ? SHARED_MAX : 163u << 10; }
KR_API cuDeviceGetAttribute(int *v, int what, CUdevice d) {
	DEVICE(d);
	switch (what) {
	case 1: case 2: case 3: *v = 1024; break;  // threads of a block; x, y
	case 4: *v = 64; break;                    // z
	case 5: *v = 0x7fffffff; break;            // grid x
	case 6: case 7: *v = 65535; break;         // grid y, z
	case 8: *v = 48 << 10; break;              // shared memory of a block
	case 10: *v = 32; break;                   // warp
	case 12: case 82: *v = 65536; break;       // registers of a block, of a multiprocessor
	case 13: *v = 1000000; break;              // clock, kHz
	case 16: *v = settings().sms; break;
	case 19: case 31: case 41: case 78: case 92: case 93: case 99: case 122: *v = 1; break; // mapped memory, concurrent kernels, ...
	case 36: *v = 1000000; break;              // memory clock, kHz
	case 37: *v = 512; break;                  // bus, bits
	case 38: *v = 4 << 20; break;              // L2
	case 39: *v = 2048; break;                 // threads of a multiprocessor
	case 40: *v = 2; break;                    // copy engines
	case 75: *v = settings().cc / 10; break;
	case 76: *v = settings().cc % 10; break;
	case 81: *v = (int)shared_optin() + 1024; break;
	case 97: *v = (int)shared_optin(); break;
	case 106: *v = 32; break;                  // blocks of a multiprocessor
	case 111: *v = 1024; break;
	default: *v = 0;
	}
	return 0;
}

// --- contexts: each GPU has one

KR_API cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) {
	DEVICE(d);
	gpus()[d].retained++;
	*c = handle(gpus() + d);
	return 0;
}
KR_API cuDevicePrimaryCtxReset_v2(CUdevice d) {
	DEVICE(d);
	synchronise(gpus() + d);
	free_everything(gpus() + d);
	gpus()[d].sticky = 0;
	gpus()[d].peers = 0;
	return 0;
}
KR_API cuDevicePrimaryCtxRelease_v2(CUdevice d) {
	DEVICE(d);
	if (gpus()[d].retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
	return --gpus()[d].retained ? 0 : cuDevicePrimaryCtxReset_v2(d);
}
KR_API cuDevicePrimaryCtxRelease(CUdevice d) { return cuDevicePrimaryCtxRelease_v2(d); }
KR_API cuDevicePrimaryCtxReset(CUdevice d) { return cuDevicePrimaryCtxReset_v2(d); }
KR_API cuDevicePrimaryCtxSetFlags_v2(CUdevice d, unsigned) {
	DEVICE(d);
	return 0;
}
KR_API cuDevicePrimaryCtxSetFlags(CUdevice d, unsigned) {
	DEVICE(d);
	return 0;
}
KR_API cuDevicePrimaryCtxGetState(CUdevice d, unsigned *flags, int *active) {
	DEVICE(d);
	*flags = 0, *active = gpus()[d].retained > 0;
	return 0;
}
KR_API cuCtxCreate_v2(CUcontext *c, unsigned, CUdevice d) {
	DEVICE(d);
	gpus()[d].retained++;
	contexts.push_back(gpus() + d);
	*c = handle(gpus() + d);
	return 0;
}
KR_API cuCtxDestroy_v2(CUcontext c) {
	Gpu *g = of(c);
	if (!g) return CUDA_ERROR_INVALID_CONTEXT;
	contexts.clear();
	return cuDevicePrimaryCtxRelease_v2(g->index);
}
KR_API cuCtxSetCurrent(CUcontext c) {
	if (c && !of(c)) return CUDA_ERROR_INVALID_CONTEXT;
	if (!contexts.empty()) contexts.pop_back();
	if (c) contexts.push_back(of(c));
	return 0;
}
KR_API cuCtxGetCurrent(CUcontext *c) {
	*c = handle(current());
	return 0;
}
KR_API cuCtxPushCurrent_v2(CUcontext c) {
	if (!of(c)) return CUDA_ERROR_INVALID_CONTEXT;
	contexts.push_back(of(c));
	return 0;
}
KR_API cuCtxPopCurrent_v2(CUcontext *c) {
	if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
	if (c) *c = handle(current());
	contexts.pop_back();
	return 0;
}
KR_API cuCtxGetDevice(CUdevice *d) {
	if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
	*d = current()->index;
	return 0;
}
KR_API cuCtxGetFlags(unsigned *f) {
	*f = 0;
	return 0;
}
KR_API cuCtxGetApiVersion(CUcontext, unsigned *v) {
	*v = 13000;
	return 0;
}
KR_API cuCtxGetLimit(size_t *v, int what) {
	*v = what == 0 ? STACK : 1 << 20;
	return 0;
}
KR_API cuCtxSetLimit(int, size_t) { return 0; }
KR_API cuCtxGetStreamPriorityRange(int *least, int *greatest) {
	if (least) *least = 0;
	if (greatest) *greatest = -5;
	return 0;
}

// --- modules: whatever the image, they hold all kernels

KR_API cuModuleLoadDataEx(CUmodule *m, const void *image, unsigned, void *, void **) {
	ENTER("cuModuleLoadData");
	if (int bad = not_while_capturing()) return bad;
	if (!image) return CUDA_ERROR_INVALID_VALUE;
	*m = reinterpret_cast<CUmodule>(&current()->module);
	return 0;
}
KR_API cuModuleLoadData(CUmodule *m, const void *image) { return cuModuleLoadDataEx(m, image, 0, nullptr, nullptr); }
KR_API cuModuleLoadFatBinary(CUmodule *m, const void *image) { return cuModuleLoadDataEx(m, image, 0, nullptr, nullptr); }
KR_API cuModuleUnload(CUmodule m) { return m ? 0 : CUDA_ERROR_INVALID_HANDLE; }
KR_API cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name) {
	ENTER("cuModuleGetFunction");
	for (int i = 0; i < settings().devices; i++) {
		if (reinterpret_cast<char *>(m) != &gpus()[i].module) continue;
		for (Function &x : gpus()[i].functions)
			if (!strcmp(x.kernel.name, name)) {
				*f = &x;
				return 0;
			}
		return CUDA_ERROR_NOT_FOUND;
	}
	return CUDA_ERROR_INVALID_HANDLE;
}
KR_API cuModuleGetFunctionCount(unsigned *n, CUmodule) {
	*n = (unsigned)kernels().size();
	return 0;
}
KR_API cuFuncGetName(const char **name, CUfunction f) {
	*name = f->kernel.name;
	return 0;
}
KR_API cuFuncGetParamInfo(CUfunction f, size_t i, size_t *offset, size_t *size) {
	ENTER("cuFuncGetParamInfo");
	if (!f || i >= f->kernel.sizes.size()) return CUDA_ERROR_INVALID_VALUE;
	if (offset) *offset = f->kernel.offsets[i];
	if (size) *size = f->kernel.sizes[i];
	return 0;
}
KR_API cuFuncSetAttribute(CUfunction f, int what, int v) {
	ENTER("cuFuncSetAttribute");
	if (!f || v < 0) return CUDA_ERROR_INVALID_VALUE;
	if (what == 9) return 0; // carve-out: a hint
	if (what != 8 || (unsigned)v > shared_optin()) return CUDA_ERROR_INVALID_VALUE;
	f->kernel.sharedMax = (unsigned)v > 48u << 10 ? (unsigned)v : 48u << 10;
	return 0;
}
KR_API cuFuncGetAttribute(int *v, int what, CUfunction f) {
	ENTER("cuFuncGetAttribute");
	if (!f) return CUDA_ERROR_INVALID_HANDLE;
	*v = what == 0 ? (int)f->kernel.threadsMax : what == 8 ? (int)f->kernel.sharedMax : what == 4 ? 32 : what == 5 || what == 6 ? settings().cc : 0;
	return 0;
}
KR_API cuFuncSetCacheConfig(CUfunction, int) { return 0; }
KR_API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, CUfunction f, int block, size_t shared) {
	ENTER("cuOccupancyMaxActiveBlocksPerMultiprocessor");
	if (!f || block <= 0) return CUDA_ERROR_INVALID_VALUE;
	size_t byShared = shared ? (shared_optin() + 1024) / (shared + 1024) : 32;
	*n = (int)std::min<size_t>({32, 2048 / (size_t)block, byShared});
	return 0;
}
