// What the dense products of int8 with int8 share (gemm_s8.cu with mma.sync, gemm_s8_h.cu
// with wgmma): activations with a scale a row (kernels/cuda/elem, QuantizeRows), weights in
// format A with 8 bits and a scale a row. Sums are exact integers.
//
// Weights are the A operand, in registers; activations the B operand, [tokens][128 columns]
// in shared memory: rows of 128 bytes, 16-byte unit u of row r at unit u ^ r%8. A thread's
// 16 bytes of weights are 4 columns of rows g and g+8 in each half of 32: 2c, 2c+1, 2c+8 and
// 2c+9 of 16. The instruction wants 4 neighbours; QuantizeRows has put every 16 activations
// in the order in which those are.
#pragma once
#include "gemm.cuh"

enum { GEMM_HIDDEN = GEMM_ADD + 1 }; // stored rows are gate and up joined: silu(gate) * up as bfloat16

// The arguments of every kernel, in the order of Go's args.
struct Gemm8 {
	void *out;
	int mode;
	int out_stride; // elements
	const uint8_t *x;
	int x_stride;   // bytes, a multiple of 16
	int x_cols;     // bytes of a row to read, a multiple of 16; what is behind is zero
	const float *x_scale;
	int x_scale_stride;
	const uint8_t *values;
	const uint32_t *scales;
	int m;
	int rows;       // stored rows of weights, a multiple of 8 (16 if joined)
	int tile_cols;  // tiles of 64 columns
	int tile_tokens, tile_rows; // of results: above one another and side by side
};
#define GEMM8_ARGS \
	void *out, int mode, int out_stride, const uint8_t *x, int x_stride, int x_cols, const float *x_scale, int x_scale_stride, \
	const uint8_t *values, const uint32_t *scales, int m, int rows, int tile_cols, int tile_tokens, int tile_rows
#define GEMM8 \
	{ out, mode, out_stride, x, x_stride, x_cols, x_scale, x_scale_stride, values, scales, m, rows, tile_cols, tile_tokens, tile_rows }

// The A operand of 32 columns from a thread's 16 bytes of them. Stored is value + 128: with
// the highest bit turned round it is the signed byte.
KR_DEV void operand8(uint32_t (&a)[4], const uint4 &q) {
	const uint32_t s = 0x80808080u, x = q.x ^ s, y = q.y ^ s, z = q.z ^ s, w = q.w ^ s;
	a[0] = __byte_perm(x, y, 0x6420);
	a[1] = __byte_perm(x, y, 0x7531);
	a[2] = __byte_perm(z, w, 0x6420);
	a[3] = __byte_perm(z, w, 0x7531);
}

// Eight lanes, 4g+c of one c, have feature g of 8 tokens: v[2i], v[2i+1] of tokens 2i and
// 2i+1. After it lane 4g+c has token g, features 0..7, as bfloat16.
KR_DEV uint4 transpose8(const float (&v)[8]) {
	const int g = threadIdx.x % 32 / 4;
	uint32_t w[4];
#pragma unroll
	for (int i = 0; i < 4; i++) w[i] = pack_bf16(v[2 * i], v[2 * i + 1]);
	// Halves of what there is change places with the lane whose g differs in one bit, from
	// the highest down; y[x][.] is from the lanes whose bit 2 is x, z[x][y] bit 1 y.
	const bool high = g & 4, mid = g & 2, odd = g & 1;
	uint32_t y[2][2], z[2][2];
#pragma unroll
	for (int i = 0; i < 2; i++) {
		uint32_t keep = high ? w[2 + i] : w[i], got = __shfl_xor_sync(0xffffffffu, high ? w[i] : w[2 + i], 16);
		y[0][i] = high ? got : keep;
		y[1][i] = high ? keep : got;
	}
#pragma unroll
	for (int x = 0; x < 2; x++) {
		uint32_t keep = mid ? y[x][1] : y[x][0], got = __shfl_xor_sync(0xffffffffu, mid ? y[x][0] : y[x][1], 8);
		z[x][0] = mid ? got : keep;
		z[x][1] = mid ? keep : got;
	}
	uint32_t out[2][2];
#pragma unroll
	for (int x = 0; x < 2; x++) {
		const uint32_t lo = __byte_perm(z[x][0], z[x][1], 0x5410), hi = __byte_perm(z[x][0], z[x][1], 0x7632); // of the even, the odd token
		const uint32_t keep = odd ? hi : lo, got = __shfl_xor_sync(0xffffffffu, odd ? lo : hi, 4);
		const uint32_t even_lane = odd ? got : keep, odd_lane = odd ? keep : got;
		out[x][0] = __byte_perm(even_lane, odd_lane, 0x5410);
		out[x][1] = __byte_perm(even_lane, odd_lane, 0x7632);
	}
	return make_uint4(out[0][0], out[0][1], out[1][0], out[1][1]);
}

// Stores the sums of 16 stored rows (from row on) and TN tokens (from first on): lane 4g+c
// has in d[4i] and d[4i+1] row g of tokens 8i+2c and the next, then row g+8 of both. scale:
// of rows g and g+8. All lanes of a warp call it together.
template <int TN> KR_DEV void put8(const Gemm8 &j, const int (&d)[TN / 2], uint32_t scale, int first, int row) {
	const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
	const float lo_scale = lo_f32(scale), hi_scale = hi_f32(scale);
#pragma unroll
	for (int q = 0; q < TN / 32; q++) { // 32 tokens, of which a lane has 8
		float lo[8], hi[8];
#pragma unroll
		for (int i = 0; i < 8; i++) {
			const int at = 16 * q + i / 2 * 4 + i % 2, token = first + 32 * q + i / 2 * 8 + 2 * c + i % 2;
			const float s = j.x_scale[(long long)min(token, j.m - 1) * j.x_scale_stride];
			lo[i] = (float)d[at] * (s * lo_scale);
			hi[i] = (float)d[at + 2] * (s * hi_scale);
			if (j.mode == GEMM_HIDDEN) lo[i] = gemm_silu(lo[i]) * hi[i];
			if (j.mode == GEMM_HIDDEN || j.mode == GEMM_BF16 || token >= j.m) continue;
			float *p = reinterpret_cast<float *>(j.out) + (long long)token * j.out_stride + row + g; // 8 rows of a token are a sector
			const bool add = j.mode == GEMM_ADD;
			if (row < j.rows) p[0] = add ? p[0] + lo[i] : lo[i];
			if (row + 8 < j.rows) p[8] = add ? p[8] + hi[i] : hi[i];
		}
		if (j.mode != GEMM_HIDDEN && j.mode != GEMM_BF16) continue;
		const int token = first + 32 * q + g / 2 * 8 + 2 * c + g % 2; // transposed
		bf16 *p = reinterpret_cast<bf16 *>(j.out) + (long long)token * j.out_stride;
		const uint4 v = transpose8(lo);
		if (j.mode == GEMM_HIDDEN) {
			if (token < j.m && row < j.rows) *reinterpret_cast<uint4 *>(p + row / 2) = v;
			continue;
		}
		const uint4 u = transpose8(hi);
		if (token < j.m && row < j.rows) *reinterpret_cast<uint4 *>(p + row) = v;
		if (token < j.m && row + 8 < j.rows) *reinterpret_cast<uint4 *>(p + row + 8) = u;
	}
}
