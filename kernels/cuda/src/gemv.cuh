// The core of the products for few tokens. A warp multiplies 16 rows of weights with up to 8
// tokens. Weights are the A operand of mma m16n8k16 and go from global memory to registers, each
// byte once. Tokens are its B operand. Lane 4g+c has rows g and g+8 of the weights, the
// activations of token g, and the results of rows g and g+8 for tokens 2c and 2c+1.
//
// The work is counted in units of 128 columns. A row is split over the warps of a block in whole
// units, each warp sums its part in order, and the parts are added in order. None of this depends
// on the other tokens, so a token's bits do not either.
#pragma once
#include "int3.cuh"

// How a matrix is stored. Packed integers have the GPU layout of kernels/tensor/integergpu.go;
// one scale for all columns counts as groups of 128.
enum { PLAIN_BF16, INT4_G32, INT4_G64, INT4_G128, INT8_G32, INT8_G64, INT8_G128, INT3_G64, INT3_G128 };
constexpr int bits_of(int format) { return format <= INT4_G128 ? 4 : format <= INT8_G128 ? 8 : 3; }
constexpr int group_of(int format) { return format <= INT8_G128 ? 32 << (format - 1) % 3 : 64 << (format - INT3_G64); }
// Those of every product. Mixtures also have INT3.
#define ALL_FORMATS(X)       \
	X(bf16, PLAIN_BF16)      \
	X(int4_g32, INT4_G32)    \
	X(int4_g64, INT4_G64)    \
	X(int4_g128, INT4_G128)  \
	X(int8_g32, INT8_G32)    \
	X(int8_g64, INT8_G64)    \
	X(int8_g128, INT8_G128)

struct Matrix {
	const uint8_t *values;
	const uint32_t *scales;
	int rows;
	int tiles;  // the number of tiles of 64 columns
	int groups; // scales per row; 1: the same for all columns
	int stride; // of plain rows, in elements
	// [rows], where each row's sum begins; null: 0. Of gate and up: gate's, then up's. Only kernels for biases read it
	// (BIASED), so that the others need no registers for it.
	const float *bias;
};

// The arguments of a matrix in a kernel's list, and the matrix.
#define MATRIX_ARGS(w) \
	const uint8_t *w##_values, const uint32_t *w##_scales, int w##_rows, int w##_tiles, int w##_groups, int w##_stride, const float *w##_bias
#define MATRIX(w) \
	{ w##_values, w##_scales, w##_rows, w##_tiles, w##_groups, w##_stride, w##_bias }

#define KR_MEMBER __device__ __forceinline__

enum : uint32_t { ONES = 0x3f803f80 }; // a pair of bfloat16

// The activations of this lane's token.
struct Token {
	const bf16 *row;
	bool on; // false: there is no such token, zeros
};

// The place of column k of 64 in a permuted row. Of 64 columns, lane c needs 2c, 2c+1, 2c+8 and
// 2c+9 of each 16; in a permuted row these are 32 consecutive bytes.
KR_DEV int permuted(int k) {
	int i = k % 64 / 16, kk = k % 16;
	return k / 64 * 64 + kk % 8 / 2 * 16 + i * 4 + kk / 8 * 2 + kk % 2;
}

// Stores 8 columns of a row, the chunk-th. PERMUTE: pair j of them goes 32 * j bytes further, so
// that all values that a lane needs of a tile are consecutive (permuted).
template <bool PERMUTE> KR_DEV void put_chunk(uint8_t *row, int chunk, uint4 v) {
	if (!PERMUTE) {
		*reinterpret_cast<uint4 *>(row + 16 * chunk) = v;
		return;
	}
	uint32_t *p = reinterpret_cast<uint32_t *>(row + chunk / 8 * 128 + chunk % 8 * 4);
	p[0] = v.x, p[8] = v.y, p[16] = v.z, p[24] = v.w;
}
// Stores chunk i of a normed row (norm.cuh).
struct Permuting {
	KR_MEMBER void operator()(bf16 *row, int i, const float (&v)[8]) const {
		put_chunk<true>((uint8_t *)row, i, make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7])));
	}
};

// b[2i], b[2i+1]: the B operand of step i (16 columns) of a tile of packed integers.
template <bool PERMUTED> KR_DEV void load_token(uint32_t *b, const Token &x, int tile, bool there) {
	int c = threadIdx.x % 4;
	const bf16 *p = x.row + (long long)tile * 64;
	bool on = x.on && there;
	if (PERMUTED) {
		uint4 lo = make_uint4(0, 0, 0, 0), hi = lo;
		if (on) {
			const uint4 *q = reinterpret_cast<const uint4 *>(p + 16 * c);
			lo = q[0];
			hi = q[1];
		}
		b[0] = lo.x, b[1] = lo.y, b[2] = lo.z, b[3] = lo.w;
		b[4] = hi.x, b[5] = hi.y, b[6] = hi.z, b[7] = hi.w;
	} else {
		const uint32_t *q = reinterpret_cast<const uint32_t *>(p) + c;
#pragma unroll
		for (int i = 0; i < 8; i++) b[i] = on ? q[4 * i] : 0;
	}
}

// A format of weights: the registers of a lane for a unit in flight (Load), the loads, and the
// product with the token. DEPTH units are in flight at a time. These are 4 to 8 loads of 16 bytes
// per lane, the most that 80 registers allow without a spill. 24 warps of 3 KiB are more than a
// multiprocessor needs in flight (16 KiB at 3 TB/s and 700 ns).
template <int BITS, int GROUP, bool PERMUTED> struct Packed {
	static const int DEPTH = BITS == 8 ? (GROUP == 32 ? 1 : 2) : GROUP == 128 ? 3 : 2;
	static const int LOADS = BITS == 8 ? 2 : 1; // of 16 bytes, a tile; INT3: of 12
	static const int SCALES = 128 / GROUP;
	static const int OFFSET = BITS == 4 ? 136 : BITS == 3 ? INT3_OFFSET : 0; // what operands are too large by
	struct Load {
		uint4 q[2 * LOADS];
		uint32_t s[SCALES];
	};
	const uint8_t *values;
	const uint32_t *scales;
	int tiles, next; // next: words from one group's scales to those of the next
	int third;       // of INT3: bytes from values to the third word

	KR_MEMBER Packed() {}
	// block: the number of a block of 16 stored rows.
	KR_MEMBER Packed(const Matrix &w, int block) {
		int lane = threadIdx.x % 32;
		long long tile_row = block / 4;
		tiles = w.tiles;
		next = w.groups == 1 ? 0 : 32;
		values = w.values + tile_row * tiles * (512 * BITS) + (BITS == 3 ? 8 : 16) * (block % 4 * 32 + lane);
		third = 1024 - 4 * (block % 4 * 32 + lane);
		scales = w.scales + tile_row * w.groups * 32 + block % 4 * 8 + lane / 4;
	}
	KR_MEMBER bool both(int unit) const { return 2 * unit + 1 < tiles; }
	KR_MEMBER void load(Load &v, int unit) const {
		const uint8_t *p = values + (long long)unit * (1024 * BITS);
		bool second = both(unit);
#pragma unroll
		for (int i = 0; i < 2 * LOADS; i++) {
			if (i < LOADS || second) v.q[i] = BITS == 3 ? load3(p + 1536 * i, third) : ld_stream(p + 2048 * i);
			else v.q[i] = make_uint4(0, 0, 0, 0);
		}
#pragma unroll
		for (int i = 0; i < SCALES; i++) {
			if (i < (SCALES + 1) / 2 || second) v.s[i] = __ldg(scales + (long long)(unit * SCALES + i) * next);
			else v.s[i] = 0;
		}
	}
	KR_MEMBER void tokens(uint32_t (&b)[16], const Token &x, int unit) const {
		load_token<PERMUTED>(b, x, 2 * unit, true);
		load_token<PERMUTED>(b + 8, x, 2 * unit + 1, both(unit));
	}
	// The product with a token whose part b is already here or, if AHEAD is false, is loaded now,
	// a tile at a time.
	template <bool AHEAD> KR_MEMBER void multiply(float (&sum)[4], const Load &v, uint32_t (&b)[16], const Token &x, int unit) const {
		float d[4] = {0, 0, 0, 0}, e[4] = {0, 0, 0, 0};
#pragma unroll
		for (int i = 0; i < 8; i++) { // steps of 16 columns
			if (!AHEAD && i % 4 == 0) load_token<PERMUTED>(b + 2 * i, x, 2 * unit + i / 4, i == 0 || both(unit));
			uint32_t b0 = b[2 * i], b1 = b[2 * i + 1];
			uint32_t a[4];
			unpack(a, v, i);
			mma_bf16(d, a, b0, b1);
			if (OFFSET) {
				const uint32_t ones[4] = {ONES, ONES, ONES, ONES};
				mma_bf16(e, ones, b0, b1);
			}
			if ((i + 1) % (GROUP / 16) == 0) {
				scale(sum, d, e, v.s[i / (GROUP / 16)]);
				d[0] = d[1] = d[2] = d[3] = e[0] = e[1] = e[2] = e[3] = 0.f;
			}
		}
	}
	// Two units with the token's parts. Their sums are in order, but their steps are interleaved,
	// so that a product need not wait for the one right before it.
	KR_MEMBER void multiply_pair(float (&sum)[4], const Load (&v)[2], const uint32_t (&b)[2][16]) const {
		static_assert(GROUP == 128, "a group is a unit");
		float d[2][4] = {}, e[2][4] = {};
#pragma unroll
		for (int i = 0; i < 8; i++)
#pragma unroll
			for (int t = 0; t < 2; t++) {
				uint32_t a[4];
				unpack(a, v[t], i);
				mma_bf16(d[t], a, b[t][2 * i], b[t][2 * i + 1]);
				if (OFFSET) {
					const uint32_t ones[4] = {ONES, ONES, ONES, ONES};
					mma_bf16(e[t], ones, b[t][2 * i], b[t][2 * i + 1]);
				}
			}
#pragma unroll
		for (int t = 0; t < 2; t++) scale(sum, d[t], e[t], v[t].s[0]);
	}
	// The A operand of step i (0..7) of a unit.
	//
	// INT4: the bits of a nibble n (value + 8) make the bfloat16 number 128 + n. The product is
	// then too large by 136 times the sum of the activations, which e has. INT8: the low 7 bits
	// of a byte (value + 128) make 128 plus these bits. Subtracting 128 if the high bit is set,
	// or 256 if not, gives the value. INT3: int3.cuh. All of this is exact in bfloat16.
	static KR_MEMBER void unpack(uint32_t (&a)[4], const Load &v, int i) {
		const uint4 &q = v.q[i * LOADS / 4];
		if (BITS == 3) {
			unpack3(a, q.x, q.y, q.z, i % 4);
		} else if (BITS == 4) {
			uint32_t w = i % 4 == 0 ? q.x : i % 4 == 1 ? q.y : i % 4 == 2 ? q.z : q.w;
#pragma unroll
			for (int j = 0; j < 4; j++) a[j] = and_or<0x000f000f, 0x43004300>(w >> (4 * j));
		} else {
			uint32_t w0 = i % 2 ? q.z : q.x, w1 = i % 2 ? q.w : q.y, w[4] = {w0, w0 >> 8, w1, w1 >> 8};
#pragma unroll
			for (int j = 0; j < 4; j++) a[j] = fma_bf16x2(and_or<0x007f007f, 0x43004300>(w[j]), ONES, andn_or<0x00800080, 0xc300c300>(w[j]));
		}
	}
	// Adds a group's product d, with the sums e of its activations, to the row's sum.
	static KR_MEMBER void scale(float (&sum)[4], const float (&d)[4], const float (&e)[4], uint32_t scales) {
#pragma unroll
		for (int r = 0; r < 4; r++) {
			float y = OFFSET ? fmaf(-(float)OFFSET, e[r % 2], d[r]) : d[r];
			sum[r] = fmaf(r < 2 ? lo_f32(scales) : hi_f32(scales), y, sum[r]);
		}
	}
};

// Plain rows of bfloat16. The order of the columns is free if weights and activations have the
// same, so lane c takes columns 8c..8c+7 of each 32: 16 bytes of either.
struct Plain {
	static const int DEPTH = 1;
	struct Load {
		uint4 q[8]; // of step i of 32 columns: 2i is row g, 2i+1 row g+8
	};
	const bf16 *lo, *hi;
	int tiles;

	KR_MEMBER Plain() {}
	// This lane's rows of a matrix with that many rows. Rows past the last one are computed but
	// not stored.
	KR_MEMBER Plain(const Matrix &w, int row_lo, int row_hi) {
		int c = threadIdx.x % 4;
		const bf16 *p = reinterpret_cast<const bf16 *>(w.values) + 8 * c;
		tiles = w.tiles;
		lo = p + (long long)min(row_lo, w.rows - 1) * w.stride;
		hi = p + (long long)min(row_hi, w.rows - 1) * w.stride;
	}
	KR_MEMBER bool both(int unit) const { return 2 * unit + 1 < tiles; }
	KR_MEMBER void load(Load &v, int unit) const {
		bool second = both(unit);
		const bf16 *l = lo + (long long)unit * 128, *h = hi + (long long)unit * 128;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			if (i < 2 || second) {
				v.q[2 * i] = ld_stream(l + 32 * i);
				v.q[2 * i + 1] = ld_stream(h + 32 * i);
			} else {
				v.q[2 * i] = v.q[2 * i + 1] = make_uint4(0, 0, 0, 0);
			}
		}
	}
	KR_MEMBER void tokens(uint32_t (&b)[16], const Token &x, int unit) const {
		const bf16 *p = x.row + (long long)unit * 128 + 8 * (threadIdx.x % 4);
		bool second = both(unit);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			uint4 v = make_uint4(0, 0, 0, 0);
			if (x.on && (i < 2 || second)) v = *reinterpret_cast<const uint4 *>(p + 32 * i);
			b[4 * i] = v.x, b[4 * i + 1] = v.y, b[4 * i + 2] = v.z, b[4 * i + 3] = v.w;
		}
	}
	template <bool AHEAD> KR_MEMBER void multiply(float (&sum)[4], const Load &v, uint32_t (&b)[16], const Token &x, int unit) const {
		if (!AHEAD) tokens(b, x, unit);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const uint4 &l = v.q[2 * i], &h = v.q[2 * i + 1];
			const uint32_t a0[4] = {l.x, h.x, l.y, h.y}, a1[4] = {l.z, h.z, l.w, h.w};
			mma_bf16(sum, a0, b[4 * i], b[4 * i + 1]);
			mma_bf16(sum, a1, b[4 * i + 2], b[4 * i + 3]);
		}
	}
};

// The rows of a block. gate_up: the rows are gate's, then up's, and a block has 8 of each, as in
// joined tiles.
KR_DEV Plain plain_block(const Matrix &w, int block, bool gate_up) {
	int g = threadIdx.x % 32 / 4, lo = gate_up ? 8 * block + g : 16 * block + g;
	return Plain(w, lo, gate_up ? w.rows / 2 + lo : lo + 8);
}

// Adds the product of units from..to-1 to sum. ready() is called once, when the first weights are
// in flight, and returns the token: so weights do not wait for what the token waits for. AHEAD:
// the token's values are loaded as far ahead as the weights. This is for kernels with few warps,
// which have enough registers and would otherwise wait.
template <bool AHEAD, class Format, class Ready> KR_DEV void product(float (&sum)[4], const Format &w, int from, int to, Ready ready) {
	const int D = Format::DEPTH;
	typename Format::Load ring[D];
	uint32_t b[AHEAD ? D : 1][16];
#pragma unroll
	for (int i = 0; i < D; i++)
		if (from + i < to) w.load(ring[i], from + i);
	Token x = ready();
	if (AHEAD) {
#pragma unroll
		for (int i = 0; i < D; i++)
			if (from + i < to) w.tokens(b[AHEAD ? i : 0], x, from + i);
	}
	for (int u = from; u < to; u += D) {
#pragma unroll
		for (int i = 0; i < D; i++) {
			if (u + i < to) {
				w.template multiply<AHEAD>(sum, ring[i], b[AHEAD ? i : 0], x, u + i);
				if (u + i + D < to) {
					w.load(ring[i], u + i + D);
					if (AHEAD) w.tokens(b[AHEAD ? i : 0], x, u + i + D);
				}
			}
		}
	}
}

template <int FORMAT, bool PERMUTED> struct FormatOf {
	typedef Packed<bits_of(FORMAT), group_of(FORMAT), PERMUTED> type;
};

// product where no warp of the block has more than two units, of format A, AHEAD, with
// tokens that are permuted.
template <int FORMAT, class Ready> KR_DEV void short_product(float (&sum)[4], const Matrix &m, int block, int from, int to, Ready ready) {
	typedef typename FormatOf<FORMAT, true>::type Format;
	const Format w(m, block);
	typename Format::Load v[2];
	uint32_t b[2][16];
#pragma unroll
	for (int i = 0; i < 2; i++)
		if (from + i < to) w.load(v[i], from + i);
	const Token x = ready();
#pragma unroll
	for (int i = 0; i < 2; i++)
		if (from + i < to) w.tokens(b[i], x, from + i);
	if (FORMAT == INT4_G128 || FORMAT == INT8_G128) {
		if (from + 1 < to) {
			if constexpr (FORMAT == INT4_G128 || FORMAT == INT8_G128) w.multiply_pair(sum, v, b);
			return;
		}
	}
#pragma unroll
	for (int i = 0; i < 2; i++)
		if (from + i < to) w.template multiply<true>(sum, v[i], b[i], x, from + i);
}

// Part `part` of `parts` of the units of w.
struct Range {
	int from, to;
	KR_MEMBER Range(int a, int b) : from(a), to(b) {}
	KR_MEMBER Range(const Matrix &w, int part, int parts) {
		int units = (w.tiles + 1) / 2;
		from = units * part / parts;
		to = units * (part + 1) / parts;
	}
};

// The product of some units of a block of 16 stored rows. PERMUTED says how activations lie for
// packed weights; for plain rows they are always in order.
template <int FORMAT, bool PERMUTED, bool AHEAD, class Ready>
KR_DEV void product_of(float (&sum)[4], const Matrix &w, int block, bool gate_up, Range units, Ready ready) {
	if constexpr (FORMAT == PLAIN_BF16) {
		product<AHEAD>(sum, plain_block(w, block, gate_up), units.from, units.to, ready);
	} else {
		product<AHEAD>(sum, typename FormatOf<FORMAT, PERMUTED>::type(w, block), units.from, units.to, ready);
	}
}

// Adds the parts of a row, which the warps of the block have, in order. The first warp gets the
// result. parts: [warps][32] of shared memory.
KR_DEV void join(float (&sum)[4], float4 *parts) {
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
	if (warps == 1) return;
	parts[threadIdx.x] = make_float4(sum[0], sum[1], sum[2], sum[3]);
	__syncthreads();
	if (warp != 0) return;
	const int MOST = 8; // warps
	float4 v[MOST];
#pragma unroll
	for (int i = 1; i < MOST; i++)
		if (i < warps) v[i] = parts[i * 32 + lane];
#pragma unroll
	for (int i = 1; i < MOST; i++)
		if (i < warps) {
			sum[0] += v[i].x;
			sum[1] += v[i].y;
			sum[2] += v[i].z;
			sum[3] += v[i].w;
		}
}

// Begins a lane's sums, of rows lo and hi, with their biases: of the first part of the columns.
KR_DEV void begin_sums(float (&sum)[4], const Matrix &w, int lo, int hi) {
	if (!w.bias) return;
	sum[0] = sum[1] = lo < w.rows ? __ldg(w.bias + lo) : 0.f;
	sum[2] = sum[3] = hi < w.rows ? __ldg(w.bias + hi) : 0.f;
}

// Reports whether no warp of the block has more than two units of a row.
KR_DEV bool short_parts(const Matrix &w) { return (w.tiles + 1) / 2 <= 2 * (int)(blockDim.x / 32); }

// The sum of n parts, step floats apart, in order.
KR_DEV float in_order(const float *p, int n, int step) {
	float v = *p;
	for (int i = 1; i < n; i++) v += p[i * step];
	return v;
}

KR_DEV float swiglu(float gate, float up) { return gate / (1.f + __expf(-gate)) * up; }
struct Swiglu {
	KR_MEMBER float operator()(float gate, float up) const { return swiglu(gate, up); }
};

// kernels/device, Activation. alpha 1, limit INFINITY, shift 0: swiglu.
struct Activation {
	float alpha, limit, shift;
	KR_MEMBER float operator()(float gate, float up) const {
		gate = gate > limit ? limit : gate;
		up = up > limit ? limit : up < -limit ? -limit : up;
		return gate / (1.f + __expf(-alpha * gate)) * (up + shift);
	}
};

KR_DEV float got(const void *out, int wide, long long at) { return wide ? ((const float *)out)[at] : load((const bf16 *)out + at); }

// Stores a result as float32 or bfloat16, or adds it to the stored value.
KR_DEV void give(void *out, int wide, int add, long long at, float v) {
	if (wide) {
		float *p = (float *)out + at;
		*p = add ? *p + v : v;
	} else {
		bf16 *p = (bf16 *)out + at;
		store(p, add ? load(p) + v : v);
	}
}
