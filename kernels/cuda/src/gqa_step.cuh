// Products of gqa_decode.cu: a warp's ring of keys and values, the queries as right operands, and a step of 16 keys.
#pragma once
#include "gqa.cuh"

#ifdef KR_HOPPER
#define LATE_JOINS true
#else
#define LATE_JOINS false // no mbarriers
#endif

enum { THREADS = 128, WARPS = 4, STEP = KEY_TILE / WARPS }; // a warp's keys in a tile

// N: eights of query heads.
template <int KIND, int D, int N> struct Ring {
	static const int row = D * Element<KIND>::size;
	static const int unit = STEP * row;                                // of a step: keys or values
	static const int most = 4096 / unit < 4 ? 4096 / unit : 4, steps = most < 1 ? 1 : most; // in shared memory or in flight
	static const int scales = KIND == I8_ROWS ? STEP * 2 * 4 : 0;      // of a step: keys and values
	static const int step = 2 * unit + scales + 16;                    // the same, and a Step
	static const int warp = steps * step;
	static const bool far = D * N > 256;                               // queries, and the sums of a group's items, stay in shared memory
	static const int heads = 8 * N, chunk = far ? 64 / N : D < 128 / N ? D : 128 / N; // columns of sums that warps join at a time
	static const int gap = chunk + 4;                                  // floats between heads, so that stores hit no bank twice
	static const int at_sums = WARPS * warp;                           // [WARPS][heads][gap] float
	static const int at_marks = at_sums + WARPS * heads * gap * 4;     // [WARPS][heads] float2
	static const int at_queries = at_marks + WARPS * heads * 8;        // far: [D / 16][N][32] uint2
	static const bool late = LATE_JOINS && chunk == D;                 // sums of warps are joined while the next item's keys are multiplied
	static const int at_kept = at_queries + (far ? D / 16 * N * 256 : 0); // far or late: [D / cols][THREADS] float4, [THREADS] float2
	static const int cols = 64 / N;                                    // columns that threads have in one pass when warps are joined
	static const int at_bars = at_kept + (far || late ? (D / cols * 16 + 8) * THREADS : 0); // late: mbarriers, sums are there, sums were read
	static const int bytes = at_bars + (late ? 16 : 0);
};
static_assert(STEP == 16, "a step is the depth of a product");

// Queries of the heads as right operands. A product's columns are neighbours in a lane, because keys are read 16 bytes
// at a time. Of bf16 keys, lane 4g+c has columns 8c..8c+7 of every 32, for two products; of 8-bit keys columns
// 16c..16c+15 of every 64, for four.
template <int KIND, int D, int N> struct Queries {
	uint2 b[Ring<KIND, D, N>::far ? 1 : D / 16][N];
};

// The columns of a lane for product i, from a head's queries; 0: there is no such head.
template <int KIND> KR_DEV uint2 query(const bf16 *head, int i) {
	int c = threadIdx.x % 4, at = KIND == BF16_ROWS ? i / 2 * 32 + 8 * c + i % 2 * 4 : i / 4 * 64 + 16 * c + i % 4 * 4;
	uint2 x = head ? *(const uint2 *)(head + at) : make_uint2(0, 0);
	if (KIND == E4M3_ROWS) x = make_uint2(pack_f16(lo_f32(x.x), hi_f32(x.x)), pack_f16(lo_f32(x.y), hi_f32(x.y)));
	return x;
}

// Loads a row's queries of heads first.. of a group of `heads`; the group's queries begin at from. All threads call
// it.
template <int KIND, int D, int N> KR_DEV void fetch_queries(Queries<KIND, D, N> &q, unsigned char *shared, const bf16 *from, int first, int heads) {
	const bool far = Ring<KIND, D, N>::far;
	int lane = threadIdx.x % 32;
	if (far) __syncthreads(); // no thread still needs the row before
#pragma unroll
	for (int n = 0; n < N; n++) {
		int head = first + 8 * n + lane / 4;
		const bf16 *mine = head < heads ? from + head * D : 0;
		if (far) {
			for (int i = threadIdx.x / 32; i < D / 16; i += WARPS) ((uint2 *)(shared + Ring<KIND, D, N>::at_queries))[(i * N + n) * 32 + lane] = query<KIND>(mine, i);
		} else {
#pragma unroll
			for (int i = 0; i < (far ? 0 : D / 16); i++) q.b[i][n] = query<KIND>(mine, i);
		}
	}
	if (far) __syncthreads();
}

// --- a step

// A warp's sums for its keys of an item. They are of weight * value: lane 4g+c has heads 8n + 2c and 8n + 2c + 1, for
// columns 16t + g and 16t + 8 + g (of 8-bit values 16t + 2g and 16t + 2g + 1). It also has the largest score of these
// heads and the sum of weights of the lane's own keys.
template <int D, int N> struct State {
	float sum[D / 16][N][4];
	float most[N][2], total[N][2];
};

template <int D, int N> KR_DEV void begin(State<D, N> &st) {
	st = State<D, N>();
#pragma unroll
	for (int n = 0; n < N; n++) st.most[n][0] = st.most[n][1] = -INFINITY;
}

// Scores of the heads for the step's 16 keys: s[n] of keys g, g, g+8, g+8 for heads 8n + 2c, 8n + 2c + 1 in turn.
template <int KIND, int D, int N> KR_DEV void scores(float (&s)[N][4], const Queries<KIND, D, N> &q, const unsigned char *shared, const unsigned char *keys) {
	const int row = Ring<KIND, D, N>::row, each = KIND == BF16_ROWS ? 2 : 4; // products per 16 bytes of a lane
	const bool far = Ring<KIND, D, N>::far;
	int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
	float sum[2][N][4] = {}; // of even and of odd products
	const uint2 *kept = (const uint2 *)(shared + Ring<KIND, D, N>::at_queries) + lane;
#pragma unroll
	for (int i = 0; i < D / 16 / each; i++) {
		uint4 v = lds16(keys, place<row>(g, 4 * i + c)), w = lds16(keys, place<row>(g + 8, 4 * i + c));
		uint32_t one[4] = {v.x, v.y, v.z, v.w}, two[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
		for (int j = 0; j < each; j++) {
			uint32_t a[4];
			if (KIND == BF16_ROWS) {
				a[0] = one[2 * j % 4], a[1] = two[2 * j % 4], a[2] = one[(2 * j + 1) % 4], a[3] = two[(2 * j + 1) % 4];
			} else {
				widen<KIND>(one[j], a[0], a[2]);
				widen<KIND>(two[j], a[1], a[3]);
			}
#pragma unroll
			for (int n = 0; n < N; n++) {
				uint2 b = far ? kept[((i * each + j) * N + n) * 32] : q.b[far ? 0 : i * each + j][n];
				multiply<KIND>(sum[j % 2][n], a, b.x, b.y);
			}
		}
	}
#pragma unroll
	for (int n = 0; n < N; n++)
#pragma unroll
		for (int i = 0; i < 4; i++) s[n][i] = sum[0][n][i] + sum[1][n][i];
}

// Turns scores into weights: powers of two relative to the largest score. Rescales the earlier sums to the new largest
// score.
template <int D, int N> KR_DEV void weigh(State<D, N> &st, float (&s)[N][4]) {
	float old[N][2];
	bool same = true;
#pragma unroll
	for (int n = 0; n < N; n++) {
#pragma unroll
		for (int i = 0; i < 2; i++) {
			float m = fmaxf(s[n][i], s[n][i + 2]);
#pragma unroll
			for (int d = 4; d < 32; d *= 2) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, d));
			m = fmaxf(m, st.most[n][i]);
			old[n][i] = exp2_approx(st.most[n][i] - m);
			same = same && old[n][i] == 1.f;
			st.most[n][i] = m;
			s[n][i] = exp2_approx(s[n][i] - m), s[n][i + 2] = exp2_approx(s[n][i + 2] - m);
			st.total[n][i] = fmaf(st.total[n][i], old[n][i], s[n][i] + s[n][i + 2]);
		}
	}
	if (!__any_sync(0xffffffffu, !same)) return; // in most steps nothing would change
#pragma unroll
	for (int t = 0; t < D / 16; t++)
#pragma unroll
		for (int n = 0; n < N; n++)
#pragma unroll
			for (int i = 0; i < 4; i++) st.sum[t][n][i] *= old[n][i % 2];
}

// sum += values * weights. A lane has weights of keys g and g+8 for two heads, and fetches those of keys 2c, 2c+1,
// 2c+8, 2c+9 for head g. 8-bit values are read in pairs, as one number, and separated afterwards.
template <int KIND, int D, int N> KR_DEV void add_values(State<D, N> &st, const float (&w)[N][4], uint32_t values) {
	const int row = Ring<KIND, D, N>::row;
	int lane = threadIdx.x % 32, g = lane / 4, from = lane % 4 * 8 + g / 2;
	uint32_t b[N][2];
#pragma unroll
	for (int n = 0; n < N; n++)
#pragma unroll
		for (int i = 0; i < 2; i++) {
			uint32_t mine = pack<KIND>(w[n][2 * i], w[n][2 * i + 1]);
			uint32_t x = __shfl_sync(0xffffffffu, mine, from), y = __shfl_sync(0xffffffffu, mine, from + 4);
			b[n][i] = __byte_perm(x, y, g % 2 ? 0x7632 : 0x5410);
		}
#pragma unroll
	for (int t = 0; t < row / 32; t++) {
		uint32_t v[4];
		ldmatrix_x4_trans(v, values + place<row>(lane % 16, 2 * t + lane / 16));
		if (KIND == BF16_ROWS) {
			uint32_t a[4] = {v[0], v[2], v[1], v[3]};
#pragma unroll
			for (int n = 0; n < N; n++) multiply<KIND>(st.sum[t][n], a, b[n][0], b[n][1]);
		} else {
#pragma unroll
			for (int i = 0; i < 2; i++) {
				uint32_t a[4]; // even columns, odd ones
				widen<KIND>(__byte_perm(v[2 * i], 0, 0x3120), a[0], a[1]);
				widen<KIND>(__byte_perm(v[2 * i + 1], 0, 0x3120), a[2], a[3]);
#pragma unroll
				for (int n = 0; n < N; n++) multiply<KIND>(st.sum[(2 * t + i) % (D / 16)][n], a, b[n][0], b[n][1]);
			}
		}
	}
}
