// A sparse indexer (kernels/device.Index) without optimisations, for every size and type: the norm of its keys, and
// its choice. A block computes one row in float32.
#include "rows.cuh"

enum { THREADS = 128, WARPS = THREADS / 32, DIGIT = 2048, DIGITS = 3 };

// The sum of v over the block; all threads call it and get the same. parts: WARPS floats.
KR_DEV float sum_of_block(float v, float *parts) {
	v = warp_sum(v);
	if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
	__syncthreads();
	float sum = 0.f;
	for (int i = 0; i < WARPS; i++) sum += parts[i];
	return sum;
}

// out = (x - mean) / sqrt(variance + eps) * w + b. Grid (rows).
KR_KERNEL(THREADS, 1)
kr_layer_norm(void *out, int out_wide, int out_stride, const void *x, int x_wide, int x_stride, const void *w, int w_wide, const void *b, int b_wide,
              int cols, float eps) {
	__shared__ float sums[WARPS], squares[WARPS];
	pdl_launch();
	pdl_wait();
	long long from = (long long)blockIdx.x * x_stride, to = (long long)blockIdx.x * out_stride;
	float sum = 0.f;
	for (int i = threadIdx.x; i < cols; i += THREADS) sum += get(x, x_wide, from + i);
	float mean = sum_of_block(sum, sums) / cols;
	sum = 0.f;
	for (int i = threadIdx.x; i < cols; i += THREADS) {
		float d = get(x, x_wide, from + i) - mean;
		sum = fmaf(d, d, sum);
	}
	float by = 1.f / sqrtf(sum_of_block(sum, squares) / cols + eps);
	for (int i = threadIdx.x; i < cols; i += THREADS)
		put(out, out_wide, to + i, fmaf((get(x, x_wide, from + i) - mean) * by, get(w, w_wide, i), get(b, b_wide, i)));
}
KR_EXPORT(kr_layer_norm)

// An index query with the weights of its heads.
struct Indexer {
	const float *query, *weights; // [heads * dim], [heads]
	int heads, dim;
};

// The rank of the score of a key.
KR_DEV uint32_t key_rank(const Indexer &x, const Cache &c, long long slot) {
	float sum = 0.f;
	for (int h = 0; h < x.heads; h++) {
		float v = 0.f;
		for (int i = 0; i < x.dim; i++) v = fmaf(x.query[h * x.dim + i], cache_value(c, slot, i), v);
		if (v < 0.f) v = 0.f;
		sum = fmaf(x.weights[h], v, sum);
	}
	return score_rank(sum);
}

// chosen [rows, width]: the positions with the best scores of those that a row sees, rising, of equal ones the
// first; -1 behind them. Keys of several positions lie where Choices says. Grid (rows). It
// scores all keys once for each digit of the least score that is chosen, and once more.
KR_KERNEL(THREADS, 1)
kr_select(int *chosen, int chosen_stride, const void *q, int q_wide, int q_stride, const void *weights, int weights_wide, int weights_stride, const char *cache,
          const float *scales, int kind, int cache_stride, int scales_stride, int group, const int *table, int decode, int heads, int dim, int top,
          int pool, int entries, int block_tokens) {
	pdl_launch();
	pdl_wait();
	KR_SHARED(float, shared);
	float *query = shared, *by = query + heads * dim;
	int *counts = (int *)(by + heads), *taken = counts + DIGIT, *state = taken + THREADS; // state: digit, left, written
	Span s;
	int row = blockIdx.x, tid = threadIdx.x;
	if (!find_row(s, table, decode, row)) return;
	int ctx = s.pos + row - s.row + 1, keys = ctx / pool;
	Choices to = {chosen + (long long)row * chosen_stride, top, pool, entries};
	if (keys <= top) {
		to.all(ctx, THREADS);
		return;
	}
	for (int i = tid; i < heads * dim; i += THREADS) query[i] = get(q, q_wide, (long long)row * q_stride + i);
	for (int i = tid; i < heads; i += THREADS) by[i] = get(weights, weights_wide, (long long)row * weights_stride + i);
	Cache c = {cache, scales, kind, cache_stride, scales_stride, group};
	Indexer x = {query, by, heads, dim};
	const int at[DIGITS] = {21, 10, 0}, most[DIGITS] = {2047, 2047, 1023};
	uint32_t found = 0u, mask = 0u;
	if (tid == 0) state[1] = top, state[2] = 0;
	for (int d = 0; d < DIGITS; d++) {
		for (int i = tid; i < DIGIT; i += THREADS) counts[i] = 0;
		__syncthreads();
		for (int i = tid; i < keys; i += THREADS) {
			uint32_t k = key_rank(x, c, to.slot(table, s, i, block_tokens));
			if ((k & mask) == found) atomicAdd(&counts[k >> at[d] & most[d]], 1);
		}
		__syncthreads();
		if (tid == 0) {
			int i = most[d], left = state[1];
			for (; counts[i] < left; i--) left -= counts[i];
			state[0] = i, state[1] = left;
		}
		__syncthreads();
		found |= (uint32_t)state[0] << at[d], mask |= (uint32_t)most[d] << at[d];
		__syncthreads();
	}
	for (int from = 0; from < keys; from += THREADS) {
		taken[tid] = 0;
		if (from + tid < keys) {
			uint32_t k = key_rank(x, c, to.slot(table, s, from + tid, block_tokens));
			taken[tid] = k > found ? 2 : k == found ? 1 : 0;
		}
		__syncthreads();
		if (tid == 0) {
			int left = state[1], n = state[2];
			for (int i = 0; i < THREADS; i++) {
				if (taken[i] == 0 || (taken[i] == 1 && left == 0)) continue;
				if (taken[i] == 1) left--;
				to.put(n++, from + i);
			}
			state[1] = left, state[2] = n;
		}
		__syncthreads();
	}
	to.rest(ctx, THREADS);
}
KR_EXPORT(kr_select)
