// The beginning of latent attention for a batch of generated rows only, in one launch. It does
// the work of kr_latent_store, with the same bits, and that of kr_mla_absorb. The latter needs
// only the queries of the former, and rotates them itself.
#include "absorb.cuh"

enum { STORE_THREADS = 64 }; // the threads that norm; the others rotate the key

// One block norms and rotates kv of row `row` of the batch in place, and stores it in its slot.
// Everything is aligned for chunks.
KR_DEV void store_latent(const Store &c, int slot, char *kv, const void *w, bool w_half, float eps, int position, const Angles &t) {
	if (threadIdx.x < STORE_THREADS) {
		norm_latent<8>(kv, w, RANK, eps, STORE_THREADS, c, slot, true, w_half);
	} else {
		pdl_wait();
		int turner = threadIdx.x - STORE_THREADS, turners = blockDim.x - STORE_THREADS;
		const Turn none = {0, ROPE, 0, ROPE, t.interleaved}, key = {1, ROPE, RANK, ROPE, t.interleaved};
		if (position < 0 || position >= t.rows) keep_key(c, slot, kv, RANK, ROPE, turner, turners, true);
		else turn_heads<8>((void *)0, none, kv, key, t.table + (long long)position * t.stride, c, slot, turner, turners, true, true);
	}
	if (c.kind != I8_ROWS) return;
	__syncthreads(); // the row is complete
	if (slot >= 0) keep_groups(c, slot, kv, true, WIDTH);
}

// q and kv [rows, ..] of bf16; all rows of the batch are generated. Grid: x first the blocks of
// kr_mla_absorb, head by head, then the blocks that store rows; z rows / each.
KR_KERNEL(ABSORB_THREADS, 2)
kr_mla_begin(uint32_t *qa, const bf16 *q, int q_stride, const bf16 *kvb, int kvb_stride, const int *table, int heads, int half, int each, void *cache,
             float *scales, int kind, int cache_stride, int scales_stride, int group, int cache_rows, int cache_vec, bf16 *kv, int kv_stride,
             const void *w, int w_half, float eps, const int *positions, const int *slots, const float *angles, int angles_stride,
             int angles_rows, int interleaved, int *marks, int layer) {
	KR_SHARED(unsigned char, shared);
	const Angles t = {positions, angles, angles_stride, angles_rows, interleaved != 0};
	const int BLOCKS = RANK / ABSORB_COLS;
	int storer = (int)blockIdx.x - BLOCKS * heads, storers = (int)gridDim.x - BLOCKS * heads;
	if (storer < 0) {
		absorb<true>(shared, qa, q, q_stride, kvb, kvb_stride, table, blockIdx.x % BLOCKS, blockIdx.x / BLOCKS, heads, half, each, t);
		return;
	}
	pdl_launch();
	Store c = {(char *)cache, scales, kind, cache_stride, scales_stride, group, cache_vec != 0, 0, layer};
	int rows = table[HEAD_DECODE], first = blockIdx.z * each;
	const int *records = table + SPAN_HEAD + table[HEAD_PREFILL] * SPAN_RECORD;
	for (int i = first + storer; i < min(first + each, rows); i += storers) {
		int row = records[i * SPAN_RECORD], slot = slots[row];
		c.mark = marks ? marks + row : 0;
		store_latent(c, slot < cache_rows ? slot : -1, (char *)(kv + (long long)row * kv_stride), w, w_half != 0, eps, positions[row], t);
		__syncthreads(); // shared memory is free again
	}
	pdl_wait();
}
KR_EXPORT(kr_mla_begin)
