// The instructions of the sm_90a build, each in a small kernel. Part of selftest.
#include "kr.cuh"

#ifdef KR_HOPPER
// rows [n][64] bf16 into a swizzled tile, by ordinary stores.
static __device__ void tile(bf16 *s, const bf16 *p, int rows) {
	for (int i = threadIdx.x; i < rows * 8; i += blockDim.x) {
		int r = i / 8, u = i % 8;
		*reinterpret_cast<uint4 *>(s + r * 64 + (u ^ r % 8) * 8) = *reinterpret_cast<const uint4 *>(p + r * 64 + u * 8);
	}
}

// c [64][N] = a [64][64] b', b [N][64]: both operands in shared memory (SS), or a as fragments
// from global memory (RS). HALF: the operands are f16, for SS and RT only.
template <int N, bool HALF> __device__ void products(const bf16 *a, const bf16 *b, const bf16 *bt, float *ss, float *rs, float *st, float *rt) {
	KR_SHARED(bf16, s);
	bf16 *sa = s, *sb = s + 64 * 64, *sbt = sb + N * 64; // bt: [64 k][N] in tiles of 64 columns
	tile(sa, a, 64);
	tile(sb, b, N);
	for (int j = 0; j < (N + 63) / 64; j++)
		for (int i = threadIdx.x; i < 64 * 8; i += blockDim.x) {
			int k = i / 8, u = i % 8, col = j * 64 + u * 8;
			uint4 v = make_uint4(0, 0, 0, 0);
			if (col < N) v = *reinterpret_cast<const uint4 *>(bt + k * N + col);
			*reinterpret_cast<uint4 *>(sbt + j * 4096 + k * 64 + (u ^ k % 8) * 8) = v;
		}
	fence_async();
	__syncthreads();
	int w = threadIdx.x / 32, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
	float d[4][N / 2];
	for (int v = 0; v < 4; v++)
		for (int i = 0; i < N / 2; i++) d[v][i] = (float)v;
	uint64_t da = wgmma_desc(smem_u32(sa)), db = wgmma_desc(smem_u32(sb)), dt = wgmma_desc_t(smem_u32(sbt), 8192);
	const bf16 *row = a + (16 * w + g) * 64 + 2 * c;
	auto pair = [&](int at) { return *reinterpret_cast<const uint32_t *>(row + at); };
	wgmma_fence();
	for (int k = 0; k < 4; k++) {
		uint32_t f[4] = {pair(16 * k), pair(8 * 64 + 16 * k), pair(16 * k + 8), pair(8 * 64 + 16 * k + 8)};
		if constexpr (HALF) {
			wgmma_f16_ss<N>(d[0], da + 2 * k, db + 2 * k);
			wgmma_f16_rs_t<N>(d[3], f, dt + 128 * k);
		} else {
			wgmma_ss<N>(d[0], da + 2 * k, db + 2 * k);
			wgmma_rs<N>(d[1], f, db + 2 * k);
			wgmma_ss_t<N>(d[2], da + 2 * k, dt + 128 * k);
			wgmma_rs_t<N>(d[3], f, dt + 128 * k);
		}
		wgmma_commit();
		if (k % 2) wgmma_wait<1>();
	}
	wgmma_wait<0>();
	float *out[4] = {ss, rs, st, rt};
	for (int v = 0; v < 4; v++)
		for (int i = 0; i < N / 2; i++)
			out[v][(16 * w + g + i / 2 % 2 * 8) * N + i / 4 * 8 + 2 * c + i % 2] = d[v][i] - (float)v;
}
#define PRODUCTS(name, n, half)                                                                                  \
	KR_KERNEL(128, 1) name(const bf16 *a, const bf16 *b, const bf16 *bt, float *ss, float *rs, float *st, float *rt) { \
		products<n, half>(a, b, bt, ss, rs, st, rt);                                                                \
	}                                                                                                               \
	KR_EXPORT(name)
PRODUCTS(h_products_8, 8, false)
PRODUCTS(h_products_64, 64, false)
PRODUCTS(h_products_96, 96, false)
PRODUCTS(h_products_256, 256, false)
PRODUCTS(h_f16_64, 64, true)
PRODUCTS(h_f16_256, 256, true)

// int8: c [64][32] = a [64][128] b', b [32][128].
KR_KERNEL(128, 1) h_s8(const bf16 *a, const bf16 *b, int *ss, int *rs) {
	KR_SHARED(bf16, s);
	tile(s, a, 64);
	tile(s + 4096, b, 32);
	fence_async();
	__syncthreads();
	int w = threadIdx.x / 32, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
	int d[2][16] = {};
	const uint32_t *row = reinterpret_cast<const uint32_t *>(a) + (16 * w + g) * 32 + c;
	wgmma_fence();
	for (int k = 0; k < 4; k++) {
		uint32_t f[4] = {row[8 * k], row[256 + 8 * k], row[8 * k + 4], row[256 + 8 * k + 4]};
		wgmma_s8_ss<32>(d[0], wgmma_desc(smem_u32(s)) + 2 * k, wgmma_desc(smem_u32(s + 4096)) + 2 * k);
		wgmma_s8_rs<32>(d[1], f, wgmma_desc(smem_u32(s + 4096)) + 2 * k);
	}
	wgmma_commit();
	wgmma_wait<0>();
	for (int i = 0; i < 16; i++) {
		int at = (16 * w + g + i / 2 % 2 * 8) * 32 + i / 4 * 8 + 2 * c + i % 2;
		ss[at] = d[0][i], rs[at] = d[1][i];
	}
}
KR_EXPORT(h_s8)

// A producer warp with bulk copies, 64 consumers, a ring of two stages of 1 KB.
KR_KERNEL(96, 1) h_bulk(const int *in, int *out, int n) {
	KR_SHARED(int, s); // 2 x 256 ints, then four mbarriers
	uint32_t full = smem_u32(s + 512), empty = full + 16;
	if (threadIdx.x == 0) {
		for (int i = 0; i < 2; i++) mbar_init(full + 8 * i, 1), mbar_init(empty + 8 * i, 64);
		mbar_init_fence();
	}
	__syncthreads();
	pdl_wait();
	if (threadIdx.x >= 64) {
		if (threadIdx.x == 64)
			for (int k = 0; k < n; k++) {
				if (k >= 2) mbar_wait(empty + k % 2 * 8, (k / 2 - 1) & 1);
				mbar_expect(full + k % 2 * 8, 1024);
				bulk_copy(smem_u32(s + k % 2 * 256), in + k * 256, 1024, full + k % 2 * 8);
			}
		return;
	}
	for (int k = 0; k < n; k++) {
		mbar_wait(full + k % 2 * 8, k / 2 & 1);
		for (int i = threadIdx.x; i < 256; i += 64) out[k * 256 + i] = s[k % 2 * 256 + 255 - i];
		mbar_arrive(empty + k % 2 * 8);
	}
}
KR_EXPORT(h_bulk)

// The same ring, filled with cp.async that arrive at the barrier.
KR_KERNEL(96, 1) h_cpbar(const int *in, int *out, int n) {
	KR_SHARED(int, s);
	uint32_t full = smem_u32(s + 512), empty = full + 16;
	if (threadIdx.x == 0) {
		for (int i = 0; i < 2; i++) mbar_init(full + 8 * i, 32), mbar_init(empty + 8 * i, 64);
		mbar_init_fence();
	}
	__syncthreads();
	if (threadIdx.x >= 64) {
		int l = threadIdx.x - 64;
		for (int k = 0; k < n; k++) {
			if (k >= 2) mbar_wait(empty + k % 2 * 8, (k / 2 - 1) & 1);
			for (int i = l; i < 64; i += 32) cp_async16(smem_u32(s + k % 2 * 256 + 4 * i), in + k * 256 + 4 * i);
			mbar_arrive_cp_async(full + k % 2 * 8);
		}
		return;
	}
	for (int k = 0; k < n; k++) {
		mbar_wait(full + k % 2 * 8, k / 2 & 1);
		for (int i = threadIdx.x; i < 256; i += 64) out[k * 256 + i] = s[k % 2 * 256 + 255 - i];
		mbar_arrive(empty + k % 2 * 8);
	}
}
KR_EXPORT(h_cpbar)

// cp.async, then wgmma. fence: 0 none, 1 by the writers, 2 by the readers after the barrier.
KR_KERNEL(128, 1) h_fence(const bf16 *a, float *out, int fence) {
	KR_SHARED(bf16, s);
	for (int i = threadIdx.x; i < 512; i += 128) cp_async16(smem_u32(s + (i / 8 * 64 + (i % 8 ^ i / 8 % 8) * 8)), a + i * 8);
	cp_async_commit();
	cp_async_wait<0>();
	if (fence == 1) fence_async();
	__syncthreads();
	if (fence == 2) fence_async();
	float d[4] = {0, 0, 0, 0};
	wgmma_fence();
	wgmma_ss<8>(d, wgmma_desc(smem_u32(s)), wgmma_desc(smem_u32(s)));
	wgmma_commit();
	wgmma_wait<0>();
	for (int i = 0; i < 4; i++) out[threadIdx.x * 4 + i] = d[i];
}
KR_EXPORT(h_fence)

// mode 0: without wgmma_fence; 1: ends without a wait; 2: lanes have different descriptors; 3:
// the tile is not aligned; 4: one warp does not take part.
KR_KERNEL(128, 1) h_bad(const bf16 *a, int mode) {
	KR_SHARED(bf16, s);
	tile(s, a, 64);
	fence_async();
	__syncthreads();
	float d[4] = {0, 0, 0, 0};
	if (mode) wgmma_fence();
	uint64_t desc = wgmma_desc(smem_u32(s));
	if (mode == 3) desc += 8;
	if (mode != 4 || threadIdx.x < 96) wgmma_ss<8>(d, desc, mode == 2 ? desc + 2 * (threadIdx.x % 2) : desc);
	wgmma_commit();
	if (mode != 1) wgmma_wait<0>();
	__syncthreads();
	s[threadIdx.x] = (bf16)d[0];
}
KR_EXPORT(h_bad)
#endif
