// Launches: blocks over OS threads, faults inside kernels, the registry of kernels.
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "emu_math.h"
#include "fiber.h"
#include "registry.h"

namespace kr_emu {

// --- settings

const Settings &settings() {
	static const Settings s = [] {
		Settings s;
		auto number = [](const char *name, double none) {
			const char *v = getenv(name);
			return v && *v ? strtod(v, nullptr) : none;
		};
		s.cc = (int)number("KR_EMU_CC", s.cc);
		s.sms = (int)number("KR_EMU_SMS", s.sms);
		s.devices = (int)number("KR_EMU_DEVICES", s.devices);
		if (s.devices < 1 || s.devices > DEVICES_MAX) s.devices = 1;
		s.threads = (unsigned)number("KR_EMU_THREADS", s.threads);
		s.memory = (uint64_t)number("KR_EMU_MEMORY", (double)s.memory);
		s.align = (uint64_t)number("KR_EMU_ALIGN", (double)s.align);
		s.timeout = number("KR_EMU_TIMEOUT", s.timeout);
		s.lazy = number("KR_EMU_LAZY", 0) != 0;
		s.trace = number("KR_EMU_TRACE", 0) != 0;
		const char *v = getenv("KR_EMU_ASYNC");
		s.early = v && !strcmp(v, "early");
		v = getenv("KR_EMU_ORDER");
		if (v && !strcmp(v, "reverse")) s.order = Settings::REVERSE;
		if (v && !strncmp(v, "random", 6)) {
			s.order = Settings::RANDOM;
			s.seed = v[6] == ':' ? strtoull(v + 7, nullptr, 10) : 1;
		}
		return s;
	}();
	return s;
}

// --- kernels

struct Registry {
	std::deque<Kernel> kernels[2]; // of compute_80, of sm_90a
	unsigned bounds = THREADS_MAX; // of the latest KR_KERNEL
};
static Registry &registry() {
	static Registry r;
	return r;
}

Bounds::Bounds(unsigned threads) { registry().bounds = threads; }

void announce(int hopper, const char *name, void (*invoke)(void *fn, void *const *params), void *fn, const Parameter *params, size_t count) {
	Kernel k{};
	k.name = name, k.invoke = invoke, k.fn = fn;
	k.threadsMax = registry().bounds;
	k.sharedMax = 48 << 10;
	uint32_t at = 0;
	for (const Parameter *p = params; p < params + count; p++) {
		at = (at + p->align - 1) / p->align * p->align;
		k.offsets.push_back(at), k.sizes.push_back(p->size), k.pointers.push_back(p->pointer);
		at += p->size;
	}
	registry().kernels[hopper].push_back(k);
}

std::deque<Kernel> &kernels() { return registry().kernels[settings().cc >= 90]; }

Kernel *kernel(const char *name) {
	for (Kernel &k : kernels())
		if (!strcmp(k.name, name)) return &k;
	return nullptr;
}

// --- faults

static struct sigaction before[32];

// Faults are handled on a separate stack: the fiber's may be full.
static void landing() {
	Worker &w = *worker();
	unsigned char *p = static_cast<unsigned char *>(w.faultAddress);
	size_t whole = (size_t)Worker::STACKS * STACK;
	if (w.faultSignal == SIGILL || w.faultSignal == SIGTRAP) fail(MISALIGNED, "misaligned address or index out of bounds, at %s", describe(w.faultAt).c_str());
	if (w.faultSignal == SIGFPE) fail(ILLEGAL_INSTRUCTION, "division by zero, at %s", describe(w.faultAt).c_str());
	if (p >= w.stacks && p < w.stacks + whole) fail(ILLEGAL_ADDRESS, "a thread needs more than %zu KB of stack", (STACK - 2 * GUARD) >> 10);
	if (p >= w.sharedMap + w.sharedMapBytes && p < w.sharedMap + w.sharedMapBytes + GUARD)
		fail(ILLEGAL_ADDRESS, "access %td bytes behind the end of dynamic shared memory (%u bytes)", p - (w.blk.shared + w.blk.sharedBytes), w.blk.sharedBytes);
	if (!p) fail(ILLEGAL_ADDRESS, "null pointer or misaligned vector, at %s", describe(w.faultAt).c_str());
	fail(ILLEGAL_ADDRESS, "access to %p, %s, at %s", w.faultAddress, describe(p).c_str(), describe(w.faultAt).c_str());
}

static void on_fault(int sig, siginfo_t *info, void *context) {
	if (running) {
		Worker &w = *running;
		w.faultSignal = sig, w.faultCode = info->si_code;
		w.faultAddress = info->si_code > 0 && info->si_code != SI_KERNEL ? info->si_addr : nullptr;
		ucontext_t *u = static_cast<ucontext_t *>(context);
#if defined(__x86_64__)
		uintptr_t sp = (uintptr_t)u->uc_mcontext.gregs[REG_RSP];
		w.faultAt = reinterpret_cast<void *>(u->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
		uintptr_t sp = u->uc_mcontext.sp;
		w.faultAt = reinterpret_cast<void *>(u->uc_mcontext.pc);
#endif
		sp |= STACK - 1;
		if (sp - reinterpret_cast<uintptr_t>(w.stacks) >= (size_t)Worker::STACKS * STACK) abort(); // the emulator's own fault
		Thread *t = reinterpret_cast<Head *>(sp + 1 - sizeof(Head))->self;
#if KR_EMU_JUMPS
		u->uc_mcontext.gregs[REG_RIP] = reinterpret_cast<greg_t>(landing);
		u->uc_mcontext.gregs[REG_RSP] = reinterpret_cast<greg_t>(w.landing_stack(t));
		return;
#else
		void *dead;
		kr_emu_switch(&dead, w.prepare(Worker::LANDING, t, landing));
#endif
	}
	struct sigaction &old = before[sig]; // not ours
	if (old.sa_flags & SA_SIGINFO && old.sa_sigaction) {
		old.sa_sigaction(sig, info, context);
	} else {
		sigaction(sig, &old, nullptr); // comes again, and is handled as ever
	}
}

void catch_faults() {
	static std::once_flag once;
	std::call_once(once, [] {
		for (int sig : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP}) {
			struct sigaction a {};
			a.sa_sigaction = on_fault;
			a.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
			sigemptyset(&a.sa_mask);
			sigaction(sig, &a, &before[sig]);
		}
	});
}

// own_thread prepares a thread of the emulator: a stack for signals, and no signals but faults.
static void own_thread() {
	static thread_local unsigned char stack[32 << 10];
	stack_t s{};
	s.ss_sp = stack, s.ss_size = sizeof stack;
	sigaltstack(&s, nullptr);
	sigset_t all;
	sigfillset(&all);
	for (int sig : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP}) sigdelset(&all, sig);
	pthread_sigmask(SIG_SETMASK, &all, nullptr);
}

// --- blocks over threads

namespace {
struct Pool {
	std::mutex m;
	std::condition_variable more;
	std::deque<std::pair<Launch *, unsigned>> open; // launches that want help, helpers in them
	std::condition_variable left;
	unsigned helpers = 0;
};
} // namespace
static Pool &pool() {
	static Pool *p = new Pool; // threads may outlive static objects
	return *p;
}

// Idle workers: streams come and go, and a worker has many stacks.
namespace {
struct Idle {
	std::mutex m;
	std::vector<Worker *> workers;
};
} // namespace
static Idle &idle() {
	static Idle *i = new Idle;
	return *i;
}

static void work(Launch &l) {
	Worker *mine = nullptr;
	{
		std::lock_guard<std::mutex> k(idle().m);
		if (!idle().workers.empty()) {
			mine = idle().workers.back();
			idle().workers.pop_back();
		}
	}
	if (!mine) mine = new Worker;
	for (;;) {
		uint64_t i = l.next.fetch_add(1);
		if (i >= l.blocks || l.error) break;
		if (!mine->run_block(l, i)) break;
	}
	std::lock_guard<std::mutex> k(idle().m);
	idle().workers.push_back(mine);
}

static void help() {
	own_thread();
	Pool &p = pool();
	std::unique_lock<std::mutex> k(p.m);
	for (;;) {
		Launch *l = nullptr;
		for (auto &o : p.open)
			if (o.first->next < o.first->blocks && !o.first->error) {
				l = o.first;
				o.second++;
				break;
			}
		if (!l) {
			p.more.wait(k);
			continue;
		}
		k.unlock();
		work(*l);
		k.lock();
		for (auto &o : p.open)
			if (o.first == l) o.second--;
		p.left.notify_all();
	}
}

int run(Launch &l) {
	const Settings &s = settings();
	static std::atomic<uint64_t> launches{0};
	catch_faults();
	l.number = ++launches;
	l.blocks = (uint64_t)l.grid.x * l.grid.y * l.grid.z;
	if (s.trace) fprintf(stderr, "%llu %s <%u,%u,%u> x %u\n", (unsigned long long)l.number, l.kernel->name, l.grid.x, l.grid.y, l.grid.z, l.block.x);
	l.deadline = clock64() + (int64_t)(s.timeout * 1e9);
	uint64_t threads = l.blocks * l.block.x * l.block.y * l.block.z;
	if (l.blocks == 1 || threads < 2048 || s.threads < 2) {
		work(l);
		return l.error;
	}
	Pool &p = pool();
	{
		std::lock_guard<std::mutex> k(p.m);
		while (p.helpers + 1 < s.threads) {
			p.helpers++;
			std::thread(help).detach();
		}
		p.open.push_back({&l, 0});
	}
	p.more.notify_all();
	work(l);
	std::unique_lock<std::mutex> k(p.m);
	for (;;) {
		size_t i = 0;
		while (p.open[i].first != &l) i++;
		if (p.open[i].second == 0) {
			p.open.erase(p.open.begin() + i);
			break;
		}
		p.left.wait(k);
	}
	return l.error;
}

void stream_thread() { own_thread(); }

} // namespace kr_emu
