// Experts with a processor's arithmetic, to the bit (kernels/device/quant.go): rows are quantised to 8
// bits by groups, products are exact integer sums of a group, and a group's sum times both scales is
// added by FMA, in rising order. Every rounding is an instruction of its own (__fmul_rn), so that no
// compiler joins two.
//
// Integer sums are exact in any order. So rows lie as the fragments of packed weights
// (kernels/tensor/integergpu.go) want them: of 64 columns, word 4c+s has columns 2c, 2c+8, 2c+1 and 2c+9
// of step s, and a lane loads the four steps at once.
#pragma once
#include "int3.cuh"

// The bytes of INT3's integers, by code.
enum : uint32_t { INT3_BYTES_LOW = 0x0c070300, INT3_BYTES_HIGH = 0xfdfaf6f0 };

// e^x as kernels/cpu/_gen/exp.go computes it. 2^n is multiplied in two factors; a result below the
// normal numbers is rounded once, as there.
KR_DEV float same_exp(float x) {
	x = x > 89.f ? 89.f : x; // NaN stays NaN
	x = x < -104.f ? -104.f : x;
	const float n = rintf(__fmul_rn(x, 1.44269504088896340736f));
	x = __fmaf_rn(n, -0.693145751953125f, x);
	x = __fmaf_rn(n, -1.42860682030941723212e-6f, x);
	float p = 0.0013926250831432611f;
	p = __fmaf_rn(p, x, 0.008363232883681036f);
	p = __fmaf_rn(p, x, 0.04166655421298479f);
	p = __fmaf_rn(p, x, 0.1666657666611994f);
	p = __fmaf_rn(p, x, 0.49999999999999994f);
	p = __fmaf_rn(p, x, 1.f);
	p = __fmaf_rn(p, x, 1.f);
	const int whole = x == x ? (int)n : 0, half = whole >> 1;
	p = __fmul_rn(p, __uint_as_float((uint32_t)(half + 127) << 23));
	return __fmul_rn(p, __uint_as_float((uint32_t)(whole - half + 127) << 23));
}

// An activation (kernels/device, Activation), as kernels/cpu/exp has it.
struct Gate {
	float alpha, limit, shift, cubic;
	__device__ __forceinline__ float operator()(float g, float u) const {
		g = g > limit ? limit : g; // NaN stays NaN
		u = u > limit ? limit : u;
		u = u < -limit ? -limit : u;
		u = __fadd_rn(u, shift);
		float t = g;
		if (cubic != 0.f) t = __fmaf_rn(__fmul_rn(cubic, __fmul_rn(g, g)), g, g);
		t = __fmul_rn(alpha, t);
		return __fmul_rn(__fdiv_rn(g, __fadd_rn(1.f, same_exp(__fadd_rn(0.f, -t)))), u);
	}
};

// The magnitude of a value as its bits, which rise with it, infinity and NaN above all.
KR_DEV uint32_t magnitude(float v) { return __float_as_uint(v) & 0x7fffffffu; }

// What a group of a largest magnitude is multiplied with, and its scale. A group that is almost nothing
// becomes zeros, and so does one with an infinity or NaN, whose scale is NaN.
struct Scale {
	float inverse, scale;
	__device__ __forceinline__ Scale(uint32_t top) {
		const float t = __uint_as_float(top);
		const bool none = t < 7.888609052210118e-31f, good = t >= 7.888609052210118e-31f && top < 0x7f800000u; // 2^-100
		inverse = good ? __fdiv_rn(127.f, t) : 0.f;
		scale = good ? __fdiv_rn(t, 127.f) : none ? 0.f : __uint_as_float(0x7fc00000u);
	}
	__device__ __forceinline__ int of(float v) const { return inverse == 0.f ? 0 : __float2int_rn(__fmul_rn(v, inverse)); }
};
