// Dense products for Hopper: wgmma, both operands in shared memory in the 128-byte swizzle. One
// warpgroup copies with cp.async and signals arrival through an mbarrier; the others multiply. A
// block computes one tile after the other, so the next tile is loaded while results are stored.
#include "gemm.cuh"

#ifdef KR_HOPPER

// The copying warpgroup: thread p copies 16-byte unit p%8 of rows p/8, p/8+16, ...
template <int BM, int BN, int STAGES, int WIDTH, bool SWIGLU> KR_DEV void produce(const Gemm &j, Ring<BM * 128, BN * 128, STAGES> ring) {
	typedef Source<WIDTH, SWIGLU> From;
	const int r = threadIdx.x % 128 / 8, u = threadIdx.x % 8;
	const uint32_t to = r * 128 + ((u ^ (r % 8)) << 4);
	const long long x_step = 16ll * j.x_stride, w_step = 16ll * j.w_stride;
	for (int tile = blockIdx.x; tile < j.tiles; tile += gridDim.x) {
		const Place t = place_of(j, tile);
		const int rows = j.m - t.row * BM - r, cols = j.n - t.col * (SWIGLU ? BN / 2 : BN) - r; // the number of rows from this thread's first on
		const bf16 *x = j.x + t.product * j.x_step + (long long)(j.m - rows) * j.x_stride + 8 * u;
		const long long wo = t.product * j.w_step + (long long)(j.n - cols) * j.w_stride + 8 * u;
		const bf16 *w = j.w + wo, *up = SWIGLU ? j.up + wo : w;
		for (int k = 0; k < t.k; k += 64) {
			const bool in = k + 8 * u < t.k;
			mbar_wait(ring.empty(), ring.turn ^ 1);
			const uint32_t xs = ring.x() + to, ws = ring.w() + to;
#pragma unroll
			for (int i = 0; i < BM / 16; i++) cp_async16(xs + i * 2048, x + i * x_step, in && 16 * i < rows);
#pragma unroll
			for (int i = 0; i < BN / 16; i++) {
				const int f = From::row(16 * i);
				cp_async16(ws + i * 2048, (From::up(16 * i) ? up : w) + f / 16 * w_step, in && f < cols);
			}
			mbar_arrive_cp_async(ring.full());
			ring.next();
			x += 64, w += 64, up += 64;
		}
	}
	cp_async_commit();
	cp_async_wait<0>(); // no copy may be in flight when the thread ends
}

// A multiplying warpgroup: 64 rows of x (its own of CM) and WIDTH rows of w (of CN).
template <int CM, int CN, int WIDTH, int STAGES, bool SWIGLU> KR_DEV void consume(const Gemm &j, Ring<CM * 8192, CN * WIDTH * 128, STAGES> ring) {
	const int group = threadIdx.x / 128, gm = group / CN, gn = group % CN, warp = threadIdx.x % 128 / 32;
	const bool first = threadIdx.x % 32 == 0;
	for (int tile = blockIdx.x; tile < j.tiles; tile += gridDim.x) {
		const Place t = place_of(j, tile);
		float d[WIDTH / 2];
#pragma unroll
		for (int i = 0; i < WIDTH / 2; i++) d[i] = 0.f;
		uint32_t before = 0; // the barrier at which the warps report that they have used the tile before
		for (int k = 0; k < t.k; k += 64) {
			mbar_wait(ring.full(), ring.turn);
			fence_async();
			wgmma_fence();
			const uint64_t a = wgmma_desc(ring.x() + gm * 64 * 128), b = wgmma_desc(ring.w() + gn * WIDTH * 128);
#pragma unroll
			for (int i = 0; i < 4; i++) wgmma_ss<WIDTH>(d, a + 2 * i, b + 2 * i);
			wgmma_commit();
			wgmma_wait<1>();
			if (before && first) mbar_arrive(before);
			before = ring.empty();
			ring.next();
		}
		wgmma_wait<0>();
		if (first) mbar_arrive(before);
		put<WIDTH, SWIGLU>(j, t.product, (t.row * CM + gm) * 64 + warp * 16, (t.col * CN + gn) * (SWIGLU ? WIDTH / 2 : WIDTH), d);
	}
}

template <int CM, int CN, int WIDTH, int STAGES, bool SWIGLU> KR_DEV void gemm_h(const Gemm &j, unsigned char *shared) {
	Ring<CM * 8192, CN * WIDTH * 128, STAGES> ring(smem_u32(shared));
	ring.init(4 * CM * CN);
	pdl_wait();
	pdl_launch();
	if (threadIdx.x / 128 == CM * CN) produce<64 * CM, CN * WIDTH, STAGES, WIDTH, SWIGLU>(j, ring);
	else consume<CM, CN, WIDTH, STAGES, SWIGLU>(j, ring);
}

#define GEMM_KERNEL(name, CM, CN, WIDTH, STAGES, BLOCKS, SWIGLU)     \
	KR_KERNEL(128 * (CM * CN + 1), BLOCKS) name(GEMM_ARGS) {         \
		KR_SHARED(unsigned char, shared);                            \
		const Gemm job = GEMM;                                       \
		gemm_h<CM, CN, WIDTH, STAGES, SWIGLU>(job, shared);          \
	}                                                                \
	KR_EXPORT(name)
GEMM_KERNEL(kr_gemm_128x256_h, 2, 1, 256, 4, 1, false)
GEMM_KERNEL(kr_gemm_128x128_h, 2, 1, 128, 6, 1, false)
GEMM_KERNEL(kr_gemm_64x128_h, 1, 2, 64, 4, 2, false)
GEMM_KERNEL(kr_gemm_swiglu_128x256_h, 2, 1, 256, 4, 1, true)
GEMM_KERNEL(kr_gemm_swiglu_128x128_h, 2, 1, 128, 6, 1, true)
GEMM_KERNEL(kr_gemm_swiglu_64x128_h, 1, 2, 64, 4, 2, true)
#endif
