// See race.h. gcc's -fsanitize=thread calls the __tsan_ functions; no runtime of the compiler is
// linked.
#include "race.h"

#if KR_EMU_RACE
#include <link.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "emu_math.h"

namespace kr_emu {

namespace {
struct Access { // of a byte: the latest read or write
	uint32_t block; // number of the block; another one's is none
	uint16_t thread;
	uint32_t clock; // of the thread's warp
	uint32_t sync;  // of the warp
};
struct Cell {
	Access read, write;
};
struct Race {
	uint32_t block = 0;
	uint32_t clock[32], sync[32];
	Clocks knows[32];
	std::vector<Cell> cells;
	uintptr_t staticAt = 0; // __shared__ variables of this OS thread
	size_t staticBytes = 0;
};
thread_local Race *mine; // in the segment that holds __shared__ variables, too

// find_static asks the loader for the address of this library's thread-local segment.
int find_static(dl_phdr_info *i, size_t, void *to) {
	const ElfW(Addr) here = reinterpret_cast<ElfW(Addr)>(&find_static);
	bool ours = false;
	size_t tls = 0;
	for (int k = 0; k < i->dlpi_phnum; k++) {
		const ElfW(Phdr) &h = i->dlpi_phdr[k];
		ours = ours || (h.p_type == PT_LOAD && here >= i->dlpi_addr + h.p_vaddr && here < i->dlpi_addr + h.p_vaddr + h.p_memsz);
		if (h.p_type == PT_TLS) tls = h.p_memsz;
	}
	if (!ours) return 0;
	Race &r = *static_cast<Race *>(to);
	r.staticAt = reinterpret_cast<uintptr_t>(i->dlpi_tls_data);
	r.staticBytes = i->dlpi_tls_data ? tls : 0;
	return 1;
}

std::string name(const Worker &w, unsigned thread) {
	uint3 t = w.threads[thread].tid;
	char s[64];
	snprintf(s, sizeof s, "(%u,%u,%u)", t.x, t.y, t.z);
	return s;
}

bool ordered(const Race &r, const Access &a, const Thread *t) {
	if (a.block != r.block || a.thread == t->index) return true;
	unsigned from = a.thread / 32, to = t->index / 32;
	if (from == to) return a.sync != r.sync[to];
	return r.knows[to].of[from] >= a.clock;
}

void touch(Thread *t, size_t at, unsigned n, bool write, const char *what, const void *pc) {
	Race &r = *mine;
	unsigned warp = t->index / 32;
	for (size_t i = at; i < at + n; i++) {
		Cell &c = r.cells[i];
		const Access *other = !ordered(r, c.write, t) ? &c.write : write && !ordered(r, c.read, t) ? &c.read : nullptr;
		if (other) {
			bool fixed = i >= SHARED_MAX;
			fail(LAUNCH_FAILED, "race: %s of shared memory %s that thread %s %s, with no barrier between: %s", what ? what : write ? "writes" : "reads",
			     fixed ? "(a __shared__ variable)" : ("byte " + std::to_string(i)).c_str(), name(*worker(), other->thread).c_str(),
			     other == &c.write ? "wrote" : "read", pc ? describe(pc).c_str() : "an instruction");
		}
		(write ? c.write : c.read) = {r.block, (uint16_t)t->index, r.clock[warp], r.sync[warp]};
	}
}

// The launch that last wrote a piece of 64 bytes.
enum { PIECE = 6 };
std::atomic<uint32_t> launches{1}, complete{1}; // the latest; those before complete are done
struct Before { // the launch before, in a stream
	uint32_t number = 0, safe = 0;
	bool early = false;
};
thread_local Before before;
uint32_t *pieces() {
	static uint32_t *const p = [] {
		void *v = mmap(0, (1ull << (47 - PIECE)) * 4, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (v == MAP_FAILED) abort();
		return static_cast<uint32_t *>(v);
	}();
	return p;
}

// A thread has waited if it called pdl_wait, or met one that did at a barrier of the block.
void global(const void *p, unsigned n, bool write, const char *what, const void *pc) {
	uintptr_t a = reinterpret_cast<uintptr_t>(p);
	Worker &w = *worker();
	const Launch &l = *w.launch;
	uint32_t *first = pieces() + (a >> PIECE), *last = pieces() + ((a + n - 1) >> PIECE);
	if (l.pdl && settings().cc >= 90 && !race_waited()) {
		bool fresh = write;
		for (uint32_t *i = first; i <= last; i++) fresh = fresh || *i >= l.safe;
		if (fresh && a - reinterpret_cast<uintptr_t>(w.stacks) >= (size_t)Worker::STACKS * STACK)
			fail(LAUNCH_FAILED, "race: %s %p (%s) before pdl_wait%s: %s", what ? what : write ? "writes" : "reads", p, describe(p).c_str(),
			     write ? "" : ", which a kernel that may still run has written", pc ? describe(pc).c_str() : "an instruction");
	}
	if (!write) return;
	for (uint32_t *i = first; i <= last; i++) *i = l.serial;
}

inline void access(const void *p, unsigned n, bool write, const void *pc) {
	if (!running) return; // static initialisers
	Race &r = *mine;
	const Block &b = *block();
	size_t at = reinterpret_cast<uintptr_t>(p) - reinterpret_cast<uintptr_t>(b.shared);
	if (at >= b.sharedBytes) {
		at = reinterpret_cast<uintptr_t>(p) - r.staticAt;
		if (at >= r.staticBytes) return global(p, n, write, nullptr, pc);
		at += SHARED_MAX;
	}
	if (at + n <= r.cells.size()) touch(self(), at, n, write, nullptr, pc);
}
} // namespace

void race_begin(Worker &w) {
	if (!mine) {
		mine = new Race;
		dl_iterate_phdr(find_static, mine);
		mine->cells.resize(SHARED_MAX + mine->staticBytes);
	}
	Race &r = *mine;
	r.block++;
	for (Clocks &c : r.knows) c = Clocks{};
	for (int i = 0; i < 32; i++) r.clock[i] = r.sync[i] = 1;
	for (Named &n : w.named) n.clocks = Clocks{};
}

void race_block(Worker &) {
	Race &r = *mine;
	for (Clocks &c : r.knows) memcpy(c.of, r.clock, sizeof c.of);
	for (int i = 0; i < 32; i++) r.clock[i]++, r.sync[i]++;
}

void race_global(const void *p, unsigned n, bool write, const char *what) {
	uintptr_t a = reinterpret_cast<uintptr_t>(p);
	if (a - reinterpret_cast<uintptr_t>(block()->shared) < block()->sharedBytes || a - mine->staticAt < mine->staticBytes) return; // an atomic there
	global(p, n, write, what, nullptr);
}

bool race_waited() {
	const Worker &w = *worker();
	return self()->pdlWaited || (w.pdlWaited && self()->syncAt > w.pdlAt);
}

void race_launch(Launch &l) {
	l.serial = ++launches;
	uint32_t safe = !l.pdl ? l.serial : before.early ? before.safe : before.number;
	l.safe = std::max(safe, complete.load());
	if (!before.number) l.safe = l.serial; // nothing to follow
}
void race_ended(const Launch &l) { before = {l.serial, l.safe, l.early && l.pdl}; }
void race_complete() { complete = launches + 1; }

void race_warp(Thread *t) { mine->sync[t->index / 32]++; }

void race_release(Thread *t, Clocks &c) {
	Race &r = *mine;
	unsigned w = t->index / 32;
	for (int i = 0; i < 32; i++) c.of[i] = std::max(c.of[i], r.knows[w].of[i]);
	c.of[w] = std::max(c.of[w], r.clock[w]++);
}

void race_acquire(Thread *t, const Clocks &c) {
	Race &r = *mine;
	unsigned w = t->index / 32;
	for (int i = 0; i < 32; i++) r.knows[w].of[i] = std::max(r.knows[w].of[i], c.of[i]);
	r.sync[w]++;
}

void race_shared(Thread *t, uint32_t at, unsigned n, bool write, const char *what) { touch(t, at - SHARED_BASE, n, write, what, nullptr); }

} // namespace kr_emu

#define KR_HOOK(name, n, write)                                                                     \
	extern "C" __attribute__((visibility("hidden"))) void name(void *p) {                             \
		kr_emu::access(p, n, write, static_cast<char *>(__builtin_return_address(0)) - 1);             \
	}
KR_HOOK(__tsan_read1, 1, false)
KR_HOOK(__tsan_read2, 2, false)
KR_HOOK(__tsan_read4, 4, false)
KR_HOOK(__tsan_read8, 8, false)
KR_HOOK(__tsan_read16, 16, false)
KR_HOOK(__tsan_write1, 1, true)
KR_HOOK(__tsan_write2, 2, true)
KR_HOOK(__tsan_write4, 4, true)
KR_HOOK(__tsan_write8, 8, true)
KR_HOOK(__tsan_write16, 16, true)
KR_HOOK(__tsan_unaligned_read2, 2, false)
KR_HOOK(__tsan_unaligned_read4, 4, false)
KR_HOOK(__tsan_unaligned_read8, 8, false)
KR_HOOK(__tsan_unaligned_read16, 16, false)
KR_HOOK(__tsan_unaligned_write2, 2, true)
KR_HOOK(__tsan_unaligned_write4, 4, true)
KR_HOOK(__tsan_unaligned_write8, 8, true)
KR_HOOK(__tsan_unaligned_write16, 16, true)
#define KR_HIDDEN extern "C" __attribute__((visibility("hidden"))) void
KR_HIDDEN __tsan_read_range(void *p, unsigned long n) { kr_emu::access(p, (unsigned)n, false, __builtin_return_address(0)); }
KR_HIDDEN __tsan_write_range(void *p, unsigned long n) { kr_emu::access(p, (unsigned)n, true, __builtin_return_address(0)); }
KR_HIDDEN __tsan_init() {}
KR_HIDDEN __tsan_func_entry(void *) {}
KR_HIDDEN __tsan_func_exit() {}
#endif
