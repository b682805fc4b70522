// What the emulator's test is made of. The functions are the driver's: only their names
// matter, they are declared here as far as they are used.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <functional>
#include <string>
#include <vector>

typedef void *CUfunction_t;
struct LaunchAttribute {
	int id, pad;
	int allowed, room[15];
};
struct LaunchConfig {
	unsigned grid[3], block[3], shared;
	void *stream;
	LaunchAttribute *attrs;
	unsigned count;
};
extern "C" {
int cuInit(unsigned);
int cuDeviceGetAttribute(int *, int, int);
int cuDevicePrimaryCtxRetain(void **, int);
int cuDevicePrimaryCtxReset_v2(int);
int cuCtxSetCurrent(void *);
int cuCtxSynchronize();
int cuModuleLoadData(void **, const void *);
int cuModuleGetFunction(CUfunction_t *, void *, const char *);
int cuFuncGetParamInfo(CUfunction_t, size_t, size_t *, size_t *);
int cuFuncSetAttribute(CUfunction_t, int, int);
int cuMemAlloc_v2(uint64_t *, size_t);
int cuMemFree_v2(uint64_t);
int cuMemGetInfo_v2(size_t *, size_t *);
int cuMemHostAlloc(void **, size_t, unsigned);
int cuMemHostRegister_v2(void *, size_t, unsigned);
int cuMemHostUnregister(void *);
int cuMemcpyHtoD_v2(uint64_t, const void *, size_t);
int cuMemcpyDtoH_v2(void *, uint64_t, size_t);
int cuMemcpyHtoDAsync_v2(uint64_t, const void *, size_t, void *);
int cuMemcpyDtoHAsync_v2(void *, uint64_t, size_t, void *);
int cuMemcpyDtoDAsync_v2(uint64_t, uint64_t, size_t, void *);
int cuMemsetD32Async(uint64_t, unsigned, size_t, void *);
int cuMemsetD8_v2(uint64_t, unsigned char, size_t);
int cuStreamCreate(void **, unsigned);
int cuStreamDestroy_v2(void *);
int cuStreamSynchronize(void *);
int cuStreamQuery(void *);
int cuStreamWaitEvent(void *, void *, unsigned);
int cuStreamBeginCapture_v2(void *, int);
int cuStreamEndCapture(void *, void **);
int cuStreamWriteValue32_v2(void *, uint64_t, uint32_t, unsigned);
int cuStreamWaitValue32_v2(void *, uint64_t, uint32_t, unsigned);
int cuEventCreate(void **, unsigned);
int cuEventRecord(void *, void *);
int cuEventSynchronize(void *);
int cuEventElapsedTime(float *, void *, void *);
int cuEventDestroy_v2(void *);
int cuGraphInstantiateWithFlags(void **, void *, unsigned long long);
int cuGraphLaunch(void *, void *);
int cuGraphExecUpdate_v2(void *, void *, void *);
int cuGraphExecDestroy(void *);
int cuGraphDestroy(void *);
int cuGraphGetNodes(void *, void **, size_t *);
int cuLaunchKernel(CUfunction_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
int cuLaunchKernelEx(const LaunchConfig *, CUfunction_t, void **, void **);
}

struct Case {
	const char *name;
	const char *env;  // settings, "A=1 B=2"
	const char *says; // what it must print; null: nothing
	void (*run)();
	bool loud = false; // prints figures
};
std::vector<Case> &cases();
struct Add {
	Add(const Case &c) { cases().push_back(c); }
};
void check(bool ok, const char *what, int line);
extern int failures;
double now();
#define CHECK(x) check((x), #x, __LINE__)
#define MUST(x) check((x) == 0, #x, __LINE__)

CUfunction_t function(const char *name);
uint64_t device(size_t n);

template <typename T> struct Array { // on the GPU
	uint64_t at;
	size_t n;
	explicit Array(size_t n) : at(device(n * sizeof(T))), n(n) {}
	explicit Array(const std::vector<T> &v) : Array(v.size()) { MUST(cuMemcpyHtoD_v2(at, v.data(), n * sizeof(T))); }
	std::vector<T> get() const {
		std::vector<T> v(n);
		MUST(cuMemcpyDtoH_v2(v.data(), at, n * sizeof(T)));
		return v;
	}
};
inline uint64_t value(uint64_t v) { return v; }
inline int value(int v) { return v; }
template <typename T> uint64_t value(const Array<T> &a) { return a.at; }

struct Dims {
	unsigned grid[3], block[3], shared;
};
template <typename... A> int launch(const char *name, const Dims &d, void *stream, const A &...args) {
	auto go = [&](auto... v) {
		void *p[] = {&v..., nullptr};
		return cuLaunchKernel(function(name), d.grid[0], d.grid[1], d.grid[2], d.block[0], d.block[1], d.block[2], d.shared, stream, p, nullptr);
	};
	return go(value(args)...);
}
