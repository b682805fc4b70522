// The choice of a sparse indexer (kernels/device.Index) for heads of 128 values, and what attention reads of it.
//
//   scores: the scores of a row's keys, on tensor cores, as numbers that rise with them
//   top:    the positions of the best of a row, by their digits
//   spans:  a table of spans in which a row's blocks are the cache rows of its choice
//
// A score's bits depend on the query and the key alone.
#include "mla.cuh"
#include "rows.cuh"

enum { INDEX_DIM = 128, STEPS = INDEX_DIM / 16, GROUPS = 4, SCORE_KEYS = 8 * GROUPS, SCORE_THREADS = 128, SCORE_WARPS = SCORE_THREADS / 32 };

// Row i of the prompts, which is row i of the batch, or generated row i. False: it is none of them.
KR_DEV bool locate(Span &s, int &row, const int *table, int decode, int i) {
	if (!decode) {
		row = i;
		return find_row(s, table, 0, i);
	}
	if (i >= table[HEAD_DECODE]) return false;
	s = span_at(table, table[HEAD_PREFILL] + i);
	row = s.row;
	return true;
}

// The first of two columns that lane 4g+c has in half r of product `step`. A lane reads 16 bytes of a key at a
// time, which serve two products (bf16) or four (e4m3).
template <int KIND> KR_DEV int index_column(int step, int c, int r) {
	return KIND == E4M3_ROWS ? 16 * (c + step / 4 * 4) + step % 4 * 4 + 2 * r : 8 * (c + step / 2 * 4) + step % 2 * 4 + 2 * r;
}

// This lane's part of a key, as right operands of all products.
template <int KIND> KR_DEV void fetch_key(uint32_t (&key)[2 * STEPS], const char *from, int c) {
	const int units = KIND == E4M3_ROWS ? 2 : 4;
	uint4 v[units];
#pragma unroll
	for (int j = 0; j < units; j++) v[j] = *(const uint4 *)(from + 16 * (c + 4 * j));
#pragma unroll
	for (int j = 0; j < units; j++) {
		uint32_t in[4] = {v[j].x, v[j].y, v[j].z, v[j].w};
#pragma unroll
		for (int i = 0; i < 4; i++) {
			if (KIND == E4M3_ROWS) widen_e4m3(in[i], key[8 * j + 2 * i], key[8 * j + 2 * i + 1]);
			else key[4 * j + i] = in[i];
		}
	}
}

// ranks [rows, pitch] of the keys of rows first.. : a warp has SCORE_KEYS keys at a time, with all heads. heads: a
// multiple of 16. Rows that see no more than top have none. Grid (shares of the keys, rows).
template <int KIND>
KR_DEV void index_scores(unsigned char *shared, uint32_t *ranks, int pitch, const bf16 *q, int q_stride, const void *weights, int weights_wide, int weights_stride,
                         const char *cache, int cache_stride, const int *table, int decode, int first, int heads, int top, int pool, int block_tokens) {
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
	q += (long long)row * q_stride;
	for (int i = tid; i < heads * 2 * STEPS; i += SCORE_THREADS) {
		int step = i / 32 % STEPS, head = i / (32 * STEPS) * 16 + i % 32 / 4;
		const bf16 *one = q + head * INDEX_DIM, *two = one + 8 * INDEX_DIM;
		int lo = index_column<KIND>(step, i % 4, 0), hi = index_column<KIND>(step, i % 4, 1);
		queries[i] = make_uint4(*(const uint32_t *)(one + lo), *(const uint32_t *)(two + lo), *(const uint32_t *)(one + hi), *(const uint32_t *)(two + hi));
	}
	for (int i = tid; i < heads; i += SCORE_THREADS) by[i] = get(weights, weights_wide, (long long)row * weights_stride + i);
	__syncthreads();
	ranks += (long long)blockIdx.y * pitch;
	const int size = KIND == E4M3_ROWS ? 1 : 2;
#pragma unroll 1
	for (int at = (blockIdx.x * SCORE_WARPS + warp) * SCORE_KEYS; at < keys; at += gridDim.x * SCORE_WARPS * SCORE_KEYS) {
		uint32_t key[GROUPS][2 * STEPS];
#pragma unroll
		for (int n = 0; n < GROUPS; n++)
			fetch_key<KIND>(key[n], cache + span_slot(table, s, (min(at + 8 * n + g, keys - 1) + 1) * pool - 1, block_tokens) * cache_stride * size, c);
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
		if (g < GROUPS) *(uint2 *)(ranks + at + 8 * g + 2 * c) = mine;
	}
}

#define SCORES(name, kind)                                                                                                             \
	KR_KERNEL(SCORE_THREADS, 4)                                                                                                        \
	name(uint32_t *ranks, int pitch, const bf16 *q, int q_stride, const void *weights, int weights_wide, int weights_stride,          \
	     const char *cache, int cache_stride, const int *table, int decode, int first, int heads, int top, int pool, int block_tokens) { \
		KR_SHARED(unsigned char, shared);                                                                                              \
		index_scores<kind>(shared, ranks, pitch, q, q_stride, weights, weights_wide, weights_stride, cache, cache_stride, table, decode, \
		                   first, heads, top, pool, block_tokens);                                                                        \
	}                                                                                                                                  \
	KR_EXPORT(name)
SCORES(kr_index_scores_bf16, BF16_ROWS)
SCORES(kr_index_scores_e4m3, E4M3_ROWS)

enum { TOP_THREADS = 1024, TOP_WARPS = TOP_THREADS / 32, DIGIT = 2 * TOP_THREADS, DIGITS = 3, EACH = 4, STRIDE = 32 * EACH };

// EACH ranks from position p on. There is room for them.
KR_DEV void fetch_ranks(uint32_t (&k)[EACH], const uint32_t *ranks, int p) {
	uint4 v = *(const uint4 *)(ranks + p);
	k[0] = v.x, k[1] = v.y, k[2] = v.z, k[3] = v.w;
}

// chosen [rows, width]: the positions of the best ranks of a row, rising, of equal ones the first; all positions, with -1
// behind them, of a row that sees no more than top keys (Choices). The least rank that is chosen is found digit by digit. Then each warp counts
// and writes what it chooses of a part of the positions. Grid (rows).
KR_KERNEL(TOP_THREADS, 1)
kr_index_top(int *chosen, int chosen_stride, const uint32_t *ranks, int pitch, const int *table, int decode, int first, int top, int pool, int entries) {
	__shared__ int counts[DIGIT], above[TOP_WARPS], equal[TOP_WARPS], state[2]; // state: digit, how many of the equal ones
	pdl_launch();
	pdl_wait();
	int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
	Span s;
	int row;
	if (!locate(s, row, table, decode, first + blockIdx.x)) return;
	int ctx = s.pos + row - s.row + 1, keys = min(ctx / pool, pitch);
	Choices choices = {chosen + (long long)row * chosen_stride, top, pool, entries};
	ranks += (long long)blockIdx.x * pitch;
	if (keys <= top) {
		choices.all(ctx, TOP_THREADS);
		return;
	}
	const int shift[DIGITS] = {21, 10, 0}, most[DIGITS] = {2047, 2047, 1023};
	uint32_t found = 0u, mask = 0u, k[EACH];
	int left = top;
#pragma unroll 1
	for (int d = 0; d < DIGITS; d++) {
		counts[tid] = counts[tid + TOP_THREADS] = 0;
		__syncthreads();
		for (int p = EACH * tid; p < keys; p += EACH * TOP_THREADS) {
			fetch_ranks(k, ranks, p);
#pragma unroll
			for (int i = 0; i < EACH; i++)
				if (p + i < keys && (k[i] & mask) == found) atomicAdd(&counts[k[i] >> shift[d] & most[d]], 1);
		}
		__syncthreads();
		int high = DIGIT - 1 - 2 * tid, a = counts[high], b = counts[high - 1], sum = a + b; // the threads go down
		for (int by = 1; by < 32; by *= 2) {
			int v = __shfl_up_sync(0xffffffffu, sum, by);
			if (lane >= by) sum += v;
		}
		if (lane == 31) above[warp] = sum;
		__syncthreads();
		int before = sum - a - b;
		for (int w = 0; w < warp; w++) before += above[w];
		if (before < left && before + a + b >= left) {
			bool second = before + a < left;
			state[0] = second ? high - 1 : high, state[1] = left - before - (second ? a : 0);
		}
		__syncthreads();
		found |= (uint32_t)state[0] << shift[d], mask |= (uint32_t)most[d] << shift[d], left = state[1];
	}
	int part = (keys + TOP_WARPS * STRIDE - 1) / (TOP_WARPS * STRIDE) * STRIDE, from = warp * part, to = min(from + part, keys);
	int up = 0, same = 0;
	for (int p = from + EACH * lane; p < to; p += STRIDE) {
		fetch_ranks(k, ranks, p);
#pragma unroll
		for (int i = 0; i < EACH; i++) up += p + i < to && k[i] > found, same += p + i < to && k[i] == found;
	}
	for (int by = 1; by < 32; by *= 2) up += __shfl_xor_sync(0xffffffffu, up, by), same += __shfl_xor_sync(0xffffffffu, same, by);
	__syncthreads(); // no warp still reads above
	if (lane == 0) above[warp] = up, equal[warp] = same;
	__syncthreads();
	up = same = 0; // now of the positions before
	for (int w = 0; w < warp; w++) up += above[w], same += equal[w];
	for (int p = from; p < to; p += STRIDE) {
		int at = p + EACH * lane, mine = 0; // above in the low half, equal in the high one
		k[0] = k[1] = k[2] = k[3] = 0u;
		if (at < to) fetch_ranks(k, ranks, at);
#pragma unroll
		for (int i = 0; i < EACH; i++) mine += at + i >= to ? 0 : k[i] > found ? 1 : k[i] == found ? 1 << 16 : 0;
		int sum = mine;
		for (int by = 1; by < 32; by *= 2) {
			int v = __shfl_up_sync(0xffffffffu, sum, by);
			if (lane >= by) sum += v;
		}
		int a = up + ((sum - mine) & 0xffff), e = same + ((sum - mine) >> 16);
#pragma unroll
		for (int i = 0; i < EACH; i++) {
			if (at + i >= to || k[i] < found) continue;
			if (k[i] > found) choices.put(a++ + min(e, left), at + i);
			else if (e++ < left) choices.put(a + e - 1, at + i);
		}
		sum = __shfl_sync(0xffffffffu, sum, 31);
		up += sum & 0xffff, same += sum >> 16;
	}
	choices.rest(ctx, TOP_THREADS);
}
KR_EXPORT(kr_index_top)

// The number of items of n keys (kernels/cuda/spans, Items).
KR_DEV int items_of(int n) {
	int tiles = (n + KEY_TILE - 1) / KEY_TILE;
	return tiles < FOLD ? tiles : min((int)ITEMS_MAX, tiles / FOLD * FOLD);
}

// Row i of those that kr_sparse_spans takes. False: there is none.
KR_DEV bool sparse_row(Span &s, int &row, const int *table, int decode, int least, int i) {
	if (decode) return locate(s, row, table, 1, i);
	for (int p = 0, prompts = table[HEAD_PREFILL]; p < prompts; p++) {
		s = span_at(table, p);
		int before = min(max(least - s.pos, 0), s.len);
		row = s.row + before + i;
		if (i < s.len - before) return true;
		i -= s.len - before;
	}
	return false;
}

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
