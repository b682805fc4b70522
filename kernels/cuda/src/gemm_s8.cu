// Dense products of int8 with int8: activations with a scale a row (kernels/cuda/elem,
// QuantizeRows), weights in format A with 8 bits and a scale a row. Sums are exact
// integers.
//
// Weights are the A operand, from memory to registers; activations the B operand, [tokens]
// [128 columns] in shared memory: rows of 128 bytes, 16-byte unit u of row r at unit
// u ^ r%8. A thread's 16 bytes of weights are 4 columns of rows g and g+8 in each half of
// 32: 2c, 2c+1, 2c+8 and 2c+9 of 16. The instruction wants 4 neighbours; QuantizeRows has
// put every 16 activations in the order in which those are.
#include "gemm.cuh"

enum { GEMM_HIDDEN = GEMM_ADD + 1 }; // stored rows are gate and up joined: silu(gate) * up as bfloat16

// The arguments of every kernel, in the order of Go's args.
struct Gemm8 {
	void *out;
	int mode;
	int out_stride; // elements
	const uint8_t *x;
	int x_stride;   // bytes, a multiple of 16
	int x_cols;     // bytes of a row to read, a multiple of 16; what is behind is zero
	const float *x_scale;
	int x_scale_stride;
	const uint8_t *values;
	const uint32_t *scales;
	int m;
	int rows;       // stored rows of weights, a multiple of 8 (16 if joined)
	int tile_cols;  // tiles of 64 columns
	int tile_tokens, tile_rows; // of results: above one another and side by side
};
#define GEMM8_ARGS \
	void *out, int mode, int out_stride, const uint8_t *x, int x_stride, int x_cols, const float *x_scale, int x_scale_stride, \
	const uint8_t *values, const uint32_t *scales, int m, int rows, int tile_cols, int tile_tokens, int tile_rows
#define GEMM8 \
	{ out, mode, out_stride, x, x_stride, x_cols, x_scale, x_scale_stride, values, scales, m, rows, tile_cols, tile_tokens, tile_rows }

// Weights as one lane of a warp sees them: rows g and g+8 of 16.
struct Packed8 {
	const uint8_t *values;
	const uint32_t *scale;
	int last; // tile of a row of them

	// block: of 16 rows. What is behind the last tile of rows reads that one again: its
	// results are not stored.
	__device__ __forceinline__ Packed8(const Gemm8 &j, int block) {
		int lane = threadIdx.x % 32, row = min(block / 4, (j.rows - 1) / 64);
		last = j.tile_cols - 1;
		values = j.values + (long long)row * j.tile_cols * 4096 + 16 * (block % 4 * 32 + lane);
		scale = j.scales + (long long)row * 32 + block % 4 * 8 + lane / 4;
	}
	// piece: of 32 columns. Behind the last tile the activations are zero.
	__device__ __forceinline__ uint4 load(int piece) const {
		return __ldg(reinterpret_cast<const uint4 *>(values + (long long)min(piece / 2, last) * 4096 + piece % 2 * 2048));
	}
	// Stored is value + 128: with the highest bit turned round it is the signed byte.
	static __device__ __forceinline__ void operand(uint32_t (&a)[4], const uint4 &q) {
		const uint32_t s = 0x80808080u, x = q.x ^ s, y = q.y ^ s, z = q.z ^ s, w = q.w ^ s;
		a[0] = __byte_perm(x, y, 0x6420);
		a[1] = __byte_perm(x, y, 0x7531);
		a[2] = __byte_perm(z, w, 0x6420);
		a[3] = __byte_perm(z, w, 0x7531);
	}
};

// Copies activations to shared memory.
template <int TN, int THREADS> struct Tokens8 {
	static const int BYTES = TN * 128;
	static const int UNITS = TN * 8 / THREADS; // a thread copies
	const uint8_t *x;
	long long step;  // bytes between the rows of two units
	int left, cols;  // tokens from this thread's first on; bytes
	uint32_t to;

	__device__ __forceinline__ Tokens8(const Gemm8 &j, int first) {
		int r = threadIdx.x / 8, u = threadIdx.x % 8;
		x = j.x + (long long)(first + r) * j.x_stride + 16 * u;
		step = (long long)(THREADS / 8) * j.x_stride;
		left = j.m - first - r;
		cols = j.x_cols - 16 * u;
		to = r * 128 + ((u ^ (r % 8)) << 4);
	}
	// k: steps of 128 columns.
	__device__ __forceinline__ void copy(uint32_t stage, int k) const {
#pragma unroll
		for (int i = 0; i < UNITS; i++)
			cp_async16(stage + to + i * (THREADS * 16), x + i * step + 128 * k, i * (THREADS / 8) < left && 128 * k < cols);
	}
};

// Bytes of a token's results in shared memory: 16 more than there are, so that what lanes
// of 4 tokens and 8 rows store at a time lies in 32 banks.
KR_DEV int pitch8(int rows) { return 2 * rows + 16; }

// Takes the sums of 16 stored rows and TN tokens: lane 4g+c has in d[4i] and d[4i+1] row g
// of tokens 8i+2c and the next, then row g+8 of both. local: block of 16 rows in the
// thread block, whole: in the matrix. float32 goes to memory at once, 8 rows of a token are
// a sector; bfloat16 to results.
template <int TN>
KR_DEV void take8(const Gemm8 &j, const int (&d)[TN / 2], uint32_t scale, const float *x_scale, int first, unsigned char *results, int pitch, int local, int whole) {
	const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll
	for (int i = 0; i < TN / 8; i++) {
#pragma unroll
		for (int h = 0; h < 2; h++) {
			const int token = 8 * i + 2 * c + h;
			const float s = x_scale[token], lo = (float)d[4 * i + h] * (s * lo_f32(scale)), hi = (float)d[4 * i + 2 + h] * (s * hi_f32(scale));
			bf16 *p = reinterpret_cast<bf16 *>(results + token * pitch);
			if (j.mode == GEMM_HIDDEN) {
				store(p + 8 * local + g, gemm_silu(lo) * hi);
			} else if (j.mode == GEMM_BF16) {
				store(p + 16 * local + g, lo);
				store(p + 16 * local + g + 8, hi);
			} else if (first + token < j.m) {
				float *q = reinterpret_cast<float *>(j.out) + (long long)(first + token) * j.out_stride + 16 * whole + g;
				const bool add = j.mode == GEMM_ADD;
				if (16 * whole < j.rows) q[0] = add ? q[0] + lo : lo;
				if (16 * whole + 8 < j.rows) q[8] = add ? q[8] + hi : hi;
			}
		}
	}
}

// Stores the block's bfloat16 results, 16 bytes a thread at a time.
template <int TN, int ROWS, int THREADS> KR_DEV void give8(const Gemm8 &j, int first, int tile, const unsigned char *results, int pitch) {
	const int half = j.mode == GEMM_HIDDEN, units = ROWS / 8 >> half, width = j.rows >> half, from = tile * (ROWS >> half);
	if (!half && j.mode != GEMM_BF16) return;
	bf16 *out = reinterpret_cast<bf16 *>(j.out);
	for (int i = threadIdx.x; i < TN * units; i += THREADS) {
		const int token = i / units, column = i % units * 8;
		if (first + token >= j.m || from + column >= width) continue;
		*reinterpret_cast<uint4 *>(out + (long long)(first + token) * j.out_stride + from + column) =
			*reinterpret_cast<const uint4 *>(results + token * pitch + 2 * column);
	}
}

// Where the tokens' scales are in shared memory: behind the ring, later the results.
template <int TN, int ROWS, int STAGES> KR_DEV float *scales8(unsigned char *shared) {
	const int ring = STAGES * TN * 128, results = TN * (2 * ROWS + 16);
	return reinterpret_cast<float *>(shared + (ring > results ? ring : results));
}

// --- mma.sync: 8 warps of 32 rows, all tokens of the tile

template <int TN> KR_DEV void gemm8_a(const Gemm8 &j, unsigned char *shared) {
	const int STAGES = 4, THREADS = 256, ROWS = 256;
	pdl_wait();
	pdl_launch();
	const int2 t = in_band(blockIdx.x, j.tile_tokens, j.tile_rows);
	const int first = t.x * TN, lane = threadIdx.x % 32, local = threadIdx.x / 32 * 2, whole = t.y * (ROWS / 16) + local;
	float *x_scale = scales8<TN, ROWS, STAGES>(shared);
	if (threadIdx.x < TN) x_scale[threadIdx.x] = first + (int)threadIdx.x < j.m ? j.x_scale[(long long)(first + threadIdx.x) * j.x_scale_stride] : 0.f;
	const Tokens8<TN, THREADS> x(j, first);
	const Packed8 w0(j, whole), w1(j, whole + 1);
	const int steps = (j.x_cols + 127) / 128;
	const uint32_t ring = smem_u32(shared);
	auto copy = [&](int k) { // a group even if there is nothing left: groups count steps
		if (k < steps) x.copy(ring + k % STAGES * x.BYTES, k);
		cp_async_commit();
	};
#pragma unroll
	for (int k = 0; k < STAGES - 1; k++) copy(k);
	const int AHEAD = TN > 64 ? 4 : 2, pieces = 4 * steps;
	uint4 q[AHEAD][2]; // each is replaced by one AHEAD pieces later as soon as it is used
#pragma unroll
	for (int s = 0; s < AHEAD; s++) q[s][0] = w0.load(s), q[s][1] = w1.load(s);

	int d[2][TN / 2];
#pragma unroll
	for (int i = 0; i < TN; i++) d[i / (TN / 2)][i % (TN / 2)] = 0;
	// Four 8x16-byte matrices at a time: tokens 0..7 of columns 0..15 and 16..31, then tokens 8..15.
	const uint32_t token = (lane / 16 * 8 + lane % 8) * 128;
	for (int k = 0; k < steps; k++) {
		cp_async_wait<STAGES - 2>();
		__syncthreads(); // also: all have done with step k-1, whose place the copy takes
		copy(k + STAGES - 1);
		const uint32_t stage = ring + k % STAGES * x.BYTES + token;
#pragma unroll
		for (int s = 0; s < 4; s++) {
			uint32_t a[2][4];
			uint4(&now)[2] = q[s % AHEAD];
			Packed8::operand(a[0], now[0]);
			Packed8::operand(a[1], now[1]);
			const int then = 4 * k + s + AHEAD;
			if (then < pieces) now[0] = w0.load(then), now[1] = w1.load(then);
			const uint32_t at = stage + (((2 * s + lane / 8 % 2) ^ (lane % 8)) << 4);
#pragma unroll
			for (int n = 0; n < TN / 16; n++) {
				uint32_t b[4];
				ldmatrix_x4(b, at + n * 16 * 128);
#pragma unroll
				for (int i = 0; i < 2; i++) {
					mma_s8(*reinterpret_cast<int(*)[4]>(&d[i][8 * n]), a[i], b[0], b[1]);
					mma_s8(*reinterpret_cast<int(*)[4]>(&d[i][8 * n + 4]), a[i], b[2], b[3]);
				}
			}
		}
	}
	__syncthreads();
	const int pitch = pitch8(j.mode == GEMM_HIDDEN ? ROWS / 2 : ROWS);
	take8<TN>(j, d[0], __ldg(w0.scale), x_scale, first, shared, pitch, local, whole);
	take8<TN>(j, d[1], __ldg(w1.scale), x_scale, first, shared, pitch, local + 1, whole + 1);
	__syncthreads();
	give8<TN, ROWS, THREADS>(j, first, t.y, shared, pitch);
}

#define GEMM8_A(name, TN, BLOCKS)                     \
	KR_KERNEL(256, BLOCKS) name(GEMM8_ARGS) {         \
		KR_SHARED(unsigned char, shared);             \
		const Gemm8 job = GEMM8;                      \
		gemm8_a<TN>(job, shared);                     \
	}                                                 \
	KR_EXPORT(name)
GEMM8_A(kr_gemm_s8_t64, 64, 2)
GEMM8_A(kr_gemm_s8_t128, 128, 1)

#ifdef KR_HOPPER
// --- wgmma: a warpgroup has 64 rows, all tokens of the tile
//
// 128 columns are multiplied in two halves with registers of their own for the weights: a
// half is prepared while the one before it is multiplied, so that a product is always under
// way.
template <int TN, int STAGES> KR_DEV void gemm8_h(const Gemm8 &j, unsigned char *shared) {
	const int THREADS = 256, ROWS = 128;
	pdl_wait();
	pdl_launch();
	const int2 t = in_band(blockIdx.x, j.tile_tokens, j.tile_rows);
	const int first = t.x * TN, local = threadIdx.x / 32, whole = t.y * (ROWS / 16) + local;
	float *x_scale = scales8<TN, ROWS, STAGES>(shared);
	if (threadIdx.x < TN) x_scale[threadIdx.x] = first + (int)threadIdx.x < j.m ? j.x_scale[(long long)(first + threadIdx.x) * j.x_scale_stride] : 0.f;
	const Tokens8<TN, THREADS> x(j, first);
	const Packed8 w(j, whole);
	const int steps = (j.x_cols + 127) / 128;
	const uint32_t ring = smem_u32(shared);
	auto copy = [&](int slot, int k) {
		if (k < steps) x.copy(ring + slot * x.BYTES, k);
		cp_async_commit();
	};
	uint4 q[4]; // of a step; each is replaced by the next step's as soon as it is used
#pragma unroll
	for (int i = 0; i < 4; i++) q[i] = w.load(i);
#pragma unroll
	for (int k = 0; k < STAGES - 2; k++) copy(k, k);

	int d[TN / 2];
#pragma unroll
	for (int i = 0; i < TN / 2; i++) d[i] = 0;
	uint32_t lower[2][4], upper[2][4]; // the A operand of a half, two steps of 32 columns
	auto prepare = [&](uint32_t(&a)[2][4], int half, int next) {
#pragma unroll
		for (int i = 0; i < 2; i++) {
			Packed8::operand(a[i], q[2 * half + i]);
			if (next < steps) q[2 * half + i] = w.load(4 * next + 2 * half + i);
		}
	};
	auto start = [&](const uint32_t(&a)[2][4], uint64_t b) {
		wgmma_fence();
#pragma unroll
		for (int i = 0; i < 2; i++) wgmma_s8_rs<TN>(d, a[i], b + 2 * i);
		wgmma_commit();
	};
	int slot = 0; // of the ring, of step k
	prepare(lower, 0, 1);
	for (int k = 0; k < steps; k++) {
		cp_async_wait<STAGES - 3>();
		fence_async();
		__syncthreads();
		const uint64_t b = wgmma_desc(ring + slot * x.BYTES);
		start(lower, b);
		copy(slot < 2 ? slot + STAGES - 2 : slot - 2, k + STAGES - 2); // all have started step k: only k-2 is surely done
		wgmma_wait<1>();
		prepare(upper, 1, k + 1);
		start(upper, b + 4);
		wgmma_wait<1>();
		prepare(lower, 0, k + 2);
		slot = slot + 1 < STAGES ? slot + 1 : 0;
	}
	wgmma_wait<0>();
	__syncthreads();
	const int pitch = pitch8(j.mode == GEMM_HIDDEN ? ROWS / 2 : ROWS);
	take8<TN>(j, d, __ldg(w.scale), x_scale, first, shared, pitch, local, whole);
	__syncthreads();
	give8<TN, ROWS, THREADS>(j, first, t.y, shared, pitch);
}

#define GEMM8_H(name, TN, STAGES, BLOCKS)             \
	KR_KERNEL(256, BLOCKS) name(GEMM8_ARGS) {         \
		KR_SHARED(unsigned char, shared);             \
		const Gemm8 job = GEMM8;                      \
		gemm8_h<TN, STAGES>(job, shared);             \
	}                                                 \
	KR_EXPORT(name)
GEMM8_H(kr_gemm_s8_t64_h, 64, 6, 2)
GEMM8_H(kr_gemm_s8_t128_h, 128, 5, 2)
GEMM8_H(kr_gemm_s8_t256_h, 256, 5, 1)
#endif
