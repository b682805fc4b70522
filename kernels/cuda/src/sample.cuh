// Rows of logits, their largest logit, and the weight of a token in a draw. A row is cut into
// parts of 128 tokens, which are distributed over the blocks that share the row. A warp takes one
// part at a time; a lane has 4 neighbouring tokens of it.
//
// A weight is a whole multiple of 2^-54, and so are sums of weights. So sums do not depend on the
// order of their additions: atomic additions give the same bits in every run and with any number
// of blocks.
#pragma once
#include "kr.cuh"

typedef unsigned long long u64;

// MOST_BLOCKS and the size of Notes are also in kernels/cuda/sample.
enum { PART = 128, EACH = PART / 32, THREADS = 256, WARPS = THREADS / 32, BINS = 2048, MOST_BLOCKS = 128, LISTED = 2048 };

// The reasons for no token (kernels/cuda/sample).
enum { IS_NAN = -1, IS_INFINITE = -2, ALL_MASKED = -3 };

// Data that the blocks of a row exchange, in scratch memory. The sums of the weights of each part
// follow.
struct Notes {
	int4 found[MOST_BLOCKS];       // a block's Found
	unsigned turn, listed, pad[2]; // the number of finished blocks; the number of tokens for the list, which may have no room for all
	u64 mass[BINS];                // the weight of the tokens in each bin
	unsigned counts[BINS];
	u64 list[LISTED]; // orders of tokens that the bins do not decide
};
struct Pad {
	unsigned char *at;
	long long size; // of a row
};
KR_DEV Notes *notes_of(const Pad &p, int row) { return reinterpret_cast<Notes *>(p.at + row * p.size); }
KR_DEV u64 *sums_of(Notes *n) { return reinterpret_cast<u64 *>(n + 1); }

struct Row {
	const float *x;
	int vocab, parts;
	bool vec; // 16-byte loads
};
KR_DEV Row row_at(const float *logits, int row, int stride, int vocab, int vec) {
	return Row{logits + (long long)row * stride, vocab, (vocab + PART - 1) / PART, vec != 0};
}

// The parts of this warp: from, from + WARPS, ..., below to.
struct Share {
	int from, to;
};
KR_DEV Share share_of(const Row &r) {
	int each = (r.parts + (int)gridDim.x - 1) / (int)gridDim.x, first = (int)blockIdx.x * each;
	return Share{first + (int)threadIdx.x / 32, min(r.parts, first + each)};
}

KR_DEV float minus_infinity() { return __uint_as_float(0xff800000u); }
KR_DEV float infinity() { return __uint_as_float(0x7f800000u); }

// Bits that rise with the number and are equal for both zeros. Not for NaN.
KR_DEV uint32_t rising(float v) {
	uint32_t u = __float_as_uint(v + 0.f);
	return u & 0x80000000u ? ~u : u | 0x80000000u;
}
KR_DEV float from_rising(uint32_t k) { return __uint_as_float(k & 0x80000000u ? k & 0x7fffffffu : ~k); }

// The lane's first token of a part, and its logits; minus infinity past the row's end.
KR_DEV int first_of(int part) { return part * PART + EACH * ((int)threadIdx.x % 32); }
KR_DEV void load_part(float (&x)[EACH], const Row &r, int part) {
	int first = first_of(part);
	if (r.vec && first + EACH <= r.vocab) {
		float4 v = *(const float4 *)(r.x + first);
		x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
		return;
	}
#pragma unroll
	for (int j = 0; j < EACH; j++) x[j] = first + j < r.vocab ? r.x[first + j] : minus_infinity();
}

// Of some tokens: the largest logit's key, the smallest token that has it, and the key of the
// smallest logit above minus infinity (all bits set if there is none).
struct Found {
	uint32_t key;
	int token, nan; // nan: some logit is
	uint32_t low;
};
KR_DEV Found nothing() { return Found{0, 0x7fffffff, 0, 0xffffffffu}; }

KR_DEV Found both(const Found &a, const Found &b) {
	Found f = a.key > b.key || (a.key == b.key && a.token < b.token) ? a : b;
	f.nan = a.nan | b.nan, f.low = min(a.low, b.low);
	return f;
}

// Combines the values of a warp's lanes, in every lane.
KR_DEV Found join(const Found &f) {
	uint32_t most = __reduce_max_sync(0xffffffffu, f.key);
	int token = __reduce_min_sync(0xffffffffu, f.key == most ? f.token : 0x7fffffff);
	return Found{most, token, __any_sync(0xffffffffu, f.nan), __reduce_min_sync(0xffffffffu, f.low)};
}

// Combines a block's parts, in every thread.
KR_DEV Found look(const Row &r, const Share &s) {
	__shared__ Found each[WARPS];
	int lane = threadIdx.x % 32;
	float best = minus_infinity(), low = infinity();
	Found f = nothing();
#pragma unroll 4
	for (int p = s.from; p < s.to; p += WARPS) {
		float x[EACH];
		load_part(x, r, p);
#pragma unroll
		for (int j = 0; j < EACH; j++) {
			f.nan |= x[j] != x[j];
			if (x[j] > best) best = x[j], f.token = first_of(p) + j;
			if (x[j] > minus_infinity()) low = fminf(low, x[j]);
		}
	}
	f.key = rising(best);
	if (low < infinity()) f.low = rising(low);
	f = join(f);
	if (lane == 0) each[threadIdx.x / 32] = f;
	__syncthreads();
	return join(lane < WARPS ? each[lane] : nothing());
}

// The largest logit and its token, or the reason for no token, as a token below 0; and the
// smallest logit above minus infinity.
struct Best {
	float x;
	int token;
	float low;
};
KR_DEV Best verdict(const Found &f) {
	Best b = {from_rising(f.key), f.token, from_rising(f.low)};
	if (f.nan) b.token = IS_NAN;
	else if (b.x == minus_infinity()) b.token = ALL_MASKED;
	else if (b.x > 3.4028234664e38f) b.token = IS_INFINITE;
	return b;
}

// Combines the results of n blocks, in every lane.
KR_DEV Best best_of(const Notes *notes, int n) {
	int4 v[MOST_BLOCKS / 32];
#pragma unroll
	for (int j = 0; j < MOST_BLOCKS / 32; j++) { // all in flight at once
		int i = 32 * j + (int)threadIdx.x % 32;
		v[j] = make_int4(0, 0x7fffffff, 0, -1);
		if (i < n) v[j] = __ldcg(&notes->found[i]);
	}
	Found f = nothing();
#pragma unroll
	for (int j = 0; j < MOST_BLOCKS / 32; j++) f = both(f, Found{(uint32_t)v[j].x, v[j].y, v[j].z, (uint32_t)v[j].w});
	return verdict(join(f));
}

// 2^(i/64).
static __device__ const double exp_table[64] = {
	0x1p+00, 0x1.02c9a3e778061p+00, 0x1.059b0d3158574p+00, 0x1.0874518759bc8p+00,
	0x1.0b5586cf9890fp+00, 0x1.0e3ec32d3d1a2p+00, 0x1.11301d0125b51p+00, 0x1.1429aaea92dep+00,
	0x1.172b83c7d517bp+00, 0x1.1a35beb6fcb75p+00, 0x1.1d4873168b9aap+00, 0x1.2063b88628cd6p+00,
	0x1.2387a6e756238p+00, 0x1.26b4565e27cddp+00, 0x1.29e9df51fdee1p+00, 0x1.2d285a6e4030bp+00,
	0x1.306fe0a31b715p+00, 0x1.33c08b26416ffp+00, 0x1.371a7373aa9cbp+00, 0x1.3a7db34e59ff7p+00,
	0x1.3dea64c123422p+00, 0x1.4160a21f72e2ap+00, 0x1.44e086061892dp+00, 0x1.486a2b5c13cdp+00,
	0x1.4bfdad5362a27p+00, 0x1.4f9b2769d2ca7p+00, 0x1.5342b569d4f82p+00, 0x1.56f4736b527dap+00,
	0x1.5ab07dd485429p+00, 0x1.5e76f15ad2148p+00, 0x1.6247eb03a5584p+00, 0x1.6623882552224p+00,
	0x1.6a09e667f3bccp+00, 0x1.6dfb23c651a2fp+00, 0x1.71f75e8ec5f74p+00, 0x1.75feb564267c9p+00,
	0x1.7a11473eb0187p+00, 0x1.7e2f336cf4e62p+00, 0x1.82589994cce12p+00, 0x1.868d99b4492ecp+00,
	0x1.8ace5422aa0dcp+00, 0x1.8f1ae99157736p+00, 0x1.93737b0cdc5e5p+00, 0x1.97d829fde4e5p+00,
	0x1.9c49182a3f09p+00, 0x1.a0c667b5de565p+00, 0x1.a5503b23e255cp+00, 0x1.a9e6b5579fdbfp+00,
	0x1.ae89f995ad3aep+00, 0x1.b33a2b84f15fbp+00, 0x1.b7f76f2fb5e47p+00, 0x1.bcc1e904bc1d2p+00,
	0x1.c199bdd85529cp+00, 0x1.c67f12e57d14bp+00, 0x1.cb720dcef9069p+00, 0x1.d072d4a07897cp+00,
	0x1.d5818dcfba487p+00, 0x1.da9e603db3286p+00, 0x1.dfc97337b9b5fp+00, 0x1.e502ee78b3ff6p+00,
	0x1.ea4afa2a490dap+00, 0x1.efa1bee615a27p+00, 0x1.f50765b6e454p+00, 0x1.fa7c1819e90d8p+00,
};
KR_DEV void load_table(double *table) {
	if (threadIdx.x < 64) table[threadIdx.x] = exp_table[threadIdx.x];
}

// e^x for -700 <= x <= 0: the function of stages/sample, with its table in shared memory.
// Its relative error is below 1e-12, and for x > -30 below 5e-14.
KR_DEV double exp_of(double x, const double *table) {
	const double round = 0x1.8p52; // leaves a whole number in the low bits
	double t = x * 0x1.71547652b82fep+6 + round;       // 64 / ln 2
	double r = x - (t - round) * 0x1.62e42fefa39efp-7; // ln 2 / 64
	double poly = 1. + r * (1. + r * (0.5 + r * (1. / 6 + r * (1. / 24))));
	int k = (int)__double_as_longlong(t);
	return __longlong_as_double(__double_as_longlong(table[k & 63]) + ((long long)(k >> 6) << 52)) * poly;
}

// Tokens in the order of preference, by falling logit and then rising token; orders rise. bits:
// the number of bits of a token.
KR_DEV u64 order_of(float x, int token, int bits) { return (u64)~rising(x) << bits | (unsigned)token; }
KR_DEV int bits_of(int vocab) { return 32 - __clz(vocab); }

// The weight of a token: exp((logit - top) * scale).
struct Weigher {
	double top, scale, least; // least: draws leave out tokens with smaller weights
	const double *table;
	int drop; // low bits that a sum over a row cannot hold
};
KR_DEV Weigher weigher(float top, double temperature, double least, int vocab, const double *table) {
	return Weigher{top, 1. / temperature, least, table, max(0, bits_of(vocab) - 9)};
}
KR_DEV bool weighs_some(const Weigher &w, float x) { return ((double)x - w.top) * w.scale > -39.; } // else below 2^-55
KR_DEV u64 weight(const Weigher &w, float x, double least) { // no branches: several are in flight at once
	double y = ((double)x - w.top) * w.scale;
	bool some = y > -39.;
	double v = exp_of(some ? y : -39., w.table);
	u64 whole = (u64)(v * 0x1p54 + 0.5);
	return some && v >= least ? whole : 0;
}
KR_DEV u64 kept_weight(const Weigher &w, float x) { return weight(w, x, w.least); }
// For sums over a row: less exact.
KR_DEV u64 mass(const Weigher &w, float x) { return (weight(w, x, 0.) + ((1ull << w.drop) >> 1)) >> w.drop; }
