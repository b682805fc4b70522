// RMSNorm, alone or after an addition to the residual, and the weighted sum of expert outputs.
// One block per row. A thread keeps its first two chunks in registers, which cover rows of up to
// 8192 aligned elements.
#include "elem.cuh"

// The weighted sum of y [rows*k, cols], one row per assignment, added to base.
struct Sum {
	const void *y, *base; // base may be 0
	int y_stride, base_stride, k;
	const float *weights; // of this row
	bool y_half, base_half;
};

// The assignments of a row that count: those of experts that are in the bank.
struct All {
	__device__ __forceinline__ bool operator()(int) const { return true; }
};
struct Here {
	const int *ids; // of this row
	const int *map; // [experts], below 0: not in the bank
	int experts;
	__device__ __forceinline__ bool operator()(int k) const {
		int e = ids[k];
		return e >= 0 && e < experts && map[e] >= 0;
	}
};

// Chunk i of base + sum of weights[j] * y[row*k + j], in that order. A row with a weight of zero
// is left out, so it need not have been written. Rows are fetched four at a time, whatever their
// weights, so that no fetch waits for another.
template <int V, class Counts> KR_DEV void weighted(float (&v)[V], const Sum &s, long long row, int i, const Counts &counts) {
	const int AHEAD = 4;
	Chunk<V> base, y[AHEAD];
	float w[AHEAD];
	if (s.base) fetch(base, row_of(s.base, row, s.base_stride, s.base_half), i, s.base_half);
	for (int k = 0; k < s.k; k += AHEAD) {
#pragma unroll
		for (int a = 0; a < AHEAD; a++)
			if (k + a < s.k) {
				w[a] = counts(k + a) ? s.weights[k + a] : 0.f;
				fetch(y[a], row_of(s.y, row * s.k + k + a, s.y_stride, s.y_half), i, s.y_half);
			}
		if (k == 0) {
			for (int j = 0; j < V; j++) v[j] = 0.f;
			if (s.base) widen(v, base, s.base_half);
		}
#pragma unroll
		for (int a = 0; a < AHEAD; a++) {
			if (k + a >= s.k) break;
			float u[V];
			widen(u, y[a], s.y_half);
			for (int j = 0; j < V; j++) v[j] = w[a] == 0.f ? v[j] : fmaf(w[a], u[j], v[j]);
		}
	}
}

// out = the weighted sum. Flags: out, y, base. Grid: x rows, y pieces of a row.
template <int V, class Counts> KR_DEV void weighted_sum(void *out, int out_stride, const Sum &s, int cols, bool half, const Counts &counts) {
	int i = blockIdx.y * blockDim.x + threadIdx.x;
	if (i >= cols / V) return;
	float v[V];
	weighted(v, s, blockIdx.x, i, counts);
	put(row_of(out, blockIdx.x, out_stride, half), i, v, half);
}

KR_KERNEL(256, 1)
kr_weighted_sum(void *out, int out_stride, const void *y, int y_stride, const float *weights, int weights_stride, int k,
                const void *base, int base_stride, int cols, int flags) {
	pdl_launch();
	pdl_wait();
	Sum s = {y, base, y_stride, base_stride, k, weights + (long long)blockIdx.x * weights_stride,
	         (flags & BF16_1) != 0, (flags & BF16_2) != 0};
	if (flags & VEC) weighted_sum<8>(out, out_stride, s, cols, flags & BF16_0, All());
	else weighted_sum<1>(out, out_stride, s, cols, flags & BF16_0, All());
}
KR_EXPORT(kr_weighted_sum)

// The weighted sum over the ids [rows, k] whose experts are in the bank.
KR_KERNEL(256, 1)
kr_weighted_sum_here(void *out, int out_stride, const void *y, int y_stride, const float *weights, int weights_stride, int k,
                     const void *base, int base_stride, const int *ids, const int *map, int experts, int cols, int flags) {
	pdl_launch();
	pdl_wait();
	Sum s = {y, base, y_stride, base_stride, k, weights + (long long)blockIdx.x * weights_stride,
	         (flags & BF16_1) != 0, (flags & BF16_2) != 0};
	const Here here = {ids + (long long)blockIdx.x * k, map, experts};
	if (flags & VEC) weighted_sum<8>(out, out_stride, s, cols, flags & BF16_0, here);
	else weighted_sum<1>(out, out_stride, s, cols, flags & BF16_0, here);
}
KR_EXPORT(kr_weighted_sum_here)

struct Norm {
	void *out, *x; // x is float32 if delta is added
	const void *delta, *w;
	int cols;
	float eps;
	bool out_half, x_half, delta_half, w_half;
};

// Chunk i of x; with ADD, of x after the addition of delta, which is also stored.
template <int V, bool ADD> KR_DEV void take(float (&v)[V], const Norm &n, int i) {
	Chunk<V> x;
	fetch(x, n.x, i, n.x_half);
	float d[V];
	if (ADD) get(d, n.delta, i, n.delta_half);
	widen(v, x, n.x_half);
	if constexpr (ADD) {
		for (int j = 0; j < V; j++) v[j] += d[j];
		put(n.x, i, v, false);
	}
}

template <int V> KR_DEV float squares(const float (&v)[V], float sum) {
	for (int j = 0; j < V; j++) sum = fmaf(v[j], v[j], sum);
	return sum;
}

template <int V> KR_DEV void scaled(const Norm &n, int i, const float (&v)[V], const Chunk<V> &weight, float scale) {
	float w[V], o[V];
	widen(w, weight, n.w_half);
	for (int j = 0; j < V; j++) o[j] = v[j] * scale * w[j];
	put(n.out, i, o, n.out_half);
}

// out = RMSNorm(x), or with ADD of x + delta. Each thread adds its chunks in rising order, then
// the block adds the threads' sums. The order depends only on the block size, which follows from
// cols.
template <int V, bool ADD> KR_DEV void norm_row(const Norm &n) {
	__shared__ float parts[32];
	const int KEPT = 2;
	int chunks = n.cols / V, step = blockDim.x;
	Chunk<V> w[KEPT];
	float v[KEPT][V], sum = 0.f;
#pragma unroll
	for (int c = 0; c < KEPT; c++) {
		int i = threadIdx.x + c * step;
		if (i < chunks) fetch(w[c], n.w, i, n.w_half);
	}
	pdl_launch();
	pdl_wait();
#pragma unroll
	for (int c = 0; c < KEPT; c++) {
		int i = threadIdx.x + c * step;
		if (i < chunks) {
			take<V, ADD>(v[c], n, i);
			sum = squares(v[c], sum);
		}
	}
	for (int i = threadIdx.x + KEPT * step; i < chunks; i += step) {
		float t[V];
		take<V, ADD>(t, n, i);
		sum = squares(t, sum);
	}
	float scale = rms_scale(block_sum(sum, blockDim.x, parts), n.cols, n.eps);
#pragma unroll
	for (int c = 0; c < KEPT; c++) {
		int i = threadIdx.x + c * step;
		if (i < chunks) scaled(n, i, v[c], w[c], scale);
	}
	for (int i = threadIdx.x + KEPT * step; i < chunks; i += step) {
		float t[V];
		Chunk<V> u;
		fetch(u, n.w, i, n.w_half);
		get(t, n.x, i, n.x_half);
		scaled(n, i, t, u, scale);
	}
}

// Flags: out, x, w.
KR_KERNEL(512, 2)
kr_rms_norm(void *out, int out_stride, void *x, int x_stride, const void *w, int cols, float eps, int flags) {
	Norm n = {row_of(out, blockIdx.x, out_stride, flags & BF16_0), row_of(x, blockIdx.x, x_stride, flags & BF16_1), 0, w, cols, eps,
	          (flags & BF16_0) != 0, (flags & BF16_1) != 0, false, (flags & BF16_2) != 0};
	if (flags & VEC) norm_row<8, false>(n);
	else norm_row<1, false>(n);
}
KR_EXPORT(kr_rms_norm)

// Flags: out, delta, w.
KR_KERNEL(512, 2)
kr_add_rms_norm(void *out, int out_stride, float *x, int x_stride, const void *delta, int delta_stride, const void *w, int cols,
                float eps, int flags) {
	Norm n = {row_of(out, blockIdx.x, out_stride, flags & BF16_0), x + (long long)blockIdx.x * x_stride,
	          row_of(delta, blockIdx.x, delta_stride, flags & BF16_1), w, cols, eps,
	          (flags & BF16_0) != 0, false, (flags & BF16_1) != 0, (flags & BF16_2) != 0};
	if (flags & VEC) norm_row<8, true>(n);
	else norm_row<1, true>(n);
}
KR_EXPORT(kr_add_rms_norm)
