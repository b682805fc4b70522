// The arguments of products with blocks of files, and what is done with their sums.
#pragma once
#include "kr.cuh"

#define KR_MEMBER __device__ __forceinline__

// What is done with sums.
enum {
	TO_HIDDEN, // rows are gate's, then up's: the activation of both, as bfloat16
	TO_BF16,
	TO_F32,
};

// SwiGLU of a value of gate and one of up (kernels/device, Activation). NaN stays NaN.
struct Activation {
	float alpha, limit, shift;
	KR_MEMBER float operator()(float g, float u) const {
		g = g > limit ? limit : g;
		u = u > limit ? limit : u < -limit ? -limit : u;
		return g / (1.f + expf(-alpha * g)) * (u + shift);
	}
};

// The arguments of the grouped kernels, in the order of Go's args.
struct Job {
	void *out;
	int mode, out_stride;
	const bf16 *x;
	int x_stride, divisor;   // the row of x is slot / divisor
	const int4 *tiles;       // kernels/cuda/route.Aligned: expert, first slot, rows
	const int *slots, *count;
	const uint8_t *values, *small; // of expert 0
	int rows, groups;        // groups of 32 columns
	long long step, small_step; // bytes from one expert to the next
	const float *bias;       // of expert 0, or null
	long long bias_step;
	Activation act;

	KR_MEMBER const float *bias_of(int expert) const { return (const float *)((const char *)bias + expert * bias_step); }
	// Bands of 16 rows, and those of gate.
	KR_MEMBER int bands() const { return (rows + 15) / 16; }
	template <class T> KR_MEMBER const uint8_t *values_of(int expert, int band) const {
		return values + expert * step + (long long)band * groups * T::VALUES;
	}
	template <class T> KR_MEMBER const uint8_t *small_of(int expert, int band) const {
		const int factors = T::SHARE ? (groups - 1) / T::SHARE + 1 : 0;
		return small + expert * small_step + (long long)band * (64 * factors + groups / T::GROUPS * T::SMALL);
	}
	KR_MEMBER void put(int slot, int column, float v) const {
		long long at = (long long)slot * out_stride + column;
		if (mode == TO_F32) ((float *)out)[at] = v;
		else store((bf16 *)out + at, v);
	}
};
#define JOB_ARGS \
	void *out, int mode, int out_stride, const bf16 *x, int x_stride, int divisor, const int4 *tiles, const int *slots, const int *count, \
	const uint8_t *values, const uint8_t *small, int rows, int groups, long long step, long long small_step, \
	const float *bias, long long bias_step, float alpha, float limit, float shift
#define JOB \
	{ out, mode, out_stride, x, x_stride, divisor, tiles, slots, count, values, small, rows, groups, step, small_step, bias, bias_step, \
	  {alpha, limit, shift} }

struct Tile {
	int expert, first, count; // count 0: no work
};
KR_DEV Tile tile_of(const Job &j) {
	int4 v = __ldcg(j.tiles + blockIdx.y); // memory exists for every tile of the grid
	return (int)blockIdx.y < __ldcg(j.count) ? Tile{v.x, v.y, v.z} : Tile{0, 0, 0};
}
KR_DEV int slot_of(const Job &j, const Tile &t, int r) { return __ldcg(j.slots + t.first + r); }
