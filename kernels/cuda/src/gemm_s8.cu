// Dense products of int8 with int8 for every card: mma.sync, 8 warps of 32 rows of weights
// and all tokens of the tile. Weights go from memory to registers.
#include "gemm_s8.cuh"

// Addresses are kept in units of 16 bytes from the start of a matrix, 32 bits for 64 GiB:
// registers are short.

// Weights as one lane of a warp sees them: rows g, g+8, g+16 and g+24 of 32.
struct Packed8 {
	const uint4 *values;
	uint32_t from;
	int last; // tile of a row of them

	// block: of 16 rows, the first of two. What is behind the last tile of rows reads that
	// one again: its results are not stored.
	__device__ __forceinline__ Packed8(const Gemm8 &j, int block) {
		int lane = threadIdx.x % 32, row = min(block / 4, (j.rows - 1) / 64);
		last = j.tile_cols - 1;
		values = reinterpret_cast<const uint4 *>(j.values);
		from = (uint32_t)row * (uint32_t)j.tile_cols * 256u + block % 4 * 32 + lane;
	}
	// piece: of 32 columns. Behind the last tile the activations are zero.
	__device__ __forceinline__ void load(uint4 (&q)[2], int piece) const {
		const uint4 *p = values + (from + min(piece / 2, last) * 256u + piece % 2 * 128u);
		q[0] = __ldg(p);
		q[1] = __ldg(p + 32);
	}
};

// Copies activations to shared memory.
template <int TN, int THREADS> struct Tokens8 {
	static const int BYTES = TN * 128;
	static const int UNITS = TN * 8 / THREADS; // a thread copies
	const uint4 *x;
	uint32_t from, step; // from one of a thread's rows to the next
	int left, cols;      // tokens from this thread's first on; bytes
	uint32_t to;

	__device__ __forceinline__ Tokens8(const Gemm8 &j, int first) {
		int r = threadIdx.x / 8, u = threadIdx.x % 8;
		x = reinterpret_cast<const uint4 *>(j.x);
		from = (uint32_t)(first + r) * (uint32_t)(j.x_stride / 16) + u;
		step = THREADS / 8 * (uint32_t)(j.x_stride / 16);
		left = j.m - first - r;
		cols = j.x_cols - 16 * u;
		to = r * 128 + ((u ^ (r % 8)) << 4);
	}
	// k: steps of 128 columns.
	__device__ __forceinline__ void copy(uint32_t stage, int k) const {
#pragma unroll
		for (int i = 0; i < UNITS; i++)
			cp_async16(stage + to + i * (THREADS * 16), x + (from + i * step + 8u * k), i * (THREADS / 8) < left && 128 * k < cols);
	}
};

template <int TN> KR_DEV void gemm8_a(const Gemm8 &j, unsigned char *shared) {
	const int STAGES = 4, THREADS = 256, ROWS = 256;
	pdl_wait();
	pdl_launch();
	const int2 t = in_band(blockIdx.x, j.tile_tokens, j.tile_rows);
	const int first = t.x * TN, lane = threadIdx.x % 32, whole = t.y * (ROWS / 16) + threadIdx.x / 32 * 2;
	const Tokens8<TN, THREADS> x(j, first);
	const Packed8 w(j, whole);
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
	for (int s = 0; s < AHEAD; s++) w.load(q[s], s);

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
			operand8(a[0], now[0]);
			operand8(a[1], now[1]);
			const int then = 4 * k + s + AHEAD;
			if (then < pieces) w.load(now, then);
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
	const uint32_t scale = (uint32_t)min(whole / 4, (j.rows - 1) / 64) * 32u + whole % 4 * 8 + lane / 4;
	put8<TN>(j, d[0], __ldg(j.scales + scale), first, 16 * whole);
	put8<TN>(j, d[1], __ldg(j.scales + scale + 8), first, 16 * whole + 16);
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
