// The sequences of a batch in device memory: a table of 32-bit words that the host
// writes once a batch (kernels/cuda/spans says what is where).
#pragma once
#include "kr.cuh"

enum { SPAN_HEAD = 8, SPAN_RECORD = 8, KEY_TILE = 64, KEY_ALIGN = 128, ROW_TILE = 128 };
enum { ITEMS_MAX = 128, FOLD = 8, ONE_ITEM = 512 };
enum { HEAD_PREFILL, HEAD_DECODE, HEAD_ITEMS, HEAD_TILES, HEAD_KEYS };

// One sequence's part of the batch.
struct Span {
	int row, len, pos;  // rows row..row+len-1 of the batch have positions pos..
	int first, blocks;  // the place of its block table in the table
	int five;           // of a prompt: its first key among all prompts' keys; of a generated row: the number of tiles of keys
	int start, count;   // its first tile of rows or item, and their number
};

KR_DEV Span span_at(const int *table, int i) {
	const uint4 *p = (const uint4 *)(table + SPAN_HEAD + i * SPAN_RECORD);
	uint4 a = p[0], b = p[1];
	Span s = {(int)a.x, (int)a.y, (int)a.z, (int)a.w, (int)b.x, (int)b.y, (int)b.z, (int)b.w};
	return s;
}

// The span of records from..to-1 that has work item number i; all lanes of a warp get the same.
// -1: none.
KR_DEV int span_of_item(const int *table, int from, int to, int i) {
	int lane = threadIdx.x % 32;
	for (int at = from; at < to; at += 32) {
		bool mine = false;
		if (at + lane < to) {
			const int *r = table + SPAN_HEAD + (at + lane) * SPAN_RECORD;
			int start = r[6];
			mine = i >= start && i < start + r[7];
		}
		unsigned hit = __ballot_sync(0xffffffffu, mine);
		if (hit) return at + __ffs(hit) - 1;
	}
	return -1;
}

// The cache's row of position p.
KR_DEV long long span_slot(const int *table, const Span &s, int p, int block_tokens) {
	int b = p / block_tokens;
	return (long long)table[s.first + b] * block_tokens + (p - b * block_tokens);
}

// --- windows: a generated row sees its last `window` keys (0: all). Only these keys have tiles and items.

// The first key that the row at the end of s sees.
KR_DEV int first_seen(const Span &s, int window) { return window > 0 ? max(s.pos + s.len - window, 0) : 0; }

// A generated row's tiles and items within a window. Rows of a short window have one item.
KR_DEV void look_through(Span &s, int window) {
	if (window <= 0) return;
	int t = (s.pos + s.len - 1) / KEY_TILE - first_seen(s, window) / KEY_TILE + 1;
	s.five = t, s.count = window <= ONE_ITEM ? 1 : t < FOLD ? t : min((int)ITEMS_MAX, t / FOLD * FOLD);
}

// The record of a generated row; prompts: the number of prompts. The caller sets start of a window.
KR_DEV Span row_at(const int *table, int prompts, int row, int window) {
	Span s = span_at(table, prompts + row);
	look_through(s, window);
	return s;
}

// The number of items of the generated rows before `row` within a window. All lanes of a warp get the same.
KR_DEV int items_before(const int *table, int prompts, int row, int window) {
	if (window <= ONE_ITEM) return row;
	int n = 0;
	for (int r = threadIdx.x % 32; r < row; r += 32) n += row_at(table, prompts, r, window).count;
#pragma unroll
	for (int d = 1; d < 32; d *= 2) n += __shfl_xor_sync(0xffffffffu, n, d);
	return n;
}

// The generated row that has item i, and its span; -1: none. All lanes of a warp get the same.
KR_DEV int row_of_item(Span &s, const int *table, int i, int window) {
	int prompts = table[HEAD_PREFILL], rows = table[HEAD_DECODE];
	if (window <= 0) {
		int found = span_of_item(table, prompts, prompts + rows, i);
		if (found < 0) return -1;
		s = span_at(table, found);
		return found - prompts;
	}
	for (int at = 0, before = 0; at < rows; at += 32) {
		int lane = threadIdx.x % 32, n = at + lane < rows ? row_at(table, prompts, at + lane, window).count : 0, sum = n;
#pragma unroll
		for (int d = 1; d < 32; d *= 2) {
			int v = __shfl_up_sync(0xffffffffu, sum, d);
			if (lane >= d) sum += v;
		}
		sum += before;
		unsigned hit = __ballot_sync(0xffffffffu, i < sum);
		before = __shfl_sync(0xffffffffu, sum, 31);
		if (!hit) continue;
		int first = __ffs(hit) - 1, start = __shfl_sync(0xffffffffu, sum - n, first);
		s = row_at(table, prompts, at + first, window);
		s.start = start;
		return at + first;
	}
	return -1;
}

// The items of decode, numbered through all rows, are distributed in order over at most `most`
// blocks. Each block gets the same number, except that the last may have fewer. Rows of whole
// groups (folded) are cut at the ends of groups, if there are as many groups as blocks.
//
// If a share ends in the middle of a group, the rest of the group has to be added item by item,
// which costs as much as two items or three. So shares become whole groups if that takes so
// little.
KR_DEV int share_size(int items, int most) {
	int size = (items + most - 1) / most, whole = (size + FOLD - 1) / FOLD * FOLD;
	return whole - size <= 2 ? whole : size;
}

// The items of a row are added FOLD at a time, one after the other, and then these groups are
// added. The order is the same in every kernel. A share's part of a group, from the share's first
// item on, is already added, and is in the first item's place. Returns how many of the n items of
// a group that begins at item `first` have sums of their own, for shares of `size` (0: no items
// were added).
KR_DEV int folded(int first, int n, int size) { return size == 0 ? 1 : min(n, size - first % size); }
