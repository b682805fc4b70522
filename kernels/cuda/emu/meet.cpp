// Where threads meet: lanes of a warp, barriers of a block and of a part of it.
#include <string.h>

#include "emu_math.h"
#include "emu.h"
#include "race.h"

namespace kr_emu {

void meet(uint32_t mask, Combine f, void *arg, const char *what) {
	Thread *t = self();
	Warp &w = *t->warp;
	uint32_t bit = 1u << t->lane;
	if (!(mask & bit)) fail(LAUNCH_FAILED, "%s(%08x) by lane %u, which the mask does not name", what, mask, t->lane);
	if (mask & ~w.alive) fail(LAUNCH_FAILED, "%s(%08x): lanes %08x of the mask have ended or never were", what, mask, mask & ~w.alive);
	if (mask == bit) {
		void *args[32];
		args[t->lane] = arg;
		f(args, mask);
		return;
	}
	int i = 0;
	while (i < w.meetings && w.meeting[i].mask != mask) i++;
	Meeting &m = w.meeting[i];
	if (i == w.meetings) {
		if (i == 32) fail(LAUNCH_FAILED, "%s(%08x): masks overlap", what, mask);
		w.meetings++;
		m.mask = mask, m.arrived = 0, m.f = f, m.what = what;
	} else if (m.f != f || (m.what != what && strcmp(m.what, what))) {
		fail(LAUNCH_FAILED, "%s(%08x), while lanes %08x of the same mask are in %s: a warp that has parted", what, mask, m.arrived, m.what);
	}
	m.args[t->lane] = arg;
	m.arrived |= bit;
	if (m.arrived != mask) {
		worker()->suspend(what, mask);
		return;
	}
	f(m.args, mask);
	if (i != --w.meetings) m = w.meeting[w.meetings];
	Thread *base = t - t->lane;
	for (uint32_t rest = mask & ~bit; rest; rest &= rest - 1) worker()->wake(base + __builtin_ctz(rest));
}

void combine_nothing(void *const *, uint32_t) { race_warp(self()); }

void combine_ballot(void *const *args, uint32_t mask) {
	uint32_t r = 0;
	for (uint32_t m = mask; m; m &= m - 1) {
		int l = __builtin_ctz(m);
		r |= (uint32_t)static_cast<Vote *>(args[l])->v << l;
	}
	for (uint32_t m = mask; m; m &= m - 1) static_cast<Vote *>(args[__builtin_ctz(m)])->r = r;
}

void combine_shuffle(void *const *args, uint32_t mask) {
	for (uint32_t m = mask; m; m &= m - 1) {
		int l = __builtin_ctz(m);
		Shuffle *s = static_cast<Shuffle *>(args[l]);
		if (!(mask >> s->from & 1)) fail(LAUNCH_FAILED, "shuffle(%08x): lane %d reads lane %d, which the mask does not name", mask, l, s->from);
		s->r = static_cast<Shuffle *>(args[s->from])->v;
	}
}

void combine_match(void *const *args, uint32_t mask) {
	for (uint32_t m = mask; m; m &= m - 1) {
		Shuffle *s = static_cast<Shuffle *>(args[__builtin_ctz(m)]);
		s->r = 0;
		for (uint32_t n = mask; n; n &= n - 1) {
			int l = __builtin_ctz(n);
			s->r |= (uint64_t)(static_cast<Shuffle *>(args[l])->v == s->v) << l;
		}
	}
}

unsigned sync_block(bool vote, const char *what) {
	Worker &w = *worker();
	if (w.arrived && w.syncWhat != what && strcmp(w.syncWhat, what)) fail(LAUNCH_FAILED, "%s, while %u threads are in %s", what, w.arrived, w.syncWhat);
	w.syncWhat = what;
	w.arrived++;
	w.votes += vote;
	w.syncing.push_back(self());
	if (w.arrived == w.alive) {
		w.release_sync();
	} else {
		w.suspend(what, 0);
	}
	return w.answer;
}

// The barrier opens. It may be that the last thread it waited for has ended.
void Worker::release_sync() {
	race_block(*this);
	answer = votes;
	arrived = votes = 0;
	uint32_t now = ++seq;
	for (Thread *t : syncing) {
		t->syncAt = now;
		if (t != self() || t->done) wake(t);
	}
	syncing.clear();
}

void barrier(int id, int threads, bool wait) {
	Worker &w = *worker();
	if (id < 1 || id > 15) fail(LAUNCH_FAILED, "barrier %d: there are 1 to 15", id);
	if (threads <= 0 || threads % 32 || (unsigned)threads > (w.total + 31) / 32 * 32) fail(LAUNCH_FAILED, "barrier %d of %d threads", id, threads);
	Named &b = w.named[id];
	if (b.arrived && b.threads != threads) fail(LAUNCH_FAILED, "barrier %d of %d threads, others say %d", id, threads, b.threads);
	b.threads = threads;
	b.arrived++;
	race_release(self(), b.clocks);
	if (b.arrived == threads) {
		uint32_t now = ++w.seq;
		if (wait) self()->syncAt = now, race_acquire(self(), b.clocks);
		b.arrived = 0;
		for (Thread *t : b.waiting) {
			t->syncAt = now;
			race_acquire(t, b.clocks);
			w.wake(t);
		}
		b.waiting.clear();
	} else if (wait) {
		b.waiting.push_back(self());
		w.suspend("bar_sync", (uint32_t)id);
	}
}

} // namespace kr_emu
