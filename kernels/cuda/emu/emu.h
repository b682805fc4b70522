// CUDA C++ for a CPU. kr.cuh includes it under KR_EMU, so that g++ compiles the kernel sources
// unchanged. The language (qualifiers, threadIdx, vector types, intrinsics) is here and in vector.h
// and intrinsics.h; the counterparts of kr.cuh's instructions are in instructions.h. They call the
// library (fiber.cpp, async.cpp, tensor.cpp).
//
// KR_EMU_HOPPER 1 stands for the sm_90a build, 0 for compute_80. A source is compiled
// once as each, inside an anonymous namespace (emu.mk), so that templates of equal names
// in different sources stay apart.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <utility>

#include "core.h"
#include "vector.h"

#if KR_EMU_HOPPER
#define KR_HOPPER 1
#endif

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __grid_constant__
// One copy per OS thread: the blocks that it runs follow one another.
#define __shared__ static thread_local __attribute__((tls_model("global-dynamic")))

#define KR_DEV static inline
#define KR_CAT_(a, b) a##b
#define KR_CAT(a, b) KR_CAT_(a, b)
// The bounds object is made right before the kernel's Export, which takes it over.
#define KR_KERNEL(threads, blocks)                                                          \
	static const kr_emu::Bounds KR_CAT(kr_bounds_, __COUNTER__)(threads);                    \
	static __attribute__((noinline)) void
#define KR_EXPORT(name) static const kr_emu::Export KR_CAT(kr_export_, __COUNTER__)(KR_EMU_HOPPER, #name, name);
#define KR_SHARED(type, name) type *name = reinterpret_cast<type *>(kr_emu::block()->shared)

#define threadIdx (kr_emu::self()->tid)
#define blockIdx (kr_emu::block()->idx)
#define blockDim (kr_emu::block()->dim)
#define gridDim (kr_emu::block()->grid)
#define warpSize 32
// after.h has them anew.
#define warp_sum warp_sum_by_shuffles
#define warp_max warp_max_by_shuffles

#include "intrinsics.h"
#include "instructions.h"
