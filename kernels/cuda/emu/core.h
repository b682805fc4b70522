// The machine as kernels see it: the current thread and block, meeting points of threads, and the
// registration of kernels. fiber.cpp implements it.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <type_traits>
#include <vector>

#include "vector.h"

namespace kr_emu __attribute__((visibility("hidden"))) {

struct Warp;
struct Launch;
struct Worker;

// Start of dynamic shared memory in the shared address space. It is not 0, so that use of an unset
// address is detected.
enum : uint32_t { SHARED_BASE = 1024 };

// One asynchronous copy to shared memory (cp.async), or an arrival that follows such copies.
struct Copy {
	uint32_t dst;
	uint32_t bytes;
	const void *src;     // null: zeros
	uint32_t group;      // number of the group it was committed to; OPEN before that
	uint32_t bar;        // not 0: no copy, an arrival at this mbarrier
};

// What the elements of a and b are.
enum class Format { bf16, f16, s8 };

// One wgmma in flight: d += a * b.
struct Product {
	void *d;             // N/2 float or int of this thread
	int n;               // N
	uint32_t a[4];       // fragment, unless shared
	uint64_t da, db;     // descriptors
	bool shared;         // A from shared memory
	bool trans;          // B is [k][n]
	Format format;
	uint32_t group;
};
enum : uint32_t { OPEN = 0xffffffffu };

// One CUDA thread: a fiber.
struct Thread {
	uint3 tid;
	unsigned index;      // in the block
	unsigned lane;
	Warp *warp;
	void *sp;            // where it stopped
	const char *waits;   // for what, null when it runs or is ready
	uint32_t waitKey;    // which barrier
	bool done;
	bool yielded;        // has nothing to do until others have done something

	// cp.async, oldest first, and groups committed
	std::vector<Copy> copies;
	uint32_t copyGroups;
	// wgmma, oldest first, and groups committed
	std::vector<Product> products;
	uint32_t productGroups;
	bool pdlWaited;
	bool fenced;         // wgmma_fence since registers may have changed
	// state for fence_async: see async.cpp
	uint32_t fenceAt, syncAt, fenceSyncAt;
};

// One block: the data that its threads share.
struct Block {
	uint3 idx;
	dim3 dim, grid;
	unsigned char *shared;  // dynamic shared memory
	uint32_t sharedBytes;
	unsigned linear;        // index in the grid
	const Launch *launch;
	uint64_t rng;
};

// The running fiber. It lies at the top of its stack. Stacks are aligned to their size, so it is
// found from the stack pointer, without a thread-local variable. (That would cost a call: the
// kernels' __shared__ variables are too many for a cheaper kind.)
struct Head {
	Thread *self;
	Block *block;
	Worker *worker;
};
enum : size_t { STACK = 64 << 10 };
inline Head &head() {
#if defined(__x86_64__)
	uintptr_t sp;
	asm("movq %%rsp, %0" : "=r"(sp));
#else
	uintptr_t sp = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
#endif
	return *reinterpret_cast<Head *>((sp | (STACK - 1)) + 1 - sizeof(Head));
}
inline Thread *self() { return head().self; }
inline Block *block() { return head().block; }
inline Worker *worker() { return head().worker; }

// Ends the launch with a message that names kernel, block and thread, and a sticky error
// (a CUresult). Does not return.
[[noreturn]] __attribute__((format(printf, 2, 3))) void fail(int code, const char *format, ...);
enum { ILLEGAL_ADDRESS = 700, LAUNCH_TIMEOUT = 702, ASSERT = 710, ILLEGAL_INSTRUCTION = 715, MISALIGNED = 716, LAUNCH_FAILED = 719 };

// The lanes of mask meet. The last to arrive calls f with the data of all lanes (args[lane], memory
// of the lane that f may write answers to); then all continue. what names the operation for
// messages, and must be the same in all lanes.
typedef void (*Combine)(void *const *args, uint32_t mask);
void meet(uint32_t mask, Combine f, void *arg, const char *what);

// __syncthreads for every thread of the block that has not ended. It returns how many voted true.
unsigned sync_block(bool vote, const char *what);
void barrier(int id, int threads, bool wait);
// Lets other threads run, then returns. It is for loops that wait for another thread or the host.
void yield();

// Address of n bytes of shared memory, after checks. align must divide the address.
unsigned char *shared_at(uint32_t at, uint32_t n, uint32_t align, const char *what);
uint32_t shared_address(const void *p);

// asynchronous copies and barriers: async.cpp
void copy_async(uint32_t dst, const void *src, uint32_t bytes, bool ok);
void copy_commit();
void copy_wait(uint32_t left);
void fence_async();
void mbarrier_init(uint32_t bar, int arrivals);
void mbarrier_arrive(uint32_t bar, uint32_t bytes);
void mbarrier_arrive_copies(uint32_t bar);
void mbarrier_wait(uint32_t bar, uint32_t parity);
void bulk(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar);

void pdl_wait(); // notes that it was called
void pdl_launch();
void seen(const void *p); // an atomic operation: for race.h

// matrix instructions: tensor.cpp
void ldmatrix(uint32_t *r, uint32_t at, int count, bool trans);
void mma(float *c, const uint32_t *a, uint32_t b0, uint32_t b1);
void mma_f16(float *c, const uint32_t *a, uint32_t b0, uint32_t b1);
void mma(int *c, const uint32_t *a, uint32_t b0, uint32_t b1);
void wgmma(const Product &p);
void wgmma_commit();
void wgmma_wait(uint32_t left);
void wgmma_fence();

// A kernel as the driver sees it.
struct Kernel {
	const char *name;
	unsigned threadsMax;
	void (*invoke)(void *fn, void *const *params); // runs it as the current thread
	void *fn;
	std::vector<uint32_t> sizes, offsets;           // of the parameters
	std::vector<bool> pointers;                     // which are addresses
	unsigned sharedMax;                             // cuFuncSetAttribute; of both contexts alike
};

// KR_KERNEL and KR_EXPORT.
struct Bounds {
	explicit Bounds(unsigned threads);
};
// A parameter of a kernel. A table of them is cheaper to compile than code for each.
struct Parameter {
	uint32_t size, align;
	bool pointer;
};
void announce(int hopper, const char *name, void (*invoke)(void *fn, void *const *params), void *fn, const Parameter *params, size_t count);

template <typename... A> struct Invoke {
	template <size_t... I> static void call(void *fn, void *const *p, std::index_sequence<I...>) {
		reinterpret_cast<void (*)(A...)>(fn)(*static_cast<const std::remove_cv_t<A> *>(p[I])...);
	}
	static void run(void *fn, void *const *p) { call(fn, p, std::index_sequence_for<A...>()); }
};

struct Export {
	template <typename... A> Export(int hopper, const char *name, void (*fn)(A...)) {
		static const Parameter params[] = {{sizeof(A), alignof(A), std::is_pointer<A>::value}..., {}};
		announce(hopper, name, Invoke<A...>::run, reinterpret_cast<void *>(fn), params, sizeof...(A));
	}
};

} // namespace kr_emu
