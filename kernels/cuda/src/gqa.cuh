// Grouped-query attention at head sizes of 64, 128, 256 and 512: the functions that decode and prefill
// share. A cache row has the keys of all key heads, then their values.
#pragma once
#include "mla.cuh" // swizzled rows in shared memory, e4m3 as bf16, how sums are joined

// Bytes per value in the cache.
template <int KIND> struct Element { static const int size = KIND == BF16_ROWS ? 2 : 1; };

// The place of 16-byte unit `unit` of row `row` in shared memory, for rows of ROW bytes. A unit
// of eight neighbouring rows lies in different banks, and so does an aligned quad of units of two
// rows.
template <int ROW> KR_DEV uint32_t place(uint32_t row, uint32_t unit) {
	uint32_t start = ROW >= 128 ? row * ROW : row / 2 * 128; // rows of 64 bytes: two share a line
	return start + ((unit ^ twist(row)) << 4);
}

// Converts four int8 to four bf16, exactly. The low seven bits b of v make 128 + b; then 128 is
// subtracted, or 256 if v is below zero.
KR_DEV void widen_s8(uint32_t w, uint32_t &lo, uint32_t &hi) {
	const uint32_t one = 0x3f803f80;
	uint32_t a = __byte_perm(w, 0x43, 0x4140), b = __byte_perm(w, 0x43, 0x4342);
	lo = fma_bf16x2(and_or<0xff7fff7f, 0>(a), one, and_or<0xff80ff80, 0x80008000>(a));
	hi = fma_bf16x2(and_or<0xff7fff7f, 0>(b), one, and_or<0xff80ff80, 0x80008000>(b));
}

// Converts four 8-bit values to the operands of products: f16 for e4m3, bf16 for int8.
template <int KIND> KR_DEV void widen(uint32_t w, uint32_t &lo, uint32_t &hi) {
	if (KIND == E4M3_ROWS) widen_e4m3_f16(w, lo, hi);
	else widen_s8(w, lo, hi);
}

// Multiplies 16 rows of queries or weights with keys or values of a cache of KIND.
template <int KIND> KR_DEV void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
	if (KIND == E4M3_ROWS) mma_f16(c, a, b0, b1);
	else mma_bf16(c, a, b0, b1);
}

template <int KIND> KR_DEV uint32_t pack(float lo, float hi) { return KIND == E4M3_ROWS ? pack_f16(lo, hi) : pack_bf16(lo, hi); }

// Adds newer sums to older ones with the factors of fold_factors. Only this function joins sums,
// and in one order, so the bits are equal.
KR_DEV float fold(float older, float newer, float2 f) { return fmaf(f.y, newer, older * f.x); }
KR_DEV void fold(float4 &a, const float4 &b, float2 f) {
	a.x = fold(a.x, b.x, f), a.y = fold(a.y, b.y, f), a.z = fold(a.z, b.z, f), a.w = fold(a.w, b.w, f);
}

// Kernels of prompts with a window (WINDOW): a row sees its last `window` keys, and heads may have sinks. Tiles that no
// row of a block sees are left out. A row may see no key of a tile that others see, before it has seen any: its largest
// score is -INFINITY then, and its weights are relative to `base`, so that they are zero.
template <bool WINDOW> KR_DEV float base_of(float most) { return WINDOW && most == -INFINITY ? 0.f : most; }

// The scores of a lane that its row does not see become -INFINITY: those of keys after the row's position or outside its
// window. Every use masks only tiles that have such keys.
template <bool WINDOW> KR_DEV bool unseen(int key, int position, int window) { return key > position || (WINDOW && key <= position - window); }

// Adds a head's sink to the sums of weights: a score that has no value. Each of the four lanes that share a row adds a
// quarter.
template <class State> KR_DEV void add_sink(State &st, float sink, float scale) {
#pragma unroll
	for (int h = 0; h < 2; h++) st.total[h] += 0.25f * exp2_approx(fmaf(st.most[h], -scale, 1.44269504f * sink));
}
