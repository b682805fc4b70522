// The router: logits in plain float32, and the choice of experts.
//
// The order of a logit's sum is the same in every kernel here: lane l adds the chunks l,
// l + 32, ... of 8 columns (single columns where rows are not aligned), column by
// column, and the lanes' sums are joined by halves, 16 apart first. So a token's logits
// do not depend on how many tokens there are.
#include "route.cuh"

// The sums over the warp of N values a lane, N a power of two up to 64: value i comes to
// lanes i*32/N and on (N <= 32), values 2*lane and 2*lane+1 to a lane (N = 64); in a[0]
// (and a[1]). The same additions as warp_sum's.
template <int N> KR_DEV void warp_sums(float (&a)[N]) {
	int lane = threadIdx.x % 32, n = N;
#pragma unroll
	for (int d = 16; d > 0; d >>= 1) {
		if (n == 1) {
			a[0] += __shfl_xor_sync(0xffffffffu, a[0], d);
			continue;
		}
		n /= 2;
		bool upper = lane & d;
#pragma unroll
		for (int j = 0; j < N / 2; j++)
			if (j < n) {
				float keep = upper ? a[j + n] : a[j], give = upper ? a[j] : a[j + n];
				a[j] = keep + __shfl_xor_sync(0xffffffffu, give, d);
			}
	}
}

struct Logits {
	float *out;
	const void *x, *gate;
	int out_stride, x_stride, gate_stride, tokens, experts, cols;
};

// The logits of tokens t.. and experts e.., TT x EE of them, by a warp. Those that do not
// exist are computed from the last row and not stored.
//
// A lane's next AHEAD chunks of the gate are always on their way, the first of them before
// the wait for the kernel that writes x: no kernel writes the gate, and it comes from
// memory. x, of which XA chunks are on their way, was just written and comes from the cache.
template <int V, int TT, int EE, int AHEAD, int XA>
KR_DEV void logit_tile(const Logits &a, int t, int e, bool x_half, bool gate_half) {
	int lane = threadIdx.x % 32, chunks = a.cols / V;
	bool real = t < a.tokens && e < a.experts;
	const char *x = row_of(a.x, t, a.x_stride, x_half), *gate = row_of(a.gate, e, a.gate_stride, gate_half);
	int x_step = a.x_stride * (x_half ? 2 : 4), gate_step = a.gate_stride * (gate_half ? 2 : 4);
	int last_t = a.tokens - 1 - t, last_e = a.experts - 1 - e;
	Chunk<V> g[AHEAD][EE], c[XA][TT];
	if (real) {
#pragma unroll
		for (int j = 0; j < AHEAD; j++)
#pragma unroll
			for (int k = 0; k < EE; k++)
				if (lane + 32 * j < chunks) fetch(g[j][k], gate + (long long)min(k, last_e) * gate_step, lane + 32 * j, gate_half);
	}
	pdl_wait();
	if (!real) return;
	float sum[TT * EE];
#pragma unroll
	for (int i = 0; i < TT * EE; i++) sum[i] = 0.f;
	for (int base = lane; base < chunks; base += 32 * AHEAD) {
#pragma unroll
		for (int j = 0; j < AHEAD; j++) {
			if (j % XA == 0) {
#pragma unroll
				for (int n = 0; n < XA; n++)
#pragma unroll
					for (int m = 0; m < TT; m++)
						if (base + 32 * (j + n) < chunks) fetch(c[n][m], x + (long long)min(m, last_t) * x_step, base + 32 * (j + n), x_half);
			}
			int i = base + 32 * j;
			if (i >= chunks) continue;
			float w[EE][V], v[V];
#pragma unroll
			for (int k = 0; k < EE; k++) {
				widen(w[k], g[j][k], gate_half);
				if (i + 32 * AHEAD < chunks) fetch(g[j][k], gate + (long long)min(k, last_e) * gate_step, i + 32 * AHEAD, gate_half);
			}
#pragma unroll
			for (int m = 0; m < TT; m++) {
				widen(v, c[j % XA][m], x_half);
#pragma unroll
				for (int k = 0; k < EE; k++)
#pragma unroll
					for (int n = 0; n < V; n++) sum[m * EE + k] = fmaf(v[n], w[k][n], sum[m * EE + k]);
			}
		}
	}
	warp_sums(sum);
	const int PER = TT * EE / 32 > 1 ? TT * EE / 32 : 1; // values a lane has
	const int LANES = TT * EE < 32 ? 32 / (TT * EE) : 1; // lanes that have the same one
#pragma unroll
	for (int i = 0; i < PER; i++) {
		int at = lane / LANES * PER + i, token = t + at / EE, expert = e + at % EE;
		if (lane % LANES == 0 && token < a.tokens && expert < a.experts) a.out[(long long)token * a.out_stride + expert] = sum[i];
	}
}

// The warps of the grid take the tiles in turn, experts inside tokens: a single logit each
// (of rows that need not be aligned), 4 tokens by an expert, or 4 by 2. Flags: x, gate.
KR_DEV int warp_number() { return blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; }
KR_DEV void logits_1(const Logits &a, int flags) {
	int t = warp_number() / a.experts, e = warp_number() % a.experts;
	if (flags & VEC) logit_tile<8, 1, 1, 8, 8>(a, t, e, flags & BF16_0, flags & BF16_1);
	else logit_tile<1, 1, 1, 4, 4>(a, t, e, flags & BF16_0, flags & BF16_1);
}
KR_DEV void logits_4(const Logits &a, int flags) {
	logit_tile<8, 4, 1, 8, 2>(a, warp_number() / a.experts * 4, warp_number() % a.experts, flags & BF16_0, flags & BF16_1);
}
KR_DEV void logits_4x2(const Logits &a, int flags) {
	int across = (a.experts + 1) / 2;
	logit_tile<8, 4, 2, 4, 1>(a, warp_number() / across * 4, warp_number() % across * 2, flags & BF16_0, flags & BF16_1);
}

#define LOGITS(name, part)                                                                                                       \
	KR_KERNEL(128, 1)                                                                                                            \
	name(float *out, int out_stride, const void *x, int x_stride, int tokens, const void *gate, int gate_stride, int experts,    \
	     int cols, int flags) {                                                                                                  \
		pdl_launch();                                                                                                            \
		part(Logits{out, x, gate, out_stride, x_stride, gate_stride, tokens, experts, cols}, flags);                              \
	}                                                                                                                            \
	KR_EXPORT(name)
LOGITS(kr_logits_1, logits_1)
LOGITS(kr_logits_4, logits_4)
LOGITS(kr_logits_4x2, logits_4x2)

// Blocks of 2 x 4 warps, a warp 8 tokens by 8 experts. Grid: x experts by 32, y tokens
// by 16. Named by the types of x and gate: f float32, b bf16.
#define LOGITS_8(name, x_half, gate_half)                                                                                        \
	KR_KERNEL(256, 1)                                                                                                            \
	name(float *out, int out_stride, const void *x, int x_stride, int tokens, const void *gate, int gate_stride, int experts,    \
	     int cols, int) {                                                                                                        \
		pdl_launch();                                                                                                            \
		int warp = threadIdx.x / 32, t = blockIdx.y * 16 + warp / 4 * 8, e = blockIdx.x * 32 + warp % 4 * 8;                      \
		logit_tile<8, 8, 8, 1, 1>(Logits{out, x, gate, out_stride, x_stride, gate_stride, tokens, experts, cols}, t, e, x_half,   \
		                          gate_half);                                                                                    \
	}                                                                                                                            \
	KR_EXPORT(name)
LOGITS_8(kr_logits_8_ff, false, false)
LOGITS_8(kr_logits_8_fb, false, true)
LOGITS_8(kr_logits_8_bf, true, false)
LOGITS_8(kr_logits_8_bb, true, true)

// Rows at or past *rows (where there is one) get ids -1 and weights 0.
KR_DEV void choose_row(int row, const int *rows, int *ids, int ids_stride, float *weights, int weights_stride, const float *logits,
                       int logits_stride, const float *bias, const Router &r, float *room) {
	ids += (long long)row * ids_stride;
	weights += (long long)row * weights_stride;
	int lane = threadIdx.x % 32;
	if (!rows || row < *rows) choose_any(ids, weights, logits + (long long)row * logits_stride, bias, r, room);
	else if (lane < r.k) ids[lane] = -1, weights[lane] = 0.f;
}

// A warp a row.
KR_KERNEL(128, 1)
kr_route_top_k(int *ids, int ids_stride, float *weights, int weights_stride, const float *logits, int logits_stride, const float *bias,
               const int *rows, int tokens, int experts, int k, int sigmoid, int groups, int top_groups, int top2, int normalize,
               float scale) {
	__shared__ float room[4][ROOM];
	pdl_launch();
	pdl_wait();
	int warp = threadIdx.x / 32, row = blockIdx.x * 4 + warp;
	Router r = {experts, k, sigmoid, groups, top_groups, top2, normalize, scale};
	if (row < tokens) choose_row(row, rows, ids, ids_stride, weights, weights_stride, logits, logits_stride, bias, r, room[warp]);
}
KR_EXPORT(kr_route_top_k)

// After its share of the logits, the block that finishes last chooses for all rows.
// *turn is 0 before and after.
KR_DEV void choose_last(unsigned *turn, const Logits &a, int *ids, int ids_stride, float *weights, int weights_stride, const float *bias,
                        const int *rows, const Router &r) {
	__shared__ float room[4][ROOM];
	__shared__ bool last;
	__threadfence();
	__syncthreads();
	if (threadIdx.x == 0) last = atomicAdd(turn, 1u) == gridDim.x - 1;
	__syncthreads();
	if (!last) return;
	__threadfence();
	int warp = threadIdx.x / 32;
	for (int row = warp; row < a.tokens; row += 4)
		choose_row(row, rows, ids, ids_stride, weights, weights_stride, a.out, a.out_stride, bias, r, room[warp]);
	if (threadIdx.x == 0) *turn = 0;
}

#define ROUTE(name, part)                                                                                                      \
	KR_KERNEL(128, 1)                                                                                                          \
	name(unsigned *turn, float *out, int out_stride, const void *x, int x_stride, int tokens, const void *gate, int gate_stride, \
	     int experts, int cols, int flags, int *ids, int ids_stride, float *weights, int weights_stride, const float *bias,     \
	     const int *rows, int k, int sigmoid, int groups, int top_groups, int top2, int normalize, float scale) {               \
		pdl_launch();                                                                                                          \
		Logits a = {out, x, gate, out_stride, x_stride, gate_stride, tokens, experts, cols};                                    \
		Router r = {experts, k, sigmoid, groups, top_groups, top2, normalize, scale};                                           \
		part(a, flags);                                                                                                        \
		choose_last(turn, a, ids, ids_stride, weights, weights_stride, bias, rows, r);                                          \
	}                                                                                                                          \
	KR_EXPORT(name)
ROUTE(kr_route_1, logits_1)
ROUTE(kr_route_4, logits_4)
