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
	int five;           // of a prompt: its first key among all prompts' keys; of a generated row: tokens an item
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

// Items of decode, numbered through all rows, are shared out in order: share i of shares is
// items share_begin(i)..share_begin(i+1)-1. The products fit 32 bits: items are at most
// ITEMS_MAX a row, shares are at most the multiprocessors.
KR_DEV int share_begin(int items, int shares, int i) { return i * items / shares; }
KR_DEV int share_of(int items, int shares, int item) { return ((item + 1) * shares - 1) / items; }

// A row's items are summed up FOLD at a time, one after the other, and then these groups
// are joined: always in that order, whoever does it. A share's own groups, and what it has
// of one from its first item on, are summed up already where the group's first item would
// be. So many of the n items of a group that begins at item `first` are in its place (0
// shares: none but itself).
KR_DEV int folded(int items, int shares, int first, int n) {
	if (shares == 0) return 1;
	return min(n, share_begin(items, shares, share_of(items, shares, first) + 1) - first);
}
