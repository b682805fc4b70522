// An index over blocks of tokens (kernels/device.BlockIndex), for every size and type.
//
//   keys:   the keys of the blocks that rows complete
//   scores: the scores of a row's blocks, as numbers that rise with them; blockscores.cu has fast ones
//   top:    the positions of the best blocks of a row
#include "blockindex.cuh"
#include "kvstore.cuh"
#include "top.cuh"

enum { THREADS = 128, WARPS = THREADS / 32 };

// The key of a block is the norm of the mean of its tokens' raw keys, rotated to its first position. It takes the place of the
// last token's raw key. w [dim], angles [positions, turn.dim]. Grid (rows): a row that completes no block has nothing to do.
KR_KERNEL(THREADS, 1)
kr_block_keys(void *cache, float *scales, int kind, int cache_stride, int scales_stride, int group, const void *w, int w_wide, float eps,
              const float *angles, int angles_stride, int angles_rows, int first, int turned, int interleaved, const int *table, int decode,
              int dim, int block, int block_tokens) {
	__shared__ float parts[32];
	KR_SHARED(float, key);
	pdl_launch();
	pdl_wait();
	Span s;
	int row = blockIdx.x;
	if (!find_row(s, table, decode, row)) return;
	int end = s.pos + row - s.row + 1, from = end - block;
	if (end % block != 0 || from >= angles_rows) return;
	Cache c = {(const char *)cache, scales, kind, cache_stride, scales_stride, group};
	float squares = 0.f;
	for (int i = threadIdx.x; i < dim; i += THREADS) {
		float sum = 0.f;
		for (int p = from; p < end; p++) sum += cache_value(c, span_slot(table, s, p, block_tokens), i);
		sum /= (float)block;
		key[i] = sum;
		squares = fmaf(sum, sum, squares);
	}
	float by = rms_scale(block_sum(squares, THREADS, parts), dim, eps);
	for (int i = threadIdx.x; i < dim; i += THREADS) key[i] *= by * get(w, w_wide, i);
	__syncthreads();
	Turn t = {1, dim, first, turned, interleaved != 0};
	turn_row<1>(key, t, angles + (long long)from * angles_stride, threadIdx.x, THREADS, false);
	__syncthreads();
	Store to = {(char *)cache, scales, kind, cache_stride, scales_stride, group, false, 0, 0};
	int slot = (int)span_slot(table, s, end - 1, block_tokens);
	if (kind == I8_ROWS) keep_groups(to, slot, key, false, dim);
	else keep_row<1>(to, slot, key, false, dim);
}
KR_EXPORT(kr_block_keys)

// query . key of a slot.
KR_DEV float product(const float *query, const Cache &c, long long slot, int dim) {
	float v = 0.f;
	for (int i = 0; i < dim; i++) v = fmaf(query[i], cache_value(c, slot, i), v);
	return v;
}

// ranks [rows, lists, pitch] of the entries of rows first..: a warp has an entry at a time. Rows that choose all have
// none. Grid (shares of the entries, lists, rows).
KR_KERNEL(THREADS, 1)
kr_block_scores(uint32_t *ranks, int pitch, const void *q, int q_wide, int q_stride, const char *cache, const float *scales, int kind,
                int cache_stride, int scales_stride, int group, const int *table, int decode, int first, int heads, int dim, int block,
                int chosen, int local, int block_tokens) {
	pdl_launch();
	pdl_wait();
	KR_SHARED(float, query);
	Span s;
	int row, lane = threadIdx.x % 32, list = blockIdx.y;
	BlockIndex x = {heads, dim, block, chosen, local, block_tokens};
	if (!locate(s, row, table, decode, first + blockIdx.z)) return;
	int n = min(x.sees(s.pos + row - s.row), pitch);
	if (n <= x.top()) return;
	int values = local > 0 ? dim : heads * dim;
	for (int i = threadIdx.x; i < values; i += THREADS) query[i] = get(q, q_wide, (long long)row * q_stride + list * dim + i);
	__syncthreads();
	Cache c = {cache, scales, kind, cache_stride, scales_stride, group};
	ranks += ((long long)blockIdx.z * gridDim.y + list) * pitch;
	for (int e = blockIdx.x * WARPS + threadIdx.x / 32; e < n; e += gridDim.x * WARPS) {
		float score = local > 0 ? -INFINITY : 0.f;
		if (local > 0) {
			for (int i = lane; i < block; i += 32) score = best_of(score, product(query, c, span_slot(table, s, e * block + i, block_tokens), dim));
			for (int by = 16; by > 0; by /= 2) score = best_of(score, __shfl_xor_sync(0xffffffffu, score, by));
		} else {
			long long slot = span_slot(table, s, (e + 1) * block - 1, block_tokens);
			for (int h = lane; h < heads; h += 32) {
				float v = product(query + h * dim, c, slot, dim);
				score += v < 0.f ? 0.f : v; // NaN stays
			}
			score = warp_sum(score);
		}
		if (lane == 0) ranks[e] = block_rank(score);
	}
}
KR_EXPORT(kr_block_scores)

// chosen [rows, lists, width]: the positions of the best entries, of equal ones the first, and those behind the last entry, rising, with -1
// behind them. Shared memory: chosen - local words. Grid (lists, rows).
KR_KERNEL(TOP_THREADS, 1)
kr_block_top(int *to, int to_stride, int width, const uint32_t *ranks, int pitch, const int *table, int decode, int first, int block, int chosen, int local) {
	__shared__ Top shared;
	KR_SHARED(int, best);
	pdl_launch();
	pdl_wait();
	Span s;
	int row, list = blockIdx.x;
	BlockIndex x = {0, 0, block, chosen, local, 0};
	if (!locate(s, row, table, decode, first + blockIdx.y)) return;
	int pos = s.pos + row - s.row, n = min(x.sees(pos), pitch), top = x.top(), picked = n > top ? top * block : 0, skipped = n > top ? n * block - picked : 0;
	if (n > top && top > 0) {
		each_of_top(shared, ranks + ((long long)blockIdx.y * gridDim.x + list) * pitch, n, top, [&](int i, int e) { best[i] = e; });
		__syncthreads();
	}
	to += (long long)row * to_stride + (long long)list * width;
	for (int i = threadIdx.x; i < width; i += TOP_THREADS) {
		int p = i < picked ? best[i / block] * block + i % block : i + skipped;
		to[i] = p <= pos ? p : -1;
	}
}
KR_EXPORT(kr_block_top)
