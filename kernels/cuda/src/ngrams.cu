// A table of n-grams that is read by row (kernels/device, NGrams), and the convolution over what was read
// (TapConv). The table lies in host memory, which kernels read over the bus.
#include "delta.cuh"
#include "elem.cuh"
#include "rows.cuh"

enum { ROWS_THREADS = 256, ORDER_MOST = 16 };

// rows [batch, heads]: the numbers of the table's rows that the rows of a span read; tail keeps the newest ids of each sequence, that of
// position p in place p % order. words has, as 64-bit numbers, the multipliers [order], the sizes [heads] and the
// offsets [heads]. Grid: x spans.
KR_KERNEL(ROWS_THREADS, 1)
kr_ngram_rows(int *rows, const int *ids, float *tail, const int *table, int decode, int slots, int order, int per_order, int eos, const uint64_t *words) {
	__shared__ int last[ORDER_MOST];
	pdl_launch();
	pdl_wait();
	int prompts = table[HEAD_PREFILL], i = (decode ? prompts : 0) + (int)blockIdx.x, heads = (order - 1) * per_order;
	if (i >= (decode ? prompts + table[HEAD_DECODE] : prompts)) return;
	Span s = span_at(table, i);
	int slot = slot_of(table, s);
	if (slot < 0 || slot >= slots) return;
	tail += slot * order, ids += s.row, rows += (long long)s.row * heads;
	if (threadIdx.x < order) last[threadIdx.x] = s.pos > 0 ? (int)tail[threadIdx.x] : 0;
	__syncthreads();
	for (int item = threadIdx.x; item < s.len * heads; item += ROWS_THREADS) {
		int r = item / heads, h = item % heads, pos = s.pos + r;
		uint64_t mix = 0;
		bool ended = false; // the text began behind this token
		for (int back = 0; back < h / per_order + 2; back++) {
			ended |= back > pos;
			int x = ended ? eos : back <= r ? ids[r - back] : last[(pos - back) % order];
			ended |= back > 0 && x == eos;
			mix ^= (uint64_t)(int64_t)x * words[back];
		}
		rows[item] = (int)(mix % words[order + h] + words[order + heads + h]);
	}
	for (int r = max(0, s.len - order) + (int)threadIdx.x; r < s.len; r += ROWS_THREADS) tail[(s.pos + r) % order] = (float)ids[r];
}
KR_EXPORT(kr_ngram_rows)

enum { COPY_WARPS = 8 };

// out [batch, heads * dim] = the rows of from [size, dim] that rows [batch, heads] names, for the rows of spans; zeros for a number that is
// no row. A warp copies a row. Grid: x rows of the batch, y heads by COPY_WARPS. Flags: out, from.
template <int V> KR_DEV void copy_row(void *to, const void *from, bool there, int dim, int flags) {
	for (int i = threadIdx.x % 32; i < dim / V; i += 32) {
		float v[V];
		for (int j = 0; j < V; j++) v[j] = 0.f;
		if (there) get(v, from, i, flags & BF16_1);
		put(to, i, v, flags & BF16_0);
	}
}

KR_KERNEL(32 * COPY_WARPS, 4)
kr_ngram_copy(void *out, int out_stride, const void *from, int size, const int *rows, const int *table, int decode, int heads, int dim, int flags) {
	pdl_launch();
	pdl_wait();
	int h = blockIdx.y * COPY_WARPS + threadIdx.x / 32;
	Span s;
	if (!find_row(s, table, decode, blockIdx.x) || h >= heads) return;
	int n = rows[(long long)blockIdx.x * heads + h];
	bool there = n >= 0 && n < size;
	void *to = row_of(row_of(out, blockIdx.x, out_stride, flags & BF16_0), h, dim, flags & BF16_0);
	const void *row = row_of(from, there ? n : 0, dim, flags & BF16_1);
	if (flags & VEC) copy_row<8>(to, row, there, dim, flags);
	else copy_row<1>(to, row, there, dim, flags);
}
KR_EXPORT(kr_ngram_copy)

enum { TAP_THREADS = 128, TAPS_FEW = 4 };

// A thread computes a channel of a generated row, or of ROW_TILE rows of a prompt. The first tile of a span alone reads what is
// kept, and writes the new inputs when it has. TAPS: their number at most, whose weights are in registers; 0: any.
template <class T, int TAPS>
KR_DEV void tap_conv(T *out, int out_stride, const T *x, int x_stride, const float *w, int w_stride, float *tail, const int *table, int decode, int slots,
                     int taps, int step, int channels) {
	int prompts = table[HEAD_PREFILL], i = decode ? prompts + (int)blockIdx.y : span_of_item(table, 0, prompts, blockIdx.y);
	int c = blockIdx.x * TAP_THREADS + threadIdx.x;
	if (i < 0 || i >= prompts + table[HEAD_DECODE] || c >= channels) return;
	Span s = span_at(table, i);
	int slot = slot_of(table, s), reach = (taps - 1) * step + 1;
	if (slot < 0 || slot >= slots) return;
	int first = decode ? 0 : ((int)blockIdx.y - s.start) * ROW_TILE, end = min(s.len, first + ROW_TILE);
	float *kept = tail + (long long)slot * reach * channels + c;
	x += (long long)s.row * x_stride + c, out += (long long)s.row * out_stride + c, w += c;
	float weight[TAPS ? TAPS : 1];
#pragma unroll
	for (int k = 0; k < TAPS; k++) weight[k] = k < taps ? w[(long long)(taps - 1 - k) * w_stride] : 0.f;
	auto input = [&](int r) {
		if (r >= 0) return value(x[(long long)r * x_stride]);
		return s.pos + r >= 0 ? kept[(long long)((s.pos + r) % reach) * channels] : 0.f;
	};
#pragma unroll 4
	for (int r = first; r < end; r++) {
		float sum = 0.f;
		if (TAPS) {
#pragma unroll
			for (int k = 0; k < TAPS; k++)
				if (k < taps) sum = fmaf(weight[k], input(r - k * step), sum);
		} else {
			for (int k = 0; k < taps; k++) sum = fmaf(w[(long long)(taps - 1 - k) * w_stride], input(r - k * step), sum);
		}
		store(out + (long long)r * out_stride, silu(sum));
	}
	if (first == 0)
		for (int r = max(0, s.len - reach); r < s.len; r++) kept[(long long)((s.pos + r) % reach) * channels] = value(x[(long long)r * x_stride]);
}

// Grid: x channels, y rows.
#define TAP_CONV(NAME, T)                                                                                                                  \
	KR_KERNEL(TAP_THREADS, 4)                                                                                                               \
	NAME(T *out, int out_stride, const T *x, int x_stride, const float *w, int w_stride, float *tail, const int *table, int decode, int slots, \
	     int taps, int step, int channels) {                                                                                                 \
		pdl_launch();                                                                                                                         \
		pdl_wait();                                                                                                                           \
		if (taps <= TAPS_FEW) tap_conv<T, TAPS_FEW>(out, out_stride, x, x_stride, w, w_stride, tail, table, decode, slots, taps, step, channels); \
		else tap_conv<T, 0>(out, out_stride, x, x_stride, w, w_stride, tail, table, decode, slots, taps, step, channels);                        \
	}                                                                                                                                      \
	KR_EXPORT(NAME)
TAP_CONV(kr_tap_conv_bf16, bf16)
TAP_CONV(kr_tap_conv_float, float)
