// Dense products for every GPU: mma.sync, both operands through shared memory. A warp computes WM
// x WN results of a tile. This should be large: in a step of k a warp reads WM + WN rows of
// shared memory for WM * WN products. With 64 x 32 the reads alone take nearly as long as the
// products.
#include "gemm.cuh"

// A step takes 32 columns of k. Rows have 64 bytes, and 16-byte unit u of row r lies at unit u ^
// r/2%4. So the units that ldmatrix reads at a time (unit u of 8 rows) lie in 32 banks, and so do
// the units that 8 lanes copy.
KR_DEV uint32_t row64(int r, int u) { return r * 64 + ((u ^ (r / 2 % 4)) << 4); }

// The rows of a tile that a thread copies: r0, r0 + THREADS/4, ...
template <int ROWS, int THREADS> struct Rows64 {
	static const int UNITS = ROWS * 4 / THREADS;
	static_assert(THREADS / 4 % 8 == 0 && UNITS > 0, "all rows of a thread have the same swizzle");
	const bf16 *from[UNITS];
	unsigned inside; // one bit per unit

	// left: the number of columns left for this step. k: the first of them.
	__device__ __forceinline__ void copy(uint32_t stage, int k, int left) const {
		const int r = threadIdx.x / 4, u = threadIdx.x % 4;
#pragma unroll
		for (int i = 0; i < UNITS; i++)
			cp_async16(stage + row64(r, u) + i * (THREADS * 16), from[i] + k, 8 * u < left && (inside >> i & 1));
	}
};

template <int BM, int BN, int WM, int WN, int STAGES, bool SWIGLU> KR_DEV void gemm_a(const Gemm &j, unsigned char *shared) {
	const int WARPS_N = BN / WN, THREADS = 32 * (BM / WM) * WARPS_N, STAGE = (BM + BN) * 64;
	typedef Source<WN, SWIGLU> From;
	pdl_wait();
	pdl_launch();
	const Place t = place_of(j, blockIdx.x);
	const int row = t.row * BM, col = t.col * (SWIGLU ? BN / 2 : BN);
	Rows64<BM, THREADS> x;
	Rows64<BN, THREADS> w;
	x.inside = w.inside = 0;
#pragma unroll
	for (int i = 0; i < x.UNITS; i++) {
		int r = row + threadIdx.x / 4 + i * (THREADS / 4);
		x.inside |= (unsigned)(r < j.m) << i;
		x.from[i] = j.x + t.product * j.x_step + (long long)min(r, j.m - 1) * j.x_stride + 8 * (threadIdx.x % 4);
	}
#pragma unroll
	for (int i = 0; i < w.UNITS; i++) {
		int at = threadIdx.x / 4 + i * (THREADS / 4), r = col + From::row(at);
		w.inside |= (unsigned)(r < j.n) << i;
		w.from[i] = (From::up(at) ? j.up : j.w) + t.product * j.w_step + (long long)min(r, j.n - 1) * j.w_stride + 8 * (threadIdx.x % 4);
	}
	const uint32_t ring = smem_u32(shared);
	const int steps = (t.k + 31) / 32;
	auto copy = [&](int k) { // commits a group even if nothing is left, because groups count steps
		if (k < steps) {
			const uint32_t stage = ring + k % STAGES * STAGE;
			x.copy(stage, 32 * k, t.k - 32 * k);
			w.copy(stage + BM * 64, 32 * k, t.k - 32 * k);
		}
		cp_async_commit();
	};
#pragma unroll
	for (int k = 0; k < STAGES - 1; k++) copy(k);

	float d[WM / 16][WN / 2];
#pragma unroll
	for (int i = 0; i < WM / 16; i++)
#pragma unroll
		for (int n = 0; n < WN / 2; n++) d[i][n] = 0.f;
	struct Operands { // of 16 columns
		uint32_t a[WM / 16][4], b[WN / 16][4];
	};
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, wm = warp / WARPS_N * WM, wn = warp % WARPS_N * WN;
	// Four 8x8 matrices at a time. a: rows 0..7 and 8..15 of columns 0..7, then of 8..15.
	// b: columns 0..7 and 8..15 of rows 0..7, then of rows 8..15.
	auto fetch = [&](Operands &o, int k, int half) {
		const uint32_t a = ring + k % STAGES * STAGE + wm * 64 + row64(lane % 16, 2 * half + lane / 16);
		const uint32_t b = ring + k % STAGES * STAGE + (BM + wn) * 64 + row64(lane / 16 * 8 + lane % 8, 2 * half + lane / 8 % 2);
#pragma unroll
		for (int i = 0; i < WM / 16; i++) ldmatrix_x4(o.a[i], a + i * 16 * 64);
#pragma unroll
		for (int i = 0; i < WN / 16; i++) ldmatrix_x4(o.b[i], b + i * 16 * 64);
	};
	auto multiply = [&](const Operands &o) {
#pragma unroll
		for (int n = 0; n < WN / 8; n++)
#pragma unroll
			for (int i = 0; i < WM / 16; i++)
				mma_bf16(*reinterpret_cast<float(*)[4]>(&d[i][4 * n]), o.a[i], o.b[n / 2][n % 2 * 2], o.b[n / 2][n % 2 * 2 + 1]);
	};
	// One half of a step's operands is read while the half before it is multiplied.
	Operands even, odd;
	cp_async_wait<STAGES - 2>();
	__syncthreads();
	fetch(even, 0, 0);
	for (int k = 0; k < steps; k++) {
		fetch(odd, k, 1);
		copy(k + STAGES - 1); // to the stage of step k-1, which all warps have read before the last barrier
		multiply(even);
		cp_async_wait<STAGES - 2>();
		__syncthreads();
		if (k + 1 < steps) fetch(even, k + 1, 0);
		multiply(odd);
	}
#pragma unroll
	for (int i = 0; i < WM / 16; i++) put<WN, SWIGLU>(j, t.product, row + wm + 16 * i, col + (SWIGLU ? wn / 2 : wn), d[i]);
}

#define GEMM_KERNEL(name, BM, BN, WM, WN, STAGES, BLOCKS, SWIGLU)    \
	KR_KERNEL(32 * (BM / WM) * (BN / WN), BLOCKS) name(GEMM_ARGS) {  \
		KR_SHARED(unsigned char, shared);                            \
		const Gemm job = GEMM;                                       \
		gemm_a<BM, BN, WM, WN, STAGES, SWIGLU>(job, shared);         \
	}                                                                \
	KR_EXPORT(name)
GEMM_KERNEL(kr_gemm_128x128, 128, 128, 64, 64, 4, 2, false)
GEMM_KERNEL(kr_gemm_64x64, 64, 64, 32, 32, 4, 4, false)
GEMM_KERNEL(kr_gemm_swiglu_128x128, 128, 128, 64, 64, 4, 2, true)
GEMM_KERNEL(kr_gemm_swiglu_64x64, 64, 64, 32, 64, 4, 5, true)

// out = the sum of the parts (float32 [m, n] each) in order, or with mode GEMM_ADD out += the
// sum. A thread has 4 columns.
KR_KERNEL(256, 4) kr_gemm_sum(void *out, int mode, int out_stride, const float *parts, int count, int m, int n) {
	pdl_wait();
	pdl_launch();
	const long long i = (long long)blockIdx.x * 256 + threadIdx.x, each = (long long)m * n;
	if (4 * i >= each) return;
	const int row = (int)(4 * i / n), col = (int)(4 * i - (long long)row * n);
	float4 s = make_float4(0.f, 0.f, 0.f, 0.f);
	for (int p = 0; p < count; p++) {
		float4 v = *reinterpret_cast<const float4 *>(parts + p * each + 4 * i);
		s.x += v.x, s.y += v.y, s.z += v.z, s.w += v.w;
	}
	const long long at = (long long)row * out_stride + col;
	if (mode == GEMM_BF16) {
		bf16 *p = reinterpret_cast<bf16 *>(out) + at;
		*reinterpret_cast<uint2 *>(p) = make_uint2(pack_bf16(s.x, s.y), pack_bf16(s.z, s.w));
		return;
	}
	float *p = reinterpret_cast<float *>(out) + at;
	float2 lo = make_float2(0.f, 0.f), hi = lo;
	if (mode == GEMM_ADD) lo = load2(p), hi = load2(p + 2);
	store2(p, lo.x + s.x, lo.y + s.y);
	store2(p + 2, hi.x + s.z, hi.y + s.w);
}
KR_EXPORT(kr_gemm_sum)
