// Threads of a block as fibers: their stacks, how they start, wait and end.
#include "fiber.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "emu_math.h"

namespace kr_emu {

__thread Worker *running;

Worker::Worker() {
	size_t bytes = (size_t)(STACKS + 1) * STACK; // one more, to align
	unsigned char *map = static_cast<unsigned char *>(mmap(0, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
	sharedMapBytes = (SHARED_MAX + 4095) / 4096 * 4096;
	sharedMap = static_cast<unsigned char *>(mmap(0, sharedMapBytes + GUARD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	if (map == MAP_FAILED || sharedMap == MAP_FAILED) {
		perror("cuda emulator: mmap");
		abort();
	}
	stacks = reinterpret_cast<unsigned char *>((reinterpret_cast<uintptr_t>(map) + STACK - 1) & ~(uintptr_t)(STACK - 1));
	munmap(map, (size_t)(stacks - map));
	munmap(stack(STACKS), (size_t)(map + bytes - stack(STACKS)));
	for (unsigned i : {HOME, LANDING}) mprotect(stack(i) + GUARD, STACK - GUARD, PROT_READ | PROT_WRITE);
	mprotect(sharedMap + sharedMapBytes, GUARD, PROT_NONE);
	written.resize(SHARED_MAX / 16);
}

// prepare sets up stack i to run f as t.
void *Worker::prepare(unsigned i, Thread *t, void (*f)()) {
	unsigned char *top = stack(i) + STACK - sizeof(Head);
	*reinterpret_cast<Head *>(top) = {t, &blk, this};
	// Tops differ modulo 4096; otherwise all stacks would compete for the same cache lines.
	return prepare_stack(stack(i) + GUARD, STACK - GUARD - sizeof(Head) - (i * 7 % 16) * 256, f);
}

void *Worker::landing_stack(Thread *t) {
	*reinterpret_cast<Head *>(stack(LANDING) + STACK - sizeof(Head)) = {t, &blk, this};
	return stack(LANDING) + STACK - 64 - 8; // as a call leaves it
}

// start initialises the next thread's record.
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
	t->done = t->fenced = t->pdlWaited = false;
	t->copies.clear(); // what the last owner never waited for
	t->copyGroups = t->productGroups = 0;
	t->fenceAt = t->syncAt = t->fenceSyncAt = 0;
	return t;
}

// begin assigns a stack to t.
void Worker::begin(Thread *t) {
	unsigned s;
	if (!freeStacks.empty()) {
		s = freeStacks.back();
		freeStacks.pop_back();
	} else {
		s = stacksMade++;
		mprotect(stack(s) + GUARD, STACK - GUARD, PROT_READ | PROT_WRITE);
	}
	stackOf[t->index] = (uint16_t)s;
	t->sp = prepare(s, t, fiber);
}

Thread *Worker::pick_other() {
	if (!idle()) {
		unsigned other = orderly == Settings::RANDOM ? first + (unsigned)(random(blk.rng) % (behind - first)) : behind - 1;
		std::swap(ready[first % THREADS_MAX], ready[other % THREADS_MAX]);
		return ready[first++ % THREADS_MAX];
	}
	if (started < total) {
		Thread *t = start();
		begin(t);
		return t;
	}
	return nullptr;
}

// fiber runs on a stack: one thread after the other, as long as none waits.
void Worker::fiber() {
	Head &h = head();
	Worker &w = *h.worker;
	for (;;) {
		w.launch->kernel->invoke(w.launch->kernel->fn, w.launch->params);
		Thread *t = h.self;
		w.finish(t);
		uint16_t stack = w.stackOf[t->index];
		if (w.idle() && w.started < w.total) {
			h.self = w.start();
			w.stackOf[h.self->index] = stack;
			continue;
		}
		// The stack is free from here on, but it is not written to before this fiber leaves it:
		// pick does not prepare a stack while a fiber is ready.
		w.freeStacks.push_back(stack);
		void *dead;
		kr_emu_switch(&dead, w.idle() ? w.home : w.pick()->sp);
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

void yield() {
	Worker &w = *worker();
	w.yielded.push_back(self());
	w.suspend("yield", 0);
}

} // namespace kr_emu
