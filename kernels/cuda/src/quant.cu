// Activations as 8-bit integers, a scale a row. A block has a row, a thread takes 16
// columns at a time.
#include "elem.cuh"

// Columns 16*unit.. of a row; those behind its end are zero.
KR_DEV void fetch16(float (&v)[16], const void *row, int unit, int cols, bool half, bool vec) {
	if (vec && 16 * unit + 16 <= cols) {
		Chunk<8> a, b;
		float lo[8], hi[8];
		fetch(a, row, 2 * unit, half);
		fetch(b, row, 2 * unit + 1, half);
		widen(lo, a, half);
		widen(hi, b, half);
#pragma unroll
		for (int j = 0; j < 8; j++) v[j] = lo[j], v[8 + j] = hi[j];
		return;
	}
#pragma unroll
	for (int j = 0; j < 16; j++) {
		float t[1] = {0.f};
		if (16 * unit + j < cols) get(t, row, 16 * unit + j, half);
		v[j] = t[0];
	}
}

KR_DEV uint32_t bytes4(float a, float b, float c, float d) {
	return (uint32_t)(__float2int_rn(a) & 0xff) | (uint32_t)(__float2int_rn(b) & 0xff) << 8 | (uint32_t)(__float2int_rn(c) & 0xff) << 16 |
	       (uint32_t)__float2int_rn(d) << 24;
}

// q = x / scale to nearest even, scale = max|x| / 127: device.QuantizeRows' arithmetic
// with a row as the group. Every 16 columns lie in the order 0 1 8 9 2 3 10 11 4 5 12 13
// 6 7 14 15: what lane c of a group of four holds of two steps of format A's INT8 is
// then what mma_s8 wants as four neighbours of k. Flags: x.
KR_KERNEL(512, 2)
kr_quantize_rows(void *q, int q_stride, float *scale, int scale_stride, const void *x, int x_stride, int cols, int units, int flags) {
	__shared__ float parts[32];
	pdl_launch();
	pdl_wait();
	bool half = flags & BF16_0, vec = flags & VEC;
	const char *row = row_of(x, blockIdx.x, x_stride, half);
	float v[16], top = 0.f, bad = 0.f;
	for (int i = threadIdx.x; i < units; i += blockDim.x) {
		fetch16(v, row, i, cols, half, vec);
#pragma unroll
		for (int j = 0; j < 16; j++) {
			float a = fabsf(v[j]);
			if (!(a <= 3.4028234664e38f)) bad = 1.f;
			else top = fmaxf(top, a);
		}
	}
	int lane = threadIdx.x % 32, warps = blockDim.x / 32;
	top = warp_max(bad > 0.f ? __uint_as_float(0x7f800000u) : top);
	if (lane == 0) parts[threadIdx.x / 32] = top;
	__syncthreads();
	top = warp_max(lane < warps ? parts[lane] : 0.f);
	bool nan = top > 3.4028234664e38f, zero = nan || top < 0x1p-100f;
	float inverse = zero ? 0.f : 127.f / top;
	uint4 *out = (uint4 *)((char *)q + (long long)blockIdx.x * q_stride);
	for (int i = threadIdx.x; i < units; i += blockDim.x) {
		if (units > blockDim.x) fetch16(v, row, i, cols, half, vec);
#pragma unroll
		for (int j = 0; j < 16; j++) v[j] = zero ? 0.f : v[j] * inverse;
		out[i] = make_uint4(bytes4(v[0], v[1], v[8], v[9]), bytes4(v[2], v[3], v[10], v[11]), bytes4(v[4], v[5], v[12], v[13]),
		                    bytes4(v[6], v[7], v[14], v[15]));
	}
	if (threadIdx.x == 0)
		scale[(long long)blockIdx.x * scale_stride] = nan ? __uint_as_float(0x7fc00000u) : zero ? 0.f : top / 127.f;
}
KR_EXPORT(kr_quantize_rows)
