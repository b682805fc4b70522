// Scores of an index over blocks (blockindex.cu) for 1, 2, 4 or 8 heads of 128 values, on tensor cores. The keys are the rows of a
// product. Its columns are the heads of one row of the batch, or of several rows of a prompt, which share the keys.
//
//   best: a head's largest product with a block's tokens
//   sum:  the sum over the heads of a row's products with the block's key, where they are above 0
//
// A score's bits depend on the query and the keys alone.
#include "blockindex.cuh"
#include "indexkey.cuh"

enum { THREADS = 128, WARPS = THREADS / 32, GROUPS = 4, KEYS = 8 * GROUPS };

// Products of KEYS keys with column tile t: d[u] of keys 16u.. .
KR_DEV void multiply(float (&d)[2][4], const uint32_t (&key)[GROUPS][2 * STEPS], const uint2 *queries, int t) {
#pragma unroll
	for (int u = 0; u < 2; u++)
#pragma unroll
		for (int i = 0; i < 4; i++) d[u][i] = 0.f;
#pragma unroll
	for (int k = 0; k < STEPS; k++) {
		uint2 b = queries[(t * STEPS + k) * 32 + threadIdx.x % 32];
#pragma unroll
		for (int u = 0; u < 2; u++) {
			uint32_t a[4] = {key[2 * u][2 * k], key[2 * u + 1][2 * k], key[2 * u][2 * k + 1], key[2 * u + 1][2 * k + 1]};
			mma_bf16(d[u], a, b.x, b.y);
		}
	}
}

// Some rows of a span, whose heads are the columns.
struct Some { Span s; int rows, entries; };

// Writes the largest products of the heads to ranks [rows, heads, pitch]. A warp has a block at a time.
template <int KIND, int TILES>
KR_DEV void best_products(uint32_t *ranks, int pitch, const uint2 *queries, const char *cache, int row_bytes, const int *table, const BlockIndex &x, const Some &rows) {
	int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
	for (int e = blockIdx.x * WARPS + threadIdx.x / 32; e < rows.entries; e += gridDim.x * WARPS) {
		float best[TILES][2];
#pragma unroll
		for (int t = 0; t < TILES; t++) best[t][0] = best[t][1] = -INFINITY;
#pragma unroll 1
		for (int at = 0; at < x.block; at += KEYS) {
			uint32_t key[GROUPS][2 * STEPS];
#pragma unroll
			for (int j = 0; j < GROUPS; j++) // a key may be there twice
				fetch_key<KIND>(key[j], cache + span_slot(table, rows.s, e * x.block + min(at + 8 * j + g, x.block - 1), x.block_tokens) * row_bytes, c);
#pragma unroll
			for (int t = 0; t < TILES; t++) {
				float d[2][4];
				__syncwarp(); // the compiler fetches no queries of a later tile before: it has no registers for them
				multiply(d, key, queries, t);
#pragma unroll
				for (int u = 0; u < 2; u++)
#pragma unroll
					for (int i = 0; i < 4; i++) best[t][i % 2] = best_of(best[t][i % 2], d[u][i]);
			}
		}
#pragma unroll
		for (int t = 0; t < TILES; t++)
#pragma unroll
			for (int i = 0; i < 2; i++) {
#pragma unroll
				for (int by = 4; by < 32; by *= 2) best[t][i] = best_of(best[t][i], __shfl_xor_sync(0xffffffffu, best[t][i], by));
				int column = 8 * t + 2 * c + i; // ranks has the heads of a row after those of the row before
				if (g == t && column < rows.rows * x.heads) ranks[(long long)column * pitch + e] = block_rank(best[t][i]);
			}
	}
}

// Writes the sums of the rows to ranks [rows, pitch]. A warp has KEYS blocks at a time.
template <int KIND, int TILES>
KR_DEV void sums_of_heads(uint32_t *ranks, int pitch, const uint2 *queries, const char *cache, int row_bytes, const int *table, const BlockIndex &x, const Some &rows) {
	int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, lanes = x.heads / 2; // that have the heads of a row
	for (int from = (blockIdx.x * WARPS + threadIdx.x / 32) * KEYS; from < rows.entries; from += gridDim.x * WARPS * KEYS) {
		uint32_t key[GROUPS][2 * STEPS];
#pragma unroll
		for (int j = 0; j < GROUPS; j++)
			fetch_key<KIND>(key[j], cache + span_slot(table, rows.s, (min(from + 8 * j + g, rows.entries - 1) + 1) * x.block - 1, x.block_tokens) * row_bytes, c);
#pragma unroll
		for (int t = 0; t < TILES; t++) {
			float d[2][4];
			multiply(d, key, queries, t);
			int r = (8 * t + 2 * c) / x.heads;
#pragma unroll
			for (int i = 0; i < GROUPS; i++) {
				float a = d[i / 2][i % 2 * 2], b = d[i / 2][i % 2 * 2 + 1];
				float sum = (a < 0.f ? 0.f : a) + (b < 0.f ? 0.f : b); // NaN stays
				for (int by = 1; by < lanes; by *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
				int e = from + 8 * i + g;
				if (i % lanes == c % lanes && r < rows.rows && e < rows.entries) ranks[(long long)r * pitch + e] = block_rank(sum);
			}
		}
	}
}

// ranks [rows, lists, pitch] of the entries of `count` rows from row first on. A block has one generated row at a time, or as many rows of
// prompts as TILES * 8 columns have room for. Rows that choose all have none. Grid (shares of the entries, rows).
template <int KIND, bool BEST, int TILES>
KR_DEV void block_scores(unsigned char *shared, uint32_t *ranks, int pitch, const bf16 *q, int q_stride, const char *cache, int cache_stride, const int *table, int decode,
                         int first, int count, const BlockIndex &x) {
	pdl_launch();
	pdl_wait();
	uint2 *queries = (uint2 *)shared; // right operands [TILES][STEPS][32]
	int each = decode ? 1 : 8 * TILES / x.heads, from = blockIdx.y * each, to = min(from + each, count);
	while (from < to) {
		Some rows;
		int row;
		if (!locate(rows.s, row, table, decode, first + from)) {
			from++;
			continue;
		}
		rows.rows = min(to - from, rows.s.row + rows.s.len - row);
		rows.entries = min(x.sees(rows.s.pos + row - rows.s.row + rows.rows - 1), pitch);
		int at = from * (BEST ? x.heads : 1);
		from += rows.rows;
		if (rows.entries <= x.top()) continue;
		__syncthreads(); // the queries before have been read
		for (int i = threadIdx.x; i < TILES * STEPS * 32; i += THREADS) {
			int lane = i % 32, step = i / 32 % STEPS, column = i / (32 * STEPS) * 8 + lane / 4, r = column / x.heads;
			const bf16 *head = q + (long long)(row + r) * q_stride + column % x.heads * INDEX_DIM;
			uint2 v = make_uint2(0, 0);
			if (r < rows.rows)
				v = make_uint2(*(const uint32_t *)(head + index_column<KIND>(step, lane % 4, 0)), *(const uint32_t *)(head + index_column<KIND>(step, lane % 4, 1)));
			queries[i] = v;
		}
		__syncthreads();
		uint32_t *mine = ranks + (long long)at * pitch;
		int row_bytes = cache_stride * (KIND == E4M3_ROWS ? 1 : 2);
		if (BEST) best_products<KIND, TILES>(mine, pitch, queries, cache, row_bytes, table, x, rows);
		else sums_of_heads<KIND, TILES>(mine, pitch, queries, cache, row_bytes, table, x, rows);
	}
}

#define SCORES(name, kind, best, tiles)                                                                                                  \
	KR_KERNEL(THREADS, tiles > 1 ? 2 : 4)                                                                                                                \
	name(uint32_t *ranks, int pitch, const bf16 *q, int q_stride, const char *cache, int cache_stride, const int *table, int decode,    \
	     int first, int count, int heads, int block, int chosen, int local, int block_tokens) {                                          \
		KR_SHARED(unsigned char, shared);                                                                                                  \
		BlockIndex x = {heads, INDEX_DIM, block, chosen, local, block_tokens};                                                              \
		block_scores<kind, best, tiles>(shared, ranks, pitch, q, q_stride, cache, cache_stride, table, decode, first, count, x);            \
	}                                                                                                                                      \
	KR_EXPORT(name)
SCORES(kr_block_best1_bf16, BF16_ROWS, true, 1)
SCORES(kr_block_best8_bf16, BF16_ROWS, true, 8)
SCORES(kr_block_best1_e4m3, E4M3_ROWS, true, 1)
SCORES(kr_block_best8_e4m3, E4M3_ROWS, true, 8)
SCORES(kr_block_sum1_bf16, BF16_ROWS, false, 1)
SCORES(kr_block_sum8_bf16, BF16_ROWS, false, 8)
SCORES(kr_block_sum1_e4m3, E4M3_ROWS, false, 1)
SCORES(kr_block_sum8_e4m3, E4M3_ROWS, false, 8)
