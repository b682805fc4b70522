// One block from its first thread to its last, the checks at its end, and failure.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "emu_math.h"
#include "race.h"

extern thread_local char kr_emu_tls_first[], kr_emu_tls_last[];

namespace kr_emu {

// Memory of the block begins as NaN. __shared__ variables do so only when another launch begins,
// because it is unknown which of them belong to this kernel.
void Worker::poison_shared() {
	if (poisoned != launch->number) memset(kr_emu_tls_first, 0xff, (size_t)(kr_emu_tls_last - kr_emu_tls_first));
	poisoned = launch->number;
	uint32_t n = launch->shared, up = (n + 1023) / 1024 * 1024;
	blk.shared = sharedMap + sharedMapBytes - up;
	blk.sharedBytes = n;
	memset(blk.shared, 0xff, up);
}

// The memory between the end of dynamic shared memory and the guard page must be unchanged.
bool Worker::shared_overrun() const {
	for (uint32_t i = launch->shared; i % 1024; i++)
		if (blk.shared[i] != 0xff) return true;
	return false;
}

bool Worker::run_block(Launch &l, uint64_t linear) {
	launch = &l;
	const Settings &s = settings();
	uint64_t at = s.order == Settings::REVERSE ? l.blocks - 1 - linear : linear;
	blk.linear = (unsigned)at;
	blk.idx = {(unsigned)(at % l.grid.x), (unsigned)(at / l.grid.x % l.grid.y), (unsigned)(at / l.grid.x / l.grid.y)};
	blk.dim = l.block;
	blk.grid = l.grid;
	blk.launch = &l;
	blk.rng = s.seed * 0x9e3779b97f4a7c15ull + at + 1;
	total = alive = l.block.x * l.block.y * l.block.z;
	started = 0;
	for (unsigned i = 0; i < (total + 31) / 32; i++) {
		unsigned left = total - 32 * i;
		warps[i].alive = left >= 32 ? 0xffffffffu : (1u << left) - 1;
		warps[i].meetings = 0;
		wgmmas[i] = 0;
	}
	orderly = s.order;
	order.clear();
	if (s.order != Settings::FORWARD) {
		for (unsigned i = 0; i < total; i++) order.push_back((uint16_t)(total - 1 - i));
		if (s.order == Settings::RANDOM)
			for (unsigned i = total; i > 1; i--) std::swap(order[i - 1], order[random(blk.rng) % i]);
	}
	poison_shared();
	begin_async();
	race_begin(*this);
	pdlWaited = aborted = false;
	running = this;
	kr_emu_switch(&outside, prepare(HOME, &threads[0], scheduler));
	running = nullptr;
	if (aborted) reset();
	return !aborted;
}

// scheduler runs on its own stack and ends by leaving it.
void Worker::scheduler() {
	Worker &w = *worker();
	if (!setjmp(w.again)) {
		w.schedule();
		if (!w.aborted) w.checks();
	}
	void *dead;
	kr_emu_switch(&dead, w.outside);
}

void Worker::schedule() {
	while (!aborted) {
		Thread *t = pick();
		if (t) {
			kr_emu_switch(&home, t->sp);
		} else if (alive == 0) {
			return;
		} else if (!progress() && !turn_yielded()) {
			deadlock();
		}
	}
}

// turn_yielded lets those threads continue that wait for another thread; false: there are none, or
// their time is up.
bool Worker::turn_yielded() {
	if (yielded.empty()) return false;
	if (++yields % 64 == 0) { // the host needs the processor
		usleep(20);
		if (clock64() > launch->deadline || launch->error) return false;
	}
	for (Thread *t : yielded) wake(t);
	yielded.clear();
	return true;
}

void Worker::checks() {
	end_async();
	for (unsigned i = 1; i < total / 32; i++)
		if (wgmmas[i] != wgmmas[i & ~3u]) report(LAUNCH_FAILED, "warp %u has issued %u wgmma, warp %u of the same warpgroup %u", i, wgmmas[i], i & ~3u, wgmmas[i & ~3u]);
	if (shared_overrun()) report(ILLEGAL_ADDRESS, "a thread of this block wrote behind the end of dynamic shared memory (%u bytes)", launch->shared);
	if (launch->pdl && !pdlWaited && settings().cc >= 90) report(LAUNCH_FAILED, "launched with PDL, but no thread of this block called pdl_wait");
}

// reset forgets a block that failed: its fibers are dropped.
void Worker::reset() {
	yielded.clear(), syncing.clear();
	first = behind = 0;
	arrived = votes = 0;
	syncWhat = nullptr;
	for (Named &n : named) n.threads = n.arrived = 0, n.waiting.clear();
	for (Thread &t : threads) t.copies.clear(), t.products.clear();
	freeStacks.clear();
	for (unsigned i = 0; i < stacksMade; i++) freeStacks.push_back((uint16_t)i);
}

// deadlock reports that no thread can continue, or that the launch's time is up.
void Worker::deadlock() {
	std::string s;
	int shown = 0;
	unsigned waiting = 0;
	const Thread *last = nullptr;
	for (unsigned i = 0; i < total; i++) {
		Thread &t = threads[i];
		if (t.done || !t.waits) continue;
		if (!waiting++) head().self = &t;
		if (shown == 6 || (last && last->waits == t.waits && last->waitKey == t.waitKey)) continue;
		last = &t;
		char line[160];
		snprintf(line, sizeof line, "%s thread (%u,%u,%u) in %s [%x]", shown ? "," : "", t.tid.x, t.tid.y, t.tid.z, t.waits, t.waitKey);
		s += line;
		shown++;
	}
	bool late = !yielded.empty();
	report(late ? LAUNCH_TIMEOUT : LAUNCH_FAILED, "%s: %u threads wait, %u have ended:%s", late ? "waited too long" : "deadlock", waiting, total - alive, s.c_str());
}

// report prints the fault and ends the block; it does not return.
void report(int code, const char *format, ...) {
	va_list v;
	va_start(v, format);
	vreport(code, format, v);
	va_end(v);
}

void vreport(int code, const char *format, va_list v) {
	Worker &w = *worker();
	char text[1024];
	vsnprintf(text, sizeof text, format, v);
	int none = 0;
	if (w.launch->error.compare_exchange_strong(none, code)) { // only the first is the cause
		uint3 b = w.blk.idx, t = self()->tid;
		fprintf(stderr, "cuda emulator: kernel %s, block (%u,%u,%u), thread (%u,%u,%u): %s\n", w.launch->kernel->name, b.x, b.y, b.z, t.x, t.y, t.z, text);
	}
	w.aborted = true;
}

void fail(int code, const char *format, ...) {
	va_list v;
	va_start(v, format);
	vreport(code, format, v);
	va_end(v);
	Worker &w = *worker();
	uintptr_t at = reinterpret_cast<uintptr_t>(&v);
	uintptr_t home = reinterpret_cast<uintptr_t>(w.stacks) + (size_t)Worker::HOME * STACK;
	if (at >= home && at < home + STACK) longjmp(w.again, 1);
	void *dead;
	kr_emu_switch(&dead, w.home);
	__builtin_unreachable();
}

} // namespace kr_emu
