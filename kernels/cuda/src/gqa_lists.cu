// What attention over lists of positions (kernels/device.GQA, Lists) reads: tables of spans in which a row's blocks are the
// cache rows of its list.
#include "rows.cuh"

enum { THREADS = 256, WARPS = THREADS / 32 };

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
// see more than least positions. Grid (rows, lists).
KR_KERNEL(THREADS, 1)
kr_list_spans(int *to, int step, const int *table, const int *chosen, int chosen_stride, int width, int decode, int first, int least, int block_tokens) {
	__shared__ int rows[WARPS], items[WARPS], before[WARPS], mine;
	pdl_launch();
	pdl_wait();
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, i = blockIdx.x, list = blockIdx.y, row, some = 0, all = 0, start = 0;
	Span s;
	to += (long long)list * step;
	for (int r = warp; r < gridDim.x && sparse_row(s, row, table, decode, least, first + r); r += WARPS) {
		int n = listed(chosen + (long long)row * chosen_stride + list * width, width), parts = items_of(max(n, 1));
		some++, all += parts, start += r < i ? parts : 0;
		if (r == i && lane == 0) mine = n;
	}
	if (lane == 0) rows[warp] = some, items[warp] = all, before[warp] = start;
	__syncthreads();
	some = all = start = 0;
	for (int w = 0; w < WARPS; w++) some += rows[w], all += items[w], start += before[w];
	if (i == 0 && threadIdx.x < SPAN_HEAD) to[threadIdx.x] = threadIdx.x == HEAD_DECODE ? some : threadIdx.x == HEAD_ITEMS ? all : 0;
	if (!sparse_row(s, row, table, decode, least, first + i)) return;
	int n = max(mine, 1), context = s.pos + row - s.row + 1, blocks = SPAN_HEAD + gridDim.x * SPAN_RECORD + i * width;
	if (threadIdx.x == 0) {
		uint4 *r = (uint4 *)(to + SPAN_HEAD + i * SPAN_RECORD);
		r[0] = make_uint4(row, 1, n - 1, blocks);
		r[1] = make_uint4(n, (n + KEY_TILE - 1) / KEY_TILE, start, items_of(n));
	}
	chosen += (long long)row * chosen_stride + list * width;
	for (int k = threadIdx.x; k < n; k += THREADS) {
		int p = chosen[k];
		to[blocks + k] = (int)span_slot(table, s, p >= 0 && p < context ? p : 0, block_tokens);
	}
}
KR_EXPORT(kr_list_spans)
