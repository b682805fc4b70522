// The sequences of a batch in device memory: a table of 32-bit words that the host
// writes once a batch (kernels/cuda/spans says what is where).
#pragma once
#include "kr.cuh"

enum { SPAN_HEAD = 8, SPAN_RECORD = 8, KEY_TILE = 64, KEY_ALIGN = 128, ROW_TILE = 128 };
enum { ITEMS_MAX = 128, FOLD = 8 };
enum { HEAD_PREFILL, HEAD_DECODE, HEAD_ITEMS, HEAD_TILES, HEAD_KEYS };

// One sequence's part of the batch.
struct Span {
	int row, len, pos;  // rows row..row+len-1 of the batch are at positions pos..
	int first, blocks;  // its block table in the table
	int five;           // of a prompt: its first key among all prompts' keys; of a generated row: tiles of keys
	int start, count;   // its first tile of rows or item, and how many
};

KR_DEV Span span_at(const int *table, int i) {
	const uint4 *p = (const uint4 *)(table + SPAN_HEAD + i * SPAN_RECORD);
	uint4 a = p[0], b = p[1];
	Span s = {(int)a.x, (int)a.y, (int)a.z, (int)a.w, (int)b.x, (int)b.y, (int)b.z, (int)b.w};
	return s;
}

// The span of records from..to-1 in which work item number i is, by all lanes of a warp
// alike; -1: none.
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

// Items of decode, numbered through all rows, are shared out in order to at most `most`
// blocks, so many to each (the last may have less). Rows of whole groups (folded) are cut
// at their ends, if they are as many as blocks have.
//
// A share that ends in the middle of a group leaves the rest of it to be summed up item by
// item, which costs as much as two items or three: so shares become whole groups where that
// takes so little.
KR_DEV int share_size(int items, int most) {
	int size = (items + most - 1) / most, whole = (size + FOLD - 1) / FOLD * FOLD;
	return whole - size <= 2 ? whole : size;
}

// A row's items are summed up FOLD at a time, one after the other, and then these groups
// are joined: always in that order, whoever does it. What a share has of a group from its
// first item on is summed up already, and in the first item's place. So many of the n
// items of a group that begins at item `first` are there, for shares of `size` (0: nobody
// has summed up anything).
KR_DEV int folded(int first, int n, int size) { return size == 0 ? 1 : min(n, size - first % size); }
