// Measures a GPU's limits for `krater bench kernels`: reads whose data is not used, and products
// whose operands are not read from memory.
#include "kr.cuh"

// Reads n times 16 bytes. The sum is written only if it has a value that it cannot have.
KR_KERNEL(512, 4) kr_ceiling_read(const uint4 *p, long long n, uint32_t *out) {
	uint32_t sum = 0;
	long long step = (long long)gridDim.x * blockDim.x;
	for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += 4 * step) {
		uint4 v[4];
#pragma unroll
		for (int j = 0; j < 4; j++) v[j] = i + j * step < n ? ld_stream(p + i + j * step) : make_uint4(0, 0, 0, 0);
#pragma unroll
		for (int j = 0; j < 4; j++) sum |= v[j].x | v[j].y | v[j].z | v[j].w;
	}
	if (sum == 0x9e3779b9) *out = sum; // every byte of the memory is 1
}
KR_EXPORT(kr_ceiling_read)

// Two bf16 numbers from 1/8 to 2 with random signs. The bits matter: a product's power, and so
// the clock, depends on them.
KR_DEV uint32_t noise(uint32_t i) {
	i *= 2654435761u; // Knuth's multiplicative hash
	i ^= i >> 15;
	return (i * 0x85ebca6bu & 0x81ff81ff) | 0x3e003e00;
}

// A warp computes 8 products of 16 x 8 x 16 per step, all from registers.
KR_KERNEL(256, 2) kr_ceiling_products(int steps, float *out) {
	float acc[8][4] = {};
	uint32_t a[4], b[8];
#pragma unroll
	for (int j = 0; j < 8; j++) b[j] = noise(8 * threadIdx.x + j), a[j % 4] = noise(~b[j]);
	for (int i = 0; i < steps; i++) {
#pragma unroll
		for (int j = 0; j < 8; j++) mma_bf16(acc[j], a, b[j], b[(j + 1) % 8]);
	}
	float sum = 0.f;
#pragma unroll
	for (int j = 0; j < 8; j++) sum += acc[j][0] + acc[j][1] + acc[j][2] + acc[j][3];
	if (sum == 1.f) *out = sum;
}
KR_EXPORT(kr_ceiling_products)

#ifdef KR_HOPPER
// A warpgroup computes 8 products of 64 x 128 x 16 per step, both operands from shared memory.
KR_KERNEL(256, 1) kr_ceiling_products_h(int steps, float *out) {
	KR_SHARED(uint32_t, tiles); // A: 2 x 64 rows, B: 128 rows, of 128 bytes
	for (int i = threadIdx.x; i < 256 * 32; i += blockDim.x) tiles[i] = noise(i);
	fence_async();
	__syncthreads();
	float acc[64] = {};
	uint32_t at = smem_u32(tiles);
	uint64_t da = wgmma_desc(at + threadIdx.x / 128 * 8192), db = wgmma_desc(at + 2 * 8192);
	for (int i = 0; i < steps; i++) {
		wgmma_fence();
#pragma unroll
		for (int j = 0; j < 8; j++) wgmma_ss<128>(acc, da + 2 * (j % 4), db + 2 * (j % 4));
		wgmma_commit();
		wgmma_wait<0>();
	}
	float sum = 0.f;
#pragma unroll
	for (int j = 0; j < 64; j++) sum += acc[j];
	if (sum == 1.f) *out = sum;
}
KR_EXPORT(kr_ceiling_products_h)
#endif
