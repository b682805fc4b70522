// What a block does with a row of logits, one of 1024 threads, or of a warp a part where
// there are less than 32. Parts are of 256 tokens: a warp takes one at a time, a lane 8
// neighbours of it. Sums of weights
// are in float64: by lane, by part, over parts, in that order and in rising order of
// tokens within each, so a row's choice is the same in every run.
#pragma once
#include "kr.cuh"

enum { PART = 256, MOST_WARPS = 32, BINS = 2048 };

// Why there is no token (kernels/cuda/sample).
enum { IS_NAN = -1, IS_INFINITE = -2, ALL_MASKED = -3 };

struct Row {
	const float *x;
	int vocab, parts;
	bool vec; // 16-byte loads
};

KR_DEV float minus_infinity() { return __uint_as_float(0xff800000u); }

// Bits that rise with the number, equal for both zeros. Not for NaN.
KR_DEV uint32_t rising(float v) {
	uint32_t u = __float_as_uint(v + 0.f);
	return u & 0x80000000u ? ~u : u | 0x80000000u;
}
KR_DEV float from_rising(uint32_t k) { return __uint_as_float(k & 0x80000000u ? k & 0x7fffffffu : ~k); }

// The lane's 8 logits of a part, the first of them token `first`; minus infinity behind
// the row's end.
KR_DEV void load8(float (&x)[8], const Row &r, int first) {
	if (r.vec && first + 8 <= r.vocab) {
		const float4 *p = (const float4 *)(r.x + first);
		float4 a = p[0], b = p[1];
		x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
		return;
	}
#pragma unroll
	for (int j = 0; j < 8; j++) x[j] = first + j < r.vocab ? r.x[first + j] : minus_infinity();
}

KR_DEV int warps() { return blockDim.x / 32; }

KR_DEV double warp_sum_f64(double v) {
	for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
	return v;
}

// The sum over the block, the same bits in every thread; room: MOST_WARPS doubles.
KR_DEV double block_sum_f64(double v, double *room) {
	v = warp_sum_f64(v);
	__syncthreads(); // room is free
	if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = v;
	__syncthreads();
	return warp_sum_f64((int)threadIdx.x % 32 < warps() ? room[threadIdx.x % 32] : 0.);
}

// The largest logit's key and the smallest token that has it.
struct Found {
	uint32_t key;
	int token, nan; // nan: some logit is
};

// Of values of a warp's lanes, in every lane.
KR_DEV Found join(Found f) {
	uint32_t most = __reduce_max_sync(0xffffffffu, f.key);
	int token = __reduce_min_sync(0xffffffffu, f.key == most ? f.token : 0x7fffffff);
	return Found{most, token, __any_sync(0xffffffffu, f.nan)};
}

// Of parts first, first + step, ... for each warp; in every thread of the block.
KR_DEV Found scan(const Row &r, int first, int step) {
	__shared__ uint32_t keys[MOST_WARPS];
	__shared__ int tokens[MOST_WARPS], nans[MOST_WARPS];
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	float best = minus_infinity();
	Found f = {0, 0x7fffffff, 0};
#pragma unroll 2
	for (int p = first; p < r.parts; p += step) {
		float x[8];
		int at = p * PART + 8 * lane;
		load8(x, r, at);
#pragma unroll
		for (int j = 0; j < 8; j++) {
			f.nan |= x[j] != x[j];
			if (x[j] > best) best = x[j], f.token = at + j;
		}
	}
	f.key = rising(best);
	f = join(f);
	__syncthreads(); // the arrays are free
	if (lane == 0) keys[warp] = f.key, tokens[warp] = f.token, nans[warp] = f.nan;
	__syncthreads();
	Found g = {0, 0x7fffffff, 0};
	if (lane < warps()) g = Found{keys[lane], tokens[lane], nans[lane]};
	return join(g);
}

// The largest logit and its token, or why there is none, as a token below 0.
struct Best {
	float x;
	int token;
};
KR_DEV Best verdict(const Found &f) {
	Best b = {from_rising(f.key), f.token};
	if (f.nan) b.token = IS_NAN;
	else if (b.x == minus_infinity()) b.token = ALL_MASKED;
	else if (b.x > 3.4028234664e38f) b.token = IS_INFINITE;
	return b;
}
KR_DEV Best best_of(const Row &r) { return verdict(scan(r, threadIdx.x / 32, warps())); }

// The last token in the order of preference (falling logit, then rising token) that is
// kept.
struct Edge {
	uint32_t key;
	int token;
};
KR_DEV bool keeps(const Edge &e, uint32_t key, int token) { return key > e.key || (key == e.key && token <= e.token); }

// Not inlined: code and registers of eight of them in a loop would be too many.
static __device__ __noinline__ double exp_of(double x) { return exp(x); }
static __device__ __noinline__ double log_of(double x) { return log(x); }

// What a token weighs.
struct Weigher {
	Edge edge;
	double top, scale, least; // weight exp((logit - top) * scale), none below least
	int vocab;
	bool ones; // instead: 1 for tokens whose logit is the edge's, whatever their number
};
KR_DEV double weight(const Weigher &w, float x, int token) {
	if (token >= w.vocab) return 0.;
	uint32_t key = rising(x);
	if (w.ones) return key == w.edge.key ? 1. : 0.;
	if (!keeps(w.edge, key, token)) return 0.;
	double v = exp_of(((double)x - w.top) * w.scale);
	return v >= w.least ? v : 0.;
}

// sums[p] = what part p weighs; the total, in every thread. room: MOST_WARPS doubles.
KR_DEV double weigh_parts(const Row &r, const Weigher &w, double *sums, double *room) {
	int lane = threadIdx.x % 32;
	__syncthreads(); // sums are free
	for (int p = threadIdx.x / 32; p < r.parts; p += warps()) {
		float x[8];
		double sum = 0.;
		int first = p * PART + 8 * lane;
		load8(x, r, first);
		for (int j = 0; j < 8; j++) sum += weight(w, x[j], first + j);
		sum = warp_sum_f64(sum);
		if (lane == 0) sums[p] = sum;
	}
	__syncthreads();
	double sum = 0.;
	for (int p = threadIdx.x; p < r.parts; p += blockDim.x) sum += sums[p];
	return block_sum_f64(sum, room);
}

// The sum of v over the lanes before this one, added in their order.
KR_DEV double sum_before(double v) {
	int lane = threadIdx.x % 32;
	double sum = 0.;
	for (int l = 0; l < 31; l++) {
		double u = __shfl_sync(0xffffffffu, v, l);
		if (l < lane) sum += u;
	}
	return sum;
}

// The token at which the running sum of weights exceeds target, by one warp; the last one
// with a weight if rounding made target too large.
KR_DEV int find(const Row &r, const Weigher &w, const double *sums, double target) {
	int lane = threadIdx.x % 32, per = (r.parts + 31) / 32;
	int from = lane * per, to = min(r.parts, from + per);
	double sum = 0.;
	for (int p = from; p < to; p++) sum += sums[p];
	double before = sum_before(sum);
	int hit = 0x7fffffff, last = -1; // parts
	double left = 0.;
	for (int p = from; p < to; p++) {
		if (sums[p] > 0.) last = p;
		if (hit == 0x7fffffff && before + sums[p] > target) hit = p, left = target - before;
		before += sums[p];
	}
	int part = __reduce_min_sync(0xffffffffu, hit);
	if (part == 0x7fffffff) {
		part = __reduce_max_sync(0xffffffffu, last);
		left = 1e300;
	} else {
		left = __shfl_sync(0xffffffffu, left, part / per);
	}
	float x[8];
	double v[8];
	int first = part * PART + 8 * lane;
	load8(x, r, first);
	sum = 0.;
	for (int j = 0; j < 8; j++) {
		v[j] = weight(w, x[j], first + j);
		sum += v[j];
	}
	before = sum_before(sum);
	hit = 0x7fffffff, last = -1; // tokens
	for (int j = 0; j < 8; j++) {
		if (v[j] > 0.) last = first + j;
		if (hit == 0x7fffffff && before + v[j] > left) hit = first + j;
		before += v[j];
	}
	hit = __reduce_min_sync(0xffffffffu, hit);
	last = __reduce_max_sync(0xffffffffu, last);
	return hit == 0x7fffffff ? last : hit;
}

// find by the first warp, for every thread.
KR_DEV int find_all(const Row &r, const Weigher &w, const double *sums, double target) {
	__shared__ int found;
	__syncthreads();
	if (threadIdx.x < 32) {
		int token = find(r, w, sums, target);
		if (threadIdx.x == 0) found = token;
	}
	__syncthreads();
	return found;
}

// The n-th token, counted from 1, whose logit has this key.
KR_DEV int nth_equal(const Row &r, uint32_t key, int n, double *sums, double *room) {
	Weigher w = {};
	w.edge.key = key, w.ones = true, w.vocab = r.vocab;
	weigh_parts(r, w, sums, room);
	return find_all(r, w, sums, n - 0.5);
}

// The k-th token in the order of preference, 1 <= k <= vocab: three levels of counting
// by the bits of the logit, 11, 11 and 10 of them. hist: BINS ints.
KR_DEV Edge kth(const Row &r, int k, int *hist, double *sums, double *room) {
	__shared__ int chosen, above;
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, equal = 0;
	uint32_t prefix = 0, mask = 0;
	for (int level = 0; level < 3; level++) {
		int shift = level == 0 ? 21 : level == 1 ? 10 : 0, bins = level == 2 ? BINS / 2 : BINS;
		__syncthreads();
		for (int i = threadIdx.x; i < BINS; i += blockDim.x) hist[i] = 0;
		__syncthreads();
		for (int p = warp; p < r.parts; p += warps()) {
			float x[8];
			int first = p * PART + 8 * lane;
			load8(x, r, first);
			for (int j = 0; j < 8; j++) {
				uint32_t key = rising(x[j]);
				if (first + j < r.vocab && (key & mask) == prefix) atomicAdd(&hist[key >> shift & (bins - 1)], 1);
			}
		}
		__syncthreads();
		if (warp == 0) { // lane l has 64 bins, the highest in lane 0
			int low = BINS - 64 * (lane + 1), own = 0, before = 0;
			for (int i = 0; i < 64; i++) own += hist[low + (i + lane) % 64]; // lanes in different banks
			int sum = own;
			for (int d = 1; d < 32; d <<= 1) {
				int v = __shfl_up_sync(0xffffffffu, sum, d);
				if (lane >= d) sum += v;
			}
			before = sum - own;
			if (before < k && k <= sum) {
				int bin = low + 63;
				while (before + hist[bin] < k) before += hist[bin--];
				chosen = bin, above = before;
			}
		}
		__syncthreads();
		k -= above;
		prefix |= (uint32_t)chosen << shift;
		mask |= (uint32_t)(bins - 1) << shift;
		equal = hist[chosen];
	}
	if (k == equal) return Edge{prefix, 0x7fffffff};
	return Edge{prefix, nth_equal(r, prefix, k, sums, room)};
}
