// Threads of a block as fibers, how they start, stop, wait and meet.
#include "fiber.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "emu_math.h"
#include "switch.h"

namespace kr_emu {

__thread Thread *self;
__thread Block *block;
__thread Worker *worker;

Worker::Worker() {
	size_t bytes = (size_t)THREADS_MAX * (STACK + GUARD);
	stacks = static_cast<unsigned char *>(mmap(0, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
	sharedMapBytes = (SHARED_MAX + 4095) / 4096 * 4096;
	sharedMap = static_cast<unsigned char *>(mmap(0, sharedMapBytes + GUARD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	faultStack = static_cast<unsigned char *>(mmap(0, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	if (stacks == MAP_FAILED || sharedMap == MAP_FAILED || faultStack == MAP_FAILED) {
		perror("cuda emulator: mmap");
		abort();
	}
	mprotect(sharedMap + sharedMapBytes, GUARD, PROT_NONE);
	written.resize(SHARED_MAX / 16);
}

Worker::~Worker() {
	munmap(stacks, (size_t)THREADS_MAX * (STACK + GUARD));
	munmap(sharedMap, sharedMapBytes + GUARD);
	munmap(faultStack, STACK);
}

// prepare gives t a stack on which it will begin.
void Worker::prepare(Thread *t) {
	unsigned s;
	if (!freeStacks.empty()) {
		s = freeStacks.back();
		freeStacks.pop_back();
	} else {
		s = stacksMade++;
		mprotect(stacks + (size_t)s * (STACK + GUARD) + GUARD, STACK, PROT_READ | PROT_WRITE);
	}
	stackOf[t->index] = (uint16_t)s;
	// Tops differ modulo 4096, or all stacks would compete for the same lines of the cache.
	size_t less = (s * 7 % 16) * 256;
	t->sp = prepare_stack(stacks + (size_t)s * (STACK + GUARD) + GUARD, STACK - less, fiber);
}

// start makes the next thread's record.
Thread *Worker::start() {
	unsigned i = order.empty() ? started : order[started];
	started++;
	Thread *t = &threads[i];
	t->index = i;
	t->lane = i % 32;
	t->warp = &warps[i / 32];
	if (blk.dim.y == 1 && blk.dim.z == 1) {
		t->tid = {i, 0, 0};
	} else {
		t->tid = {i % blk.dim.x, i / blk.dim.x % blk.dim.y, i / (blk.dim.x * blk.dim.y)};
	}
	t->waits = nullptr;
	t->done = t->fenced = false;
	t->copies.clear(); // what the last owner never waited for
	t->copyGroups = t->productGroups = 0;
	t->fenceAt = t->syncAt = t->fenceSyncAt = 0;
	return t;
}

// pick gives a fiber that can go on, or null.
Thread *Worker::pick() {
	size_t n = ready.size() - readyAt;
	if (n > 0) {
		if (orderly == Settings::RANDOM) {
			std::swap(ready[readyAt], ready[readyAt + random(blk.rng) % n]);
		} else if (orderly == Settings::REVERSE) {
			Thread *t = ready.back();
			ready.pop_back();
			return t;
		}
		Thread *t = ready[readyAt++];
		if (readyAt == ready.size()) ready.clear(), readyAt = 0;
		return t;
	}
	if (started < total) {
		Thread *t = start();
		prepare(t);
		return t;
	}
	return nullptr;
}

// fiber is what runs on a stack: one thread after the other, for as long as none waits.
void Worker::fiber() {
	Worker &w = *worker;
	for (;;) {
		w.launch->kernel->invoke(w.launch->kernel->fn, w.launch->params);
		Thread *t = self;
		w.finish(t);
		uint16_t stack = w.stackOf[t->index];
		if (w.ready.empty() && w.started < w.total) {
			self = w.start();
			w.stackOf[self->index] = stack;
			continue;
		}
		// The stack is free from here on, but nobody writes to it before it is left: pick
		// does not prepare one while a fiber is ready.
		w.freeStacks.push_back(stack);
		void *to = w.home, *dead;
		if (!w.ready.empty()) {
			self = w.pick();
			to = self->sp;
		}
		kr_emu_switch(&dead, to);
	}
}

void Worker::finish(Thread *t) {
	t->done = true;
	Warp &v = *t->warp;
	for (int i = 0; i < v.meetings; i++)
		if (v.meeting[i].mask >> t->lane & 1)
			fail(LAUNCH_FAILED, "ended while lanes %08x of its warp wait for it in %s(%08x)", v.meeting[i].arrived, v.meeting[i].what, v.meeting[i].mask);
	if (!t->products.empty()) fail(LAUNCH_FAILED, "ended with a wgmma in flight");
	v.alive &= ~(1u << t->lane);
	alive--;
	if (arrived > 0 && arrived == alive) release_sync();
}

void Worker::suspend(const char *what, uint32_t key) {
	Thread *t = self;
	t->waits = what;
	t->waitKey = key;
	Thread *n = pick();
	if (n == t) return;
	self = n;
	kr_emu_switch(&t->sp, n ? n->sp : home);
}

void yield() {
	if (!self) return;
	worker->yielded.push_back(self);
	worker->suspend("yield", 0);
}

void Worker::poison_shared() {
	uint32_t n = launch->shared, up = (n + 1023) / 1024 * 1024;
	blk.shared = sharedMap + sharedMapBytes - up;
	blk.sharedBytes = n;
	memset(blk.shared, 0xff, up);
}

// What lies between the end of dynamic shared memory and the guard page must be untouched.
bool Worker::shared_overrun() const {
	for (uint32_t i = launch->shared; i % 1024; i++)
		if (blk.shared[i] != 0xff) return true;
	return false;
}

bool Worker::run_block(Launch &l, uint64_t linear) {
	launch = &l;
	worker = this;
	block = &blk;
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
	}
	order.clear();
	orderly = s.order;
	if (s.order != Settings::FORWARD) {
		for (unsigned i = 0; i < total; i++) order.push_back((uint16_t)(total - 1 - i));
		if (s.order == Settings::RANDOM)
			for (unsigned i = total; i > 1; i--) std::swap(order[i - 1], order[random(blk.rng) % i]);
	}
	poison_shared();
	begin_async();
	pdlWaited = aborted = false;
	while (!aborted) {
		Thread *t = pick();
		if (!t && alive == 0) break;
		if (!t && progress()) continue;
		if (!t && !yielded.empty()) {
			for (Thread *y : yielded) wake(y);
			yielded.clear();
			if (++yields % 64 == 0) {
				sched_yield();
				if (clock64() > l.deadline || l.error) t = ready[readyAt], self = t, deadlock();
			}
			continue;
		}
		self = t;
		if (!t) deadlock();
		if (!aborted) kr_emu_switch(&home, self->sp);
	}
	if (!aborted) end_async();
	if (!aborted && shared_overrun()) {
		self = &threads[0];
		report(ILLEGAL_ADDRESS, "a thread of this block wrote behind the end of dynamic shared memory (%u bytes)", l.shared);
	}
	if (!aborted && l.pdl && !pdlWaited && s.cc >= 90) {
		self = &threads[0];
		report(LAUNCH_FAILED, "launched with PDL, but no thread of this block called pdl_wait");
	}
	self = nullptr;
	if (aborted) { // the fibers are gone as they are
		ready.clear(), yielded.clear(), syncing.clear();
		readyAt = 0;
		arrived = votes = 0;
		syncWhat = nullptr;
		for (Named &n : named) n.threads = n.arrived = 0, n.waiting.clear();
		for (Thread &t : threads) t.copies.clear(), t.products.clear();
		freeStacks.clear();
		for (unsigned i = 0; i < stacksMade; i++) freeStacks.push_back((uint16_t)i);
		return false;
	}
	return true;
}

// deadlock reports that nothing can go on, or that the launch's time is up.
void Worker::deadlock() {
	std::string s;
	int shown = 0;
	unsigned waiting = 0;
	const char *last = nullptr;
	uint32_t key = 0;
	for (unsigned i = 0; i < total; i++) {
		Thread &t = threads[i];
		if (t.done && !t.waits) continue;
		if (!t.waits) continue;
		waiting++;
		self = self ? self : &t;
		if (shown == 6 || (last == t.waits && key == t.waitKey)) continue;
		last = t.waits, key = t.waitKey;
		char line[160];
		snprintf(line, sizeof line, "%s thread (%u,%u,%u) in %s [%x]", shown ? "," : "", t.tid.x, t.tid.y, t.tid.z, t.waits, t.waitKey);
		s += line;
		shown++;
	}
	bool late = !ready.empty() || !yielded.empty();
	report(late ? LAUNCH_TIMEOUT : LAUNCH_FAILED, "%s: %u threads wait, %u have ended:%s", late ? "waited too long" : "deadlock", waiting, total - alive, s.c_str());
}

// report prints what went wrong and ends the block, without leaving the caller.
void report(int code, const char *format, ...) {
	va_list v;
	va_start(v, format);
	vreport(code, format, v);
	va_end(v);
}

void vreport(int code, const char *format, va_list v) {
	Worker &w = *worker;
	char text[1024];
	vsnprintf(text, sizeof text, format, v);
	int none = 0;
	if (w.launch->error.compare_exchange_strong(none, code)) { // only the first is the cause
		uint3 b = w.blk.idx, t = self ? self->tid : uint3{0, 0, 0};
		fprintf(stderr, "cuda emulator: kernel %s, block (%u,%u,%u), thread (%u,%u,%u): %s\n", w.launch->kernel->name, b.x, b.y, b.z, t.x, t.y, t.z, text);
	}
	w.aborted = true;
}

void fail(int code, const char *format, ...) {
	va_list v;
	va_start(v, format);
	if (!worker || !self) {
		vfprintf(stderr, format, v);
		abort();
	}
	vreport(code, format, v);
	va_end(v);
	void *dead;
	kr_emu_switch(&dead, worker->home);
	__builtin_unreachable();
}

} // namespace kr_emu
