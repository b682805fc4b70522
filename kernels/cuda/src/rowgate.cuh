// The gate of a shared network: one factor per token for its result.
#pragma once
#include "elem.cuh"

#define KR_MEMBER __device__ __forceinline__

// The sigmoid of x * w, for rows x [m, cols] of bf16 and w [cols], cols a multiple of 8 and rows
// aligned to 16 bytes. Without w all factors are 1.
struct RowGate {
	const bf16 *x;
	int stride;
	const void *w;
	int half, cols; // half: w is bf16

	// The factor of a token, for every lane of one warp. The order of the sum depends on cols only.
	KR_MEMBER float of(int token) const {
		const int AHEAD = 4; // chunks in flight
		float sum = 0.f;
		const char *row = row_of(x, token, stride, true);
		for (int from = threadIdx.x % 32; from < cols / 8; from += 32 * AHEAD) {
			Chunk<8> a[AHEAD], b[AHEAD];
#pragma unroll
			for (int n = 0; n < AHEAD; n++) {
				int i = min(from + 32 * n, cols / 8 - 1); // chunks past the last one are not used
				fetch(a[n], row, i, true);
				fetch(b[n], w, i, half != 0);
			}
#pragma unroll
			for (int n = 0; n < AHEAD; n++) {
				if (from + 32 * n >= cols / 8) break;
				float v[8], u[8];
				widen(v, a[n], true);
				widen(u, b[n], half != 0);
				for (int j = 0; j < 8; j++) sum = fmaf(v[j], u[j], sum);
			}
		}
		return 1.f / (1.f + expf(-warp_sum(sum)));
	}
	// The same for all threads of a block, which all call it. kept is in shared memory.
	KR_MEMBER float of_block(int token, float &kept) const {
		if (!w) return 1.f;
		if (threadIdx.x < 32) {
			float factor = of(token);
			if (threadIdx.x == 0) kept = factor;
		}
		__syncthreads();
		return kept;
	}
};
#define ROW_GATE_ARGS const bf16 *gate_x, int gate_stride, const void *gate_w, int gate_half
#define ROW_GATE(cols) \
	{ gate_x, gate_stride, gate_w, gate_half, cols }
