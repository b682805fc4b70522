// Rows whose element type is an argument of the launch (kernels/cuda/elem): every operator is one
// kernel for all types. A thread works on chunks of V elements: V is 8 for rows that are aligned
// to 16 bytes of bf16, else 1. Loading a chunk and widening it are separate functions, so that a
// thread can issue all its loads before it uses the first.
#pragma once
#include "kr.cuh"

// Bits of a kernel's flags: whether chunks have 8 elements, and which operands are bf16 (else
// float32), in the order of the kernel's arguments.
enum { VEC = 1, BF16_0 = 2, BF16_1 = 4, BF16_2 = 8, BF16_3 = 16, BF16_4 = 32 };

template <int V> struct Chunk;
template <> struct Chunk<8> {
	uint4 a, b; // b: the upper half of float32
};
template <> struct Chunk<1> {
	uint32_t a;
};

// The start of a row; stride counts elements.
KR_DEV const char *row_of(const void *p, long long row, int stride, bool half) {
	return (const char *)p + row * stride * (half ? 2 : 4);
}
KR_DEV char *row_of(void *p, long long row, int stride, bool half) { return (char *)p + row * stride * (half ? 2 : 4); }

// Chunk i of a row: V elements from element V*i on. half: bf16.
KR_DEV void fetch(Chunk<8> &c, const void *row, int i, bool half) {
	const uint4 *p = (const uint4 *)row + (half ? i : 2 * i);
	c.a = p[0];
	c.b = half ? c.a : p[1];
}
KR_DEV void fetch(Chunk<1> &c, const void *row, int i, bool half) {
	c.a = half ? (uint32_t)((const bf16 *)row)[i] << 16 : ((const uint32_t *)row)[i];
}
KR_DEV void widen(float (&v)[8], const Chunk<8> &c, bool half) {
	if (half) {
		v[0] = lo_f32(c.a.x), v[1] = hi_f32(c.a.x), v[2] = lo_f32(c.a.y), v[3] = hi_f32(c.a.y);
		v[4] = lo_f32(c.a.z), v[5] = hi_f32(c.a.z), v[6] = lo_f32(c.a.w), v[7] = hi_f32(c.a.w);
	} else {
		v[0] = __uint_as_float(c.a.x), v[1] = __uint_as_float(c.a.y), v[2] = __uint_as_float(c.a.z), v[3] = __uint_as_float(c.a.w);
		v[4] = __uint_as_float(c.b.x), v[5] = __uint_as_float(c.b.y), v[6] = __uint_as_float(c.b.z), v[7] = __uint_as_float(c.b.w);
	}
}
KR_DEV void widen(float (&v)[1], const Chunk<1> &c, bool) { v[0] = __uint_as_float(c.a); }

template <int V> KR_DEV void get(float (&v)[V], const void *row, int i, bool half) {
	Chunk<V> c;
	fetch(c, row, i, half);
	widen(v, c, half);
}
KR_DEV void put(void *row, int i, const float (&v)[8], bool half) {
	if (half) {
		((uint4 *)row)[i] = make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
	} else {
		((float4 *)row)[2 * i] = make_float4(v[0], v[1], v[2], v[3]);
		((float4 *)row)[2 * i + 1] = make_float4(v[4], v[5], v[6], v[7]);
	}
}
KR_DEV void put(void *row, int i, const float (&v)[1], bool half) {
	if (half) store((bf16 *)row + i, v[0]);
	else store((float *)row + i, v[0]);
}

// The value that a load returns after v was stored.
template <int V> KR_DEV void round_to(float (&v)[V], bool half) {
	if (half)
		for (int j = 0; j < V; j++) v[j] = f32(to_bf16(v[j]));
}

// The sum of v over the first `threads` threads of the block. They are whole warps, and only they
// call it. Every one of them gets the same bits, which depend only on the threads' values. parts:
// 32 floats of shared memory.
KR_DEV float block_sum(float v, int threads, float *parts) {
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = threads / 32;
	v = warp_sum(v);
	if (lane == 0) parts[warp] = v;
	bar_sync(1, threads);
	return warp_sum(lane < warps ? parts[lane] : 0.f);
}

// RMSNorm's factor for a row whose sum of squares is sum.
KR_DEV float rms_scale(float sum, int cols, float eps) { return 1.f / sqrtf(sum / (float)cols + eps); }
