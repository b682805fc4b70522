// Dense products of int8 with int8 for Hopper: wgmma, weights as the A operand from
// registers. One warpgroup copies activations and weights to shared memory (so that those
// that multiply have no loads of their own under way when they fence), two multiply, 64
// stored rows each and all tokens of the tile. A block stays and takes one tile after the
// other.
#include "gemm_s8.cuh"

#ifdef KR_HOPPER

enum { S8_ROWS = 128, S8_W = S8_ROWS / 64 * 2 * 4096 }; // of a step of 128 columns: two tiles of format A a row of tiles

template <int TN, int STAGES> KR_DEV void produce8(const Gemm8 &j, Ring<TN * 128, S8_W, STAGES> ring) {
	const int p = threadIdx.x % 128, r = p / 8, u = p % 8, last_row = (j.rows - 1) / 64, last = j.tile_cols - 1;
	const uint32_t to = r * 128 + ((u ^ (r % 8)) << 4);
	const long long step = 16ll * j.x_stride;
	for (int tile = blockIdx.x; tile < j.tile_tokens * j.tile_rows; tile += gridDim.x) {
		const int2 t = in_band(tile, j.tile_tokens, j.tile_rows);
		const int left = j.m - t.x * TN - r; // tokens from this thread's first on
		const uint8_t *x = j.x + (long long)(j.m - left) * j.x_stride + 16 * u;
		// What is behind the last row of tiles reads that one again: its results are not stored.
		const uint8_t *w[2];
#pragma unroll
		for (int i = 0; i < 2; i++) w[i] = j.values + (long long)min(2 * t.y + i, last_row) * j.tile_cols * 4096 + 16 * p;
		for (int k = 0; 128 * k < j.x_cols; k++) {
			const bool in = 128 * k + 16 * u < j.x_cols;
			mbar_wait(ring.empty(), ring.turn ^ 1);
			const uint32_t xs = ring.x() + to, ws = ring.w() + 16 * p;
#pragma unroll
			for (int i = 0; i < TN / 16; i++) cp_async16(xs + i * 2048, x + i * step + 128 * k, in && 16 * i < left);
#pragma unroll
			for (int i = 0; i < 8; i++) // behind the last tile activations are zero
				cp_async16(ws + i * 2048, w[i / 4] + (long long)min(2 * k + i / 2 % 2, last) * 4096 + i % 2 * 2048);
			mbar_arrive_cp_async(ring.full());
			ring.next();
		}
	}
	cp_async_commit();
	cp_async_wait<0>(); // nothing may be on its way when the thread ends
}

// A step is multiplied in two halves with registers of their own for the weights: a half is
// prepared while the one before it is multiplied, so that a product is always under way.
template <int TN, int STAGES> KR_DEV void consume8(const Gemm8 &j, Ring<TN * 128, S8_W, STAGES> ring, const unsigned char *shared) {
	const int group = threadIdx.x / 128, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
	const unsigned char *mine = shared + TN * 128 + group * 8192 + threadIdx.x % 128 * 16;
	for (int tile = blockIdx.x; tile < j.tile_tokens * j.tile_rows; tile += gridDim.x) {
		const int2 t = in_band(tile, j.tile_tokens, j.tile_rows);
		int d[TN / 2];
#pragma unroll
		for (int i = 0; i < TN / 2; i++) d[i] = 0;
		uint32_t lower[2][4], upper[2][4], before = 0; // before: the barrier of the step before this one
		auto prepare = [&](uint32_t(&a)[2][4], int half) {
#pragma unroll
			for (int i = 0; i < 2; i++)
				operand8(a[i], *reinterpret_cast<const uint4 *>(mine + ring.slot * ring.BYTES + (2 * half + i) * 2048));
		};
		auto start = [&](const uint32_t(&a)[2][4], uint64_t b) {
			wgmma_fence();
#pragma unroll
			for (int i = 0; i < 2; i++) wgmma_s8_rs<TN>(d, a[i], b + 2 * i);
			wgmma_commit();
		};
		for (int k = 0; 128 * k < j.x_cols; k++) {
			mbar_wait(ring.full(), ring.turn);
			fence_async();
			const uint64_t b = wgmma_desc(ring.x());
			prepare(lower, 0);
			start(lower, b);
			wgmma_wait<1>(); // the step before is done with
			if (before && lane == 0) mbar_arrive(before);
			before = ring.empty();
			prepare(upper, 1);
			start(upper, b + 4);
			wgmma_wait<1>();
			ring.next();
		}
		wgmma_wait<0>();
		if (lane == 0) mbar_arrive(before);
		const int rows = t.y * S8_ROWS + group * 64, scales = min(rows / 64, (j.rows - 1) / 64);
		put8<TN>(j, d, __ldg(j.scales + scales * 32 + warp * 8 + lane / 4), t.x * TN, rows + warp * 16);
	}
}

template <int TN, int STAGES> KR_DEV void gemm8_h(const Gemm8 &j, unsigned char *shared) {
	Ring<TN * 128, S8_W, STAGES> ring(smem_u32(shared));
	ring.init(8);
	pdl_wait();
	pdl_launch();
	if (threadIdx.x / 128 == 2) {
		if (TN == 256) reg_shrink<40>();
		produce8<TN, STAGES>(j, ring);
	} else {
		if (TN == 256) reg_grow<232>();
		consume8<TN, STAGES>(j, ring, shared);
	}
}

#define GEMM8_H(name, TN, STAGES, BLOCKS)             \
	KR_KERNEL(384, BLOCKS) name(GEMM8_ARGS) {         \
		KR_SHARED(unsigned char, shared);             \
		const Gemm8 job = GEMM8;                      \
		gemm8_h<TN, STAGES>(job, shared);             \
	}                                                 \
	KR_EXPORT(name)
GEMM8_H(kr_gemm_s8_t64_h, 64, 4, 2)
GEMM8_H(kr_gemm_s8_t128_h, 128, 6, 1)
GEMM8_H(kr_gemm_s8_t256_h, 256, 4, 1)
#endif
