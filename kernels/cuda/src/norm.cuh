// RMSNorm of few rows, computed by every block for itself into shared memory, with the bits of
// kr_rms_norm. It is for kernels that are the only reader of the result, or that would otherwise
// wait for another launch.
#pragma once
#include "elem.cuh"

struct NormRows {
	const void *x; // [m, cols]
	int stride;
	bool half;
	int m, cols; // m up to 8, cols a multiple of 8, everything aligned to 16 bytes
	const void *w; // [1, cols]
	bool w_half;
	float eps;
	int threads; // threads of a block of kr_rms_norm: they determine the order of its sums
	bf16 *copy;  // [m, cols] of the rows; 0: no other kernel reads them
	int copy_stride;
};

// The elements from one row to the next in shared memory, so that rows are spread over the banks.
KR_DEV int norm_step(int cols) { return cols + 8; }

// warp_sum of the sums of up to 16 warps and zeros, with the same bits: every thread makes the
// same additions by itself, without a shuffle.
KR_DEV float sum_of_warps(const float *sums, int warps) {
	float v[16], a[8], b[4];
#pragma unroll
	for (int i = 0; i < 4; i++) {
		float4 s = reinterpret_cast<const float4 *>(sums)[i];
		v[4 * i] = s.x, v[4 * i + 1] = s.y, v[4 * i + 2] = s.z, v[4 * i + 3] = s.w;
	}
#pragma unroll
	for (int i = 0; i < 8; i++) a[i] = (i < warps ? v[i] : 0.f) + (i + 8 < warps ? v[i + 8] : 0.f);
#pragma unroll
	for (int i = 0; i < 4; i++) b[i] = a[i] + a[i + 4];
	return (b[0] + b[2]) + (b[1] + b[3]);
}

// Stores chunk i of a row.
struct InOrder {
	__device__ __forceinline__ void operator()(bf16 *row, int i, const float (&v)[8]) const { put(row, i, v, true); }
};

// All threads of a block of whole warps call it. rows [m], norm_step apart, of bfloat16, and sums
// [m][32] are in shared memory. wait() returns when x is there. AHEAD: the norm's weights are loaded
// before that, which takes registers.
template <bool AHEAD = true, class Put, class Wait> KR_DEV void norm_rows(bf16 *rows, float *sums, const NormRows &n, Put put_row, Wait wait) {
	int chunks = n.cols / 8, lane = threadIdx.x % 32, first = threadIdx.x;
	bool mine = first < min(n.threads, chunks);
	Chunk<8> weight, kept; // of chunk `first`
	if (AHEAD && first < chunks) fetch(weight, n.w, first, n.w_half);
	wait();
	for (int r = 0; r < n.m; r++) {
		const char *x = row_of(n.x, r, n.stride, n.half);
		for (int t = first; t < n.threads; t += blockDim.x) {
			float sum = 0.f;
			for (int i = t; i < chunks; i += n.threads) {
				Chunk<8> c;
				float v[8];
				fetch(c, x, i, n.half);
				if (r == 0 && i == first) kept = c;
				widen(v, c, n.half);
				for (int j = 0; j < 8; j++) sum = fmaf(v[j], v[j], sum);
			}
			sum = warp_sum(sum);
			if (lane == 0) sums[r * 32 + t / 32] = sum;
		}
	}
	__syncthreads();
	for (int r = 0; r < n.m; r++) {
		const char *x = row_of(n.x, r, n.stride, n.half);
		float scale = rms_scale(sum_of_warps(sums + r * 32, n.threads / 32), n.cols, n.eps);
		for (int i = first; i < chunks; i += blockDim.x) {
			Chunk<8> c = kept, u = weight;
			if (r > 0 || i != first || !mine) fetch(c, x, i, n.half);
			if (!AHEAD || i != first) fetch(u, n.w, i, n.w_half);
			float v[8], w[8];
			widen(v, c, n.half);
			widen(w, u, n.w_half);
			for (int j = 0; j < 8; j++) v[j] = v[j] * scale * w[j];
			put_row(rows + r * norm_step(n.cols), i, v);
			if (n.copy) put(row_of(n.copy, r, n.copy_stride, true), i, v, true);
		}
	}
	__syncthreads();
}
