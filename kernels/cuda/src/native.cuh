// Weights that are blocks of a file (kernels/tensor/blocks.go), as a CPU's bands have them: the bits
// of 16 rows in lines of 64 bytes, of which each row has 4. kernels/tensor says for every encoding
// what a line is. So a host's copy of an expert is a GPU's, to the byte.
//
// A thread has a part of 4 rows by 8 columns: rows 4q..4q+3 of a band, and columns 8c..8c+7 of a
// group of 32. It loads 16 bytes of a line at a time, 4 of each of its rows. Each encoding is a
// struct here:
//
//	GROUPS          groups of 32 columns in a block
//	VALUES, SMALL   bytes of a group in a band: its lines; bytes of a block beside the lines
//	SHARE           groups that share a factor of 4 bytes for each row, before the blocks' bytes; 0: none
//	Raw, load       what the thread reads of a group
//	Head, open      what it derives from a block's first group; HEAD: there is something
//	ints            8 columns of row j (0..3) as pairs of bfloat16, exact
//	scale           what these are multiplied with, and what is then subtracted if MINS; HALVES: it
//	                is of 16 columns, else of 32
//	BF16            a scale is exact as bfloat16
#pragma once
#include "grids.cuh"
#include "native_job.cuh"

// Up to 16 bytes that stay in L1 for the other lanes and groups that read them.
KR_DEV uint4 ld16(const void *p) { return __ldg(reinterpret_cast<const uint4 *>(p)); }
KR_DEV uint2 ld8(const void *p) { return __ldg(reinterpret_cast<const uint2 *>(p)); }
KR_DEV uint32_t ld4(const void *p) { return __ldg(reinterpret_cast<const uint32_t *>(p)); }
KR_DEV uint32_t ld2(const void *p) { return __ldg(reinterpret_cast<const uint16_t *>(p)); }

// Word j, halfword j of a vector.
KR_DEV uint32_t word(const uint4 &v, int j) { return j == 0 ? v.x : j == 1 ? v.y : j == 2 ? v.z : v.w; }
KR_DEV uint32_t half(const uint2 &v, int j) { return ((j < 2 ? v.x : v.y) >> (16 * (j & 1))) & 0xffff; }
KR_DEV uint32_t byte(uint32_t v, int j) { return v >> (8 * j) & 0xff; }

// IEEE half precision as float32, exactly. There are no infinities: a load refuses them.
KR_DEV float from_half(uint32_t h) {
	float v = __uint_as_float((h & 0x7fff) << 13) * 5192296858534827628530496329220096.f; // 2^112
	return __uint_as_float(__float_as_uint(v) | (h & 0x8000) << 16);
}
KR_DEV float from_half(const uint2 &v, int j) { return from_half(half(v, j)); }

KR_DEV uint32_t add_bf16x2(uint32_t a, uint32_t b) { return fma_bf16x2(a, 0x3f803f80u, b); }

// Bytes below 128 of columns 0..3 (lo) and 4..7 (hi), minus offset, as pairs. less: -(128 + offset),
// twice.
KR_DEV void pairs(uint32_t (&w)[4], uint32_t lo, uint32_t hi, uint32_t less) {
	const uint32_t up = 0x43434343; // with a byte b: 128 + b
	w[0] = add_bf16x2(__byte_perm(lo, up, 0x4140), less);
	w[1] = add_bf16x2(__byte_perm(lo, up, 0x4342), less);
	w[2] = add_bf16x2(__byte_perm(hi, up, 0x4140), less);
	w[3] = add_bf16x2(__byte_perm(hi, up, 0x4342), less);
}

// The nibbles of a dword: columns 0..3 in the low halves of its bytes, 4..7 in the high ones.
KR_DEV uint32_t low4(uint32_t v) { return v & 0x0f0f0f0f; }
KR_DEV uint32_t high4(uint32_t v) { return v >> 4 & 0x0f0f0f0f; }

// Nibbles that are floats of 2 exponent bits and 1 mantissa bit, as pairs.
KR_DEV void fp4(uint32_t (&w)[4], uint32_t v) {
#pragma unroll
	for (int i = 0; i < 4; i++) {
		// Two nibbles at the top of halfwords. Sign, exponent and mantissa move to bfloat16's
		// places; 2^126 corrects the exponent bias, of subnormal numbers too.
		uint32_t t = __byte_perm(i < 2 ? v << 4 : v, 0, i % 2 ? 0x3424 : 0x1404);
		w[i] = fma_bf16x2((t >> 6 & 0x01c001c0) | (t & 0x80008000), 0x7e807e80u, 0x80008000u);
	}
}

// Pairs times a pair.
KR_DEV void times(uint32_t (&w)[4], uint32_t s) {
#pragma unroll
	for (int i = 0; i < 4; i++) w[i] = fma_bf16x2(w[i], s, 0x80008000u); // -0 changes nothing
}

// Two floats of 4 exponent and 3 mantissa bits, at the top of halfwords, as a pair.
KR_DEV uint32_t fp8(uint32_t v) { // 2^120 corrects the exponent bias, of subnormal numbers too
	return fma_bf16x2((v >> 4 & 0x07f007f0) | (v & 0x80008000), 0x7b807b80u, 0x80008000u);
}

// 2^(e-127), the scale of MXFP4.
KR_DEV float power(uint32_t e) { return __uint_as_float(e ? e << 23 : 0x00400000); }

struct NoHead {};

// What most encodings have.
struct Defaults {
	static const int GROUPS = 1, TABLE = 0, SHARE = 0;
	static const bool MINS = false, HEAD = false, HALVES = false, BF16 = false;
	typedef NoHead Head;
	template <class Raw> static KR_MEMBER void open(NoHead &, const Raw &) {}
	static KR_MEMBER uint32_t table(int) { return 0; }
};

struct Q8_0 : Defaults {
	static const int VALUES = 512, SMALL = 32;
	struct Raw {
		uint4 a, b; // columns 0..3 and 4..7, one a byte: value + 128
		uint2 d;
	};
	static KR_MEMBER void load(Raw &r, const uint8_t *v, const uint8_t *s, int g, int q, int c) {
		v += g * VALUES + 128 * c + 16 * q;
		r.a = ld16(v), r.b = ld16(v + 64), r.d = ld8(s + g * SMALL + 8 * q);
	}
	static KR_MEMBER void ints(uint32_t (&w)[4], const Raw &r, int j, int c, const uint32_t *) {
		const uint32_t v[2] = {word(r.a, j), word(r.b, j)};
#pragma unroll
		for (int i = 0; i < 4; i++) { // the low 7 bits make 128 plus these; then 128 less, or 256
			uint32_t t = __byte_perm(v[i / 2], 0, i % 2 ? 0x4342 : 0x4140);
			w[i] = add_bf16x2(and_or<0x007f007f, 0x43004300>(t), (t & 0x00800080) ^ 0xc380c380);
		}
	}
	static KR_MEMBER void scale(float &s, float &, const Raw &r, const Head &, int j, int, int) { s = from_half(r.d, j); }
};

struct Q4_0 : Defaults {
	static const int VALUES = 256, SMALL = 32;
	struct Raw {
		uint4 v;
		uint2 d;
	};
	static KR_MEMBER void load(Raw &r, const uint8_t *v, const uint8_t *s, int g, int q, int c) {
		r.v = ld16(v + g * VALUES + 64 * c + 16 * q), r.d = ld8(s + g * SMALL + 8 * q);
	}
	static KR_MEMBER void ints(uint32_t (&w)[4], const Raw &r, int j, int c, const uint32_t *) {
		uint32_t v = word(r.v, j);
		pairs(w, low4(v), high4(v), 0xc308c308);
	}
	static KR_MEMBER void scale(float &s, float &, const Raw &r, const Head &, int j, int, int) { s = from_half(r.d, j); }
};

struct MXFP4 : Defaults {
	static const int VALUES = 256, SMALL = 16;
	static const bool BF16 = true;
	struct Raw {
		uint4 v;
		uint32_t e;
	};
	static KR_MEMBER void load(Raw &r, const uint8_t *v, const uint8_t *s, int g, int q, int c) {
		r.v = ld16(v + g * VALUES + 64 * c + 16 * q), r.e = ld4(s + g * SMALL + 4 * q);
	}
	static KR_MEMBER void ints(uint32_t (&w)[4], const Raw &r, int j, int c, const uint32_t *) { fp4(w, word(r.v, j)); }
	static KR_MEMBER void scale(float &s, float &, const Raw &r, const Head &, int j, int, int) { s = power(byte(r.e, j)); }
};

struct NVFP4 : Defaults {
	static const int GROUPS = 2, VALUES = 256, SMALL = 64;
	static const bool BF16 = true;
	struct Raw {
		uint4 v;
		uint32_t e; // of the half of the group that has the columns
	};
	static KR_MEMBER void load(Raw &r, const uint8_t *v, const uint8_t *s, int g, int q, int c) {
		r.v = ld16(v + g * VALUES + 64 * c + 16 * q), r.e = ld4(s + g * 32 + c / 2 * 16 + 4 * q);
	}
	// With their scale these have 6 bits.
	static KR_MEMBER void ints(uint32_t (&w)[4], const Raw &r, int j, int c, const uint32_t *) {
		const float s = from_e4m3(byte(r.e, j) & 0x7f);
		fp4(w, word(r.v, j));
		times(w, pack_bf16(s, s));
	}
	static KR_MEMBER void scale(float &s, float &, const Raw &, const Head &, int, int, int) { s = 1.f; }
};

// NVFP4 whose scales are multiplied by a factor of the row, or divided by its magnitude if it is negative.
struct NVFP4Scaled : NVFP4 {
	static const int SHARE = 1 << 30;
	static const bool BF16 = false;
	struct Raw : NVFP4::Raw {
		uint4 f;
	};
	static KR_MEMBER void load(Raw &r, const uint8_t *v, const uint8_t *s, int g, int q, int c) {
		NVFP4::load(r, v, s + 64, g, q, c), r.f = ld16(s + 16 * q);
	}
	static KR_MEMBER void scale(float &s, float &, const Raw &r, const Head &, int j, int, int) {
		const float f = __uint_as_float(word(r.f, j));
		s = f < 0.f ? -1.f / f : f;
	}
};

struct FP8 : Defaults {
	static const int VALUES = 512, SMALL = 0, SHARE = 4;
	struct Raw {
		uint4 a, b, f; // columns 0..3 and 4..7, one a byte
	};
	static KR_MEMBER void load(Raw &r, const uint8_t *v, const uint8_t *s, int g, int q, int c) {
		v += g * VALUES + 128 * c + 16 * q;
		r.a = ld16(v), r.b = ld16(v + 64), r.f = ld16(s + g / SHARE * 64 + 16 * q);
	}
	static KR_MEMBER void ints(uint32_t (&w)[4], const Raw &r, int j, int, const uint32_t *) {
		const uint32_t lo = word(r.a, j), hi = word(r.b, j);
		w[0] = fp8(__byte_perm(lo, 0, 0x1404)), w[1] = fp8(__byte_perm(lo, 0, 0x3424));
		w[2] = fp8(__byte_perm(hi, 0, 0x1404)), w[3] = fp8(__byte_perm(hi, 0, 0x3424));
	}
	static KR_MEMBER void scale(float &s, float &, const Raw &r, const Head &, int j, int, int) { s = __uint_as_float(word(r.f, j)); }
};

// --- superblocks of 256 columns

struct Superblock : Defaults {
	static const int GROUPS = 8;
	static const bool HEAD = true;
	struct Head {
		float d[4]; // of each row
	};
	template <class Raw> static KR_MEMBER void open(Head &h, const Raw &r) {
#pragma unroll
		for (int j = 0; j < 4; j++) h.d[j] = from_half(r.d, j);
	}
};

// Scales and minima of 6 bits: low nibbles of scales, of minima, and the upper bits of both.
struct Mins : Superblock {
	static const int SMALL = 256;
	static const bool MINS = true;
	struct Head {
		float d[4], m[4];
	};
	struct Raw {
		uint4 v;
		uint2 d, m;
		uint32_t scales, mins; // of the 4 rows, a byte each
	};
	static KR_MEMBER void load_small(Raw &r, const uint8_t *s, int g, int q) {
		s += g / 8 * SMALL;
		r.d = ld8(s + 8 * q), r.m = ld8(s + 32 + 8 * q);
		s += 64 + g % 4 * 16 + 4 * q;
		int high = g / 4 % 2;
		uint32_t upper = ld4(s + 128) >> (2 * high);
		r.scales = (ld4(s) >> (4 * high) & 0x0f0f0f0f) | (upper << 4 & 0x30303030);
		r.mins = (ld4(s + 64) >> (4 * high) & 0x0f0f0f0f) | (upper & 0x30303030);
	}
	static KR_MEMBER void open(Head &h, const Raw &r) {
#pragma unroll
		for (int j = 0; j < 4; j++) h.d[j] = from_half(r.d, j), h.m[j] = from_half(r.m, j);
	}
	static KR_MEMBER void scale(float &s, float &m, const Raw &r, const Head &h, int j, int, int) {
		s = h.d[j] * (float)byte(r.scales, j), m = h.m[j] * (float)byte(r.mins, j);
	}
};

struct Q4_K : Mins {
	static const int VALUES = 256;
	static KR_MEMBER void load(Raw &r, const uint8_t *v, const uint8_t *s, int g, int q, int c) {
		r.v = ld16(v + g * VALUES + 64 * c + 16 * q);
		load_small(r, s, g, q);
	}
	static KR_MEMBER void ints(uint32_t (&w)[4], const Raw &r, int j, int c, const uint32_t *) {
		uint32_t v = word(r.v, j);
		pairs(w, low4(v), high4(v), 0xc300c300);
	}
};

struct Q5_K : Mins {
	static const int VALUES = 320;
	struct Raw : Mins::Raw {
		uint32_t fifth; // of columns 0..3: bit 4j + column; of columns 4..7 above 16
	};
	static KR_MEMBER void load(Raw &r, const uint8_t *v, const uint8_t *s, int g, int q, int c) {
		v += g * VALUES;
		r.v = ld16(v + 64 * c + 16 * q);
		v += 256 + 16 * c + 2 * q;
		r.fifth = ld2(v) | ld2(v + 8) << 16;
		load_small(r, s, g, q);
	}
	// Four bits moved to bit 4 of four bytes.
	static KR_MEMBER uint32_t spread(uint32_t v) { return (v & 15) * 0x02040810u & 0x10101010u; }
	static KR_MEMBER void ints(uint32_t (&w)[4], const Raw &r, int j, int c, const uint32_t *) {
		uint32_t v = word(r.v, j), f = r.fifth >> (4 * j);
		pairs(w, low4(v) | spread(f), high4(v) | spread(f >> 16), 0xc300c300);
	}
};

struct Q6_K : Superblock {
	static const int VALUES = 384, SMALL = 32 + 8 * 32;
	static const bool HALVES = true;
	struct Raw {
		uint4 v, upper; // in byte i of a row of upper, bits of columns i and 4+i, from bit 4(c%2) on
		uint2 d;
		uint32_t scales; // of the half of the group that has the columns
	};
	static KR_MEMBER void load(Raw &r, const uint8_t *v, const uint8_t *s, int g, int q, int c) {
		v += g * VALUES + 16 * q, s += g / 8 * SMALL;
		r.v = ld16(v + 64 * c), r.upper = ld16(v + 256 + c / 2 * 64);
		r.d = ld8(s + 8 * q), r.scales = ld4(s + 32 + g % 8 * 32 + c / 2 * 16 + 4 * q);
	}
	static KR_MEMBER void ints(uint32_t (&w)[4], const Raw &r, int j, int c, const uint32_t *) {
		uint32_t v = word(r.v, j), u = word(r.upper, j) >> (4 * (c % 2));
		pairs(w, low4(v) | (u << 4 & 0x30303030), high4(v) | (u << 2 & 0x30303030), 0xc320c320);
	}
	static KR_MEMBER void scale(float &s, float &, const Raw &r, const Head &h, int j, int, int) { s = h.d[j] * (float)(int8_t)byte(r.scales, j); }
};

struct IQ4_XS : Superblock {
	static const int VALUES = 256, SMALL = 32 + 64 + 32;
	struct Raw {
		uint4 v;
		uint2 d;
		uint32_t scales;
	};
	static KR_MEMBER void load(Raw &r, const uint8_t *v, const uint8_t *s, int g, int q, int c) {
		r.v = ld16(v + g * VALUES + 64 * c + 16 * q);
		s += g / 8 * SMALL, g %= 8;
		r.d = ld8(s + 8 * q);
		r.scales = (ld4(s + 32 + g % 4 * 16 + 4 * q) >> (g / 4 * 4) & 0x0f0f0f0f) | (ld4(s + 96 + g % 2 * 16 + 4 * q) >> (g / 2 * 2) << 4 & 0x30303030);
	}
	// Entries of a table for four nibbles: the table's four words, and the nibbles in the low half of v.
	static KR_MEMBER uint32_t look(uint32_t t0, uint32_t t1, uint32_t t2, uint32_t t3, uint32_t v) {
		uint32_t at = v & 0x7777;
		return __byte_perm(__byte_perm(t0, t1, at), __byte_perm(t2, t3, at), (v >> 1 & 0x4444) | 0x3210);
	}
	static KR_MEMBER void ints(uint32_t (&w)[4], const Raw &r, int j, int c, const uint32_t *) {
		uint32_t v = word(r.v, j);
#pragma unroll
		for (int i = 0; i < 2; i++) { // columns 2i, 4+2i, 2i+1, 4+2i+1: both bytes of bfloat16
			uint32_t n = v >> (16 * i);
			uint32_t lo = look(0x82a6d0fe, 0x20b00c44, 0x18c85080, 0xe2b28a54, n), hi = look(0xc2c2c2c2, 0xc1c1c2c2, 0x4241413f, 0x42424242, n);
			w[i] = __byte_perm(lo, hi, 0x6240), w[2 + i] = __byte_perm(lo, hi, 0x7351);
		}
	}
	static KR_MEMBER void scale(float &s, float &, const Raw &r, const Head &h, int j, int, int) { s = h.d[j] * (float)((int)byte(r.scales, j) - 32); }
};

// --- rows of a table, with a sign for each column

// Seven signs of eight: the eighth makes their number even.
KR_DEV uint32_t seven(uint32_t v) { return (v & 127) | (__popc(v & 127) & 1) << 7; }

// Eight bytes with the signs of s.
KR_DEV void with_signs(uint32_t (&w)[4], uint32_t lo, uint32_t hi, uint32_t s) {
	pairs(w, lo, hi, 0xc300c300);
#pragma unroll
	for (int i = 0; i < 4; i++) w[i] ^= (s >> (2 * i)) * 0x40008000u & 0x80008000u; // bits 0 and 1 to 15 and 31
}

struct IQ2_XXS : Superblock {
	static const int VALUES = 128, SMALL = 32, TABLE = 512;
	static KR_MEMBER uint32_t table(int i) { return grid_iq2_xxs[i]; }
	struct Raw {
		uint4 rows, signs; // four times 7 signs, then the scale
		uint2 d;
	};
	static KR_MEMBER void load(Raw &r, const uint8_t *v, const uint8_t *s, int g, int q, int c) {
		v += g * VALUES + 16 * q;
		r.rows = ld16(v), r.signs = ld16(v + 64), r.d = ld8(s + g / 8 * SMALL + 8 * q);
	}
	static KR_MEMBER void ints(uint32_t (&w)[4], const Raw &r, int j, int c, const uint32_t *t) {
		uint2 row = *reinterpret_cast<const uint2 *>(t + 2 * byte(word(r.rows, j), c));
		with_signs(w, row.x, row.y, seven(word(r.signs, j) >> (7 * c)));
	}
	static KR_MEMBER void scale(float &s, float &, const Raw &r, const Head &h, int j, int, int) {
		s = h.d[j] * (0.5f + (float)(word(r.signs, j) >> 28)) * 0.25f;
	}
};

struct IQ2_XS : Superblock {
	static const int VALUES = 128, SMALL = 32 + 8 * 16, TABLE = 1024;
	static const bool HALVES = true;
	static KR_MEMBER uint32_t table(int i) { return grid_iq2_xs[i]; }
	struct Raw {
		uint4 rows, signs; // four times 7 signs, then four ninth bits of rows
		uint2 d;
		uint32_t scales; // of both halves of the group, a nibble each
	};
	static KR_MEMBER void load(Raw &r, const uint8_t *v, const uint8_t *s, int g, int q, int c) {
		v += g * VALUES + 16 * q, s += g / 8 * SMALL;
		r.rows = ld16(v), r.signs = ld16(v + 64), r.d = ld8(s + 8 * q), r.scales = ld4(s + 32 + g % 8 * 16 + 4 * q);
	}
	static KR_MEMBER void ints(uint32_t (&w)[4], const Raw &r, int j, int c, const uint32_t *t) {
		uint32_t s = word(r.signs, j);
		uint2 row = *reinterpret_cast<const uint2 *>(t + 2 * (byte(word(r.rows, j), c) | (s >> (28 + c) & 1) << 8));
		with_signs(w, row.x, row.y, seven(s >> (7 * c)));
	}
	static KR_MEMBER void scale(float &s, float &, const Raw &r, const Head &h, int j, int c, int) {
		s = h.d[j] * (0.5f + (float)(byte(r.scales, j) >> (c / 2 * 4) & 15)) * 0.25f;
	}
};

struct IQ3_XXS : Superblock {
	static const int VALUES = 192, SMALL = 32, TABLE = 256;
	static KR_MEMBER uint32_t table(int i) { return grid_iq3_xxs[i]; }
	struct Raw {
		uint4 even, odd, signs; // rows of columns 0..3, of 4..7; four times 7 signs, then the scale
		uint2 d;
	};
	static KR_MEMBER void load(Raw &r, const uint8_t *v, const uint8_t *s, int g, int q, int c) {
		v += g * VALUES + 16 * q;
		r.even = ld16(v), r.odd = ld16(v + 64), r.signs = ld16(v + 128), r.d = ld8(s + g / 8 * SMALL + 8 * q);
	}
	static KR_MEMBER void ints(uint32_t (&w)[4], const Raw &r, int j, int c, const uint32_t *t) {
		with_signs(w, t[byte(word(r.even, j), c)], t[byte(word(r.odd, j), c)], seven(word(r.signs, j) >> (7 * c)));
	}
	static KR_MEMBER void scale(float &s, float &, const Raw &r, const Head &h, int j, int, int) {
		s = h.d[j] * (0.5f + (float)(word(r.signs, j) >> 28)) * 0.5f;
	}
};

struct IQ3_S : Superblock {
	static const int VALUES = 192, SMALL = 32 + 64 + 8 * 16, TABLE = 512;
	static KR_MEMBER uint32_t table(int i) { return grid_iq3_s[i]; }
	struct Raw {
		uint4 even, odd, signs; // rows of columns 0..3, of 4..7; 8 signs a byte
		uint2 d;
		uint32_t scales, ninth; // ninth bits of even rows: bit 4j + c; of odd ones above 16
	};
	static KR_MEMBER void load(Raw &r, const uint8_t *v, const uint8_t *s, int g, int q, int c) {
		v += g * VALUES + 16 * q, s += g / 8 * SMALL, g %= 8;
		r.even = ld16(v), r.odd = ld16(v + 64), r.signs = ld16(v + 128), r.d = ld8(s + 8 * q);
		r.scales = ld4(s + 32 + g % 4 * 16 + 4 * q) >> (g / 4 * 4) & 0x0f0f0f0f;
		s += 96 + g * 16 + 2 * q;
		r.ninth = ld2(s) | ld2(s + 8) << 16;
	}
	static KR_MEMBER void ints(uint32_t (&w)[4], const Raw &r, int j, int c, const uint32_t *t) {
		uint32_t n = r.ninth >> (4 * j + c);
		with_signs(w, t[byte(word(r.even, j), c) | (n & 1) << 8], t[byte(word(r.odd, j), c) | (n >> 16 & 1) << 8], byte(word(r.signs, j), c));
	}
	static KR_MEMBER void scale(float &s, float &, const Raw &r, const Head &h, int j, int, int) {
		s = h.d[j] * (float)(1 + 2 * byte(r.scales, j));
	}
};

#define ALL_ENCODINGS(X) \
	X(q8_0, Q8_0) X(q4_0, Q4_0) X(fp8, FP8) X(mxfp4, MXFP4) X(nvfp4, NVFP4) X(nvfp4_scaled, NVFP4Scaled) X(q4_k, Q4_K) X(q5_k, Q5_K) X(q6_k, Q6_K) X(iq4_xs, IQ4_XS) \
	X(iq2_xxs, IQ2_XXS) X(iq2_xs, IQ2_XS) X(iq3_xxs, IQ3_XXS) X(iq3_s, IQ3_S)

// Copies the encoding's table to the block's shared memory.
template <class T> KR_DEV void fill(uint32_t *table) {
	for (int i = threadIdx.x; i < T::TABLE; i += blockDim.x) table[i] = T::table(i);
}

// Eight columns of row j as pairs of bfloat16, each weight rounded once.
template <class T> KR_DEV void weights(uint32_t (&w)[4], const typename T::Raw &r, const typename T::Head &h, int j, int c, int g, const uint32_t *table) {
	float s, m = 0.f;
	T::ints(w, r, j, c, table);
	T::scale(s, m, r, h, j, c, g);
	if (T::BF16) return times(w, pack_bf16(s, s));
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const float lo = lo_f32(w[i]), hi = hi_f32(w[i]);
		w[i] = T::MINS ? pack_bf16(fmaf(lo, s, -m), fmaf(hi, s, -m)) : pack_bf16(lo * s, hi * s);
	}
}
