// The choice of a sparse indexer (kernels/device.Index) for heads of 128 values, and what attention reads of it.
//
//   scores: the scores of a row's keys, on tensor cores, as numbers that rise with them
//   top:    the positions of the best of a row, by their digits
//   spans:  a table of spans in which a row's blocks are the cache rows of its choice
//
// A score's bits depend on the query and the key alone.
#include "indexkey.cuh"
#include "top.cuh"

enum { GROUPS = 4, SCORE_KEYS = 8 * GROUPS, SCORE_THREADS = 128, SCORE_WARPS = SCORE_THREADS / 32 };

// ranks [rows, pitch] of the keys of rows first.., and behind them most [rows, pitch / 8], the largest of every eight: a warp has
// SCORE_KEYS keys at a time, with all heads. heads: a multiple of 16. Rows that see no more than top have none. Grid (shares of the keys, rows).
template <int KIND>
KR_DEV void index_scores(unsigned char *shared, uint32_t *ranks, int pitch, const bf16 *q, int q_stride, const void *weights, int weights_wide, int weights_stride,
                         const char *cache, int cache_stride, const int *table, int decode, int first, int heads, int top, int pool, int entries, int block_tokens) {
	pdl_launch();
	pdl_wait();
	int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, g = lane / 4, c = lane % 4;
	uint4 *queries = (uint4 *)shared; // left operands [heads / 16][STEPS][32]
	float *by = (float *)(queries + heads * 2 * STEPS);
	Span s;
	int row;
	if (!locate(s, row, table, decode, first + blockIdx.y)) return;
	int keys = min((s.pos + row - s.row + 1) / pool, pitch);
	if (keys <= top) return;
	Choices of = {0, top, pool, entries};
	q += (long long)row * q_stride;
	const int AHEAD = 4; // operands in flight
	for (int from = tid, end = heads * 2 * STEPS; from < end; from += AHEAD * SCORE_THREADS) {
		uint4 v[AHEAD];
#pragma unroll
		for (int n = 0; n < AHEAD; n++) {
			int i = min(from + n * SCORE_THREADS, end - 1), step = i / 32 % STEPS, head = i / (32 * STEPS) * 16 + i % 32 / 4;
			const bf16 *one = q + head * INDEX_DIM, *two = one + 8 * INDEX_DIM;
			int lo = index_column<KIND>(step, i % 4, 0), hi = index_column<KIND>(step, i % 4, 1);
			v[n] = make_uint4(*(const uint32_t *)(one + lo), *(const uint32_t *)(two + lo), *(const uint32_t *)(one + hi), *(const uint32_t *)(two + hi));
		}
#pragma unroll
		for (int n = 0; n < AHEAD; n++)
			if (from + n * SCORE_THREADS < end) queries[from + n * SCORE_THREADS] = v[n];
	}
	for (int i = tid; i < heads; i += SCORE_THREADS) by[i] = get(weights, weights_wide, (long long)row * weights_stride + i);
	__syncthreads();
	uint32_t *most = ranks + (long long)gridDim.y * pitch + (long long)blockIdx.y * (pitch / 8);
	ranks += (long long)blockIdx.y * pitch;
	const int size = KIND == E4M3_ROWS ? 1 : 2;
#pragma unroll 1
	for (int at = (blockIdx.x * SCORE_WARPS + warp) * SCORE_KEYS; at < keys; at += gridDim.x * SCORE_WARPS * SCORE_KEYS) {
		uint32_t key[GROUPS][2 * STEPS];
#pragma unroll
		for (int n = 0; n < GROUPS; n++)
			fetch_key<KIND>(key[n], cache + of.slot(table, s, min(at + 8 * n + g, keys - 1), block_tokens) * cache_stride * size, c);
		float sum[GROUPS][2] = {};
#pragma unroll 1
		for (int m = 0; m < heads / 16; m++) {
			float d[GROUPS][4] = {};
#pragma unroll
			for (int k = 0; k < STEPS; k++) {
				uint4 v = queries[(m * STEPS + k) * 32 + lane];
				uint32_t a[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
				for (int n = 0; n < GROUPS; n++) mma_bf16(d[n], a, key[n][2 * k], key[n][2 * k + 1]);
			}
			float one = by[m * 16 + g], two = by[m * 16 + g + 8];
#pragma unroll
			for (int n = 0; n < GROUPS; n++) {
#pragma unroll
				for (int i = 0; i < 4; i++) {
					float v = d[n][i] < 0.f ? 0.f : d[n][i]; // NaN stays
					sum[n][i % 2] = fmaf(i < 2 ? one : two, v, sum[n][i % 2]);
				}
			}
		}
		uint2 mine = make_uint2(0, 0);
#pragma unroll
		for (int n = 0; n < GROUPS; n++) {
#pragma unroll
			for (int i = 0; i < 2; i++)
				for (int by = 4; by < 32; by *= 2) sum[n][i] += __shfl_xor_sync(0xffffffffu, sum[n][i], by);
			if (g == n) mine = make_uint2(score_rank(sum[n][0]), score_rank(sum[n][1]));
		}
		uint32_t best = max(mine.x, mine.y);
		for (int by = 1; by < 4; by *= 2) best = max(best, __shfl_xor_sync(0xffffffffu, best, by));
		if (g < GROUPS) *(uint2 *)(ranks + at + 8 * g + 2 * c) = mine;
		if (g < GROUPS && c == 0) most[at / 8 + g] = best; // behind the last key there are copies of it
	}
}

#define SCORES(name, kind)                                                                                                             \
	KR_KERNEL(SCORE_THREADS, 4)                                                                                                        \
	name(uint32_t *ranks, int pitch, const bf16 *q, int q_stride, const void *weights, int weights_wide, int weights_stride,          \
	     const char *cache, int cache_stride, const int *table, int decode, int first, int heads, int top, int pool, int entries, int block_tokens) { \
		KR_SHARED(unsigned char, shared);                                                                                              \
		index_scores<kind>(shared, ranks, pitch, q, q_stride, weights, weights_wide, weights_stride, cache, cache_stride, table, decode, \
		                   first, heads, top, pool, entries, block_tokens);                                                               \
	}                                                                                                                                  \
	KR_EXPORT(name)
SCORES(kr_index_scores_bf16, BF16_ROWS)
SCORES(kr_index_scores_e4m3, E4M3_ROWS)

// chosen [rows, width]: the positions of the best ranks of a row, rising, of equal ones the first; all positions, with -1
// behind them, of a row that sees no more than top keys (Choices). ranks: as kr_index_scores writes them. Grid (rows). Shared memory, with
// room: positions [KEPT] and pitch / 8 bytes.
KR_KERNEL(TOP_THREADS, 1)
kr_index_top(int *chosen, int chosen_stride, const uint32_t *ranks, int pitch, const int *table, int decode, int first, int top, int pool, int entries,
             int room) {
	KR_SHARED(int, list);
	__shared__ Top shared;
	pdl_launch();
	pdl_wait();
	Span s;
	int row;
	if (!locate(s, row, table, decode, first + blockIdx.x)) return;
	int ctx = s.pos + row - s.row + 1, keys = min(ctx / pool, pitch);
	Choices choices = {chosen + (long long)row * chosen_stride, top, pool, entries};
	if (keys <= top) {
		choices.all(ctx, TOP_THREADS);
		return;
	}
	const Candidates may = {room ? list : nullptr, (uint8_t *)(list + KEPT), ranks + (long long)gridDim.x * pitch + (long long)blockIdx.x * (pitch / 8)};
	each_of_top(shared, ranks + (long long)blockIdx.x * pitch, keys, top, [&](int n, int i) { choices.put(n, i); }, may);
	choices.rest(ctx, TOP_THREADS);
}
KR_EXPORT(kr_index_top)

// to: a table of generated rows, each of which sees the first top positions of its choice, or all positions if there are
// no more. Its blocks are cache rows: a block has one token. The rows are the generated ones of table or, from number first on, those of
// its prompts that see more than least positions. Grid (rows).
KR_KERNEL(256, 1)
kr_sparse_spans(int *to, const int *table, const int *chosen, int chosen_stride, int top, int decode, int first, int least, int block_tokens) {
	pdl_launch();
	pdl_wait();
	int tid = threadIdx.x, i = blockIdx.x, start = 0, items = 0, rows = 0, row;
	Span s;
	for (int r = tid % 32; r < gridDim.x; r += 32) {
		if (!sparse_row(s, row, table, decode, least, first + r)) break;
		int n = items_of(min(s.pos + row - s.row + 1, top));
		rows++, items += n, start += r < i ? n : 0;
	}
	for (int by = 1; by < 32; by *= 2) {
		rows += __shfl_xor_sync(0xffffffffu, rows, by);
		items += __shfl_xor_sync(0xffffffffu, items, by), start += __shfl_xor_sync(0xffffffffu, start, by);
	}
	if (i == 0 && tid < SPAN_HEAD) to[tid] = tid == HEAD_DECODE ? rows : tid == HEAD_ITEMS ? items : 0;
	if (!sparse_row(s, row, table, decode, least, first + i)) return;
	int ctx = s.pos + row - s.row + 1, n = min(ctx, top), blocks = SPAN_HEAD + gridDim.x * SPAN_RECORD + i * top;
	if (tid == 0) {
		uint4 *r = (uint4 *)(to + SPAN_HEAD + i * SPAN_RECORD);
		r[0] = make_uint4(row, 1, n - 1, blocks);
		r[1] = make_uint4(n, (n + KEY_TILE - 1) / KEY_TILE, start, items_of(n));
	}
	chosen += (long long)row * chosen_stride;
	for (int k = tid; k < n; k += 256) {
		int p = ctx > top ? chosen[k] : k;
		to[blocks + k] = (int)span_slot(table, s, p >= 0 && p < ctx ? p : 0, block_tokens);
	}
}
KR_EXPORT(kr_sparse_spans)
