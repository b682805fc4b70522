// The implementation of core.h: one Worker per OS thread runs one block at a time, with its threads
// as fibers. Only the library's sources include it.
#pragma once
#include <setjmp.h>

#include <atomic>
#include <string>
#include <vector>

#include "core.h"
#include "switch.h"

namespace kr_emu {

// Settings from the environment; see README.md.
struct Settings {
	int cc = 90;                    // KR_EMU_CC
	int sms = 4;                    // KR_EMU_SMS
	unsigned threads = 2;           // KR_EMU_THREADS
	int devices = 1;                // KR_EMU_DEVICES
	uint64_t memory = 8ull << 30;   // KR_EMU_MEMORY, of each
	uint64_t align = 256;           // KR_EMU_ALIGN: of allocations; 16 leaves no gap before the guard page
	enum { FORWARD, REVERSE, RANDOM } order = FORWARD;
	uint64_t seed = 0;
	bool early = false;             // KR_EMU_ASYNC=early
	bool lazy = false;              // KR_EMU_LAZY=1
	bool trace = false;             // KR_EMU_TRACE=1
	double timeout = 120;           // KR_EMU_TIMEOUT, seconds a launch may wait
};
const Settings &settings();

// One kernel launch. Blocks are handed out by next; error is the first failure.
struct Launch {
	const Kernel *kernel;
	void *const *params;
	dim3 grid, block;
	uint32_t shared;
	bool pdl;
	uint64_t blocks;
	uint64_t number; // of all launches
	uint32_t serial, safe; // race.h: this launch, and what is complete before it waits
	std::atomic<bool> early{false}; // pdl_launch came before pdl_wait
	std::atomic<uint64_t> next{0}, ended{0};
	std::atomic<int> error{0};
	int64_t deadline = 0; // clock64
};
// Runs all blocks, on this OS thread and helpers. Returns 0 or a CUresult.
int run(Launch &l);
// Catches faults inside kernels. Every thread that runs blocks calls it.
void catch_faults();

// Lanes that wait for others of their mask.
struct Meeting {
	uint32_t mask, arrived;
	Combine f;
	const char *what;
	void *args[32];
};
struct Warp {
	uint32_t alive;
	int meetings;
	Meeting meeting[32];
};
// How far each warp had come when it last arrived: see race.h.
struct Clocks {
	uint32_t of[32] = {};
};
struct Named { // a barrier of a part of the block
	int threads = 0, arrived = 0;
	std::vector<Thread *> waiting;
	Clocks clocks;
};
struct MBarrier {
	uint32_t at, expected, pending;
	int64_t bytes; // that must still come
	uint32_t phase;
	Clocks clocks;
};
struct Bulk {
	uint32_t dst, bytes, bar;
	const void *src;
};
struct Written { // a 16-byte unit of shared memory, by cp.async: who, when
	uint32_t by; // thread index + 1; 0: nobody
	uint32_t at;
};

enum : unsigned { DEVICES_MAX = 8, THREADS_MAX = 1024, GUARD = 4096, SHARED_MAX = 227 << 10 };

struct Worker {
	Worker();
	bool run_block(Launch &l, uint64_t linear); // false: the launch has failed

	Launch *launch = nullptr;
	Block blk;
	void *outside = nullptr;    // where run_block stopped
	void *home = nullptr;       // where the scheduler, on a stack of its own, stopped to run a fiber
	jmp_buf again;              // where it goes on when it fails itself
	bool aborted = false;

	Thread threads[THREADS_MAX];
	Warp warps[THREADS_MAX / 32];
	unsigned total = 0, started = 0, alive = 0;
	std::vector<uint16_t> order;    // in which threads start; empty: by index
	int orderly = 0;                // Settings::order
	Thread *ready[THREADS_MAX];     // a ring, oldest at first
	unsigned first = 0, behind = 0;
	std::vector<Thread *> yielded;
	uint64_t yields = 0;

	// Stacks, each with a guard page at its low end and a Head at its high end: of fibers,
	// then of the scheduler, then one on which the handler of faults lands.
	unsigned char *stacks = nullptr;
	enum { HOME = THREADS_MAX, LANDING, STACKS };
	std::vector<uint16_t> freeStacks;
	uint16_t stackOf[THREADS_MAX];
	unsigned stacksMade = 0;

	// __syncthreads
	unsigned arrived = 0, votes = 0, answer = 0;
	const char *syncWhat = nullptr;
	std::vector<Thread *> syncing;
	Named named[16];

	// async.cpp
	uint32_t seq = 1;               // counts what fence_async has to order
	std::vector<MBarrier> bars;
	std::vector<Thread *> barWaiters;
	std::vector<Bulk> bulks;
	std::vector<std::pair<Thread *, uint32_t>> arrivals; // of copies, at a barrier
	std::vector<Written> written;   // a 16-byte unit each
	bool anyWritten = false;
	bool pdlWaited = false;
	uint32_t pdlAt = 0;             // seq when the first thread had waited
	uint32_t wgmmas[THREADS_MAX / 32]; // a warp has issued
	uint64_t poisoned = 0;          // the launch for which __shared__ variables were filled

	unsigned char *sharedMap = nullptr; // SHARED_MAX rounded up, then a guard page
	size_t sharedMapBytes = 0;
	// the fault that the handler saw
	int faultSignal = 0, faultCode = 0;
	void *faultAddress = nullptr, *faultAt = nullptr;
	void *landing_stack(Thread *t); // its top, for the fault of t

	// pick returns a fiber that can continue, or null.
	Thread *pick() { return orderly == Settings::FORWARD && !idle() ? ready[first++ % THREADS_MAX] : pick_other(); }
	void wake(Thread *t) {
		t->waits = nullptr;
		ready[behind++ % THREADS_MAX] = t;
	}
	bool idle() const { return first == behind; } // no fiber is ready
	// suspend lets others run until another thread wakes this one.
	__attribute__((always_inline)) void suspend(const char *what, uint32_t key) {
		Thread *t = self();
		t->waits = what;
		t->waitKey = key;
		Thread *n = pick();
		if (n != t) kr_emu_switch(&t->sp, n ? n->sp : home);
	}
	bool progress();                // lets one asynchronous copy happen; false: there is none
	void begin_async();
	void end_async();
	void release_sync();

	void *prepare(unsigned i, Thread *t, void (*f)()); // where a switch to it begins

  private:
	unsigned char *stack(unsigned i) { return stacks + (size_t)i * STACK; }
	Thread *pick_other();
	Thread *start();
	void begin(Thread *t);
	void finish(Thread *t);
	void reset();
	void schedule();
	bool turn_yielded();
	void checks();
	void deadlock();
	void poison_shared();
	bool shared_overrun() const;
	static void fiber();
	static void scheduler();
};
// The worker of this OS thread while it runs a block: for the handler of faults.
extern __thread Worker *running;

// Describes the memory at an address, for messages. See memory.cpp.
std::string describe(const void *p);

} // namespace kr_emu
