// Two products of the same very few rows in one launch. Blocks copy the rows to shared memory. Sums run in the order of gemv.cu, and so
// have the same bits.
#include "gemv_flow.cuh"

enum { STAGED_THREADS = 256, STAGED_WARPS = STAGED_THREADS / 32 };

// out [m, rows] = rows * transposed w; m up to 8. Group `group` of the row blocks of w, each of which `parts` warps have. rows(to)
// puts the rows in shared memory, staged_stride apart and permuted for packed weights, behind the wait. memory: results of the warps, then rows.
template <int FORMAT, class Rows>
KR_DEV void staged_product(void *out, int wide, int out_stride, int m, const Matrix &w, int group, int parts, uint8_t *memory, Rows rows) {
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4, part = warp % parts, block = group * (STAGED_WARPS / parts) + warp / parts;
	bool works = 16 * block < w.rows;
	float4 *results = (float4 *)memory;
	uint8_t *staged = memory + STAGED_WARPS * 512;
	float sum[4] = {0, 0, 0, 0};
	const Range units = works ? Range(w, part, parts) : Range(0, 0);
	product_of<FORMAT, true, true>(sum, w, works ? block : 0, false, units, [&] {
		rows(staged);
		__syncthreads();
		return Token{(const bf16 *)(staged + g * staged_stride(w.tiles)), g < m};
	});
	if (parts > 1) {
		results[threadIdx.x] = make_float4(sum[0], sum[1], sum[2], sum[3]);
		__syncthreads();
	}
	if (part > 0) return;
#pragma unroll 1
	for (int i = 1; i < parts; i++) {
		float4 v = results[threadIdx.x + 32 * i];
		sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w;
	}
#pragma unroll
	for (int i = 0; i < 4; i++) {
		int token = 2 * c + i % 2, row = 16 * block + g + i / 2 * 8;
		if (token < m && row < w.rows) give(out, wide, 0, (long long)token * out_stride + row, sum[i]);
	}
}

// out [m, rows of w and of s] = x times each of them. The blocks of s come first. The next launch may start only behind this one's wait, so
// that it may read what was written before this one without waiting.
template <int FORMAT>
KR_DEV void pair(void *out, int wide, int out_stride, const bf16 *x, int x_stride, int m, const Matrix &w, int parts, const Matrix &s, int s_parts, uint8_t *memory) {
	int per = STAGED_WARPS / s_parts * 16, groups = (s.rows + per - 1) / per, group = blockIdx.x;
	auto row = [&](int r) { return x + (long long)r * x_stride; };
	auto wait = [&] {
		pdl_wait();
		pdl_launch();
	};
	if (group < groups) {
		char *to = (char *)out + (long long)w.rows * (wide ? 4 : 2);
		staged_product<PLAIN_BF16>(to, wide, out_stride, m, s, group, s_parts, memory, [&](uint8_t *staged) {
			wait();
			stage<false>(staged, m, s.tiles, row);
		});
	} else {
		staged_product<FORMAT>(out, wide, out_stride, m, w, group - groups, parts, memory, [&](uint8_t *staged) {
			wait();
			stage<true>(staged, m, w.tiles, row);
		});
	}
}
#define PAIR_KERNEL(name, FORMAT)                                                                                                             \
	KR_KERNEL(STAGED_THREADS, 2)                                                                                                                 \
	name(void *out, int wide, int out_stride, const bf16 *x, int x_stride, int m, int parts, int s_parts, MATRIX_ARGS(w), MATRIX_ARGS(s)) {        \
		KR_SHARED(uint8_t, memory);                                                                                                                 \
		const Matrix w = MATRIX(w), s = MATRIX(s);                                                                                                   \
		pair<FORMAT>(out, wide, out_stride, x, x_stride, m, w, parts, s, s_parts, memory);                                                            \
	}                                                                                                                                               \
	KR_EXPORT(name)
PAIR_KERNEL(kr_gemv_pair_int4_g128, INT4_G128)
PAIR_KERNEL(kr_gemv_pair_int8_g128, INT8_G128)
