// What attention over lists of positions (kernels/device.GQA, Lists) reads: tables of spans in which a row's blocks are the
// cache rows of its list.
#include "rows.cuh"

enum { THREADS = 256, WARPS = THREADS / 32 };

// The number of rows that sparse_row finds.
KR_DEV int sparse_rows(const int *table, int decode, int least) {
	if (decode) return table[HEAD_DECODE];
	int rows = 0;
	for (int p = 0, prompts = table[HEAD_PREFILL]; p < prompts; p++) {
		Span s = span_at(table, p);
		rows += s.len - min(max(least - s.pos, 0), s.len);
	}
	return rows;
}

// The number of positions of a list of n, behind which it has -1. All lanes of a warp get the same.
KR_DEV int listed(const int *list, int n) {
	int from = 0, to = n; // the answer is one of these or between them
	while (from < to) {
		int step = (to - from + 31) / 32, at = from + threadIdx.x % 32 * step;
		int some = __popc(__ballot_sync(0xffffffffu, at < to && list[at] >= 0));
		if (some == 0) return from;
		int last = from + (some - 1) * step; // is there
		to = min(last + step, to), from = last + 1;
	}
	return from;
}

// to: for each list a table of generated rows, `step` words after the one before, each row of which sees the positions of its list.
// A block of them has one token. The rows are the generated ones of table or, from number first on, those of its prompts that
// see more than least positions. one: a row is one item. Grid (rows, lists).
KR_KERNEL(THREADS, 1)
kr_list_spans(int *to, int step, const int *table, const int *chosen, int chosen_stride, int width, int decode, int first, int least, int one, int block_tokens) {
	__shared__ int items[WARPS], before[WARPS], mine;
	pdl_launch();
	pdl_wait();
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, i = blockIdx.x, list = blockIdx.y, row, all = 0, start = 0;
	int rows = min((int)gridDim.x, sparse_rows(table, decode, least) - first);
	Span s;
	to += (long long)list * step;
	for (int r = one ? i + warp * rows : warp; r < rows; r += WARPS) { // the first warp alone if a row is an item
		sparse_row(s, row, table, decode, least, first + r);
		int n = listed(chosen + (long long)row * chosen_stride + list * width, width), parts = items_of(max(n, 1));
		all += parts, start += r < i ? parts : 0;
		if (r == i && lane == 0) mine = n;
		if (one) break;
	}
	if (lane == 0) items[warp] = all, before[warp] = start;
	__syncthreads();
	all = start = 0;
	for (int w = 0; w < WARPS; w++) all += items[w], start += before[w];
	if (one) all = rows, start = i;
	if (i == 0 && threadIdx.x < SPAN_HEAD) to[threadIdx.x] = threadIdx.x == HEAD_DECODE ? rows : threadIdx.x == HEAD_ITEMS ? all : 0;
	if (i >= rows) return;
	sparse_row(s, row, table, decode, least, first + i);
	int n = max(mine, 1), context = s.pos + row - s.row + 1, blocks = SPAN_HEAD + gridDim.x * SPAN_RECORD + i * width;
	if (threadIdx.x == 0) {
		uint4 *r = (uint4 *)(to + SPAN_HEAD + i * SPAN_RECORD);
		r[0] = make_uint4(row, 1, n - 1, blocks);
		r[1] = make_uint4(n, (n + KEY_TILE - 1) / KEY_TILE, start, one ? 1 : items_of(n));
	}
	chosen += (long long)row * chosen_stride + list * width;
	for (int k = threadIdx.x; k < n; k += THREADS) {
		int p = chosen[k];
		to[blocks + k] = (int)span_slot(table, s, p >= 0 && p < context ? p : 0, block_tokens);
	}
}
KR_EXPORT(kr_list_spans)
