// Shared by the grouped products (moe_a.cu with mma.sync, moe_h.cu with wgmma): the load of
// packed weights into the A operand of a matrix instruction, the gathering of rows of activations
// to shared memory, and the store of results.
//
// A block multiplies ROWS stored rows of one expert's weights with a tile of up to TN tokens.
// blockIdx.x counts blocks of rows, blockIdx.y tiles of tokens. So blocks that run at the same
// time share activations, and an expert's weights stay in L2 from one of its tiles to the next.
// Every sum runs over k in order in one accumulator. It does not depend on the other tokens of a
// tile or on their number.
#pragma once
#include "int3.cuh"

#define KR_MEMBER __device__ __forceinline__

// Formats: name, bits per weight, columns that share a scale (0: all, named ch).
#define ALL_FORMATS(X) \
	X(int4_g32, 4, 32) X(int4_g64, 4, 64) X(int4_g128, 4, 128) X(int4_ch, 4, 0) \
	X(int8_g32, 8, 32) X(int8_g64, 8, 64) X(int8_g128, 8, 128) X(int8_ch, 8, 0) \
	X(int3_g64, 3, 64) X(int3_g128, 3, 128)
#define GROUPED_FORMATS(X) \
	X(int4_g32, 4, 32) X(int4_g64, 4, 64) X(int4_g128, 4, 128) \
	X(int8_g32, 8, 32) X(int8_g64, 8, 64) X(int8_g128, 8, 128) \
	X(int3_g64, 3, 64) X(int3_g128, 3, 128)

// What is done with the sums.
enum {
	TO_HIDDEN, // stored rows are gate and up joined: their activation as bfloat16
	TO_BF16,
	TO_F32,
	ADD_F32, // out += sums
};

KR_DEV float silu(float v) { return __fdividef(v, 1.f + __expf(-v)); } // -0 where the exponential is beyond 2^126

// The arguments of every kernel, in the order of Go's args.
struct Job {
	void *out;
	int mode;
	int out_stride;          // elements
	const float *row_factor; // of each output row, or null: multiplies its results
	const bf16 *x;
	int x_stride;            // elements, a multiple of 8
	int divisor;             // the row of x is output row / divisor
	const int4 *tiles;       // kernels/cuda/route.Aligned: expert, first slot, rows;
	const int *slots;        // null: one matrix, and tiles of TN of the m rows of x
	const int *count;
	int m;
	const uint8_t *values;   // of expert 0, and
	const uint32_t *scales;
	int rows;                // stored rows, a multiple of 8
	int tile_cols;           // tiles of 64 columns
	int groups;              // scales of a row
	long long step, scale_step; // bytes from one expert to the next

	static const bool BIASED = false;
	KR_MEMBER float activation(float gate, float up) const { return silu(gate) * up; }
};
#define ARGS_OF_Job \
	void *out, int mode, int out_stride, const float *row_factor, const bf16 *x, int x_stride, int divisor, const int4 *tiles, \
	const int *slots, const int *count, int m, const uint8_t *values, const uint32_t *scales, int rows, int tile_cols, int groups, \
	long long step, long long scale_step
#define VALUES_OF_Job \
	{ out, mode, out_stride, row_factor, x, x_stride, divisor, tiles, slots, count, m, values, scales, rows, tile_cols, groups, step, scale_step }

// A job with biases and another activation. A bias is added to sums that have their scale, so the
// weights have groups.
struct BiasedJob : Job {
	const float *bias;         // of expert 0: [rows], of joined weights gate's then up's; null: none
	long long bias_step;       // bytes from one expert to the next
	float alpha, limit, shift; // of the activation: kernels/device, Activation

	static const bool BIASED = true;
	// NaN stays NaN.
	KR_MEMBER float activation(float g, float u) const {
		g = g > limit ? limit : g;
		u = u > limit ? limit : u < -limit ? -limit : u;
		return __fdividef(g, 1.f + __expf(-alpha * g)) * (u + shift);
	}
	KR_MEMBER float of(int row) const { // reads the expert again: no register holds it through the loop
		return bias && row < rows ? ((const float *)((const char *)bias + tiles[blockIdx.y].x * bias_step))[row] : 0.f;
	}
	// Adds the biases of 16 rows to a lane's sums, which are as in for_each.
	template <int N> KR_MEMBER void add(float (&d)[N][4], int block) const {
		int g = threadIdx.x % 32 / 4, half = mode == TO_HIDDEN, lo = (half ? 8 : 16) * block + g;
		float b_lo = of(lo), b_hi = of(lo + (half ? rows / 2 : 8));
#pragma unroll
		for (int i = 0; i < N; i++) d[i][0] += b_lo, d[i][1] += b_lo, d[i][2] += b_hi, d[i][3] += b_hi;
	}
};
#define ARGS_OF_BiasedJob ARGS_OF_Job, const float *bias, long long bias_step, float alpha, float limit, float shift
#define VALUES_OF_BiasedJob { VALUES_OF_Job, bias, bias_step, alpha, limit, shift }

// --- weights

// Packed weights (kernels/tensor/integergpu.go) as one lane of a warp has them: rows g and g+8 of
// 16.
template <int BITS, int GROUP> struct Packed {
	static const int PIECES = BITS == 8 ? 2 : 1; // loads of 16 bytes per tile; INT3: of 12
	static const int PIECE = 512 * BITS / PIECES; // bytes, of all 128 threads
	static const int STEPS = 4 / PIECES; // steps of 16 columns per piece
	static const int SCALES = GROUP == 0 ? 0 : GROUP == 32 ? STEPS / 2 : 1; // words per piece
	struct Piece { // as stored in memory
		uint4 q;
		uint32_t s[SCALES + (SCALES == 0)];
	};
	const uint8_t *values;
	const uint32_t *scales;
	int third; // of INT3: bytes from values to the third word

	// block: 16 rows of the expert's matrix. A block past the last tile of rows reads that tile
	// again; its results are not stored.
	KR_MEMBER Packed(const Job &j, int expert, int block) {
		int lane = threadIdx.x % 32, row = min(block / 4, (j.rows - 1) / 64);
		values = j.values + expert * j.step + (long long)row * j.tile_cols * (512 * BITS) + (BITS == 3 ? 8 : 16) * (block % 4 * 32 + lane);
		third = 1024 - 4 * (block % 4 * 32 + lane);
		scales = (const uint32_t *)((const uint8_t *)j.scales + expert * j.scale_step) + (long long)row * j.groups * 32 + block % 4 * 8 + lane / 4;
	}
	// piece: its number in the row of tiles. at: the number minus the pieces by which values has
	// advanced. further: 16-row blocks beyond the first, in the same tile.
	KR_MEMBER void load(Piece &v, int at, int piece, int further = 0) const {
		const uint8_t *p = values + (long long)at * PIECE + (BITS == 3 ? 256 : 512) * further;
		v.q = BITS == 3 ? load3(p, third - 128 * further) : ld_stream(p);
#pragma unroll
		for (int i = 0; i < SCALES; i++) v.s[i] = __ldg(scale(piece, i) + 8 * further);
	}
	// Loads through a place of the thread's own in shared memory. step: the distance to its next
	// scale.
	KR_MEMBER void copy(uint32_t to, uint32_t scale_to, int step, int at, int piece) const {
		const uint8_t *p = values + at * PIECE;
		if (BITS == 3) {
			cp_async_small<8>(to, p);
			cp_async_small<4>(to + 8, p + third);
		} else {
			cp_async16(to, p);
		}
#pragma unroll
		for (int i = 0; i < SCALES; i++) cp_async_small<4>(scale_to + i * step, scale(piece, i));
	}
	static KR_MEMBER void fetch(Piece &v, const unsigned char *from, const unsigned char *scale_from, int step) {
		if (BITS == 3) {
			uint2 two = *reinterpret_cast<const uint2 *>(from);
			v.q = make_uint4(two.x, two.y, *reinterpret_cast<const uint32_t *>(from + 8), 0);
		} else {
			v.q = *reinterpret_cast<const uint4 *>(from);
		}
#pragma unroll
		for (int i = 0; i < SCALES; i++) v.s[i] = *reinterpret_cast<const uint32_t *>(scale_from + i * step);
	}
	KR_MEMBER const uint32_t *scale(int piece, int i) const {
		return scales + (uint32_t)(GROUP > 32 ? piece * (16 * STEPS) / GROUP : piece * SCALES + i) * 32u;
	}
	// Loads the scales that are applied at the end, of rows g and g+8: all of them if there are
	// no groups.
	KR_MEMBER float2 last_scale(int further = 0) const {
		if (GROUP != 0) return make_float2(1.f, 1.f);
		uint32_t s = __ldg(scales + 8 * further);
		return make_float2(lo_f32(s), hi_f32(s));
	}
	// The A operand of step 0..STEPS-1 of a piece: exact integers times the scale. The offset and
	// the scale are two roundings on purpose. offset * scale is not a bfloat16 number, so a
	// single fma of it would lose a quarter of a step of the weight.
	static KR_MEMBER void operand(uint32_t (&a)[4], const Piece &v, int step) {
		if constexpr (BITS == 3) {
			unpack3(a, v.q.x, v.q.y, v.q.z, step);
#pragma unroll
			for (int i = 0; i < 4; i++) a[i] = fma_bf16x2(a[i], 0x3f803f80u, 0xc240c240u); // minus INT3_OFFSET
		} else if constexpr (BITS == 4) {
			const uint4 &q = v.q;
			uint32_t w = step == 0 ? q.x : step == 1 ? q.y : step == 2 ? q.z : q.w;
			// The bits of a nibble n (value + 8) make 128 + n; subtracting 136 is exact.
#pragma unroll
			for (int i = 0; i < 4; i++) a[i] = fma_bf16x2(and_or<0x000f000f, 0x43004300>(w >> (4 * i)), 0x3f803f80u, 0xc308c308u);
		} else {
			const uint4 &q = v.q;
			uint32_t w0 = step == 0 ? q.x : q.z, w1 = step == 0 ? q.y : q.w, w[4] = {w0, w0 >> 8, w1, w1 >> 8};
			// The low 7 bits of a byte (value + 128) make 128 plus these bits. Subtracting 128 if
			// the high bit is set, or 256 if not, gives the value.
#pragma unroll
			for (int i = 0; i < 4; i++)
				a[i] = fma_bf16x2(and_or<0x007f007f, 0x43004300>(w[i]), 0x3f803f80u, (w[i] & 0x00800080u) ^ 0xc380c380u);
		}
		if constexpr (GROUP != 0) {
			uint32_t s = v.s[GROUP == 32 ? step / 2 : 0], lo = __byte_perm(s, s, 0x1010), hi = __byte_perm(s, s, 0x3232);
#pragma unroll
			for (int i = 0; i < 4; i++) a[i] = fma_bf16x2(a[i], i % 2 ? hi : lo, 0x80008000u); // -0 leaves the product unchanged
		}
	}
};

// --- tokens

struct Tile {
	int expert, first, count; // count 0: no work
};

KR_DEV Tile tile_of(const Job &j, int tokens) {
	int i = blockIdx.y;
	if (!j.slots) return Tile{0, i * tokens, min(tokens, j.m - i * tokens)};
	int4 v = __ldcg(j.tiles + i); // memory exists for every tile of the grid, so both loads are issued at once
	return i < __ldcg(j.count) ? Tile{v.x, v.y, v.z} : Tile{0, 0, 0};
}

// The output row of token r (below count) of a tile.
KR_DEV int row_of(const Job &j, const Tile &t, int r) { return j.slots ? __ldcg(j.slots + t.first + r) : t.first + r; }

// Copies tiles [TN tokens][64 columns] of the tokens' rows to shared memory: rows of 128 bytes,
// unit u (16 bytes) of row r at unit u ^ r%8, as wgmma and a conflict-free ldmatrix require. Past
// the last token that token is copied again.
template <int TN, int THREADS> struct Gather {
	static const int BYTES = TN * 128;
	static const int UNITS = TN * 8 / THREADS; // per thread
	const uint4 *x;
	uint32_t from[UNITS]; // in units: up to 64 GiB of activations
	uint32_t to;          // in bytes; also a place of its own for each thread

	KR_MEMBER Gather(const Job &j, const Tile &t) {
		int r = threadIdx.x / 8, u = threadIdx.x % 8;
		x = reinterpret_cast<const uint4 *>(j.x);
		to = r * 128 + ((u ^ (r & 7)) << 4);
#pragma unroll
		for (int i = 0; i < UNITS; i++) {
			int row = row_of(j, t, min(r + i * (THREADS / 8), t.count - 1)) / j.divisor;
			from[i] = (uint32_t)row * (uint32_t)(j.x_stride / 8) + u;
		}
	}
	// Copies tile tile, counted from where x has advanced to. base: the address of the thread's
	// first unit, relative to the stage's start.
	KR_MEMBER void copy(uint32_t base, int tile) const {
#pragma unroll
		for (int i = 0; i < UNITS; i++) cp_async16(base + i * (THREADS * 16), x + (from[i] + 8u * (uint32_t)tile));
	}
};

// --- results

// Bytes per row of results in shared memory: 16 more than the results need. So the values of 4
// tokens and 8 rows that lanes store at a time lie in 32 banks.
KR_DEV int pitch_of(int rows) { return 2 * rows + 16; }

// The shared memory of a block: the ring of activations, later the results, and the output rows.
KR_DEV int output_rows_at(int ring, int tokens, int rows) { return max(ring, tokens * pitch_of(rows)); }

// A lane's results of 16 stored rows and TN tokens: d[i] has row g of tokens 8i+2c and 8i+2c+1,
// then row g+8 of both. Calls each(token, row g, row g+8).
template <int TN, class Each> KR_DEV void for_each(const float (&d)[TN / 8][4], float2 scale, Each each) {
	int c = threadIdx.x % 4;
#pragma unroll
	for (int i = 0; i < TN / 8; i++) {
		each(8 * i + 2 * c, d[i][0] * scale.x, d[i][2] * scale.y);
		each(8 * i + 2 * c + 1, d[i][1] * scale.x, d[i][3] * scale.y);
	}
}

// Stores those results. The 16 rows are `local` in the thread block and `whole` in the matrix.
// float32 goes directly to memory, where 8 rows of a token are a sector; bfloat16 goes to the
// block's results in shared memory.
template <int TN, class J>
KR_DEV void take(const J &j, float (&d)[TN / 8][4], float2 scale, const int *rows, unsigned char *results, int pitch, int local, int whole) {
	int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
	if (j.row_factor) {
#pragma unroll
		for (int i = 0; i < TN / 4; i++) {
			int row = rows[i / 2 * 8 + 2 * c + i % 2];
			float f = row < 0 ? 0.f : j.row_factor[row];
			d[i / 2][i % 2] *= f;
			d[i / 2][i % 2 + 2] *= f;
		}
	}
	if (j.mode == TO_HIDDEN) {
		bf16 *p = reinterpret_cast<bf16 *>(results) + 8 * local + g;
		for_each<TN>(d, scale, [&](int token, float lo, float hi) { store(p + token * (pitch / 2), j.activation(lo, hi)); });
	} else if (j.mode == TO_BF16) {
		bf16 *p = reinterpret_cast<bf16 *>(results) + 16 * local + g;
		for_each<TN>(d, scale, [&](int token, float lo, float hi) {
			store(p + token * (pitch / 2), lo);
			store(p + token * (pitch / 2) + 8, hi);
		});
	} else {
		float *p = reinterpret_cast<float *>(j.out) + 16 * whole + g;
		bool has_lo = 16 * whole < j.rows, has_hi = 16 * whole + 8 < j.rows, add = j.mode == ADD_F32;
		for_each<TN>(d, scale, [&](int token, float lo, float hi) {
			int row = rows[token];
			if (row < 0) return;
			float *q = p + (long long)row * j.out_stride;
			if (has_lo) q[0] = add ? q[0] + lo : lo;
			if (has_hi) q[8] = add ? q[8] + hi : hi;
		});
	}
}

// Stores the block's bfloat16 results, 16 bytes a thread at a time.
template <int TN, int ROWS, int THREADS> KR_DEV void give(const Job &j, const int *rows, const unsigned char *results, int pitch) {
	if (j.mode > TO_BF16) return;
	int half = j.mode == TO_HIDDEN, bits = (ROWS == 256 ? 5 : 4) - half; // 16-byte units per token: ROWS / 8, or half
	int width = j.rows >> half, first = blockIdx.x * (ROWS >> half);
	bf16 *out = reinterpret_cast<bf16 *>(j.out);
	for (int i = threadIdx.x; i < TN << bits; i += THREADS) {
		int token = i >> bits, column = (i & ((1 << bits) - 1)) * 8, row = rows[token];
		if (row < 0 || first + column >= width) continue;
		*reinterpret_cast<uint4 *>(out + (long long)row * j.out_stride + first + column) =
			*reinterpret_cast<const uint4 *>(results + token * pitch + 2 * column);
	}
}
