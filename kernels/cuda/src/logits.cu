// The router's logits from bf16 activations by tensor cores, without losing float32's precision.
// A weight is the exact sum of three bf16 numbers (8 + 8 + 8 bits of its fraction), so their
// products with x are exact and only sums round.
//
// The order of a logit's sum is the same in every kernel here, so a token's logits do not depend
// on the number of tokens. 64 columns are summed from zero by four steps of mma for each of the
// weight's three parts, and these three sums are added, the smallest first. Eight such sums make
// a slice of 512 columns, in rising order, and the slices make the logit, also in rising order.
// Within 32 columns, lane 4g+c has columns 8c..8c+7 of row g. These are two steps of mma whose k
// is not the columns' order, for both operands alike.
#include "align.cuh"
#include "norm.cuh"
#include "route.cuh"

enum { COLS = 64, SLICE = 512 };

struct Product {
	float *out; // [slices][tokens][experts], or the logits if there is one slice
	long long step;
	int out_stride;
	const void *x, *gate;
	int x_stride, tokens, gate_stride, experts, cols;
	const float *bias; // [experts], added to the first slice's sums; null: none
};

KR_DEV int slices_of(int cols) { return (cols + SLICE - 1) / SLICE; }

// 16 experts by 64 columns as operand A of four steps. rest: mid and lo are not all zeros in the
// warp.
struct Weights {
	uint32_t hi[4][4], mid[4][4], lo[4][4];
	bool rest;
};

// The 16-byte units that a lane has of a row: 8 columns of either half of 64.
template <bool HALF> struct Units {
	static const int N = HALF ? 1 : 2;
};

KR_DEV uint32_t word(const uint4 &v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
// The upper halves of two float32 as a pair of bf16, and the remainder of one.
KR_DEV uint32_t upper(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x7632); }
KR_DEV uint32_t remainder_of(uint32_t a) { return __float_as_uint(__uint_as_float(a) - __uint_as_float(a & 0xffff0000u)); }

// get(r, h, u) is unit u of the lane's values in half h of row g + 8*r.
template <bool HALF, typename Get> KR_DEV void split(Weights &w, Get get) {
	uint32_t below = 0;
#pragma unroll
	for (int i = 0; i < 8; i++) { // step i / 2, row g + 8*(i % 2)
		uint4 v = get(i % 2, i / 4, HALF ? 0 : i / 2 % 2);
		w.hi[i / 2][i % 2] = HALF ? word(v, i / 2 % 2 * 2) : upper(v.x, v.y);
		w.hi[i / 2][i % 2 + 2] = HALF ? word(v, i / 2 % 2 * 2 + 1) : upper(v.z, v.w);
		below |= (v.x | v.y | v.z | v.w) & 0xffffu;
	}
	w.rest = !HALF && __any_sync(0xffffffffu, below != 0); // zero for a gate whose values are bf16
	if (!w.rest) return;
	__syncwarp(); // read again from shared memory, because there are not enough registers
#pragma unroll
	for (int i = 0; i < 8; i++) {
		uint4 v = get(i % 2, i / 4, i / 2 % 2);
		v = make_uint4(remainder_of(v.x), remainder_of(v.y), remainder_of(v.z), remainder_of(v.w));
		w.mid[i / 2][i % 2] = upper(v.x, v.y), w.mid[i / 2][i % 2 + 2] = upper(v.z, v.w);
		w.lo[i / 2][i % 2] = upper(remainder_of(v.x), remainder_of(v.y));
		w.lo[i / 2][i % 2 + 2] = upper(remainder_of(v.z), remainder_of(v.w));
	}
}

// v = the sums of 64 columns for 16 experts and N times 8 tokens: experts g, g+8 and tokens 2c,
// 2c+1, as mma has them. Independent chains of sums are interleaved.
template <bool REST, int N> KR_DEV void multiply(float (&v)[N][4], const Weights &w, const uint4 (&x)[N][2]) {
	float mid[N][4], lo[N][4];
#pragma unroll
	for (int i = 0; i < 4 * N; i++) v[i / 4][i % 4] = mid[i / 4][i % 4] = lo[i / 4][i % 4] = 0.f;
#pragma unroll
	for (int i = 0; i < 4; i++)
#pragma unroll
		for (int n = 0; n < N; n++) {
			uint32_t b0 = word(x[n][i / 2], i % 2 * 2), b1 = word(x[n][i / 2], i % 2 * 2 + 1);
			mma_bf16(v[n], w.hi[i], b0, b1);
			if (!REST) continue;
			mma_bf16(mid[n], w.mid[i], b0, b1);
			mma_bf16(lo[n], w.lo[i], b0, b1);
		}
#pragma unroll
	for (int i = 0; i < 4 * N; i++) v[i / 4][i % 4] = (lo[i / 4][i % 4] + mid[i / 4][i % 4]) + v[i / 4][i % 4];
}

// --- few tokens: a block has 16 experts, a slice and 8 tokens, a warp 64 of the columns.
//
// Grid: x experts by 16, then slices; y tokens by 8.

template <bool HALF> KR_DEV void fetch_gate(uint4 (&v)[2][2][Units<HALF>::N], const Product &a, int e, int col) {
	int lane = threadIdx.x % 32;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const char *row = row_of(a.gate, min(e + lane / 4 + i / 2 * 8, a.experts - 1), a.gate_stride, HALF);
		int from = col + i % 2 * 32 + lane % 4 * 8;
#pragma unroll
		for (int u = 0; u < Units<HALF>::N; u++)
			v[i / 2][i % 2][u] = from < a.cols ? *((const uint4 *)(row + from * (HALF ? 2 : 4)) + u) : make_uint4(0, 0, 0, 0);
	}
}

// rows() returns the value of a.x, once it is there.
template <bool HALF, class Rows> KR_DEV void logits_few(const Product &a, Rows rows) {
	const int PITCH = 20; // of a token's 16 experts: uses no bank twice
	__shared__ float sums[8][8 * PITCH];
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, across = (a.experts + 15) / 16;
	int e = blockIdx.x % across * 16, slice = blockIdx.x / across, t = blockIdx.y * 8, col = slice * SLICE + warp * COLS;
	int token = threadIdx.x / 16, expert = threadIdx.x % 16;
	float sum = 0.f, bias = a.bias && slice == 0 && e + expert < a.experts ? __ldg(a.bias + e + expert) : 0.f;
	uint4 raw[2][2][Units<HALF>::N];
	fetch_gate<HALF>(raw, a, e, col);
	Weights w;
	split<HALF>(w, [&](int r, int h, int u) { return raw[r][h][u]; });
	const void *all = rows(); // no kernel writes the gate
	const char *row = row_of(all, min(t + lane / 4, a.tokens - 1), a.x_stride, true);
	uint4 x[1][2];
#pragma unroll
	for (int h = 0; h < 2; h++) {
		int from = col + h * 32 + lane % 4 * 8;
		x[0][h] = from < a.cols ? *(const uint4 *)(row + from * 2) : make_uint4(0, 0, 0, 0);
	}
	float v[1][4];
	if (w.rest) multiply<true, 1>(v, w, x);
	else multiply<false, 1>(v, w, x);
#pragma unroll
	for (int i = 0; i < 4; i++) sums[warp][(lane % 4 * 2 + i % 2) * PITCH + lane / 4 + i / 2 * 8] = v[0][i];
	__syncthreads();
	if (token >= 8 || t + token >= a.tokens || e + expert >= a.experts) return;
#pragma unroll
	for (int i = 0; i < 8; i++) sum += sums[i][token * PITCH + expert];
	a.out[slice * a.step + (long long)(t + token) * a.out_stride + e + expert] = sum + bias;
}

// Reports whether this block is the last of n that call it. The last one sees the writes of the
// others. *turn is 0 before and after. All threads of the block get the same answer. One thread's
// release and acquire cover the whole block, because barriers come before and after.
KR_DEV bool last_of(unsigned *turn, unsigned n) {
	__syncthreads();
	return __syncthreads_or(threadIdx.x == 0 && atomic_inc_acq_rel(turn, n - 1) == n - 1);
}

// Of the blocks of 8 tokens, the last to finish chooses for these tokens. The last to choose
// sorts the choices if that is wanted: at most MOST_SORTED, ids without gaps. ROWS: an upper
// bound of the number of tokens; below 8 nothing is sorted.
enum { MOST_SORTED = 2048, SORT_ROOM = MOST_SORTED + (8 + 2) * MOST_EXPERTS };

template <int ROWS>
KR_DEV void choose_last(unsigned *turns, const Sums &s, int tokens, const Choice &c, const Router &r, const Sorted &sorted) {
	__shared__ float room[ROWS < 8 ? ROWS * ROOM : SORT_ROOM];
	int real = real_rows(c, tokens);
	if (!last_of(turns + blockIdx.y, gridDim.x)) return;
	int warp = threadIdx.x / 32, row = blockIdx.y * 8 + warp, n = tokens * r.k;
	if (warp < ROWS && row < tokens) choose_row(row, real, s, c, r, room + warp * ROOM);
	if (ROWS < 8 || !sorted.slots) return;
	if (gridDim.y == 1) __syncthreads();
	else if (!last_of(turns + gridDim.y, gridDim.y)) return;
	int *ids = (int *)room, *shared = ids + MOST_SORTED;
	for (int i = threadIdx.x; i < n; i += 256) ids[i] = __ldcg(c.ids + i);
	__syncthreads();
	place(sorted, ids, n, r.experts, n, 0, 0, 1, shared);
}

// parts: [slices][tokens][experts] F32, read and written if there is more than one slice. turns:
// 0 for products alone, which kr_logits_join completes. slots: 0 if nothing is sorted. The next
// launch may start only when x is there, because it may read x before its own wait.
#define LOGITS_FEW(name, half)                                                                                                 \
	KR_KERNEL(256, 2)                                                                                                          \
	name(unsigned *turns, float *parts, float *logits, int logits_stride, const void *x, int x_stride, int tokens,             \
	     const void *gate, int gate_stride, int experts, int cols, const float *start, int *ids, int ids_stride, float *weights, int weights_stride, \
	     const float *bias, const int *rows, int k, int sigmoid, int groups, int top_groups, int top2, int normalize,          \
	     float scale, int *slots, int4 *tiles, int *count, int *loads, int tile, const int *map) {                             \
		int slices = slices_of(cols);                                                                                          \
		Sums s = sums_of(parts, slices, logits, logits_stride, tokens, experts);                                               \
		logits_few<half>(Product{s.from, s.step, s.stride, x, gate, x_stride, tokens, gate_stride, experts, cols, start},      \
		                 [&] { pdl_wait(); pdl_launch(); return x; });                                                         \
		if (turns)                                                                                                             \
			choose_last<8>(turns, s, tokens, Choice{ids, weights, ids_stride, weights_stride, bias, rows},                        \
			            Router{experts, k, sigmoid, groups, top_groups, top2, normalize, scale}, Sorted{slots, tiles, count, loads, tile, map}); \
	}                                                                                                                          \
	KR_EXPORT(name)
LOGITS_FEW(kr_logits_few_f, false)
LOGITS_FEW(kr_logits_few_b, true)

// The logits of very few rows with the norm included: every block computes x [tokens, cols] =
// RMSNorm(of) by norm for itself, and the first block stores it in x for later kernels. turns: 0
// if a later kernel also chooses. hold: the next launch may start only when `of` is there, because
// it may read that before its own wait. Shared memory: the rows, and sums of norm_rows.
enum { NORMED = 2 };

KR_DEV bf16 *normed_rows() {
	KR_SHARED(bf16, rows);
	return rows;
}

#define NORM_ROUTE(name, half)                                                                                                 \
	KR_KERNEL(256, 2)                                                                                                          \
	name(unsigned *turns, float *parts, float *logits, int logits_stride, bf16 *x, int x_stride, int tokens,                   \
	     const void *gate, int gate_stride, int experts, int cols, const float *start, int *ids, int ids_stride, float *weights, int weights_stride, \
	     const float *bias, const int *rows, int k, int sigmoid, int groups, int top_groups, int top2, int normalize,          \
	     float scale, const void *of, int of_half, int of_stride, const void *norm, int norm_half, float eps, int threads,     \
	     int hold) {                                                                                                           \
		bf16 *normed = normed_rows();                                                                                          \
		if (!hold) pdl_launch();                                                                                               \
		Sums s = sums_of(parts, slices_of(cols), logits, logits_stride, tokens, experts);                                      \
		NormRows n = {of, of_stride, of_half != 0, tokens, cols, norm, norm_half != 0, eps, threads,                           \
		              blockIdx.x == 0 ? x : nullptr, x_stride};                                                                \
		logits_few<half>(Product{s.from, s.step, s.stride, nullptr, gate, norm_step(cols), tokens, gate_stride, experts, cols, start}, \
		                 [&] {                                                                                                 \
			                 norm_rows(normed, (float *)(normed + tokens * norm_step(cols)), n, InOrder(), [&] {               \
				                 pdl_wait();                                                                                   \
				                 if (hold) pdl_launch();                                                                       \
			                 });                                                                                               \
			                 return (const void *)normed;                                                                      \
		                 });                                                                                                   \
		if (!turns) return;                                                                                                    \
		choose_last<NORMED>(turns, s, tokens, Choice{ids, weights, ids_stride, weights_stride, bias, rows},                    \
		                    Router{experts, k, sigmoid, groups, top_groups, top2, normalize, scale}, Sorted());                \
	}                                                                                                                          \
	KR_EXPORT(name)
NORM_ROUTE(kr_norm_route_f, false)
NORM_ROUTE(kr_norm_route_b, true)

// --- many tokens: a block has 64 experts, a slice and 32*W tokens, its 4 x W warps 16 by 32
// each. 64 columns of all rows are copied to shared memory at a time, a few steps ahead.
//
// Grid: x experts by 64, then slices; y tokens by 32*W.

// A row of a step in shared memory. The order of the 16-byte units of odd rows is changed so that
// a quarter of a warp, which reads two rows, uses all banks.
template <bool HALF> struct Staged {
	static const int UNITS = HALF ? 8 : 16, SWAP = HALF ? 4 : 1;
};

template <bool HALF, int THREADS> KR_DEV void stage_rows(uint32_t to, const char *from, int row_bytes, int rows, int last, int col, int cols) {
	const int UNITS = Staged<HALF>::UNITS;
	int u = threadIdx.x % UNITS, at = col + u * (HALF ? 8 : 4), row = threadIdx.x / UNITS;
	bool real = at < cols;
	from += real ? at * (HALF ? 2 : 4) : 0;
	to += 16 * (row * UNITS + (u ^ (row & 1) * Staged<HALF>::SWAP)); // THREADS / UNITS rows further is an even number
#pragma unroll
	for (int i = 0; i < rows * UNITS / THREADS; i++)
		cp_async16(to + 16 * THREADS * i, from + (uint32_t)(min(row + i * (THREADS / UNITS), last) * row_bytes), real);
}

// Unit u of a row.
template <bool HALF> KR_DEV uint4 unit_of(const char *rows, int row, int u) {
	return *((const uint4 *)rows + row * Staged<HALF>::UNITS + (u ^ (row & 1) * Staged<HALF>::SWAP));
}

template <bool REST> KR_DEV void add_products(float (&sum)[4][4], const Weights &w, const char *x, int t) {
	const int N = REST ? 1 : 4;
	int lane = threadIdx.x % 32;
#pragma unroll
	for (int n = 0; n < 4; n += N) {
		uint4 b[N][2];
		float v[N][4];
#pragma unroll
		for (int i = 0; i < 2 * N; i++) b[i / 2][i % 2] = unit_of<true>(x, t + 8 * (n + i / 2) + lane / 4, i % 2 * 4 + lane % 4);
		multiply<REST, N>(v, w, b);
#pragma unroll
		for (int i = 0; i < 4 * N; i++) sum[n + i / 4][i % 4] += v[i / 4][i % 4];
	}
}

template <bool HALF, int W> KR_DEV void logits_many(const Product &a) {
	const int STAGES = W == 2 ? 4 : 3, THREADS = 128 * W, TOKENS = 32 * W, X_BYTES = TOKENS * 128, STAGE = X_BYTES + 64 * 16 * Staged<HALF>::UNITS;
	KR_SHARED(char, shared);
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, across = (a.experts + 63) / 64;
	int e = blockIdx.x % across * 64, slice = blockIdx.x / across, t = blockIdx.y * TOKENS;
	int first = slice * SLICE, cols = min(a.cols, first + SLICE), count = (cols - first + COLS - 1) / COLS;
	const char *x = row_of(a.x, t, a.x_stride, true), *gate = row_of(a.gate, e, a.gate_stride, HALF);
	auto stage_x = [&](int s) {
		if (s < count) stage_rows<true, THREADS>(smem_u32(shared) + s % STAGES * STAGE, x, 2 * a.x_stride, TOKENS, a.tokens - 1 - t, first + s * COLS, cols);
	};
	auto stage_gate = [&](int s) {
		if (s < count)
			stage_rows<HALF, THREADS>(smem_u32(shared) + s % STAGES * STAGE + X_BYTES, gate, a.gate_stride * (HALF ? 2 : 4), 64, a.experts - 1 - e,
			                 first + s * COLS, cols);
	};
	for (int s = 0; s < STAGES - 1; s++) stage_gate(s); // no kernel writes the gate
	pdl_wait();
	for (int s = 0; s < STAGES - 1; s++) {
		stage_x(s);
		cp_async_commit();
	}
	float sum[4][4];
#pragma unroll
	for (int i = 0; i < 16; i++) sum[i / 4][i % 4] = 0.f;
	int my_e = warp % 4 * 16, my_t = warp / 4 * 32;
#pragma unroll 1
	for (int s = 0; s < count; s++) {
		cp_async_wait<STAGES - 2>();
		__syncthreads(); // step s has arrived for all warps, and all are done with step s - 1
		stage_x(s + STAGES - 1);
		stage_gate(s + STAGES - 1);
		cp_async_commit();
		const char *now = shared + s % STAGES * STAGE;
		Weights w;
		split<HALF>(w, [&](int r, int h, int u) {
			return unit_of<HALF>(now + X_BYTES, my_e + lane / 4 + 8 * r, (4 * h + lane % 4) * Units<HALF>::N + u);
		});
		if (w.rest) add_products<true>(sum, w, now, my_t);
		else add_products<false>(sum, w, now, my_t);
	}
	t += my_t + lane % 4 * 2, e += my_e + lane / 4;
	float bias[2] = {0.f, 0.f};
	if (a.bias && slice == 0) {
		for (int i = 0; i < 2; i++)
			if (e + 8 * i < a.experts) bias[i] = __ldg(a.bias + e + 8 * i);
	}
	float *to = a.out + slice * a.step + (long long)t * a.out_stride + e;
#pragma unroll
	for (int n = 0; n < 4; n++, t += 8, to += 8 * a.out_stride)
#pragma unroll
		for (int i = 0; i < 4; i++)
			if (t + i % 2 < a.tokens && e + i / 2 * 8 < a.experts) to[i % 2 * a.out_stride + i / 2 * 8] = sum[n][i] + bias[i / 2];
}

#define LOGITS_MANY(name, half, w)                                                                                             \
	KR_KERNEL(128 * w, 4 / w)                                                                                                  \
	name(float *parts, float *logits, int logits_stride, const void *x, int x_stride, int tokens, const void *gate,            \
	     int gate_stride, int experts, int cols, const float *start) {                                                         \
		pdl_launch();                                                                                                          \
		Sums s = sums_of(parts, slices_of(cols), logits, logits_stride, tokens, experts);                                      \
		logits_many<half, w>(Product{s.from, s.step, s.stride, x, gate, x_stride, tokens, gate_stride, experts, cols, start}); \
	}                                                                                                                          \
	KR_EXPORT(name)
LOGITS_MANY(kr_logits_64_f, false, 2)
LOGITS_MANY(kr_logits_64_b, true, 2)
LOGITS_MANY(kr_logits_128_f, false, 4)
LOGITS_MANY(kr_logits_128_b, true, 4)

// Adds the slices where no expert is chosen. One thread per logit.
KR_KERNEL(256, 1)
kr_logits_join(float *parts, int slices, float *logits, int logits_stride, int tokens, int experts) {
	pdl_launch();
	pdl_wait();
	int i = blockIdx.x * 256 + threadIdx.x;
	if (i < tokens * experts) get_logit(sums_of(parts, slices, logits, logits_stride, tokens, experts), i / experts, i % experts);
}
KR_EXPORT(kr_logits_join)
