// The weights by which a block reads and changes residual streams that a matrix mixes (kernels/device.StreamMix;
// manifold-constrained hyper-connections, arXiv 2512.24880).
#pragma once
#include "elem.cuh"

// The products of a row, which become its weights.
struct Mix {
	float *out;
	int streams, cols, iterations;
	float eps;
	const float *base, *scale; // scale has a number for the weights to read, to write and to mix
	float by;                  // one over the root of the mean square of the streams

	__device__ __forceinline__ float z(int i) const { return fmaf(out[i] * by, scale[min(i / streams, 2)], base[i]); }
};

KR_DEV float sigmoid(float v) { return 1.f / (1.f + expf(-v)); }

// Divides the lines of m by their sums plus eps. Value b of line a is at a * step + b * along.
template <int N> KR_DEV void balance(float (&m)[N * N], int step, int along, float eps) {
#pragma unroll
	for (int a = 0; a < N; a++) {
		float sum = eps;
#pragma unroll
		for (int b = 0; b < N; b++) sum += m[a * step + b * along];
		float by = __fdividef(1.f, sum); // one thread has all lines, and divisions are long
#pragma unroll
		for (int b = 0; b < N; b++) m[a * step + b * along] *= by;
	}
}

// The matrix of N streams in the registers of a thread.
template <int N> KR_DEV void mix_few(const Mix &x) {
	float m[N * N];
#pragma unroll
	for (int j = 0; j < N; j++) {
		float top = -INFINITY, sum = 0.f;
#pragma unroll
		for (int k = 0; k < N; k++) m[j * N + k] = x.z((2 + j) * N + k), top = fmaxf(top, m[j * N + k]);
#pragma unroll
		for (int k = 0; k < N; k++) m[j * N + k] = expf(m[j * N + k] - top), sum += m[j * N + k];
#pragma unroll
		for (int k = 0; k < N; k++) m[j * N + k] = m[j * N + k] / sum + x.eps;
	}
	balance<N>(m, 1, N, x.eps);
#pragma unroll 1
	for (int i = 1; i < x.iterations; i++) balance<N>(m, N, 1, x.eps), balance<N>(m, 1, N, x.eps);
#pragma unroll
	for (int i = 0; i < N * N; i++) x.out[2 * N + i] = m[i];
}
