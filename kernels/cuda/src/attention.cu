// Attention without optimisations, for every size and type. A block computes one row of one head
// in float32. These kernels run the shapes that the fast kernels refuse, and tests compare the
// fast ones with them. Latent attention takes the absorbed form: the query is projected into the
// latent space and the weighted sum of latents out of it, so no keys or values are expanded or
// stored.
#include "rows.cuh"

enum { THREADS = 128, WARPS = THREADS / 32 };

#define LOG2E 1.44269504f

// The columns of a cache row that are the key and the value.
struct Columns { int key, key_width, value, value_width; };

// A block's scratch memory.
struct Room {
	float *query; // [key_width]
	float *sum;   // [value_width]
	float *p;     // [THREADS] weights of a tile of keys
	int *slots;   // [THREADS] their cache rows
	float *joint; // [2 * WARPS]
};
KR_DEV Room room(float *at, int query, int sum) {
	float *p = at + query + sum;
	Room b = {at, at + query, p, (int *)p + THREADS, p + 2 * THREADS};
	return b;
}

KR_DEV float score(const Room &b, const Cache &c, const Columns &w, long long slot, float scale) {
	float v = 0.f;
	for (int i = 0; i < w.key_width; i++) v = fmaf(b.query[i], cache_value(c, slot, w.key + i), v);
	return v * scale;
}

// b.sum = softmax(query . keys * scale) . values over positions first..ctx-1. It reads a tile of
// THREADS positions at a time; tiles are counted from position 0. scale includes log2(e). All
// threads call it. sink is a score, times log2(e), that only takes part in the sum of weights; -INFINITY: none.
// chosen, unless null, has the positions in the place of first..ctx-1; -1 is none.
KR_DEV void attend(const Room &b, const Cache &c, const Columns &w, const int *table, const Span &s, int first, int ctx, float scale, int block_tokens,
                   float sink, const int *chosen) {
	int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
	float top = sink, total = sink == -INFINITY ? 0.f : 1.f;
	for (int i = tid; i < w.value_width; i += THREADS) b.sum[i] = 0.f;
	for (int from = first / THREADS * THREADS; from < ctx; from += THREADS) {
		bool real = from + tid < ctx && from + tid >= first;
		int pos = from + tid;
		if (real && chosen) {
			pos = chosen[pos];
			real = pos >= 0 && pos < s.pos + s.len;
		}
		long long slot = real ? span_slot(table, s, pos, block_tokens) : 0;
		float v = real ? score(b, c, w, slot, scale) : -INFINITY;
		float most = warp_max(v);
		if (lane == 0) b.joint[warp] = most;
		__syncthreads();
		float next = top;
		for (int i = 0; i < WARPS; i++) next = fmaxf(next, b.joint[i]);
		float p = real ? exp2f(v - next) : 0.f, part = warp_sum(p);
		b.p[tid] = p;
		b.slots[tid] = (int)slot;
		if (lane == 0) b.joint[WARPS + warp] = part;
		__syncthreads();
		float old = exp2f(top - next);
		total *= old;
		for (int i = 0; i < WARPS; i++) total += b.joint[WARPS + i];
		top = next;
		int keys = min(THREADS, ctx - from);
		for (int i = tid; i < w.value_width; i += THREADS) {
			float a = b.sum[i] * old;
			for (int j = max(first - from, 0); j < keys; j++) // a row that is none may hold anything
				if (b.p[j] != 0.f) a = fmaf(b.p[j], cache_value(c, b.slots[j], w.value + i), a);
			b.sum[i] = a;
		}
		__syncthreads();
	}
	for (int i = tid; i < w.value_width; i += THREADS) b.sum[i] /= total;
	__syncthreads();
}

// out, q [rows, heads * ..]; grid (heads, rows). scale includes log2(e). chosen [rows, top], unless null: the
// positions that a row sees if it could see more than top.
KR_KERNEL(THREADS, 1)
kr_mla_plain(void *out, int out_wide, int out_stride, const void *q, int q_wide, int q_stride, const char *cache, const float *scales,
             int kind, int cache_stride, int scales_stride, int group, const void *kvb, int kvb_wide, int kvb_stride, const int *table,
             int decode, int nope, int rope, int v, int rank, float scale, int block_tokens, const int *chosen, int chosen_stride, int top) {
	pdl_launch();
	pdl_wait();
	KR_SHARED(float, shared);
	Room b = room(shared, rank + rope, rank);
	Span s;
	int head = blockIdx.x, row = blockIdx.y;
	if (!find_row(s, table, decode, row)) return;
	Cache c = {cache, scales, kind, cache_stride, scales_stride, group};
	long long query = (long long)row * q_stride + head * (nope + rope), weights = (long long)head * (nope + v) * kvb_stride;
	for (int i = threadIdx.x; i < rank; i += THREADS) {
		float a = 0.f;
		for (int k = 0; k < nope; k++) a = fmaf(get(q, q_wide, query + k), get(kvb, kvb_wide, weights + (long long)k * kvb_stride + i), a);
		b.query[i] = a;
	}
	for (int i = threadIdx.x; i < rope; i += THREADS) b.query[rank + i] = get(q, q_wide, query + nope + i);
	__syncthreads();
	Columns w = {0, rank + rope, 0, rank};
	int ctx = s.pos + row - s.row + 1;
	bool sparse = chosen && ctx > top;
	attend(b, c, w, table, s, 0, sparse ? top : ctx, scale, block_tokens, -INFINITY, sparse ? chosen + (long long)row * chosen_stride : 0);
	for (int j = threadIdx.x; j < v; j += THREADS) {
		long long at = weights + (long long)(nope + j) * kvb_stride;
		float a = 0.f;
		for (int i = 0; i < rank; i++) a = fmaf(b.sum[i], get(kvb, kvb_wide, at + i), a);
		put(out, out_wide, (long long)row * out_stride + head * v + j, a);
	}
}
KR_EXPORT(kr_mla_plain)

// Grouped-query attention: out, q [rows, heads * dim]; grid (heads, rows). window: the number of
// keys that a row sees; 0: all. sinks [heads], or null. chosen [rows, lists, width], unless null: the positions that the key heads of a
// list see.
KR_KERNEL(THREADS, 1)
kr_gqa_plain(void *out, int out_wide, int out_stride, const void *q, int q_wide, int q_stride, const char *cache, const float *scales,
             int kind, int cache_stride, int scales_stride, int group, const int *table, int decode, int kv_heads, int dim, float scale,
             int block_tokens, int window, const void *sinks, int sinks_wide, const int *chosen, int chosen_stride, int lists, int width) {
	pdl_launch();
	pdl_wait();
	KR_SHARED(float, shared);
	Room b = room(shared, dim, dim);
	Span s;
	int head = blockIdx.x, row = blockIdx.y, kv = head / (gridDim.x / kv_heads);
	if (!find_row(s, table, decode, row)) return;
	Cache c = {cache, scales, kind, cache_stride, scales_stride, group};
	for (int i = threadIdx.x; i < dim; i += THREADS) b.query[i] = get(q, q_wide, (long long)row * q_stride + head * dim + i);
	__syncthreads();
	Columns w = {kv * dim, dim, (kv_heads + kv) * dim, dim};
	int ctx = s.pos + row - s.row + 1;
	if (chosen) chosen += (long long)row * chosen_stride + kv * lists / kv_heads * width;
	attend(b, c, w, table, s, window > 0 ? max(ctx - window, 0) : 0, chosen ? width : ctx, scale, block_tokens,
	       sinks ? get(sinks, sinks_wide, head) * LOG2E : -INFINITY, chosen);
	for (int i = threadIdx.x; i < dim; i += THREADS) put(out, out_wide, (long long)row * out_stride + head * dim + i, b.sum[i]);
}
KR_EXPORT(kr_gqa_plain)
