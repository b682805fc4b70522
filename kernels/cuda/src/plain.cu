// Matrix products without optimisations. A warp computes one output in float32, for any shape and
// any mix of types. These kernels run the shapes that the fast kernels refuse, and tests compare
// the fast ones with them. The lanes take the columns in turn and their sums are added in a fixed
// order, so a row's bits depend on that row only.
#include "int3.cuh"

// How the elements of a weight matrix are stored (kernels/cuda/plain, weightKind).
enum { ROWS_F32, ROWS_BF16, TILES_INT4, TILES_INT8, TILES_INT3 };

// A weight matrix. Packed integers have the GPU layout of kernels/tensor/integergpu.go; only
// plain rows have a stride.
struct Weight {
	const uint8_t *values; // the expert's
	const bf16 *scales;
	int kind, rows, cols, stride, group, groups, joined;
};

// Element i of an array of float32 (wide) or bf16.
KR_DEV float get(const void *p, int wide, long long i) {
	return wide ? load((const float *)p + i) : load((const bf16 *)p + i);
}
KR_DEV void put(void *p, int wide, long long i, float v) {
	if (wide) store((float *)p + i, v);
	else store((bf16 *)p + i, v);
}

// The stored row of a row of gate or up (stored in integergpu.go).
KR_DEV int stored(const Weight &w, int row) {
	if (!w.joined) return row;
	int up = row >= w.rows / 2;
	if (up) row -= w.rows / 2;
	return row / 8 * 16 + row % 8 + 8 * up;
}

// One weight, by its stored row (place and scaleAt in integergpu.go).
KR_DEV float tile_value(const Weight &w, int row, int col) {
	int r = row % 64, k = col % 64;
	int thread = r / 16 * 32 + r % 8 * 4 + k % 8 / 2;
	int half = r % 16 / 8, high = k % 16 / 8, odd = k % 2, step = k / 16;
	long long tile = (long long)(row / 64) * ((w.cols + 63) / 64) + col / 64;
	int v;
	if (w.kind == TILES_INT4) {
		int bit = 4 * (half + 2 * high) + 16 * odd;
		v = (int)(w.values[tile * 2048 + 16 * thread + 4 * step + bit / 8] >> (bit % 8) & 15) - 8;
	} else if (w.kind == TILES_INT3) {
		const uint32_t *words = (const uint32_t *)(w.values + tile * 1536);
		auto word = [&](int i) { return words[i < 2 ? 2 * thread + i : 256 + thread] >> 4 * (half + 4 * high + 2 * odd); };
		uint32_t code = step < 3 ? word(step) & 7 : (word(0) >> 3 & 1) | (word(1) >> 2 & 2) | (word(2) >> 1 & 4);
		v = (int)(lookup8(INT3_LOW, INT3_HIGH, code) & 0xff) / 4 - 16;
	} else {
		v = (int)w.values[tile * 4096 + step / 2 * 2048 + 16 * thread + 8 * (step % 2) + 4 * high + half + 2 * odd] - 128;
	}
	long long pair = ((long long)(row / 64) * w.groups + col / w.group) * 32 + r / 16 * 8 + r % 8;
	return (float)v * f32(w.scales[2 * pair + half]);
}

// The product of a row of w with a row of x that starts at element at. Every lane gets the same
// bits.
KR_DEV float dot(const Weight &w, int row, const void *x, int wide, long long at) {
	int lane = threadIdx.x % 32;
	float sum = 0.f;
	if (w.kind <= ROWS_BF16) {
		long long first = (long long)row * w.stride;
		for (int k = lane; k < w.cols; k += 32) sum = fmaf(get(w.values, w.kind == ROWS_F32, first + k), get(x, wide, at + k), sum);
	} else {
		row = stored(w, row);
		for (int k = lane; k < w.cols; k += 32) sum = fmaf(tile_value(w, row, k), get(x, wide, at + k), sum);
	}
	return warp_sum(sum);
}

// The number of this warp's output, counted over all rows.
KR_DEV long long warp_number() { return (long long)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; }

// out [t, n] = x [t, k] * transposed w [n, k].
KR_KERNEL(256, 1)
kr_plain_matmul(void *out, int out_wide, int out_stride, const void *x, int x_wide, int x_stride, int t,
                const uint8_t *values, const bf16 *scales, int kind, int rows, int cols, int stride, int group, int groups, int joined) {
	pdl_launch();
	pdl_wait();
	long long i = warp_number();
	if (i >= (long long)t * rows) return;
	Weight w = {values, scales, kind, rows, cols, stride, group, groups, joined};
	long long token = i / rows;
	int row = (int)(i % rows);
	float v = dot(w, row, x, x_wide, token * x_stride);
	if (threadIdx.x % 32 != 0) return;
	long long at = token * out_stride + row;
	put(out, out_wide, at, v);
}
KR_EXPORT(kr_plain_matmul)

// The expert of slot i (token i / top_k); -1: none. Without ids it is expert 0.
KR_DEV int expert_of(const int *ids, int experts, long long i) {
	int e = ids ? ids[i] : 0;
	return e < experts ? e : -1;
}

// The slot of an expert in the bank, below 0: none. Without a map it is the expert's number.
KR_DEV int place_of(const int *map, int e) { return map ? map[e] : e; }

// SwiGLU of a value of gate and one of up (kernels/device, Activation). NaN stays NaN.
KR_DEV float swiglu(float g, float u, float alpha, float limit, float shift, float cubic) {
	g = g > limit ? limit : g;
	u = u > limit ? limit : u < -limit ? -limit : u;
	return g / (1.f + expf(-alpha * fmaf(cubic * g * g, g, g))) * (u + shift);
}

// h [slots, rows / 2] = swiglu(gate x, up x), with a bias if there is one, for every slot that has an expert. w is W13 of expert
// 0; the others follow at distances of step and scale_step bytes.
KR_KERNEL(256, 1)
kr_plain_gate_up(void *h, int wide, const void *x, int x_stride, int slots, int top_k, const int *ids, int experts, const int *map,
                 long long step, long long scale_step, const float *bias, long long bias_step, float alpha, float limit, float shift, float cubic,
                 const uint8_t *values, const bf16 *scales, int kind, int rows, int cols, int stride, int group, int groups, int joined) {
	pdl_launch();
	pdl_wait();
	long long i = warp_number();
	int width = rows / 2;
	if (i >= (long long)slots * width) return;
	long long slot = i / width;
	int f = (int)(i % width), e = expert_of(ids, experts, slot);
	if (e < 0 || (e = place_of(map, e)) < 0) return;
	Weight w = {values + e * step, (const bf16 *)((const uint8_t *)scales + e * scale_step), kind, rows, cols, stride, group, groups, joined};
	long long at = slot / top_k * x_stride;
	float u = dot(w, f, x, wide, at), v = dot(w, width + f, x, wide, at);
	if (threadIdx.x % 32 != 0) return;
	if (bias) {
		const float *mine = (const float *)((const char *)bias + e * bias_step);
		u += mine[f], v += mine[width + f];
	}
	put(h, wide, slot * width + f, swiglu(u, v, alpha, limit, shift, cubic));
}
KR_EXPORT(kr_plain_gate_up)

// out [slots, rows] = h [slots, cols] * transposed w of the slot's expert, or zeros if it has
// none. Rows of an expert that is not in the bank stay unchanged.
KR_KERNEL(256, 1)
kr_plain_down(void *out, int out_wide, int out_stride, const void *h, int wide, int slots, const int *ids, int experts, const int *map,
              long long step, long long scale_step, const float *bias, long long bias_step,
              const uint8_t *values, const bf16 *scales, int kind, int rows, int cols, int stride, int group, int groups, int joined) {
	pdl_launch();
	pdl_wait();
	long long i = warp_number();
	if (i >= (long long)slots * rows) return;
	long long slot = i / rows;
	int row = (int)(i % rows), e = expert_of(ids, experts, slot);
	float v = 0.f;
	if (e >= 0) {
		if ((e = place_of(map, e)) < 0) return;
		Weight w = {values + e * step, (const bf16 *)((const uint8_t *)scales + e * scale_step), kind, rows, cols, stride, group, groups, joined};
		v = dot(w, row, h, wide, slot * cols);
		if (bias) v += ((const float *)((const char *)bias + e * bias_step))[row];
	}
	if (threadIdx.x % 32 == 0) put(out, out_wide, slot * out_stride + row, v);
}
KR_EXPORT(kr_plain_down)
