// Weights of residual streams from products, for any sizes (sinkhorn.cuh).
#include "sinkhorn.cuh"

enum { MIX_THREADS = 256 };

// The same in place for any number of streams, a line with each thread of a warp at a time.
KR_DEV void balance_any(float *m, int n, int step, int along, float eps) {
	__syncwarp();
	for (int a = threadIdx.x; a < n; a += 32) {
		float sum = eps;
		for (int b = 0; b < n; b++) sum += m[a * step + b * along];
		for (int b = 0; b < n; b++) m[a * step + b * along] /= sum;
	}
}

KR_DEV void mix_any(const Mix &x) {
	int n = x.streams;
	float *m = x.out + 2 * n;
	for (int j = threadIdx.x; j < n; j += 32) {
		float top = -INFINITY, sum = 0.f;
		for (int k = 0; k < n; k++) m[j * n + k] = x.z((2 + j) * n + k), top = fmaxf(top, m[j * n + k]);
		for (int k = 0; k < n; k++) m[j * n + k] = expf(m[j * n + k] - top), sum += m[j * n + k];
		for (int k = 0; k < n; k++) m[j * n + k] = m[j * n + k] / sum + x.eps;
	}
	balance_any(m, n, 1, n, x.eps);
	for (int i = 1; i < x.iterations; i++) balance_any(m, n, n, 1, x.eps), balance_any(m, n, 1, n, x.eps);
}

// out [rows, cols], the products of rows with the trained matrix, in place. x [rows, width] are the streams. Grid: rows. Flags: VEC and BF16_0 are of x.
KR_KERNEL(MIX_THREADS, 1)
kr_mix_weights(float *out, int out_stride, const void *x, int x_stride, int width, const float *base, const float *scale, int streams, int cols, int iterations,
               float eps, float norm_eps, int flags) {
	__shared__ float parts[32];
	pdl_launch();
	pdl_wait();
	const char *row = row_of(x, blockIdx.x, x_stride, flags & BF16_0);
	float sum = 0.f;
	if (flags & VEC) {
#pragma unroll 4
		for (int i = threadIdx.x; i < width / 8; i += MIX_THREADS) {
			float v[8];
			get(v, row, i, flags & BF16_0);
			for (int j = 0; j < 8; j++) sum = fmaf(v[j], v[j], sum);
		}
	} else {
		for (int i = threadIdx.x; i < width; i += MIX_THREADS) {
			float v[1];
			get(v, row, i, flags & BF16_0);
			sum = fmaf(v[0], v[0], sum);
		}
	}
	sum = block_sum(sum, MIX_THREADS, parts);
	if (threadIdx.x >= 32) return;
	Mix m = {out + (long long)blockIdx.x * out_stride, streams, cols, iterations, eps, base, scale, rms_scale(sum, width, norm_eps)};
	if (cols > streams) {
		if (streams == 4) {
			if (threadIdx.x == 0) mix_few<4>(m);
		} else {
			mix_any(m);
		}
	}
	for (int i = threadIdx.x; i < min(cols, 2 * streams); i += 32) m.out[i] = i < streams ? sigmoid(m.z(i)) + eps : 2.f * sigmoid(m.z(i));
}
KR_EXPORT(kr_mix_weights)
