// Products of a matrix and few tokens (gemv.cuh has the core). Grids and the parts of a row
// depend on shapes only. There is one kernel per format of weights, and one with biases.
#include "gemv.cuh"

// out [m, rows] = x [m, columns] * transposed w. A block has 16 rows and 8 tokens, and each of
// its warps a part of the columns. The blocks of the same 16 rows follow one another. Tokens that
// are not permuted and have short parts go through shared memory: a warp fetches its part of each
// with one load, where the core would take 16 for a unit.
enum { PART_BYTES = 528 }; // per token: two units, and 16 bytes so that 8 tokens lie in different banks
template <int FORMAT, bool PERMUTED, bool BIASED>
KR_DEV void matrix(void *out, int wide, int out_stride, int add, const bf16 *x, int x_stride, int m, const Matrix &w, float4 *parts) {
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
	int eights = (m + 7) / 8, block = blockIdx.x / eights, first = blockIdx.x % eights * 8;
	float sum[4] = {0, 0, 0, 0}, before[4] = {0, 0, 0, 0};
	auto results = [&](auto f) { // calls f(i, where) for the results of this lane
#pragma unroll
		for (int i = 0; i < 4; i++) {
			int token = first + 2 * c + i % 2, row = 16 * block + g + i / 2 * 8;
			if (token < m && row < w.rows) f(i, (long long)token * out_stride + row);
		}
	};
	const Range units(w, warp, blockDim.x / 32);
	if (BIASED && warp == 0) begin_sums(sum, w, 16 * block + g, 16 * block + g + 8);
	auto wait = [&] {
		pdl_launch();
		pdl_wait();
		if (add && warp == 0) results([&](int i, long long at) { before[i] = got(out, wide, at); });
	};
	bool brief = false;
	if constexpr (!PERMUTED && FORMAT != PLAIN_BF16) {
		brief = short_parts(w);
		if (brief)
			short_product<FORMAT>(sum, w, block, units.from, units.to, [&] {
				wait();
				int tokens = min(m - first, 8), chunk = 16 * units.from + lane;
				uint8_t *staged = (uint8_t *)(parts + blockDim.x) + warp * tokens * PART_BYTES;
				const bf16 *row = x + (long long)first * x_stride;
#pragma unroll 4
				for (int t = 0; t < tokens; t++, row += x_stride)
					put_chunk<true>(staged + t * PART_BYTES, lane, chunk < 8 * w.tiles ? reinterpret_cast<const uint4 *>(row)[chunk] : make_uint4(0, 0, 0, 0));
				__syncwarp();
				return Token{(const bf16 *)(staged + g * PART_BYTES) - 128 * units.from, g < tokens};
			});
	}
	if (!brief)
		product_of<FORMAT, PERMUTED, true>(sum, w, block, false, units, [&] {
			wait();
			return Token{x + (long long)(first + g) * x_stride, first + g < m};
		});
	join(sum, parts);
	if (warp != 0) return;
	results([&](int i, long long at) { give(out, wide, 0, at, add ? before[i] + sum[i] : sum[i]); });
}
// The ..._hidden kernels multiply rows of hidden values as kr_gemv_gate_up writes them.
#define MATRIX_KERNEL(name, FORMAT, PERMUTED, BIASED)                                                                                     \
	KR_KERNEL(256, 2)                                                                                                             \
	name(void *out, int wide, int out_stride, int add, const bf16 *x, int x_stride, int m, MATRIX_ARGS(w)) {                      \
		KR_SHARED(float4, parts);                                                                                                 \
		const Matrix w = MATRIX(w);                                                                                               \
		matrix<FORMAT, PERMUTED, BIASED>(out, wide, out_stride, add, x, x_stride, m, w, parts);                                           \
	}                                                                                                                            \
	KR_EXPORT(name)
#define X(name, FORMAT) MATRIX_KERNEL(kr_gemv_##name, FORMAT, false, false) MATRIX_KERNEL(kr_gemv_biased_##name, FORMAT, false, true)
ALL_FORMATS(X)
#undef X
#define X(name, FORMAT) MATRIX_KERNEL(kr_gemv_hidden_##name, FORMAT, true, false)
ALL_FORMATS(X)
#undef X
