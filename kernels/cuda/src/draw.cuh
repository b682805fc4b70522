// Finds the tokens that top_k and top_p keep, and draws one of them.
//
// The tokens of a row are counted and weighed in bins of equal width, from the largest logit
// down. Only the tokens of the bin in which top_k or top_p ends are in doubt. They are listed,
// and the row's last block to finish finds the last kept token among them.
#pragma once
#include "sample.cuh"

// How one row chooses (kernels/cuda/sample, Row).
struct Params {
	double temperature, top_p, min_p;
	u64 seed, n;
	int top_k, logprob;
	__device__ __forceinline__ bool counts(int vocab) const { return top_k > 0 && top_k < vocab; }
	__device__ __forceinline__ bool weighs() const { return top_p < 1.; }
};

// Philox4x32-10 (Salmon and others, 2011), as in stages/sample: the n-th number in [0, 1) of a
// seed.
KR_DEV double uniform(u64 seed, u64 n) {
	uint32_t c0 = (uint32_t)n, c1 = (uint32_t)(n >> 32), c2 = 0, c3 = 0, k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
#pragma unroll 1
	for (int i = 0; i < 10; i++) {
		uint32_t hi0 = __umulhi(0xd2511f53u, c0), lo0 = 0xd2511f53u * c0, hi1 = __umulhi(0xcd9e8d57u, c2), lo1 = 0xcd9e8d57u * c2;
		c0 = hi1 ^ c1 ^ k0, c1 = lo1, c2 = hi0 ^ c3 ^ k1, c3 = lo0;
		k0 += 0x9e3779b9u, k1 += 0xbb67ae85u;
	}
	return (double)((u64)c0 << 21 | c1 >> 11) * 0x1p-53;
}

// Bins of equal width, with the largest logit in bin 0. The last bin has all logits further down:
// they weigh too little to matter, or are too far down to be among the k best of usual logits.
struct Bins {
	float top, scale;
};
KR_DEV Bins bins_of(const Best &b, const Params &p, int vocab) {
	float far = 39.f * (float)p.temperature;
	if (p.counts(vocab)) far = fmaxf(far, 100.f);
	return Bins{b.x, BINS / fmaxf(fminf(b.x - b.low, far), 1e-30f)};
}
KR_DEV int bin_of(const Bins &b, float x) { return (int)fminf((b.top - x) * b.scale, BINS - 1.f); }

// *lo, *hi += v, as halves of 64 bits. Shared memory has no addition of 64 bits, so the carry of
// the lower half is added to the upper one.
KR_DEV unsigned add_low(unsigned *lo, u64 v) { return atomicAdd(lo, (unsigned)v); }
KR_DEV void add_high(unsigned *hi, u64 v, unsigned before) {
	unsigned more = (unsigned)(v >> 32) + (before + (unsigned)v < before);
	if (more) atomicAdd(hi, more);
}
KR_DEV void add_shared(u64 *at, u64 v) {
	unsigned *half = reinterpret_cast<unsigned *>(at);
	if (v) add_high(half + 1, v, add_low(half, v));
}

template <typename T> KR_DEV T inclusive(T v) {
#pragma unroll
	for (int d = 1; d < 32; d <<= 1) {
		T u = __shfl_up_sync(0xffffffffu, v, d);
		if ((int)threadIdx.x % 32 >= d) v += u;
	}
	return v;
}

// Sums v over the threads before this one, and over all threads. Sums of doubles are added in a
// fixed order.
template <typename T> struct Sums {
	T before, total;
};
// There must be a barrier between two calls.
template <typename T> static __device__ __noinline__ Sums<T> sums_of_block(T own) {
	__shared__ T room[WARPS];
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	T sum = inclusive(own);
	if (lane == 31) room[warp] = sum;
	sum = __shfl_up_sync(0xffffffffu, sum, 1);
	__syncthreads();
	Sums<T> s = {lane == 0 ? 0 : sum, 0};
#pragma unroll
	for (int w = 0; w < WARPS; w++) {
		if (w == warp) s.before += s.total;
		s.total += room[w];
	}
	return s;
}

// The bin in which a running sum reaches the needed value, the sum before it and the bin's own
// value.
struct Crossing {
	int bin; // the number of bins: nowhere
	u64 before, in;
};
// The thread's bins are v (thread 0 has the first N), and s their sums. need is at least 1. There
// must be a barrier between two calls.
template <int N> KR_DEV Crossing crossing(const u64 (&v)[N], const Sums<u64> &s, u64 need) {
	__shared__ Crossing found;
	u64 before = s.before;
	if (s.total < need && threadIdx.x == 0) found = Crossing{N * THREADS, s.total, 0};
#pragma unroll
	for (int i = 0; i < N; i++) {
		u64 sum = before + v[i];
		if (before < need && need <= sum) found = Crossing{N * (int)threadIdx.x + i, before, v[i]};
		before = sum;
	}
	__syncthreads();
	return found;
}
template <int N> KR_DEV Sums<u64> sums_of_bins(const u64 (&v)[N]) {
	u64 own = 0;
#pragma unroll
	for (int i = 0; i < N; i++) own += v[i];
	return sums_of_block(own);
}

// The part p of a mass, at least 1.
KR_DEV u64 share_of_mass(double p, u64 total) {
	u64 need = (u64)ceil(p * (double)total);
	return need > total ? max(total, 1ull) : max(need, 1ull);
}

// What the bins of a row decide.
struct Plan {
	// Tokens of bins below sure are kept. Tokens of bins sure to last, and of bin edge, may be
	// kept, and are listed.
	int sure, last, edge;
	bool top_k, top_p;
	double share;    // the mass that top_p needs
	u64 most;        // of top_k
	u64 k;           // the number of tokens of bin edge that top_k keeps
	u64 pool;        // the weight of the bins before edge
	u64 above, need; // the weight of the bins below sure; with top_p alone, the weight to which the rest is added
};

// Makes the plan in shared memory. Thread 0 can read it at once, the others after a barrier.
KR_DEV void make_plan(Plan &plan, const Params &p, const Notes *notes, int vocab) {
	__shared__ u64 pool[2];
	const int own = BINS / THREADS;
	int first = own * (int)threadIdx.x;
	u64 v[own];
	Crossing k = {BINS, 0, 0};
	if (p.counts(vocab)) {
#pragma unroll
		for (int i = 0; i < own; i += 4) {
			uint4 c = __ldcg(reinterpret_cast<const uint4 *>(notes->counts + first + i));
			v[i] = c.x, v[i + 1] = c.y, v[i + 2] = c.z, v[i + 3] = c.w;
		}
		k = crossing(v, sums_of_bins(v), p.top_k);
	}
	bool top_k = k.bin < BINS; // else there are fewer than k tokens
	if (threadIdx.x == 0) {
		plan.top_k = top_k, plan.top_p = p.weighs(), plan.share = p.top_p, plan.most = p.top_k;
		plan.sure = k.bin, plan.last = plan.edge = top_k ? k.bin : -1, plan.k = p.top_k - k.before;
	}
	if (!p.weighs()) return;
#pragma unroll
	for (int i = 0; i < own; i += 2) {
		ulonglong2 m = __ldcg(reinterpret_cast<const ulonglong2 *>(notes->mass + first + i));
		v[i] = m.x, v[i + 1] = m.y;
	}
	Sums<u64> sums = sums_of_bins(v);
	if (!top_k) {
		u64 need = share_of_mass(p.top_p, sums.total);
		Crossing c = crossing(v, sums, need);
		if (threadIdx.x == 0) plan.sure = plan.last = c.bin, plan.above = c.before, plan.need = need - c.before;
		return;
	}
	// The weight of top_k's tokens lies between that of the bins before its last one and that
	// including the last one.
	if (first <= k.bin && k.bin < first + own) {
		u64 sum = sums.before, in = 0;
#pragma unroll
		for (int i = 0; i < own; i++) {
			if (first + i < k.bin) sum += v[i];
			if (first + i == k.bin) in = v[i];
		}
		pool[0] = sum, pool[1] = sum + in;
	}
	__syncthreads();
#pragma unroll 1
	for (int i = 1; i >= 0; i--) {
		Crossing c = crossing(v, sums, share_of_mass(p.top_p, pool[i]));
		if (threadIdx.x == 0) {
			if (i == 1) plan.last = c.bin, plan.pool = pool[0];
			else plan.sure = c.bin, plan.above = c.before;
		}
		__syncthreads();
	}
}

// The tokens among which the last kept one is: a list, or a whole row, which is read in pieces
// through the list's memory.
struct Pool {
	Row row;
	u64 *list;
	int n, bits; // n < 0: the row
};
template <typename F> KR_DEV void each(const Pool &pool, const F &f) {
	int n = pool.n;
#pragma unroll 1
	for (int from = 0;; from += LISTED) {
		if (pool.n < 0) {
			n = min((int)LISTED, pool.row.vocab - from);
#pragma unroll
			for (int i = threadIdx.x; i < LISTED; i += THREADS) // a thread reads what it wrote itself
				if (i < n) pool.list[i] = order_of(pool.row.x[from + i], from + i, pool.bits);
		}
#pragma unroll 1
		for (int i = threadIdx.x; i < n; i += THREADS) {
			u64 order = pool.list[i];
			float x = from_rising(~(uint32_t)(order >> pool.bits));
			if (x > minus_infinity()) f(order, x);
		}
		if (pool.n >= 0 || from + LISTED >= pool.row.vocab) return;
	}
}

enum { FINE = 1024 };
struct Fine {
	u64 mass[FINE];
	unsigned counts[FINE];
};

// Finds the order of the token with which the running sum of the pool's tokens reaches need. The
// sum begins at order `at` and covers width orders. It is of weights or of numbers of tokens.
// Each round distinguishes 1024 intervals of orders.
KR_DEV u64 last_kept(const Pool &pool, const Weigher &w, bool by_mass, u64 at, u64 width, u64 need, Fine &fine) {
	for (;;) {
		int shift = max(0, 64 - __clzll((long long)(width - 1)) - 10);
		__syncthreads(); // fine is not in use
		for (int i = threadIdx.x; i < FINE; i += THREADS) fine.mass[i] = 0, fine.counts[i] = 0;
		__syncthreads();
		each(pool, [&](u64 order, float x) {
			if (order - at >= width) return;
			int bin = (int)((order - at) >> shift);
			atomicAdd(&fine.counts[bin], 1u);
			if (by_mass) add_shared(&fine.mass[bin], mass(w, x));
		});
		__syncthreads();
		u64 v[FINE / THREADS];
		for (int i = 0; i < FINE / THREADS; i++) {
			int bin = FINE / THREADS * (int)threadIdx.x + i;
			v[i] = by_mass ? fine.mass[bin] : fine.counts[bin];
		}
		Crossing c = crossing(v, sums_of_bins(v), need);
		if (c.bin == FINE) return at + width - 1; // all of them
		u64 from = (u64)c.bin << shift;
		at += from, width = min(width - from, 1ull << shift), need -= c.before;
		if (shift == 0 || fine.counts[c.bin] == 1 || (!by_mass && need == c.in)) return at + width - 1;
	}
}
