// Operators on one element at a time that follow a product (kernels/cuda/elem, act.go): a factor, a soft
// cap, and the activations that no product has in it; and the factors of chosen experts. Grid: x rows,
// y pieces of a row; each thread has one chunk.
#include "elem.cuh"

// Chunks i of V elements of two rows, to those of out: each(out's values, a, b). spread: how many
// chunks of 8 elements a and b have for one of out.
template <int V, class Each>
KR_DEV void map_row(void *out, bool out_half, const void *a, bool a_half, const void *b, bool b_half, int cols, int spread, Each each) {
	int i = blockIdx.y * blockDim.x + threadIdx.x;
	if (i >= cols / V) return;
	int from = V == 8 ? i * spread : i / 8 * 8 * spread + i % 8;
	float x[V], y[V];
	get(x, a, from, a_half);
	if (b) get(y, b, from, b_half);
	for (int j = 0; j < V; j++) x[j] = each(x[j], b ? y[j] : 0.f);
	put(out, i, x, out_half);
}

// out = x * factor. Flags: out, x.
KR_KERNEL(256, 1)
kr_scale(void *out, int out_stride, const void *x, int x_stride, int cols, float factor, int flags) {
	pdl_launch();
	pdl_wait();
	void *to = row_of(out, blockIdx.x, out_stride, flags & BF16_0);
	const void *from = row_of(x, blockIdx.x, x_stride, flags & BF16_1);
	auto each = [=](float v, float) { return v * factor; };
	if (flags & VEC) map_row<8>(to, flags & BF16_0, from, flags & BF16_1, nullptr, false, cols, 1, each);
	else map_row<1>(to, flags & BF16_0, from, flags & BF16_1, nullptr, false, cols, 1, each);
}
KR_EXPORT(kr_scale)

// x = limit * tanh(x / limit), which is 2 * limit * sigmoid(2 * x / limit) - limit. Flags: x.
KR_KERNEL(256, 1)
kr_softcap(void *x, int stride, int cols, float limit, int flags) {
	pdl_launch();
	pdl_wait();
	void *row = row_of(x, blockIdx.x, stride, flags & BF16_0);
	auto each = [=](float v, float) { return 2.f * limit / (1.f + expf(-2.f * v / limit)) - limit; };
	if (flags & VEC) map_row<8>(row, flags & BF16_0, row, flags & BF16_0, nullptr, false, cols, 1, each);
	else map_row<1>(row, flags & BF16_0, row, flags & BF16_0, nullptr, false, cols, 1, each);
}
KR_EXPORT(kr_softcap)

// out = act(gate, up) (kernels/device, Activation). NaN stays NaN. With spread 2, 8 columns of gate and 8
// of up take turns in one row, as products with joined weights give them. Flags: out, gate, up.
KR_KERNEL(256, 1)
kr_activate(void *out, int out_stride, const void *gate, int gate_stride, const void *up, int up_stride, int cols, int spread, float alpha,
            float limit, float shift, float cubic, int flags) {
	pdl_launch();
	pdl_wait();
	void *to = row_of(out, blockIdx.x, out_stride, flags & BF16_0);
	const void *a = row_of(gate, blockIdx.x, gate_stride, flags & BF16_1), *b = row_of(up, blockIdx.x, up_stride, flags & BF16_2);
	auto each = [=](float g, float u) {
		g = g > limit ? limit : g;
		u = u > limit ? limit : u < -limit ? -limit : u;
		return g / (1.f + expf(-alpha * fmaf(cubic * g * g, g, g))) * (u + shift);
	};
	if (flags & VEC) map_row<8>(to, flags & BF16_0, a, flags & BF16_1, b, flags & BF16_2, cols, spread, each);
	else map_row<1>(to, flags & BF16_0, a, flags & BF16_1, b, flags & BF16_2, cols, spread, each);
}
KR_EXPORT(kr_activate)

// Multiplies the weights [rows, k] of chosen experts with the factors [experts] of these, and orders
// each row anew: falling weights, then rising ids. One warp per row; k is at most 32.
KR_KERNEL(128, 1)
kr_weigh_chosen(int *ids, int ids_stride, float *weights, int weights_stride, int rows, int k, const float *factors, int experts) {
	pdl_launch();
	pdl_wait();
	int lane = threadIdx.x % 32, row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
	if (row >= rows) return;
	int *id_of = ids + (long long)row * ids_stride, id = lane < k ? id_of[lane] : 0, place = 0;
	float *weight_of = weights + (long long)row * weights_stride, weight = lane < k ? weight_of[lane] : 0.f;
	if (id >= 0 && id < experts && lane < k) weight *= factors[id];
	float key = weight == weight ? weight : __uint_as_float(0xff800000u); // NaN comes last
	for (int i = 0; i < k; i++) {
		float other = __shfl_sync(0xffffffffu, key, i);
		int of = __shfl_sync(0xffffffffu, id, i);
		place += other > key || (other == key && (of < id || (of == id && i < lane)));
	}
	__syncwarp();
	if (lane < k) id_of[place] = id, weight_of[place] = weight;
}
KR_EXPORT(kr_weigh_chosen)
