// Products for few tokens: matrix, network and mixture of experts (gemv.cuh has the
// core). Grids and the parts of a row depend on shapes only. There is a kernel for
// every format of weights; kernels with a routed and a shared network have them for
// equal formats, and for INT8 beside INT4.
#include "gemv.cuh"

// out [m, rows] = x [m, columns] * transposed w. A block has 16 rows and 8 tokens, its
// warps a part of the columns each; all tokens of 16 rows follow one another.
template <int FORMAT, bool PERMUTED>
KR_DEV void matrix(void *out, int wide, int out_stride, int add, const bf16 *x, int x_stride, int m, const Matrix &w, float4 *parts) {
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
	int eights = (m + 7) / 8, block = blockIdx.x / eights, first = blockIdx.x % eights * 8;
	float sum[4] = {0, 0, 0, 0};
	product_of<FORMAT, PERMUTED, true>(sum, w, block, false, Range(w, warp, blockDim.x / 32), [&] {
		pdl_launch();
		pdl_wait();
		return Token{x + (long long)(first + g) * x_stride, first + g < m};
	});
	join(sum, parts);
	if (warp != 0) return;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		int token = first + 2 * c + i % 2, row = 16 * block + g + i / 2 * 8;
		if (token < m && row < w.rows) give(out, wide, add, (long long)token * out_stride + row, sum[i]);
	}
}
// ..._hidden: of rows of hidden values as kr_gemv_gate_up leaves them.
#define MATRIX_KERNEL(name, FORMAT, PERMUTED)                                                                                     \
	KR_KERNEL(256, 2)                                                                                                             \
	name(void *out, int wide, int out_stride, int add, const bf16 *x, int x_stride, int m, MATRIX_ARGS(w)) {                     \
		KR_SHARED(float4, parts);                                                                                                \
		const Matrix w = MATRIX(w);                                                                                              \
		matrix<FORMAT, PERMUTED>(out, wide, out_stride, add, x, x_stride, m, w, parts);                                          \
	}                                                                                                                            \
	KR_EXPORT(name)
#define X(name, FORMAT) MATRIX_KERNEL(kr_gemv_##name, FORMAT, false)
ALL_FORMATS(X)
#undef X
#define X(name, FORMAT) MATRIX_KERNEL(kr_gemv_hidden_##name, FORMAT, true)
ALL_FORMATS(X)
#undef X

// Up to 8 tokens of one expert: how they are found.
struct Tile {
	int expert;       // below 0: nothing to do
	int count;        // tokens
	const int *slots; // their assignments; null: only one, single
	int single;
};
KR_DEV int slot_of(const Tile &t, int i) { return t.slots ? __ldcg(t.slots + i) : t.single; }

// Where the assignments of the routed experts stand: sorted (tiles, slots and count as
// in kernels/cuda/route.Aligned), or, without those, as they are in ids [m * top_k].
struct Work {
	const int *ids;
	const int4 *tiles;
	const int *slots, *count;
	int top_k, experts;

	KR_MEMBER Tile at(int i) const {
		Tile t = {-1, 1, 0, i};
		if (!tiles) {
			t.expert = expert(i);
		} else if (i < __ldcg(count)) {
			int4 v = __ldcg(tiles + i);
			t = Tile{v.x, v.z, slots + v.y, 0};
		}
		return t;
	}
	KR_MEMBER int expert(int slot) const {
		int e = __ldcg(ids + slot);
		return e < experts ? e : -1;
	}
};

// The routed experts' matrices, one every step bytes, their scales every scale_step.
struct Bank {
	Matrix first;
	long long step, scale_step;
	KR_MEMBER Matrix operator[](int expert) const {
		Matrix w = first;
		w.values += expert * step;
		w.scales = (const uint32_t *)((const uint8_t *)w.scales + expert * scale_step);
		return w;
	}
};
#define BANK_ARGS(w) long long w##_step, long long w##_scale_step, MATRIX_ARGS(w)
#define BANK(w) \
	{ MATRIX(w), w##_step, w##_scale_step }

// silu(gate) * up of 8 features and 8 tokens, from sums as product_of leaves them, to
// the rows of h that row(i) gives for token i (0..7), below 0: none.
template <class Row> KR_DEV void give_hidden(bf16 *h, int width, int in_order, int block, const float (&sum)[4], Row row) {
	int lane = threadIdx.x % 32, f = 8 * block + lane / 4;
	if (!in_order) f = permuted(f);
#pragma unroll
	for (int i = 0; i < 2; i++) {
		long long at = row(lane % 4 * 2 + i);
		if (at >= 0) store(h + at * width + f, swiglu(sum[i], sum[2 + i]));
	}
}

// The first half of a mixture of experts: h = silu(gate x) * up x, for the shared
// network (hs [m, width], the first shared_rows rows of the grid) and for every
// assignment that has an expert (h [m * top_k, width]). Hidden values are permuted
// unless their reader is not in format A (in_order). The next launch may start only
// after this one's wait: kr_gemv_down... read before their own what was written before.
template <int ROUTED, int SHARED>
KR_DEV void gate_up(bf16 *h, int h_in_order, bf16 *hs, int hs_in_order, const bf16 *x, int x_stride, int m, const Work &work,
                    int shared_rows, const Bank &bank, const Matrix &s, float4 *parts) {
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, g = lane / 4, block = blockIdx.x;
	float sum[4] = {0, 0, 0, 0};
	if ((int)blockIdx.y < shared_rows) {
		int eights = (m + 7) / 8, i = blockIdx.y * gridDim.x + blockIdx.x, first = i % eights * 8;
		block = i / eights;
		if (16 * block >= s.rows) {
			pdl_wait();
			pdl_launch();
			return;
		}
		product_of<SHARED, false, false>(sum, s, block, true, Range(s, warp, warps), [&] {
			pdl_wait();
			pdl_launch();
			return Token{x + (long long)(first + g) * x_stride, first + g < m};
		});
		join(sum, parts);
		if (warp == 0) give_hidden(hs, s.rows / 2, hs_in_order, block, sum, [&](int t) { return first + t < m ? first + t : -1; });
		return;
	}
	const Range units(bank.first, warp, warps);
	if (units.from > units.to) return; // never; has the divisions done before the wait
	pdl_wait();
	pdl_launch();
	const Tile t = work.at(blockIdx.y - shared_rows);
	if (t.expert < 0 || 16 * block >= bank.first.rows) return;
	product_of<ROUTED, false, false>(sum, bank[t.expert], block, true, units, [&] {
		bool on = g < t.count;
		return Token{on ? x + (long long)(slot_of(t, g) / work.top_k) * x_stride : x, on};
	});
	join(sum, parts);
	if (warp == 0) give_hidden(h, bank.first.rows / 2, h_in_order, block, sum, [&](int i) { return i < t.count ? slot_of(t, i) : -1; });
}
#define GATE_UP_KERNEL(name, ROUTED, SHARED)                                                                                       \
	KR_KERNEL(256, BLOCKS_OF(ROUTED))                                                                                             \
	name(bf16 *h, int h_in_order, bf16 *hs, int hs_in_order, const bf16 *x, int x_stride, int m, const int *ids, const int4 *tiles, \
	     const int *slots, const int *count, int top_k, int experts, int shared_rows, BANK_ARGS(w), MATRIX_ARGS(s)) {             \
		KR_SHARED(float4, parts);                                                                                                 \
		const Work work = {ids, tiles, slots, count, top_k, experts};                                                             \
		const Bank bank = BANK(w);                                                                                                \
		const Matrix s = MATRIX(s);                                                                                               \
		gate_up<ROUTED, SHARED>(h, h_in_order, hs, hs_in_order, x, x_stride, m, work, shared_rows, bank, s, parts);               \
	}                                                                                                                             \
	KR_EXPORT(name)
#define X(name, FORMAT) GATE_UP_KERNEL(kr_gemv_gate_up_##name, FORMAT, FORMAT)
ALL_FORMATS(X)
#undef X
GATE_UP_KERNEL(kr_gemv_gate_up_int4_g128_int8_g128, INT4_G128, INT8_G128)

// The second half for few tokens, a row of blocks a token: out = the sum over its ranks,
// in order, of weight * expert(h), plus shared(hs) or base [m, rows]. A block has 16
// rows and all experts; its warps take the parts of the products in turn (parts of each
// expert, then of the shared network). Ids were written before kr_gemv_gate_up, which
// lets nothing start before it has them itself, so they are read before the wait.
template <int ROUTED, int SHARED>
KR_DEV void down_all(void *out, int wide, int out_stride, int add, const bf16 *h, const bf16 *hs, const float *base, Work work,
                     const float *weights, int parts, int shared_parts, const Bank &bank, const Matrix &s, float *results) {
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, g = lane / 4;
	int block = blockIdx.x, token = blockIdx.y, routed = work.top_k * parts, first = token * work.top_k;
	pdl_launch();
	auto result = [&](int i, const float (&sum)[4]) { // results: [items][16 rows]
		if (lane % 4 == 0) {
			results[i * 16 + g] = sum[0];
			results[i * 16 + g + 8] = sum[2];
		}
	};
	int i = warp;
	for (; i < routed; i += warps) {
		float sum[4] = {0, 0, 0, 0};
		int slot = first + i / parts, e = work.expert(slot);
		if (e >= 0) {
			product_of<ROUTED, true, ROUTED != INT4_G32>(sum, bank[e], block, false, Range(bank.first, i % parts, parts), [&] {
				pdl_wait();
				return Token{h + (long long)slot * (64 * bank.first.tiles), g == 0};
			});
		}
		result(i, sum);
	}
	for (; i < routed + shared_parts; i += warps) {
		float sum[4] = {0, 0, 0, 0};
		product_of<SHARED, true, SHARED != INT4_G32>(sum, s, block, false, Range(s, i - routed, shared_parts), [&] {
			pdl_wait();
			return Token{hs + (long long)token * (64 * s.tiles), g == 0};
		});
		result(i, sum);
	}
	pdl_wait();
	__syncthreads();
	int row = 16 * block + threadIdx.x;
	if (threadIdx.x >= 16 || row >= bank.first.rows) return;
	const float *r = results + threadIdx.x;
	float total = 0.f;
	for (int k = 0; k < work.top_k; k++)
		if (work.expert(first + k) >= 0) total = fmaf(weights[first + k], in_order(r + k * parts * 16, parts, 16), total);
	if (shared_parts) total += in_order(r + routed * 16, shared_parts, 16);
	if (base) total += base[(long long)token * bank.first.rows + row];
	give(out, wide, add, (long long)token * out_stride + row, total);
}
#define DOWN_ALL_KERNEL(name, ROUTED, SHARED)                                                                                       \
	KR_KERNEL(512, 1)                                                                                                              \
	name(void *out, int wide, int out_stride, int add, const bf16 *h, const bf16 *hs, const float *base, const int *ids,           \
	     const float *weights, int top_k, int experts, int parts, int shared_parts, BANK_ARGS(w), MATRIX_ARGS(s)) {                \
		KR_SHARED(float, results);                                                                                                 \
		const Work work = {ids, 0, 0, 0, top_k, experts};                                                                          \
		const Bank bank = BANK(w);                                                                                                 \
		const Matrix s = MATRIX(s);                                                                                                \
		down_all<ROUTED, SHARED>(out, wide, out_stride, add, h, hs, base, work, weights, parts, shared_parts, bank, s, results);   \
	}                                                                                                                              \
	KR_EXPORT(name)
#define X(name, FORMAT) DOWN_ALL_KERNEL(kr_gemv_down_all_##name, FORMAT, FORMAT)
ALL_FORMATS(X)
#undef X
DOWN_ALL_KERNEL(kr_gemv_down_all_int4_g128_int8_g128, INT4_G128, INT8_G128)

// The second half for more tokens: row slot of y [m * top_k, rows] = expert(h) for every
// sorted assignment. Those too were sorted before kr_gemv_gate_up.
template <int FORMAT> KR_DEV void down(float *y, const bf16 *h, const Work &work, const Bank &bank, float4 *parts) {
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, block = blockIdx.x, rows = bank.first.rows;
	const Tile t = work.at(blockIdx.y);
	pdl_launch();
	if (t.expert < 0) {
		pdl_wait();
		return;
	}
	float sum[4] = {0, 0, 0, 0};
	product_of<FORMAT, true, false>(sum, bank[t.expert], block, false, Range(bank.first, warp, blockDim.x / 32), [&] {
		bool on = g < t.count;
		const bf16 *row = on ? h + (long long)slot_of(t, g) * (64 * bank.first.tiles) : h;
		pdl_wait();
		return Token{row, on};
	});
	join(sum, parts);
	if (warp != 0) return;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		int token = lane % 4 * 2 + i % 2, row = 16 * block + g + i / 2 * 8;
		if (token < t.count && row < rows) y[(long long)slot_of(t, token) * rows + row] = sum[i];
	}
}
#define DOWN_KERNEL(name, FORMAT)                                                                                                   \
	KR_KERNEL(256, BLOCKS_OF(FORMAT))                                                                                              \
	name(float *y, const bf16 *h, const int4 *tiles, const int *slots, const int *count, BANK_ARGS(w)) {                           \
		KR_SHARED(float4, parts);                                                                                                  \
		const Work work = {0, tiles, slots, count, 0, 0};                                                                          \
		const Bank bank = BANK(w);                                                                                                 \
		down<FORMAT>(y, h, work, bank, parts);                                                                                     \
	}                                                                                                                              \
	KR_EXPORT(name)
#define X(name, FORMAT) DOWN_KERNEL(kr_gemv_down_##name, FORMAT)
ALL_FORMATS(X)
#undef X

// out [m, n] = the sum over the ranks, in order, of weight * y [m * top_k, n], plus base
// [m, n] if there is one: what kr_gemv_down_all computes, to the bit.
KR_KERNEL(256, 1)
kr_gemv_combine(void *out, int wide, int out_stride, int add, const float *y, const float *base, int n, const int *ids,
                const float *weights, int top_k, int experts) {
	pdl_launch();
	pdl_wait();
	int column = blockIdx.x * blockDim.x + threadIdx.x, token = blockIdx.y;
	if (column >= n) return;
	const Work work = {ids, 0, 0, 0, top_k, experts};
	float total = 0.f;
	for (int slot = token * top_k; slot < (token + 1) * top_k; slot++)
		if (work.expert(slot) >= 0) total = fmaf(weights[slot], y[(long long)slot * n + column], total);
	if (base) total += base[(long long)token * n + column];
	give(out, wide, add, (long long)token * out_stride + column, total);
}
KR_EXPORT(kr_gemv_combine)
