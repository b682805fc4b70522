// The keys of pools of tokens (kernels/device.Index, GLM-5.3-Flash).
#include "rows.cuh"

enum { KEY_COLS = 64, KEY_PARTS = 4, KEY_THREADS = KEY_COLS * KEY_PARTS };

// The rows of a sequence for one channel: those of the batch, and those before it that are kept.
struct Pooled {
	const void *x;
	const float *bias, *kept; // kept: row p % pool has position p
	int wide, stride, bias_stride, dim, pool, pos;

	// Row r of the batch, or r < 0, one that is kept. of: 0 the key, 1 the gate.
	__device__ __forceinline__ float at(int r, int of) const {
		return r < 0 ? kept[(long long)((pos + r) % pool) * 2 * dim + of * dim] : get(x, wide, (long long)r * stride + of * dim);
	}
	// The key of the pool that ends with row `last`: keys weighed by the softmax of their gates.
	__device__ __forceinline__ float key(int last) const {
		int first = last + 1 - pool;
		float top = at(first, 1) + bias[0], sum = 0.f, key = 0.f;
		for (int j = 1; j < pool; j++) {
			float v = at(first + j, 1) + bias[(long long)j * bias_stride];
			if (v > top) top = v;
		}
		for (int j = 0; j < pool; j++) {
			float e = expf(at(first + j, 1) + bias[(long long)j * bias_stride] - top);
			sum += e, key = fmaf(e, at(first + j, 0), key);
		}
		return key / sum;
	}
};

// out [rows, dim]: in each row the key of the pool that ends with it, or zeros. x [rows, 2 * dim] has keys and gates, bias
// [pool, dim] the gates' biases, tail [slots, pool, 2 * dim] the newest rows of sequences. The first tile of a span alone reads
// what is kept, for the only pool that began before the span, and then keeps the new rows. A thread has one
// channel of a part of a tile. Grid: x pieces of the channels, y tiles of prompts, or generated rows.
KR_KERNEL(KEY_THREADS, 2)
kr_pool_keys(void *out, int out_wide, int out_stride, const void *x, int x_wide, int x_stride, const float *bias, int bias_stride, float *tail,
             const int *table, int decode, int slots, int pool, int dim) {
	pdl_launch();
	pdl_wait();
	int prompts = table[HEAD_PREFILL], i = decode ? prompts + (int)blockIdx.y : span_of_item(table, 0, prompts, blockIdx.y);
	int c = blockIdx.x * KEY_COLS + threadIdx.x % KEY_COLS, part = threadIdx.x / KEY_COLS, size = x_wide ? 4 : 2;
	if (i < 0 || i >= prompts + table[HEAD_DECODE] || c >= dim) return;
	Span s = span_at(table, i);
	int slot = table[s.first - 1];
	if (slot < 0 || slot >= slots) return;
	float *kept = tail + (long long)slot * pool * 2 * dim + c;
	Pooled p = {(const char *)x + ((long long)s.row * x_stride + c) * size, bias + c, kept, x_wide, x_stride, bias_stride, dim, pool, s.pos};
	int tile = decode ? 0 : ((int)blockIdx.y - s.start) * ROW_TILE, each = ROW_TILE / KEY_PARTS;
	int end = min(s.len, tile + (part + 1) * each), open = pool - 1 - s.pos % pool; // open: the first row that ends a pool
	for (int r = tile + part * each; r < end; r++) {
		bool ends = (s.pos + r + 1) % pool == 0;
		if (!ends || r + 1 >= pool) put(out, out_wide, (long long)(s.row + r) * out_stride + c, ends ? p.key(r) : 0.f);
	}
	if (tile > 0 || part > 0) return;
	if (open < min(s.len, pool - 1)) put(out, out_wide, (long long)(s.row + open) * out_stride + c, p.key(open));
	for (int r = max(0, s.len - pool); r < s.len; r++)
		for (int of = 0; of < 2; of++) kept[(long long)((s.pos + r) % pool) * 2 * dim + of * dim] = p.at(r, of);
}
KR_EXPORT(kr_pool_keys)
