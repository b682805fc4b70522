// The part of an index over blocks between its projections and its scores: norm and rotation of every query head, and norm (unless there
// is none), rotation and store of the key. A block has a row of the batch, a warp a head of it.
#include "kvstore.cuh"

// q [rows, heads * dim] and key [rows, dim] are changed in place. Of each head the first `turned` values are rotated; without
// k_norm those of the key are not. dim: 16 to 256, a power of two. A row whose position is not in the table is not rotated. Flags: q and key, norms; INTERLEAVED. Grid
// (rows); 32 * (heads + 1) threads; shared memory: (heads + 1) * dim floats.
KR_KERNEL(1024, 1)
kr_index_store(void *cache, float *scales, int kind, int cache_stride, int scales_stride, int group, int cache_rows, void *q, int q_stride,
               void *key, int key_stride, const void *q_norm, const void *k_norm, float eps, const int *positions, const int *slots,
               const float *table, int table_stride, int rows, int heads, int dim, int turned, int *marks, int layer, int flags) {
	KR_SHARED(float, shared);
	pdl_launch();
	int row = blockIdx.x, lane = threadIdx.x % 32, head = threadIdx.x / 32, position = positions[row], slot = slots[row]; // no kernel writes them
	bool half = flags & BF16_0, norm_half = flags & BF16_1, query = head < heads, interleaved = flags & INTERLEAVED;
	const void *norm = query ? q_norm : k_norm;
	float *x = shared + head * dim, v[1], w[1];
	char *key_row = row_of(key, row, key_stride, half), *mine = query ? row_of(q, row, q_stride, half) : key_row;
	int first = query ? head * dim : 0;
	pdl_wait();
	if (norm) {
		for (int i = lane; i < dim; i += 32) {
			get(v, mine, first + i, half);
			x[i] = v[0];
		}
		__syncwarp();
		float sum = 0.f; // in kr_head_store's order
		if (lane < dim / 16)
			for (int j = 0; j < 16; j++) v[0] = x[j / 8 * (dim / 2) + 8 * lane + j % 8], sum = fmaf(v[0], v[0], sum);
		for (int d = dim / 32; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
		float scale = rms_scale(__shfl_sync(0xffffffffu, sum, 0), dim, eps);
		__syncwarp();
		for (int i = lane; i < dim; i += 32) {
			get(w, norm, i, norm_half);
			v[0] = x[i] * scale * w[0];
			round_to(v, half);
			x[i] = v[0];
		}
		__syncwarp();
		if (position >= 0 && position < rows) {
			Turn t = {1, dim, 0, turned, interleaved};
			turn_row<1>(x, t, table + (long long)position * table_stride, lane, 32, false);
			__syncwarp();
		}
		for (int i = lane; i < dim; i += 32) {
			v[0] = x[i];
			put(mine, first + i, v, half);
		}
	}
	__syncthreads(); // the key is complete
	if (slot < 0 || slot >= cache_rows) return;
	Store c = {(char *)cache, scales, kind, cache_stride, scales_stride, group, false, marks ? marks + row : 0, layer};
	if (kind == I8_ROWS) keep_groups(c, slot, key_row, half, dim);
	else keep_row<1>(c, slot, key_row, half, dim);
}
KR_EXPORT(kr_index_store)
