// The sequences of a batch in device memory: a table of 32-bit words that the host
// writes once a batch (kernels/cuda/spans says what is where).
#pragma once
#include "kr.cuh"

enum { SPAN_HEAD = 8, SPAN_RECORD = 8, KEY_TILE = 64, KEY_ALIGN = 128, ROW_TILE = 128 };
enum { ITEMS_MAX = 128, FOLD = 8 };
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
