// Rows of a batch in kernels that take one row with each block.
#pragma once
#include "latent.cuh"

// Finds the batch's row of this block, and its span. Returns false if it is in none of this
// list's spans.
KR_DEV bool find_row(Span &s, const int *table, int decode, int row) {
	int prompts = table[HEAD_PREFILL], lane = threadIdx.x % 32;
	int from = decode ? prompts : 0, to = decode ? prompts + table[HEAD_DECODE] : prompts;
	for (int at = from; at < to; at += 32) {
		bool mine = false;
		if (at + lane < to) {
			const int *r = table + SPAN_HEAD + (at + lane) * SPAN_RECORD;
			mine = row >= r[0] && row < r[0] + r[1];
		}
		unsigned hit = __ballot_sync(0xffffffffu, mine);
		if (hit) {
			s = span_at(table, at + __ffs(hit) - 1);
			return true;
		}
	}
	return false;
}

// Rises with a score; what is not a number has the least. Both zeros are equal.
KR_DEV uint32_t score_rank(float v) {
	if (v != v) return 0u;
	if (v == 0.f) return 0x80000000u;
	uint32_t b = __float_as_uint(v);
	return b >> 31 ? ~b : b | 0x80000000u;
}

// The cache's row of entry e of ratio tokens (kernels/device.EntrySlot).
KR_DEV long long entry_slot(const int *table, const Span &s, int e, int ratio, int block_tokens) {
	int pos = (e + 1) * ratio - 1, b = pos / block_tokens;
	return (long long)table[s.first + b] * ((block_tokens + ratio - 1) / ratio) + (pos - b * block_tokens) / ratio;
}

// A row's choice of top keys (kernels/device.Index). A key is of pool positions, and chosen are these positions, with those behind the
// last whole pool, or with entries the keys' numbers.
struct Choices {
	int *to;
	int top, pool, entries;

	// The cache's row of key i.
	__device__ __forceinline__ long long slot(const int *table, const Span &s, int i, int block_tokens) const {
		return entries ? entry_slot(table, s, i, pool, block_tokens) : span_slot(table, s, (i + 1) * pool - 1, block_tokens);
	}
	// The n-th key that is chosen is i.
	__device__ __forceinline__ void put(int n, int i) const {
		if (entries) to[n] = i;
		else
			for (int j = 0; j < pool; j++) to[n * pool + j] = i * pool + j;
	}
	// The choice of a row that sees ctx positions and no more than top keys. All of `threads` threads call it, as they do rest.
	__device__ __forceinline__ void all(int ctx, int threads) const {
		int width = entries ? top : (top + 1) * pool - 1, n = entries ? ctx / pool : ctx;
		for (int i = threadIdx.x; i < width; i += threads) to[i] = i < n ? i : -1;
	}
	// What is chosen behind the top keys.
	__device__ __forceinline__ void rest(int ctx, int threads) const {
		for (int j = threadIdx.x; !entries && j < pool - 1; j += threads) to[top * pool + j] = j < ctx % pool ? ctx / pool * pool + j : -1;
	}
};

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
