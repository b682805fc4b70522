// Shared by the dense products (gemm_a.cu with mma.sync, gemm_h.cu with wgmma): out [m, n] = x
// [m, k] * transposed w [n, k], all bfloat16, with sums in float32.
//
// The matrix of results is cut into tiles of BM rows of x and BN rows of w. Every sum runs over k
// in order in one accumulator, and rows share no sums. So a row's bits do not depend on the rows
// that are multiplied with it. Edges are filled with zeros, without reading memory.
#pragma once
#include "kr.cuh"

// What is done with the sums.
enum {
	GEMM_BF16,
	GEMM_F32,
	GEMM_ADD, // float32 out += sums
};

// The arguments of every kernel, in the order of Go's args. Strides and steps count elements.
struct Gemm {
	void *out;
	int mode;
	int out_stride;
	const bf16 *x; // rows of x, w and up are aligned to 16 bytes
	int x_stride;
	const bf16 *w;
	const bf16 *up; // for SwiGLU: w is gate, out = silu(x gate^T) * (x up^T)
	int w_stride;
	int m, n, k;   // n and k: multiples of 8
	int part;      // 0, or the length of the parts into which k is cut (the last part may be shorter)
	int tile_rows; // the number of tiles above one another
	int tile_cols; // and side by side
	int tiles;     // of all products
	long long out_step, x_step, w_step; // from one product to the next
};
#define GEMM_ARGS \
	void *out, int mode, int out_stride, const bf16 *x, int x_stride, const bf16 *w, const bf16 *up, int w_stride, int m, int n, int k, \
	int part, int tile_rows, int tile_cols, int tiles, long long out_step, long long x_step, long long w_step
#define GEMM \
	{ out, mode, out_stride, x, x_stride, w, up, w_stride, m, n, k, part, tile_rows, tile_cols, tiles, out_step, x_step, w_step }

// A tile of one of the products.
struct Place {
	int product, row, col; // row and col count tiles
	int k;                 // columns to multiply
};

// Tiles that run at the same time should share the memory that they read. So up to this many
// tiles above one another come before the next column of tiles.
enum { GEMM_BAND = 16 };

// Tile t of rows x cols tiles.
KR_DEV int2 in_band(int t, int rows, int cols) {
	int band = t / (GEMM_BAND * cols), first = band * GEMM_BAND, height = min(rows - first, (int)GEMM_BAND);
	t -= first * cols;
	return make_int2(first + t % height, t / height);
}

KR_DEV Place place_of(const Gemm &j, int t) {
	int each = j.tile_rows * j.tile_cols, product = t / each;
	int2 at = in_band(t - product * each, j.tile_rows, j.tile_cols);
	return Place{product, at.x, at.y, j.part ? min(j.part, j.k - product * j.part) : j.k};
}

// Where row r of a tile of w is read from. A tile of gate and up is cut into pieces of WIDTH
// rows, the rows that one warp or warpgroup multiplies. Half of a piece is gate, half up, for the
// same features, so a thread has both sums of a feature.
template <int WIDTH, bool SWIGLU> struct Source {
	static __device__ __forceinline__ bool up(int r) { return SWIGLU && r % WIDTH >= WIDTH / 2; }
	static __device__ __forceinline__ int row(int r) { return SWIGLU ? r / WIDTH * (WIDTH / 2) + r % (WIDTH / 2) : r; }
};

KR_DEV float gemm_silu(float v) { return __fdividef(v, 1.f + __expf(-v)); } // -0 where the exponential is beyond 2^126

// Stores COLS sums of a row. Lane 4g+c has v[2i], v[2i+1]: columns col+8i+2c and the next. All
// lanes of the warp call it together; rows past the last one are not stored.
template <int COLS> KR_DEV void put_row(const Gemm &j, int product, int row, int col, const float (&v)[COLS / 4]) {
	const int c = threadIdx.x % 4;
	const long long at = product * j.out_step + (long long)row * j.out_stride;
	if (j.mode == GEMM_BF16) {
		bf16 *p = reinterpret_cast<bf16 *>(j.out) + at + col + 8 * c;
#pragma unroll
		for (int q = 0; q < COLS / 32; q++) {
			// The four lanes of a row exchange pairs, as in the transposition of a 4x4 matrix.
			// Then lane c has the 8 columns of group c, which are 16 bytes.
			uint32_t w[4];
#pragma unroll
			for (int i = 0; i < 4; i++) w[i] = pack_bf16(v[8 * q + 2 * i], v[8 * q + 2 * i + 1]);
#pragma unroll
			for (int d = 1; d < 4; d *= 2) {
				const bool high = c & d;
#pragma unroll
				for (int i = 0; i < 4; i++) {
					if (i & d) continue;
					uint32_t other = __shfl_xor_sync(0xffffffffu, high ? w[i] : w[i + d], d);
					if (high) w[i] = other;
					else w[i + d] = other;
				}
			}
			if (row < j.m && col + 32 * q + 8 * c < j.n) *reinterpret_cast<uint4 *>(p + 32 * q) = make_uint4(w[0], w[1], w[2], w[3]);
		}
		return;
	}
	if (row >= j.m) return;
	float *p = reinterpret_cast<float *>(j.out) + at + col + 2 * c;
	const bool add = j.mode == GEMM_ADD;
#pragma unroll
	for (int i = 0; i < COLS / 8; i++) {
		if (col + 8 * i >= j.n) continue;
		float2 was = add ? load2(p + 8 * i) : make_float2(0.f, 0.f);
		store2(p + 8 * i, was.x + v[2 * i], was.y + v[2 * i + 1]);
	}
}

// Stores the sums of rows g and g+8 (counted from row) and WIDTH rows of w. d[4i], d[4i+1] are
// row g, columns 8i+2c and the next; d[4i+2], d[4i+3] are row g+8. col is the first column of
// out.
template <int WIDTH, bool SWIGLU> KR_DEV void put(const Gemm &j, int product, int row, int col, const float (&d)[WIDTH / 2]) {
	const int COLS = SWIGLU ? WIDTH / 2 : WIDTH;
#pragma unroll
	for (int h = 0; h < 2; h++) {
		float v[COLS / 4];
#pragma unroll
		for (int i = 0; i < COLS / 4; i++) {
			const int at = i / 2 * 4 + 2 * h + i % 2;
			v[i] = SWIGLU ? gemm_silu(d[at]) * d[(SWIGLU ? WIDTH / 4 : 0) + at] : d[at];
		}
		put_row<COLS>(j, product, row + threadIdx.x % 32 / 4 + 8 * h, col, v);
	}
}

#ifdef KR_HOPPER
// A ring of STAGES pairs of tiles of x and w in shared memory, then their barriers. At full, the
// 128 threads of the copying warpgroup arrive when their cp.async are done. At empty, one lane of
// every multiplying warp arrives.
template <int X_BYTES, int W_BYTES, int STAGES> struct Ring {
	static const int BYTES = X_BYTES + W_BYTES;
	uint32_t at;
	int slot;
	uint32_t turn; // the number of rounds, lowest bit

	__device__ __forceinline__ explicit Ring(uint32_t shared) : at(shared), slot(0), turn(0) {}
	__device__ __forceinline__ uint32_t x() const { return at + slot * BYTES; }
	__device__ __forceinline__ uint32_t w() const { return at + slot * BYTES + X_BYTES; }
	__device__ __forceinline__ uint32_t full() const { return at + STAGES * BYTES + 8 * slot; }
	__device__ __forceinline__ uint32_t empty() const { return full() + 8 * STAGES; }
	__device__ __forceinline__ void next() {
		if (++slot == STAGES) slot = 0, turn ^= 1;
	}
	// All threads of the block call it. warps: the number of multiplying warps.
	__device__ __forceinline__ void init(int warps) {
		if (threadIdx.x == 0) {
			for (; slot < STAGES; slot++) {
				mbar_init(full(), 128);
				mbar_init(empty(), warps);
			}
			mbar_init_fence();
			slot = 0;
		}
		__syncthreads();
	}
};
#endif
