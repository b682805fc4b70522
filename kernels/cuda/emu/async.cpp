// Asynchronous copies to shared memory and mbarriers.
//
// A copy happens as late as the kernel allows (or, with KR_EMU_ASYNC=early, at once). A kernel that
// reads before it has waited sees poison, and one that reuses memory too soon loses data.
//
// Data written by cp.async must pass a fence_async before wgmma reads it. Each unit records who
// wrote it and when. It may be read if the writer has fenced since, or if the reader has fenced
// after a barrier that came after the write.
#include <string.h>

#include "emu_math.h"
#include "race.h"

namespace kr_emu {

uint32_t shared_address(const void *p) {
	const unsigned char *c = static_cast<const unsigned char *>(p);
	if (c < block()->shared || c > block()->shared + block()->sharedBytes) {
		fail(ILLEGAL_ADDRESS, "smem_u32(%p): not in the %u bytes of dynamic shared memory", p, block()->sharedBytes);
	}
	return SHARED_BASE + (uint32_t)(c - block()->shared);
}

unsigned char *shared_at(uint32_t at, uint32_t n, uint32_t align, const char *what) {
	if (at % align) fail(MISALIGNED, "%s: shared address %u is not a multiple of %u", what, at - SHARED_BASE, align);
	if (at < SHARED_BASE || at - SHARED_BASE + n > block()->sharedBytes) {
		fail(ILLEGAL_ADDRESS, "%s: shared bytes [%d, %d) of %u", what, (int)(at - SHARED_BASE), (int)(at - SHARED_BASE + n), block()->sharedBytes);
	}
	return block()->shared + (at - SHARED_BASE);
}

void Worker::begin_async() {
	seq = 1;
	bars.clear();
	barWaiters.clear();
	bulks.clear();
	arrivals.clear();
	if (anyWritten) memset(written.data(), 0, written.size() * sizeof(Written)); // the block before may have had more
	anyWritten = false;
}

// end_async checks that a block leaves no unfinished copies.
void Worker::end_async() {
	if (!bulks.empty()) report(LAUNCH_FAILED, "the block has ended with %zu bulk copies in flight", bulks.size());
	for (int i = 0; i < 16; i++)
		if (named[i].arrived) report(LAUNCH_FAILED, "the block has ended with %d of %d threads at barrier %d", named[i].arrived, named[i].threads, i);
}

// land writes the data of copy c.
static void land(const Copy &c, Thread *by) {
	unsigned char *dst = block()->shared + (c.dst - SHARED_BASE);
	if (c.src) {
		memcpy(dst, c.src, c.bytes);
	} else {
		memset(dst, 0, c.bytes);
	}
	Worker &w = *worker();
	w.written[(c.dst - SHARED_BASE) / 16] = {by->index + 1, w.seq};
	w.anyWritten = true;
}

static MBarrier &find(uint32_t bar, const char *what) {
	for (MBarrier &m : worker()->bars)
		if (m.at == bar) return m;
	fail(LAUNCH_FAILED, "%s: no mbarrier was initialised at shared byte %d", what, (int)(bar - SHARED_BASE));
}

// turn ends the phase if everything has arrived.
static void turn(MBarrier &m) {
	if (m.pending || m.bytes) return;
	Worker &w = *worker();
	m.phase ^= 1;
	m.pending = m.expected;
	uint32_t now = ++w.seq;
	for (size_t i = 0; i < w.barWaiters.size();) {
		Thread *t = w.barWaiters[i];
		if (t->waitKey != m.at) {
			i++;
			continue;
		}
		t->syncAt = now;
		w.wake(t);
		w.barWaiters.erase(w.barWaiters.begin() + i);
	}
}

static void arrive(MBarrier &m, uint32_t bytes, Thread *t) {
	if (!m.pending) fail(LAUNCH_FAILED, "mbarrier at shared byte %d: more arrivals than the %u of mbar_init", (int)(m.at - SHARED_BASE), m.expected);
	race_release(t, m.clocks);
	m.bytes += bytes;
	m.pending--;
	turn(m);
}

// run_copies performs the first n entries of t's copies, including arrivals.
static void run_copies(Thread *t, size_t n) {
	Worker &w = *worker();
	for (size_t i = 0; i < n; i++) {
		const Copy &c = t->copies[i];
		if (!c.bar) {
			land(c, t);
			continue;
		}
		for (size_t k = 0; k < w.arrivals.size(); k++)
			if (w.arrivals[k].first == t && w.arrivals[k].second == c.bar) {
				w.arrivals.erase(w.arrivals.begin() + k);
				break;
			}
		arrive(find(c.bar, "cp.async arrival"), 0, t);
	}
	t->copies.erase(t->copies.begin(), t->copies.begin() + n);
	w.seq++;
}

void copy_async(uint32_t dst, const void *src, uint32_t bytes, bool ok) {
	unsigned char *p = shared_at(dst, bytes, bytes, "cp.async");
	if (ok) {
		if (reinterpret_cast<uintptr_t>(src) % bytes) fail(MISALIGNED, "cp.async: source %p is not a multiple of %u", src, bytes);
		volatile const unsigned char *s = static_cast<const unsigned char *>(src);
		(void)s[0], (void)s[bytes - 1]; // a fault is this thread's, now
	}
	race_shared(self(), dst, bytes, true, "cp.async writes");
	if (ok) race_global(src, bytes, false, "cp.async reads");
	Copy c{dst, bytes, ok ? src : nullptr, OPEN, 0};
	if (settings().early) {
		land(c, self());
		worker()->seq++;
		return;
	}
	memset(p, 0xff, bytes);
	self()->copies.push_back(c);
}

void copy_commit() {
	for (size_t i = self()->copies.size(); i > 0 && self()->copies[i - 1].group == OPEN; i--) self()->copies[i - 1].group = self()->copyGroups;
	self()->copyGroups++;
}

void copy_wait(uint32_t left) {
	Thread *t = self();
	size_t n = 0;
	while (n < t->copies.size() && t->copies[n].group != OPEN && t->copies[n].group + left < t->copyGroups) n++;
	if (n) run_copies(t, n);
}

void pdl_wait() {
	Worker &w = *worker();
	self()->pdlWaited = true;
	if (!w.pdlWaited) w.pdlAt = w.seq++;
	w.pdlWaited = true;
}

void pdl_launch() {
	if (!race_waited()) worker()->launch->early = true;
}

void seen(const void *p) { race_global(p, 4, true, "an atomic operation on"); }

void fence_async() {
	Thread *t = self();
	t->fenceAt = worker()->seq++;
	t->fenceSyncAt = t->syncAt;
}

void mbarrier_init(uint32_t bar, int arrivals) {
	shared_at(bar, 8, 8, "mbar_init");
	if (arrivals < 1 || arrivals > (1 << 20) - 1) fail(LAUNCH_FAILED, "mbar_init of %d arrivals", arrivals);
	Worker &w = *worker();
	for (size_t i = 0; i < w.bars.size(); i++)
		if (w.bars[i].at == bar) w.bars.erase(w.bars.begin() + i);
	w.bars.push_back({bar, (uint32_t)arrivals, (uint32_t)arrivals, 0, 0, {}});
}

void mbarrier_arrive(uint32_t bar, uint32_t bytes) { arrive(find(bar, "mbar_arrive"), bytes, self()); }

void mbarrier_arrive_copies(uint32_t bar) {
	find(bar, "mbar_arrive_cp_async");
	if (self()->copies.empty()) { // nothing in flight: at once
		mbarrier_arrive(bar, 0);
		return;
	}
	self()->copies.push_back({0, 0, nullptr, OPEN, bar});
	worker()->arrivals.push_back({self(), bar});
}

static void run_bulk(size_t i) {
	Worker &w = *worker();
	Bulk b = w.bulks[i];
	w.bulks.erase(w.bulks.begin() + i);
	memcpy(block()->shared + (b.dst - SHARED_BASE), b.src, b.bytes);
	for (uint32_t u = (b.dst - SHARED_BASE) / 16, e = u + b.bytes / 16; u < e; u++) w.written[u].by = 0;
	MBarrier &m = find(b.bar, "bulk_copy");
	m.bytes -= b.bytes;
	turn(m);
}

// hasten performs everything that bar waits for in its phase.
static void hasten(uint32_t bar) {
	Worker &w = *worker();
	for (size_t i = 0; i < w.bulks.size();) {
		if (w.bulks[i].bar == bar) {
			run_bulk(i);
		} else {
			i++;
		}
	}
	for (size_t i = 0; i < w.arrivals.size();) {
		Thread *t = w.arrivals[i].first;
		if (w.arrivals[i].second != bar) {
			i++;
			continue;
		}
		size_t n = 0;
		while (t->copies[n].bar != bar) n++;
		run_copies(t, n + 1);
		i = 0;
	}
}

void mbarrier_wait(uint32_t bar, uint32_t parity) {
	Worker &w = *worker();
	if (parity > 1) fail(LAUNCH_FAILED, "mbar_wait for parity %u", parity);
	while (find(bar, "mbar_wait").phase == parity) {
		hasten(bar);
		if (find(bar, "mbar_wait").phase != parity) break;
		w.barWaiters.push_back(self());
		w.suspend("mbar_wait", bar);
	}
	race_acquire(self(), find(bar, "mbar_wait").clocks);
	self()->syncAt = ++w.seq;
}

void bulk(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar) {
	if (bytes % 16 || !bytes) fail(MISALIGNED, "bulk_copy of %u bytes", bytes);
	unsigned char *p = shared_at(dst, bytes, 16, "bulk_copy");
	if (reinterpret_cast<uintptr_t>(src) % 16) fail(MISALIGNED, "bulk_copy: source %p is not a multiple of 16", src);
	race_shared(self(), dst, bytes, true, "bulk_copy writes");
	race_global(src, bytes, false, "bulk_copy reads");
	race_release(self(), find(bar, "bulk_copy").clocks);
	volatile const unsigned char *s = static_cast<const unsigned char *>(src);
	(void)s[0], (void)s[bytes - 1];
	worker()->bulks.push_back({dst, bytes, bar, src});
	if (settings().early) {
		run_bulk(worker()->bulks.size() - 1);
		return;
	}
	memset(p, 0xff, bytes);
}

// progress is called when no thread can continue: a copy must happen.
bool Worker::progress() {
	if (!bulks.empty()) {
		run_bulk(0);
		return true;
	}
	if (!arrivals.empty()) {
		hasten(arrivals[0].second);
		return true;
	}
	return false;
}

} // namespace kr_emu
