// Latent attention at DeepSeek's sizes (V2, V2-Lite, V3, R1, Kimi-K2 all have these).
#pragma once
#include "latent.cuh"

enum {
	NOPE = 128, ROPE = 64, QK = NOPE + ROPE, VDIM = 128, RANK = 512,
	WIDTH = RANK + ROPE,    // of a cache row
	EXPANDED = NOPE + VDIM, // rows of kv_b per head
};

// In shared memory a row consists of units of 16 bytes, and row r has unit u at u ^ twist(r). For
// rows of 128 bytes or a multiple, all units of eight neighbouring rows then lie in different
// banks, and so do the halves of a unit quad of two neighbouring rows.
KR_DEV uint32_t twist(uint32_t r) { return (r & 1) << 2 | (r >> 1 & 3); }
KR_DEV uint32_t unit_at(uint32_t row, uint32_t unit, uint32_t row_bytes) { return row * row_bytes + ((unit ^ twist(row)) << 4); }

KR_DEV uint4 lds16(const unsigned char *shared, uint32_t at) { return *reinterpret_cast<const uint4 *>(shared + at); }

// Converts four e4m3 to four bf16, exactly. The seven bits move to the place of bf16's exponent
// and fraction, and 2^120 corrects the exponent bias, also for numbers below 2^-6.
KR_DEV void widen_e4m3(uint32_t w, uint32_t &lo, uint32_t &hi) {
	const uint32_t up = 0x7b807b80; // 2^120 twice
	uint32_t a = __byte_perm(w, 0, 0x1404), b = __byte_perm(w, 0, 0x3424);
	lo = fma_bf16x2((a & 0x80008000) | (a >> 4 & 0x07f007f0), up, 0x80008000);
	hi = fma_bf16x2((b & 0x80008000) | (b >> 4 & 0x07f007f0), up, 0x80008000);
}
// Four int8 times a scale, as bf16.
KR_DEV void widen_i8(uint32_t w, float scale, uint32_t &lo, uint32_t &hi) {
	int v = (int)w;
	lo = pack_bf16((float)(v << 24 >> 24) * scale, (float)(v << 16 >> 24) * scale);
	hi = pack_bf16((float)(v << 8 >> 24) * scale, (float)(v >> 24) * scale);
}

// The factors with which two sums of weights times latents are added: x for the older, y for the
// newer. most is on entry the older's largest score, then that of both.
KR_DEV float2 fold_factors(float &most, float newer) {
	float m = fmaxf(most, newer);
	float2 f = make_float2(exp2_approx(most - m), exp2_approx(newer - m));
	most = m;
	return f;
}

// The order of latent queries in memory is that of the left operands of attention's products: by
// row, by HEADS heads, by PRODUCTS products, by the 32 lanes. Lane 4g+c has four pairs of
// columns, of heads g, g+8, g, g+8. A product's columns are neighbours in a lane, because keys
// are read 16 bytes at a time. Of bf16 keys, lane 4g+c has columns 8c..8c+7 of every 32, for two
// products; of e4m3 (half: queries are f16) columns 16c..16c+15 of every 64, for four. This
// function returns the place, in pairs, of column col (even) of a head in its row.
enum { HEADS = 16, PRODUCTS = WIDTH / 16, QUERY_PAIRS = HEADS * WIDTH / 2 };
KR_DEV int query_at(int head, int col, int half) {
	int product = half ? col / 64 * 4 + col % 16 / 4 : col / 32 * 2 + col % 8 / 4;
	int c = half ? col % 64 / 16 : col % 32 / 8;
	return head / HEADS * QUERY_PAIRS + product * 128 + (head % 8 * 4 + c) * 4 + col % 4 / 2 * 2 + head / 8 % 2;
}
// The distance from the first of eight columns, which begin at a multiple of eight, to their pair
// i.
KR_DEV int query_pair(int i) { return i / 2 * 128 + i % 2 * 2; }
