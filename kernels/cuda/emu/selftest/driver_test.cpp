// Memory, streams, events, graphs and faults of the fake driver.
#include <string.h>
#include <sys/mman.h>

#include "selftest.h"

static const Dims one{{1, 1, 1}, {64, 1, 1}, 0};

static void *stream() {
	void *s;
	MUST(cuStreamCreate(&s, 1));
	return s;
}

static void memory() {
	size_t left, total, after;
	MUST(cuMemGetInfo_v2(&left, &total));
	CHECK(left == 1 << 20 && total == 1 << 20);
	Array<int> a(1000);
	for (int x : a.get()) CHECK(x == -1); // poison
	MUST(cuMemGetInfo_v2(&after, &total));
	CHECK(after == left - 4000 && a.at % 256 == 0);
	uint64_t p;
	CHECK(cuMemAlloc_v2(&p, (1 << 20) - 3999) == 2);
	MUST(cuMemFree_v2(a.at));
	CHECK(cuMemFree_v2(a.at) == 1);
	MUST(cuMemAlloc_v2(&p, 1 << 20));
}

static void extents() {
	Array<int> a(100);
	int host[101] = {};
	CHECK(cuMemcpyHtoD_v2(a.at, host, 404) == 1);
	CHECK(cuMemcpyHtoD_v2((uint64_t)(uintptr_t)host, host, 4) == 1);
	CHECK(cuMemcpyDtoH_v2(host, (uint64_t)(uintptr_t)host, 4) == 1);
	MUST(cuMemcpyDtoH_v2(host, a.at + 396, 4));
}

static void launches() {
	CUfunction_t f = function("t_sum");
	size_t off, size;
	MUST(cuFuncGetParamInfo(f, 1, &off, &size));
	CHECK(off == 8 && size == 4);
	MUST(cuFuncGetParamInfo(f, 2, &off, &size));
	CHECK(off == 16 && size == 8);
	CHECK(cuFuncGetParamInfo(f, 5, &off, &size) == 1);
	Array<int> out(4096);
	CHECK(launch("t_votes", {{1, 1, 1}, {256, 1, 1}, 0}, nullptr, out) == 1);           // bound is 128
	CHECK(launch("t_named", {{1, 1, 1}, {128, 1, 1}, 49153}, nullptr, out, 1) == 1);    // not asked for
	CHECK(cuFuncSetAttribute(function("t_named"), 8, 232449) == 1);
	MUST(cuFuncSetAttribute(function("t_named"), 8, 232448));
	MUST(launch("t_named", {{1, 1, 1}, {128, 1, 1}, 232448}, nullptr, out, 1));
	CHECK(launch("t_empty", {{0, 1, 1}, {32, 1, 1}, 0}, nullptr, 1) == 1);
	MUST(cuCtxSynchronize());
	void *m;
	MUST(cuModuleLoadData(&m, "any"));
	CHECK(cuModuleGetFunction(&f, m, "nobody") == 500);
}

static void events() {
	void *s = stream(), *t = stream(), *a, *b;
	MUST(cuEventCreate(&a, 0));
	MUST(cuEventCreate(&b, 0));
	Array<float> p(64);
	MUST(cuMemsetD32Async(p.at, 0, 64, s));
	MUST(cuEventRecord(a, s));
	for (int i = 0; i < 10; i++) MUST(launch("t_one", one, s, p, 64));
	MUST(cuEventRecord(b, s));
	MUST(cuStreamWaitEvent(t, b, 0));
	MUST(launch("t_one", one, t, p, 64));
	MUST(cuStreamSynchronize(t));
	float ms = -1;
	MUST(cuEventElapsedTime(&ms, a, b));
	CHECK(ms >= 0 && ms < 1000);
	for (float x : p.get()) CHECK(x == 2047);
	MUST(cuEventDestroy_v2(a));
	MUST(cuEventDestroy_v2(b));
	MUST(cuStreamDestroy_v2(s));
	MUST(cuStreamDestroy_v2(t));
}

// Pinned memory is read when the copy runs, pageable memory when it is queued.
static void copies() {
	void *s = stream();
	Array<int> flag(std::vector<int>(1, 0)), a(1), b(1);
	int *pinned;
	MUST(cuMemHostAlloc(reinterpret_cast<void **>(&pinned), 8, 3));
	int pageable = 5;
	pinned[0] = 5;
	MUST(cuStreamWaitValue32_v2(s, flag.at, 1, 0));
	MUST(cuMemcpyHtoDAsync_v2(a.at, &pageable, 4, s));
	MUST(cuMemcpyHtoDAsync_v2(b.at, pinned, 4, s));
	MUST(cuMemcpyDtoHAsync_v2(pinned + 1, b.at, 4, s));
	pageable = pinned[0] = 6;
	CHECK(cuStreamQuery(s) == 600);
	void *t = stream();
	MUST(cuStreamWriteValue32_v2(t, flag.at, 1, 0));
	MUST(cuStreamSynchronize(t));
	MUST(cuStreamSynchronize(s));
	CHECK(a.get()[0] == 5 && b.get()[0] == 6 && pinned[1] == 6);
	static char own[4096];
	MUST(cuMemHostRegister_v2(own, 4096, 2));
	CHECK(cuMemHostRegister_v2(own + 100, 10, 2) == 712);
	MUST(cuMemHostUnregister(own));
	CHECK(cuMemHostUnregister(own) == 713);
}

// A copy in a stream that nobody waits for has not happened; an event that is waited for
// brings it as far as the event, no farther.
static void lateCopies() {
	void *s = stream(), *t = stream(), *e;
	MUST(cuEventCreate(&e, 2));
	Array<int> a(std::vector<int>(1, 0)), b(std::vector<int>(1, 0));
	int *pinned;
	MUST(cuMemHostAlloc(reinterpret_cast<void **>(&pinned), 16, 3));
	pinned[0] = 5;
	MUST(cuMemcpyHtoDAsync_v2(a.at, pinned, 4, s));
	MUST(cuEventRecord(e, s));
	MUST(cuMemcpyHtoDAsync_v2(b.at, pinned, 4, s));
	MUST(cuMemcpyDtoHAsync_v2(pinned + 1, a.at, 4, t));
	MUST(cuStreamSynchronize(t));
	CHECK(pinned[1] == 0);
	MUST(cuStreamWaitEvent(t, e, 0));
	MUST(cuMemcpyDtoHAsync_v2(pinned + 1, a.at, 4, t));
	MUST(cuMemcpyDtoHAsync_v2(pinned + 2, b.at, 4, t));
	MUST(cuStreamSynchronize(t));
	CHECK(pinned[1] == 5 && pinned[2] == 0);
	MUST(cuStreamSynchronize(s));
	CHECK(b.get()[0] == 5);
	MUST(cuEventDestroy_v2(e));
}

// A kernel waits for the host in mapped memory while the host goes on.
static void handoff() {
	void *s = stream();
	uint32_t *word;
	MUST(cuMemHostAlloc(reinterpret_cast<void **>(&word), 8, 3));
	word[0] = word[1] = 0;
	MUST(launch("t_wait", {{1, 1, 1}, {32, 1, 1}, 0}, s, (uint64_t)(uintptr_t)word, (uint64_t)(uintptr_t)(word + 1)));
	__atomic_store_n(word, 7, __ATOMIC_RELEASE);
	for (double end = now() + 10; __atomic_load_n(word + 1, __ATOMIC_ACQUIRE) != 9 && now() < end;) {}
	CHECK(word[1] == 9);
	MUST(cuStreamSynchronize(s));
	// one that does not wait for ever
	MUST(cuMemHostAlloc(reinterpret_cast<void **>(&word), 32, 3));
	for (int came : {0, 1}) {
		memset(word, 0, 32);
		word[3] = 11, word[0] = came ? 7 : 0;
		MUST(launch("t_limit", {{1, 1, 1}, {32, 1, 1}, 0}, s, (uint64_t)(uintptr_t)word, (uint64_t)(uintptr_t)(word + 4), came ? 2000000000 : 1000000));
		MUST(cuStreamSynchronize(s));
		CHECK(word[4] == (uint32_t)came && word[5] == 11);
	}
	// words that say themselves that they are there, the last of them first
	uint64_t *words;
	MUST(cuMemHostAlloc(reinterpret_cast<void **>(&words), 8 * 129, 3));
	memset(words, 0, 8 * 129);
	MUST(launch("t_words", {{1, 1, 1}, {32, 1, 1}, 0}, s, (uint64_t)(uintptr_t)words, (uint64_t)(uintptr_t)(words + 64)));
	for (uint64_t i = 64; i-- > 0;) __atomic_store_n(words + i, 7ull << 32 | i, __ATOMIC_RELAXED);
	MUST(cuStreamSynchronize(s));
	for (uint64_t i = 0; i < 64; i++) CHECK(words[64 + i] == (i ^ 1));
	CHECK(words[128] == (14ull << 32 | 125));
}

static void *record(void *s, void *t, const Array<float> &p, int kernels, bool join) {
	void *fork, *back, *g = nullptr;
	function("t_one"); // a module is not to be loaded meanwhile
	MUST(cuEventCreate(&fork, 2));
	MUST(cuEventCreate(&back, 2));
	MUST(cuStreamBeginCapture_v2(s, 1));
	MUST(cuMemsetD32Async(p.at, 0, 64, s));
	for (int i = 0; i < kernels; i++) MUST(launch("t_one", one, s, p, 64));
	MUST(cuEventRecord(fork, s));
	MUST(cuStreamWaitEvent(t, fork, 0));
	MUST(launch("t_one", one, t, p, 64));
	MUST(cuEventRecord(back, t));
	if (join) MUST(cuStreamWaitEvent(s, back, 0));
	CHECK(cuStreamEndCapture(s, &g) == (join ? 0 : 904));
	return g;
}
static void graphs() {
	void *s = stream(), *t = stream();
	Array<float> p(64);
	void *g = record(s, t, p, 3, true), *x, *h;
	size_t n = 0;
	MUST(cuGraphGetNodes(g, nullptr, &n));
	CHECK(n == 5);
	CHECK(p.get()[0] != 15); // nothing has run yet
	MUST(cuGraphInstantiateWithFlags(&x, g, 0));
	MUST(cuGraphDestroy(g));
	MUST(cuGraphLaunch(x, s));
	MUST(cuGraphLaunch(x, s));
	MUST(cuStreamSynchronize(s));
	CHECK(p.get()[63] == 15);
	Array<float> q(64);
	struct {
		int result;
		void *a, *b;
	} info;
	h = record(s, t, q, 3, true);
	MUST(cuGraphExecUpdate_v2(x, h, &info));
	MUST(cuGraphLaunch(x, s));
	MUST(cuStreamSynchronize(s));
	CHECK(q.get()[0] == 15);
	h = record(s, t, q, 4, true);
	CHECK(cuGraphExecUpdate_v2(x, h, &info) == 910 && info.result == 2);
	record(s, t, q, 1, false);
	// what may not be done meanwhile
	MUST(cuStreamBeginCapture_v2(s, 1));
	uint64_t d;
	CHECK(cuMemAlloc_v2(&d, 4) == 900);
	CHECK(launch("t_one", one, s, p, 64) == 901);
	CHECK(cuStreamEndCapture(s, &h) == 901 && !h);
	MUST(cuGraphLaunch(x, s)); // and all is well again
	MUST(cuStreamSynchronize(s));
	MUST(cuGraphExecDestroy(x));
}

#define EVERY(f) static Add f##_1({#f, "", nullptr, f}), f##_2({#f, "KR_EMU_LAZY=1", nullptr, f});
static Add m1({"memory", "KR_EMU_MEMORY=1048576", nullptr, memory});
static Add m2({"extents", "", "(byte 0 of an allocation of 400 bytes)", extents});
static Add m3({"launches", "", "at most 128 threads", launches});
EVERY(events)
EVERY(copies)
EVERY(graphs)
static Add m6({"late copies", "KR_EMU_LAZY=1", nullptr, lateCopies});
static Add m4({"handoff", "", nullptr, handoff});
static Add f1({"fail alloc", "KR_EMU_FAIL=cuMemAlloc:2:2", nullptr, [] {
	uint64_t p;
	CHECK(cuMemAlloc_v2(&p, 4) == 0 && cuMemAlloc_v2(&p, 4) == 2 && cuMemAlloc_v2(&p, 4) == 0);
}});
static Add f2({"fail launch", "KR_EMU_FAIL=launch:3:700", nullptr, [] {
	for (int i = 0; i < 3; i++) CHECK(launch("t_empty", {{1, 1, 1}, {32, 1, 1}, 0}, nullptr, 1) == 0);
	CHECK(cuCtxSynchronize() == 700);
	CHECK(launch("t_empty", {{1, 1, 1}, {32, 1, 1}, 0}, nullptr, 1) == 700);
	MUST(cuDevicePrimaryCtxReset_v2(0));
	MUST(launch("t_empty", {{1, 1, 1}, {32, 1, 1}, 0}, nullptr, 1));
	MUST(cuCtxSynchronize());
}});
static Add f3({"times out", "KR_EMU_TIMEOUT=0.2", "waited too long", [] {
	uint32_t *word;
	MUST(cuMemHostAlloc(reinterpret_cast<void **>(&word), 8, 3));
	word[0] = 0;
	MUST(launch("t_wait", {{1, 1, 1}, {32, 1, 1}, 0}, nullptr, (uint64_t)(uintptr_t)word, (uint64_t)(uintptr_t)(word + 1)));
	CHECK(cuCtxSynchronize() == 702);
}});
static Add m5({"gap", "", "a write went beyond the end of the allocation of 400 bytes", [] { // up to the alignment
	Array<int> p(100);
	MUST(launch("t_index", {{1, 1, 1}, {101, 1, 1}, 0}, nullptr, p));
	MUST(cuCtxSynchronize());
	CHECK(cuMemFree_v2(p.at) == 700);
}});
