// Gates: rows times the sigmoid of others, or of a product with a vector (the gate of a shared expert).
#include "elem.cuh"

struct Gate {
	void *out;
	const void *x, *w;
	int n, cols; // of out, of x and w
	bool out_half, x_half, w_half;
};

// out *= sigmoid(x * w), for one row. Each thread adds its chunks in rising order, then the block
// adds the threads' sums. The order depends only on the block size, which follows from cols.
template <int V> KR_DEV void gate_row(const Gate &g, float *parts) {
	float sum = 0.f;
	for (int i = threadIdx.x; i < g.cols / V; i += blockDim.x) {
		float x[V], w[V];
		get(x, g.x, i, g.x_half);
		get(w, g.w, i, g.w_half);
		for (int j = 0; j < V; j++) sum = fmaf(x[j], w[j], sum);
	}
	float factor = 1.f / (1.f + expf(-block_sum(sum, blockDim.x, parts)));
	for (int i = threadIdx.x; i < g.n / V; i += blockDim.x) {
		float v[V];
		get(v, g.out, i, g.out_half);
		for (int j = 0; j < V; j++) v[j] *= factor;
		put(g.out, i, v, g.out_half);
	}
}

// One block per row. Flags: out, x, w.
KR_KERNEL(512, 2)
kr_gate_rows(void *out, int out_stride, const void *x, int x_stride, const void *w, int n, int cols, int flags) {
	__shared__ float parts[32];
	pdl_launch();
	pdl_wait();
	Gate g = {row_of(out, blockIdx.x, out_stride, flags & BF16_0), row_of(x, blockIdx.x, x_stride, flags & BF16_1), w, n, cols,
	          (flags & BF16_0) != 0, (flags & BF16_1) != 0, (flags & BF16_2) != 0};
	if (flags & VEC) gate_row<8>(g, parts);
	else gate_row<1>(g, parts);
}
KR_EXPORT(kr_gate_rows)

// out *= sigmoid(x), element by element. Grid: x rows, y pieces of a row. Flags: out, x.
KR_KERNEL(256, 1)
kr_gate(void *out, int out_stride, const void *x, int x_stride, int cols, int flags) {
	pdl_launch();
	pdl_wait();
	int i = blockIdx.y * blockDim.x + threadIdx.x;
	char *o = row_of(out, blockIdx.x, out_stride, flags & BF16_0);
	const char *g = row_of(x, blockIdx.x, x_stride, flags & BF16_1);
	if (flags & VEC) {
		if (i >= cols / 8) return;
		float v[8], f[8];
		get(v, o, i, flags & BF16_0);
		get(f, g, i, flags & BF16_1);
		for (int j = 0; j < 8; j++) v[j] /= 1.f + expf(-f[j]);
		put(o, i, v, flags & BF16_0);
	} else if (i < cols) {
		float v[1], f[1];
		get(v, o, i, flags & BF16_0);
		get(f, g, i, flags & BF16_1);
		v[0] /= 1.f + expf(-f[0]);
		put(o, i, v, flags & BF16_0);
	}
}
KR_EXPORT(kr_gate)
