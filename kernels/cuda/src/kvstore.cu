// Rotary embedding and the cache of keys and values: separately, and for MLA's latent rows all in
// one kernel. One block per row of the batch.
#include "kvstore.cuh"

// A row whose position is not in the table stays unchanged. Flags: x; INTERLEAVED.
KR_KERNEL(256, 1)
kr_rope(void *x, int x_stride, const int *positions, const float *table, int table_stride, int rows, int heads, int head_dim,
        int first, int dim, int flags) {
	pdl_launch();
	pdl_wait();
	int position = positions[blockIdx.x];
	if (position < 0 || position >= rows) return;
	bool half = flags & BF16_0;
	Turn t = {heads, head_dim, first, dim, (flags & INTERLEAVED) != 0};
	const float *angles = table + (long long)position * table_stride;
	char *row = row_of(x, blockIdx.x, x_stride, half);
	if (flags & VEC) turn_row<8>(row, t, angles, threadIdx.x, blockDim.x, half);
	else turn_row<1>(row, t, angles, threadIdx.x, blockDim.x, half);
}
KR_EXPORT(kr_rope)

// Stores row i of src in slot slots[i]; a slot that the cache does not have is left out. Flags:
// src; VEC of src, CACHE_VEC.
KR_KERNEL(256, 1)
kr_store_rows(void *cache, float *scales, int kind, int cache_stride, int scales_stride, int group, int cache_rows, const void *src,
              int src_stride, const int *slots, int cols, int *marks, int layer, int flags) {
	pdl_launch();
	pdl_wait();
	int slot = slots[blockIdx.x];
	if (slot < 0 || slot >= cache_rows) return;
	bool half = flags & BF16_0;
	Store c = {(char *)cache, scales, kind, cache_stride, scales_stride, group, (flags & CACHE_VEC) != 0, marks ? marks + blockIdx.x : 0, layer};
	const char *row = row_of(src, blockIdx.x, src_stride, half);
	if (kind == I8_ROWS) keep_groups(c, slot, row, half, cols);
	else if (flags & VEC) keep_row<8>(c, slot, row, half, cols);
	else keep_row<1>(c, slot, row, half, cols);
}
KR_EXPORT(kr_store_rows)

// For every row of the batch, rotates the heads of q and the shared key (which follows the latent
// in kv) and norms the latent, all in place, and stores kv's row in slot slots[row]. The first
// norm_threads threads norm, the others rotate. Flags: q, kv, w; VEC of the rotations, NORM_VEC,
// CACHE_VEC; INTERLEAVED of both rotations.
KR_KERNEL(1024, 1)
kr_latent_store(void *cache, float *scales, int kind, int cache_stride, int scales_stride, int group, int cache_rows, void *q,
                int q_stride, void *kv, int kv_stride, const void *w, int rank, float eps, int norm_threads, const int *positions,
                const int *slots, const float *table, int table_stride, int rows, int heads, int head_dim, int first, int dim,
                int *marks, int layer, int flags) {
	pdl_launch();
	int position = positions[blockIdx.x], slot = slots[blockIdx.x]; // no kernel writes them
	if (slot >= cache_rows) slot = -1;
	bool q_half = flags & BF16_0, kv_half = flags & BF16_1, w_half = flags & BF16_2, interleaved = flags & INTERLEAVED;
	Store c = {(char *)cache, scales, kind, cache_stride, scales_stride, group, (flags & CACHE_VEC) != 0, marks ? marks + blockIdx.x : 0, layer};
	char *q_row = row_of(q, blockIdx.x, q_stride, q_half), *kv_row = row_of(kv, blockIdx.x, kv_stride, kv_half);
	if (threadIdx.x < norm_threads) {
		if (flags & NORM_VEC) norm_latent<8>(kv_row, w, rank, eps, norm_threads, c, slot, kv_half, w_half);
		else norm_latent<1>(kv_row, w, rank, eps, norm_threads, c, slot, kv_half, w_half);
	} else {
		pdl_wait();
		Turn queries = {heads, head_dim, first, dim, interleaved}, key = {1, dim, rank, dim, interleaved};
		int turner = threadIdx.x - norm_threads, turners = blockDim.x - norm_threads;
		const float *angles = table + (long long)position * table_stride;
		if (position < 0 || position >= rows) keep_key(c, slot, kv_row, rank, dim, turner, turners, kv_half);
		else if (flags & VEC) turn_heads<8>(q_row, queries, kv_row, key, angles, c, slot, turner, turners, q_half, kv_half);
		else turn_heads<1>(q_row, queries, kv_row, key, angles, c, slot, turner, turners, q_half, kv_half);
	}
	if (kind != I8_ROWS) return;
	__syncthreads(); // the row is complete
	if (slot >= 0) keep_groups(c, slot, kv_row, kv_half, rank + dim);
}
KR_EXPORT(kr_latent_store)
