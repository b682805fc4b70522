// Attention over the newest tokens and over compressed entries (kernels/device.Compress, Compressed) without optimisations, for every
// size and type: the entries, attention, and the rotation back of its output. Sums are float32.
#include "kvstore.cuh"
#include "rows.cuh"

enum { MAKE_THREADS = 512, THREADS = 128, WARPS = THREADS / 32, TURN_THREADS = 256 };

#define LOG2E 1.44269504f

// Entries of the windows that rows complete. Raw rows have parts values of each of dim channels, then as many gates. norm [dim]; ape
// [ratio, parts * dim]; turned values of an entry from `first` on are rotated by a row of angles. Shared: dim floats. Grid
// (rows): a block whose row completes no window does nothing.
KR_KERNEL(MAKE_THREADS, 1)
kr_compress(char *entries, float *scales, int kind, int stride, int scales_stride, int group, int slots, const char *near, const float *near_scales,
            int near_kind, int near_stride, int near_scales_stride, int near_group, const void *norm, int norm_wide, const float *ape, const float *angles,
            int angles_stride, int positions, const int *table, const int *near_table, int decode, int dim, int ratio, int parts, float eps, int first,
            int turned, int interleaved, int block_tokens) {
	__shared__ float sums[32];
	pdl_launch();
	pdl_wait();
	KR_SHARED(float, entry);
	Span s, raw;
	int row = blockIdx.x, tid = threadIdx.x, threads = blockDim.x;
	if (!find_row(s, table, decode, row) || !find_row(raw, near_table, decode, row)) return;
	int pos = s.pos + row - s.row, window = pos / ratio;
	if (pos % ratio != ratio - 1) return;
	Cache c = {near, near_scales, near_kind, near_stride, near_scales_stride, near_group};
	int windows = min(parts, window + 1), from = (window + 1 - windows) * ratio, rows = windows * ratio;
	float squares = 0.f;
	for (int i = tid; i < dim; i += threads) {
		float top = -INFINITY, total = 0.f, sum = 0.f;
		for (int j = 0; j < rows; j++) {
			int at = (parts - windows + j / ratio) * dim + i;
			long long slot = span_slot(near_table, raw, from + j, block_tokens);
			float z = cache_value(c, slot, parts * dim + at) + ape[j % ratio * parts * dim + at];
			if (z > top) {
				float by = expf(top - z);
				top = z, total *= by, sum *= by;
			}
			float e = expf(z - top);
			total += e, sum = fmaf(e, cache_value(c, slot, at), sum);
		}
		entry[i] = sum / total;
		squares = fmaf(entry[i], entry[i], squares);
	}
	float by = rms_scale(block_sum(squares, threads, sums), dim, eps);
	for (int i = tid; i < dim; i += threads) entry[i] *= by * get(norm, norm_wide, i);
	__syncthreads();
	for (int j = tid; window * ratio < positions && j < turned / 2; j += threads) {
		int one = first + (interleaved ? 2 * j : j), two = interleaved ? one + 1 : one + turned / 2;
		float a[1] = {entry[one]}, b[1] = {entry[two]}, w[2];
		fetch_angles(w, angles + (long long)window * ratio * angles_stride, j);
		rotate(a, b, w, false);
		entry[one] = a[0], entry[two] = b[0];
	}
	__syncthreads();
	long long slot = entry_slot(table, s, window, ratio, block_tokens);
	if (slot < 0 || slot >= slots) return;
	Store to = {entries, scales, kind, stride, scales_stride, group, false, 0, 0};
	if (kind == I8_ROWS) keep_groups(to, (int)slot, entry, false, dim);
	else keep_row<1>(to, (int)slot, entry, false, dim);
}
KR_EXPORT(kr_compress)

// out, q [rows, heads * dim]: attention of a row over the tokens of its window, rows of near, and over entries: those of chosen [rows,
// most], up to the first -1, or all that are complete. sinks [heads]. scale includes log2(e). Shared: 2 * dim + 2 * THREADS + 2 * WARPS words.
// A tile has THREADS of what a row sees, in order. Grid (heads, rows).
KR_KERNEL(THREADS, 1)
kr_compressed(void *out, int out_wide, int out_stride, const void *q, int q_wide, int q_stride, const char *near, const float *near_scales, int near_stride,
              int near_scales_stride, const char *entries, const float *scales, int stride, int scales_stride, int kind, int group, const int *near_table,
              const int *table, int decode, int dim, int window, int ratio, float scale, int block_tokens, const int *chosen, int chosen_stride, int most,
              const float *sinks) {
	pdl_launch();
	pdl_wait();
	KR_SHARED(float, query);
	float *sum = query + dim, *weights = sum + dim, *joint = weights + 2 * THREADS;
	int *slots = (int *)weights + THREADS;
	Span n, s;
	int head = blockIdx.x, row = blockIdx.y, tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
	if (!find_row(n, near_table, decode, row) || !find_row(s, table, decode, row)) return;
	int pos = n.pos + row - n.row, first = max(0, pos - window + 1), tokens = pos + 1 - first, complete = ratio ? (pos + 1) / ratio : 0;
	int all = tokens + (chosen ? min(most, complete) : complete);
	Cache c = {near, near_scales, kind, near_stride, near_scales_stride, group}, e = {entries, scales, kind, stride, scales_stride, group};
	for (int i = tid; i < dim; i += THREADS) query[i] = get(q, q_wide, (long long)row * q_stride + head * dim + i), sum[i] = 0.f;
	__syncthreads();
	float top = sinks[head] * LOG2E, total = 1.f;
	for (int from = 0; from < all; from += THREADS) {
		int i = from + tid;
		bool real = i < all, token = i < tokens;
		long long slot = 0;
		if (token) {
			slot = span_slot(near_table, n, first + i, block_tokens);
		} else if (real) {
			int entry = chosen ? chosen[(long long)row * chosen_stride + i - tokens] : i - tokens;
			real = entry >= 0 && entry < complete;
			if (real) slot = entry_slot(table, s, entry, ratio, block_tokens);
		}
		float v = -INFINITY;
		if (real) {
			const Cache &k = token ? c : e;
			v = 0.f;
			for (int j = 0; j < dim; j++) v = fmaf(query[j], cache_value(k, slot, j), v);
			v *= scale;
		}
		float largest = warp_max(v);
		if (lane == 0) joint[warp] = largest;
		__syncthreads();
		float next = top;
		for (int w = 0; w < WARPS; w++) next = fmaxf(next, joint[w]);
		float p = real ? exp2f(v - next) : 0.f, part = warp_sum(p), old = exp2f(top - next);
		weights[tid] = p, slots[tid] = (int)slot;
		if (lane == 0) joint[WARPS + warp] = part;
		__syncthreads();
		total *= old, top = next;
		for (int w = 0; w < WARPS; w++) total += joint[WARPS + w];
		int keys = min((int)THREADS, all - from);
		for (int j = tid; j < dim; j += THREADS) {
			float a = sum[j] * old;
			for (int k = 0; k < keys; k++)
				if (weights[k] != 0.f) a = fmaf(weights[k], cache_value(from + k < tokens ? c : e, slots[k], j), a);
			sum[j] = a;
		}
		__syncthreads();
	}
	for (int i = tid; i < dim; i += THREADS) put(out, out_wide, (long long)row * out_stride + head * dim + i, sum[i] / total);
}
KR_EXPORT(kr_compressed)

// Rotates heads of x in place by minus the angles of their row's position. A row whose position is not in the table stays unchanged. Grid (rows).
KR_KERNEL(TURN_THREADS, 1)
kr_rope_back(void *x, int wide, int stride, const int *positions, const float *table, int table_stride, int rows, int heads, int head_dim, int first, int dim,
             int interleaved) {
	pdl_launch();
	pdl_wait();
	int position = positions[blockIdx.x];
	if (position < 0 || position >= rows) return;
	long long row = (long long)blockIdx.x * stride + first;
	for (int i = threadIdx.x; i < heads * (dim / 2); i += TURN_THREADS) {
		int pair = i % (dim / 2);
		long long one = row + i / (dim / 2) * head_dim + (interleaved ? 2 * pair : pair), two = interleaved ? one + 1 : one + dim / 2;
		float a[1] = {get(x, wide, one)}, b[1] = {get(x, wide, two)}, w[2];
		fetch_angles(w, table + (long long)position * table_stride, pair);
		w[1] = -w[1];
		rotate(a, b, w, false);
		put(x, wide, one, a[0]);
		put(x, wide, two, b[0]);
	}
}
KR_EXPORT(kr_rope_back)
