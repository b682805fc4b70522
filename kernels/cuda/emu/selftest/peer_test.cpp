// Two emulated GPUs: memories apart, access between them, copies, events and faults.
#include <string.h>

#include "selftest.h"

extern "C" {
int cuDeviceGetCount(int *);
int cuDeviceCanAccessPeer(int *, int, int);
int cuCtxEnablePeerAccess(void *, unsigned);
int cuCtxDisablePeerAccess(void *);
int cuMemcpyPeerAsync(uint64_t, void *, uint64_t, void *, size_t, void *);
long kr_emu_peer(const char *);
}

static const Dims one{{1, 1, 1}, {64, 1, 1}, 0};

namespace {
struct Two {
	void *ctx[2], *s[2];
	uint64_t at[2]; // 64 numbers, the GPU's own: 1s, 2s
	Two() {
		for (int i = 0; i < 2; i++) {
			MUST(cuDevicePrimaryCtxRetain(&ctx[i], i));
			on(i);
			MUST(cuStreamCreate(&s[i], 1));
			MUST(cuMemAlloc_v2(&at[i], 256));
			MUST(cuMemsetD32Async(at[i], (unsigned)i + 1, 64, s[i]));
			MUST(cuStreamSynchronize(s[i]));
		}
		on(0);
	}
	void on(int i) { MUST(cuCtxSetCurrent(ctx[i])); }
	int peer(int to) { return cuMemcpyPeerAsync(at[to], ctx[to], at[1 - to], ctx[1 - to], 256, s[to]); }
	int first(int i) {
		int x[64];
		on(i);
		MUST(cuMemcpyDtoH_v2(x, at[i], 256));
		for (int v : x) CHECK(v == x[0]);
		return x[0];
	}
};
} // namespace

static void apart() {
	Two t;
	int n = 0, can = 0;
	size_t left, total;
	MUST(cuDeviceGetCount(&n));
	CHECK(n == 2);
	MUST(cuMemGetInfo_v2(&left, &total));
	CHECK(total - left == 256);
	CHECK(t.first(0) == 1 && t.first(1) == 2);
	t.on(0);
	CHECK(cuMemcpyDtoDAsync_v2(t.at[0], t.at[1], 256, t.s[0]) == 1); // no access
	CHECK(cuMemsetD32Async(t.at[1], 0, 64, t.s[0]) == 1);
	MUST(cuDeviceCanAccessPeer(&can, 0, 1));
	CHECK(can == 1);
	MUST(cuCtxEnablePeerAccess(t.ctx[1], 0));
	CHECK(cuCtxEnablePeerAccess(t.ctx[1], 0) == 704);
	MUST(cuMemcpyDtoDAsync_v2(t.at[0], t.at[1], 256, t.s[0]));
	MUST(cuStreamSynchronize(t.s[0]));
	CHECK(t.first(0) == 2);
	t.on(0);
	MUST(cuCtxDisablePeerAccess(t.ctx[1]));
	CHECK(cuCtxDisablePeerAccess(t.ctx[1]) == 705);
	// a kernel, a stream and an event of one GPU are not the other's
	CHECK(launch("t_one", one, t.s[1], t.at[0], 64) == 400);
	void *e;
	MUST(cuEventCreate(&e, 2));
	CHECK(cuEventRecord(e, t.s[1]) == 400);
	CHECK(launch("t_one", one, t.s[0], t.at[1], 64) == 0 && cuStreamSynchronize(t.s[0]) == 700);
	t.on(1); // the other one goes on
	MUST(cuCtxSynchronize());
	CHECK(t.first(1) == 2);
	t.on(0);
	CHECK(cuCtxSynchronize() == 700);
	MUST(cuCtxSetCurrent(nullptr));
	CHECK(cuCtxSynchronize() == 201);
}

// An event orders a stream of one GPU behind one of the other.
static void ordered() {
	Two t;
	void *e;
	uint32_t *word;
	MUST(cuMemHostAlloc(reinterpret_cast<void **>(&word), 8, 3));
	word[0] = 0;
	MUST(cuStreamWaitValue32_v2(t.s[0], (uint64_t)(uintptr_t)word, 1, 0));
	MUST(cuMemsetD32Async(t.at[0], 7, 64, t.s[0]));
	MUST(cuEventCreate(&e, 2));
	MUST(cuEventRecord(e, t.s[0]));
	t.on(1);
	MUST(cuStreamWaitEvent(t.s[1], e, 0));
	MUST(t.peer(1));
	CHECK(cuStreamQuery(t.s[1]) == 600);
	__atomic_store_n(word, 1, __ATOMIC_RELEASE);
	MUST(cuStreamSynchronize(t.s[1]));
	CHECK(t.first(1) == 7);
}

static void faulty() {
	Two t;
	for (const char *fault : {"zeros:2", "stale:2", "late:2", "hang:2"}) {
		t.on(1);
		MUST(cuMemsetD32Async(t.at[1], 5, 64, t.s[1]));
		kr_emu_peer(fault);
		MUST(t.peer(1)); // the first has no fault
		MUST(cuStreamSynchronize(t.s[1]));
		CHECK(t.first(1) == 1);
		MUST(cuMemsetD32Async(t.at[1], 5, 64, t.s[1]));
		MUST(t.peer(1));
		if (!strncmp(fault, "hang", 4)) {
			for (double end = now() + 0.02; now() < end;) CHECK(cuStreamQuery(t.s[1]) == 600);
			CHECK(kr_emu_peer("") == 2);
		}
		MUST(cuStreamSynchronize(t.s[1]));
		CHECK(t.first(1) == (*fault == 'z' ? 0 : *fault == 'l' ? 1 : 5));
	}
}

#define TWICE(f) static Add f##_1({#f, "KR_EMU_DEVICES=2", nullptr, f}), f##_2({#f, "KR_EMU_DEVICES=2 KR_EMU_LAZY=1", nullptr, f});
static Add p1({"apart", "KR_EMU_DEVICES=2", "of an allocation of 256 bytes of GPU 1", apart});
TWICE(ordered)
TWICE(faulty)
static Add p2({"no access", "KR_EMU_DEVICES=2 KR_EMU_PEER=none", nullptr, [] {
	Two t;
	int can = 1;
	MUST(cuDeviceCanAccessPeer(&can, 0, 1));
	CHECK(can == 0 && cuCtxEnablePeerAccess(t.ctx[1], 0) == 217);
	t.on(1);
	MUST(t.peer(1)); // through the host, as a driver does
	MUST(cuStreamSynchronize(t.s[1]));
	CHECK(t.first(1) == 1);
}});
