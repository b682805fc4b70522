// Products of very few rows, with the norm included: out = RMSNorm(x) * transposed w. Every block
// norms all rows itself while its weights are in flight, which costs less than a launch. The bits
// equal those of kr_rms_norm followed by gemv.cu.
#include "gemv.cuh"
#include "norm.cuh"

// out [m, rows], m up to 8. A block has 16 rows, and each of its warps a part of the columns.
template <int FORMAT, bool BIASED>
KR_DEV void norm_matrix(void *out, int wide, int out_stride, const NormRows &n, const Matrix &w, float4 *parts) {
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, g = lane / 4, c = lane % 4, block = blockIdx.x;
	bf16 *rows = (bf16 *)(parts + 32 * warps);
	float *sums = (float *)(rows + n.m * norm_step(n.cols));
	float sum[4] = {0, 0, 0, 0};
	const Range units(w, warp, warps);
	if (BIASED && warp == 0) begin_sums(sum, w, 16 * block + g, 16 * block + g + 8);
	auto ready = [&](auto put) {
		pdl_launch();
		norm_rows(rows, sums, n, put, [] { pdl_wait(); });
		return Token{rows + g * norm_step(n.cols), g < n.m};
	};
	bool brief = false;
	if constexpr (FORMAT != PLAIN_BF16) {
		brief = short_parts(w);
		if (brief) short_product<FORMAT>(sum, w, block, units.from, units.to, [&] { return ready(Permuting()); });
	}
	if (!brief) product_of<FORMAT, false, true>(sum, w, block, false, units, [&] { return ready(InOrder()); });
	join(sum, parts);
	if (warp != 0) return;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		int token = 2 * c + i % 2, row = 16 * block + g + i / 2 * 8;
		if (token < n.m && row < w.rows) give(out, wide, 0, (long long)token * out_stride + row, sum[i]);
	}
}
#define NORM_KERNEL(name, FORMAT, BIASED)                                                                                                  \
	KR_KERNEL(256, 2)                                                                                                             \
	name(void *out, int wide, int out_stride, const void *x, int x_half, int x_stride, int m, const void *norm, int norm_half,    \
	     float eps, int threads, MATRIX_ARGS(w)) {                                                                                \
		KR_SHARED(float4, parts);                                                                                                \
		const Matrix w = MATRIX(w);                                                                                              \
		const NormRows n = {x, x_stride, x_half != 0, m, 64 * w.tiles, norm, norm_half != 0, eps, threads, 0, 0};                 \
		norm_matrix<FORMAT, BIASED>(out, wide, out_stride, n, w, parts);                                                                 \
	}                                                                                                                            \
	KR_EXPORT(name)
#define X(name, FORMAT) NORM_KERNEL(kr_gemv_norm_##name, FORMAT, false) NORM_KERNEL(kr_gemv_norm_biased_##name, FORMAT, true)
ALL_FORMATS(X)
#undef X
