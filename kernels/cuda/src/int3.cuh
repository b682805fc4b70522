// INT3 weights (kernels/tensor/integergpu.go) as the A operand of a matrix instruction. A word has
// the codes of 8 weights, each in a nibble: the selectors of two byte permutations, which look 4
// weights up in a table of 8 bytes.
#pragma once
#include "kr.cuh"

// The low bytes of the bfloat16 numbers INT3_OFFSET + weight, by code; their high byte is 0x42.
// All of these numbers are between 32 and 60, so both bytes are exact.
enum : uint32_t { INT3_LOW = 0x705c4c40, INT3_HIGH = 0x34281800 };
#define INT3_OFFSET 48

// Four bytes of lo and hi, by the low nibbles of codes. (__byte_perm would mask them again.)
KR_DEV uint32_t lookup8(uint32_t lo, uint32_t hi, uint32_t codes) {
#ifdef KR_EMU
	return __byte_perm(lo, hi, codes);
#else
	uint32_t r;
	asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(lo), "r"(hi), "r"(codes));
	return r;
#endif
}

// The A operand of step 0..3 of a tile, from a lane's three words: exact numbers, too large by
// INT3_OFFSET.
KR_DEV void unpack3(uint32_t (&a)[4], uint32_t w0, uint32_t w1, uint32_t w2, int step) {
	uint32_t codes = (step == 0 ? w0 : step == 1 ? w1 : w2) & 0x77777777;
	if (step == 3) codes = (w0 >> 3 & 0x11111111) | (w1 >> 2 & 0x22222222) | (w2 >> 1 & 0x44444444);
#pragma unroll
	for (int i = 0; i < 2; i++) {
		uint32_t v = lookup8(INT3_LOW, INT3_HIGH, codes >> (16 * i));
		a[2 * i] = and_or<0x00ff00ff, 0x42004200>(v);
		a[2 * i + 1] = __byte_perm(v, 0x42424242, 0x4341);
	}
}

// A lane's part of a tile: words 0 and 1 at p, word 2 at `third` bytes from there.
KR_DEV uint4 load3(const uint8_t *p, int third) {
	uint2 v = __ldcs(reinterpret_cast<const uint2 *>(p));
	return make_uint4(v.x, v.y, __ldcs(reinterpret_cast<const uint32_t *>(p + third)), 0);
}
