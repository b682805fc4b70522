// The router: logits of float32 activations, or of rows that are not aligned (logits.cu has the
// others), and the choice of experts.
//
// The order of a logit's sum is the same in every kernel here. Lane l adds the chunks l, l + 32,
// ... of 8 columns (single columns if rows are not aligned), column by column. The lanes' sums
// are added by halves, 16 apart first. So a token's logits do not depend on the number of tokens.
#include "route.cuh"

// The sums over the warp of N values per lane; N is a power of two up to 64. Value i is in lanes
// i*32/N and on (N <= 32), or values 2*lane and 2*lane+1 are in each lane (N = 64); in a[0] (and
// a[1]). The additions are in the order of warp_sum.
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

// sums += the products of a chunk of TT tokens with one of EE experts.
template <int V, int TT, int EE>
KR_DEV void accumulate(float (&sum)[TT * EE], const Chunk<V> (&x)[TT], const float (&w)[EE][V], bool x_half) {
#pragma unroll
	for (int m = 0; m < TT; m++) {
		float v[V];
		widen(v, x[m], x_half);
#pragma unroll
		for (int k = 0; k < EE; k++)
#pragma unroll
			for (int n = 0; n < V; n++) sum[m * EE + k] = fmaf(v[n], w[k][n], sum[m * EE + k]);
	}
}

// Adds the lanes' sums of a tile from token t and expert e on, and stores those that exist.
template <int TT, int EE> KR_DEV void finish(const Logits &a, int t, int e, float (&sum)[TT * EE]) {
	const int PER = TT * EE / 32 > 1 ? TT * EE / 32 : 1; // values per lane
	const int LANES = TT * EE < 32 ? 32 / (TT * EE) : 1; // lanes that have the same value
	int lane = threadIdx.x % 32;
	warp_sums(sum);
#pragma unroll
	for (int i = 0; i < PER; i++) {
		int at = lane / LANES * PER + i, token = t + at / EE, expert = e + at % EE;
		if (lane % LANES == 0 && token < a.tokens && expert < a.experts) a.out[(long long)token * a.out_stride + expert] = sum[i];
	}
}

// The logits of tokens t.. and experts e.., TT x EE of them, by one warp. Those that do not exist
// are computed from the last row and not stored.
//
// A lane's next AHEAD chunks of the gate are always in flight. The first of them are loaded
// before the wait for the kernel that writes x: no kernel writes the gate, and it comes from
// memory. XA chunks of x are in flight; x was just written and comes from the cache.
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
			float w[EE][V];
#pragma unroll
			for (int k = 0; k < EE; k++) {
				widen(w[k], g[j][k], gate_half);
				if (i + 32 * AHEAD < chunks) fetch(g[j][k], gate + (long long)min(k, last_e) * gate_step, i + 32 * AHEAD, gate_half);
			}
			accumulate<V, TT, EE>(sum, c[j % XA], w, x_half);
		}
	}
	finish<TT, EE>(a, t, e, sum);
}

// The warps of the grid take the tiles in turn, experts before tokens: a single logit each (for
// rows that need not be aligned), 4 tokens by an expert, or 4 by 2. Flags: x, gate.
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

// --- many tokens: a block has 16 tokens by 32 experts, its 2 x 4 warps 8 by 8 each; 256 columns
// of all rows are copied to shared memory at a time, a few steps ahead.

enum { BLOCK_T = 16, BLOCK_E = 32, STEP = 256 };

// A row of a step in shared memory has 32 chunks. Lane l's 16 bytes of bf16 are at 16*l. Of
// float32 its first four numbers are there, and the other four 512 bytes further. So the lanes of
// a quarter warp always read 128 consecutive bytes.
template <bool HALF> struct Staged {
	static const int BYTES = HALF ? 512 : 1024;
};

// Starts copying step s of `rows` rows of a matrix, of which `last` is the last that exists.
template <bool HALF> KR_DEV void stage_rows(uint32_t to, const char *from, long long row_bytes, int rows, int last, int s, int cols) {
	const int UNITS = Staged<HALF>::BYTES / 16;
	for (int i = threadIdx.x; i < rows * UNITS; i += blockDim.x) {
		int row = i / UNITS, u = i % UNITS;
		bool real = s * STEP + u * (HALF ? 8 : 4) < cols;
		const char *src = from + min(row, last) * row_bytes + (real ? s * Staged<HALF>::BYTES + 16 * u : 0);
		cp_async16(to + row * Staged<HALF>::BYTES + (HALF ? 16 * u : (u & 1) * 512 + (u >> 1) * 16), src, real);
	}
}

template <bool HALF> KR_DEV void unstage(Chunk<8> &c, const char *row) {
	const uint4 *p = (const uint4 *)row + threadIdx.x % 32;
	c.a = p[0];
	c.b = HALF ? c.a : p[32];
}

template <bool GH> KR_DEV void logit_block(const Logits &a) {
	const bool XH = false;
	const int X_BYTES = Staged<XH>::BYTES, G_BYTES = Staged<GH>::BYTES, STAGES = 2; // at most 96 KB
	const int STAGE = BLOCK_T * X_BYTES + BLOCK_E * G_BYTES;
	KR_SHARED(char, shared);
	int t = blockIdx.y * BLOCK_T, e = blockIdx.x * BLOCK_E, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	int steps = (a.cols + STEP - 1) / STEP, chunks = a.cols / 8;
	const char *x = row_of(a.x, t, a.x_stride, XH), *gate = row_of(a.gate, e, a.gate_stride, GH);
	auto stage_x = [&](int s) {
		if (s < steps) stage_rows<XH>(smem_u32(shared) + s % STAGES * STAGE, x, (long long)a.x_stride * (XH ? 2 : 4), BLOCK_T, a.tokens - 1 - t, s, a.cols);
	};
	auto stage_gate = [&](int s) {
		if (s < steps)
			stage_rows<GH>(smem_u32(shared) + s % STAGES * STAGE + BLOCK_T * X_BYTES, gate, (long long)a.gate_stride * (GH ? 2 : 4), BLOCK_E,
			               a.experts - 1 - e, s, a.cols);
	};
	for (int s = 0; s < STAGES - 1; s++) stage_gate(s); // no kernel writes the gate
	pdl_wait();
	for (int s = 0; s < STAGES - 1; s++) {
		stage_x(s);
		cp_async_commit();
	}
	float sum[64];
#pragma unroll
	for (int i = 0; i < 64; i++) sum[i] = 0.f;
	int my_t = warp / 4 * 8, my_e = warp % 4 * 8;
	for (int s = 0; s < steps; s++) {
		cp_async_wait<STAGES - 2>();
		__syncthreads(); // step s has arrived for all warps, and all are done with step s - 1
		stage_x(s + STAGES - 1);
		stage_gate(s + STAGES - 1);
		cp_async_commit();
		if (s * 32 + lane >= chunks) continue;
		const char *now = shared + s % STAGES * STAGE;
		Chunk<8> c[8];
		float w[8][8];
#pragma unroll
		for (int k = 0; k < 8; k++) {
			Chunk<8> g;
			unstage<GH>(g, now + BLOCK_T * X_BYTES + (my_e + k) * G_BYTES);
			widen(w[k], g, GH);
		}
#pragma unroll
		for (int m = 0; m < 8; m++) unstage<XH>(c[m], now + (my_t + m) * X_BYTES);
		accumulate<8, 8, 8>(sum, c, w, XH);
	}
	finish<8, 8>(a, t + my_t, e + my_e, sum);
}

// Grid: x experts by 32, y tokens by 16. Named by the types of x and gate: f float32, b bf16.
#define LOGITS_8(name, gate_half)                                                                                                \
	KR_KERNEL(256, 1)                                                                                                            \
	name(float *out, int out_stride, const void *x, int x_stride, int tokens, const void *gate, int gate_stride, int experts,    \
	     int cols, int) {                                                                                                        \
		pdl_launch();                                                                                                            \
		logit_block<gate_half>(Logits{out, x, gate, out_stride, x_stride, gate_stride, tokens, experts, cols});                   \
	}                                                                                                                            \
	KR_EXPORT(name)
LOGITS_8(kr_logits_8_ff, false)
LOGITS_8(kr_logits_8_fb, true)

// One warp per row. parts: as kr_logits_few has them, n of them.
KR_KERNEL(128, 5)
kr_route_top_k(int *ids, int ids_stride, float *weights, int weights_stride, float *parts, int n, float *logits, int logits_stride,
               const float *bias, const int *rows, int tokens, int experts, int k, int sigmoid, int groups, int top_groups, int top2,
               int normalize, float scale) {
	__shared__ float room[4][ROOM];
	pdl_launch();
	pdl_wait();
	int warp = threadIdx.x / 32, row = blockIdx.x * 4 + warp;
	if (row >= tokens) return;
	Choice c = {ids, weights, ids_stride, weights_stride, bias, rows};
	choose_row(row, real_rows(c, tokens), sums_of(parts, n, logits, logits_stride, tokens, experts), c,
	           Router{experts, k, sigmoid, groups, top_groups, top2, normalize, scale}, room[warp]);
}
KR_EXPORT(kr_route_top_k)
