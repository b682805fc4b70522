// The last step of a mixture of sorted assignments: sums over the ranks of each token, alone or
// with the norm that the next layer begins with.
#include "rowgate.cuh"

// The results of the experts, y [m * top_k, n], and of the shared network, base [m, n] or null,
// which a gate may multiply.
struct Ranks {
	const float *y, *base;
	int n;
	const int *ids; // [m * top_k]
	const float *weights;
	int top_k, experts;
	const int *map; // [experts]: below 0: not here; null: all are
	RowGate gate;
};

#ifdef KR_HOPPER
enum { WIDE_AHEAD = 8 };
#else
enum { WIDE_AHEAD = 4 }; // no more without a spill
#endif

// before plus chunk i of a token's result: the sum over the ranks, in order, of weight * y, plus
// share * base. The bits equal those of kr_gemv_down_all.
template <int V> KR_DEV void combined(float (&out)[V], const Chunk<V> &before, const Ranks &r, int token, float share, int i) {
	const int AHEAD = V == 1 ? 8 : WIDE_AHEAD; // all at once for most models; for a rank without an expert y is undefined
	Chunk<V> rest;
	float total[V], v[V];
	if (r.base) fetch(rest, row_of(r.base, token, r.n, false), i, false);
	for (int j = 0; j < V; j++) total[j] = 0.f;
	for (int slot = token * r.top_k, end = slot + r.top_k; slot < end; slot += AHEAD) {
		int e[AHEAD];
		float factor[AHEAD];
		Chunk<V> y[AHEAD];
#pragma unroll
		for (int k = 0; k < AHEAD; k++) {
			int at = min(slot + k, end - 1);
			e[k] = __ldcg(r.ids + at), factor[k] = r.weights[at];
			fetch(y[k], row_of(r.y, at, r.n, false), i, false);
		}
#pragma unroll
		for (int k = 0; k < AHEAD; k++)
			if (e[k] >= r.experts) e[k] = -1;
		if (r.map) { // a separate loop, so that no load above waits for an id
#pragma unroll
			for (int k = 0; k < AHEAD; k++) e[k] = e[k] >= 0 ? __ldcg(r.map + e[k]) : e[k];
		}
#pragma unroll
		for (int k = 0; k < AHEAD; k++) {
			if (slot + k >= end || e[k] < 0) continue;
			widen(v, y[k], false);
			for (int j = 0; j < V; j++) total[j] = fmaf(factor[k], v[j], total[j]);
		}
	}
	if (r.base) {
		widen(v, rest, false);
		for (int j = 0; j < V; j++) total[j] = fmaf(share, v[j], total[j]);
	}
	widen(v, before, false);
	for (int j = 0; j < V; j++) out[j] = v[j] + total[j];
}

#define RANKS_ARGS \
	const float *y, const float *base, int n, const int *ids, const float *weights, int top_k, int experts, const int *map, ROW_GATE_ARGS
#define RANKS \
	{ y, base, n, ids, weights, top_k, experts, map, ROW_GATE(n) }

// out [m, n] = the results, or with add out += the results.
KR_KERNEL(256, 1)
kr_gemv_combine(void *out, int wide, int out_stride, int add, RANKS_ARGS) {
	__shared__ float kept;
	const Ranks r = RANKS;
	pdl_launch();
	pdl_wait();
	int column = blockIdx.x * blockDim.x + threadIdx.x, token = blockIdx.y;
	float share = r.gate.of_block(token, kept);
	if (column >= n) return;
	char *row = row_of(out, token, out_stride, !wide);
	Chunk<1> before = {0};
	float v[1];
	if (add) fetch(before, row, column, !wide);
	combined(v, before, r, token, share, column);
	put(row, column, v, !wide);
}
KR_EXPORT(kr_gemv_combine)

// x [m, n] += the results, and out [m, n] = RMSNorm(x) as bfloat16, with the bits of kr_rms_norm
// after kr_gemv_combine. A block has a row, and as many threads as one of kr_rms_norm.
KR_KERNEL(512, 1)
kr_gemv_combine_norm(void *out, int out_stride, float *x, int x_stride, const void *norm, int norm_half, float eps, RANKS_ARGS) {
	__shared__ float parts[32], factor;
	const Ranks r = RANKS;
	int token = blockIdx.x, chunks = n / 8, first = threadIdx.x;
	char *row = row_of(x, token, x_stride, false), *to = row_of(out, token, out_stride, true);
	float kept[8], sum = 0.f; // chunk `first`
	if (first < chunks) prefetch_l2((const char *)norm + (norm_half ? 16 : 32) * first);
	pdl_launch();
	pdl_wait();
	float share = r.gate.of_block(token, factor);
	for (int i = first; i < chunks; i += blockDim.x) {
		Chunk<8> before;
		float v[8];
		fetch(before, row, i, false);
		combined(v, before, r, token, share, i);
		put(row, i, v, false);
		for (int j = 0; j < 8; j++) {
			sum = fmaf(v[j], v[j], sum);
			if (i == first) kept[j] = v[j];
		}
	}
	Chunk<8> weight;
	if (first < chunks) fetch(weight, norm, first, norm_half != 0);
	float scale = rms_scale(block_sum(sum, blockDim.x, parts), n, eps);
	for (int i = first; i < chunks; i += blockDim.x) {
		float w[8];
		if (i != first) {
			fetch(weight, norm, i, norm_half != 0);
			get(kept, row, i, false);
		}
		widen(w, weight, norm_half != 0);
		for (int j = 0; j < 8; j++) w[j] = kept[j] * scale * w[j];
		put(to, i, w, true);
	}
}
KR_EXPORT(kr_gemv_combine_norm)
