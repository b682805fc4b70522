// CUDA's intrinsics that the kernels use: warp operations, barriers, atomics, bits, math. There is
// no atomicAdd of floats, because sums have a fixed order here.
#pragma once
#include <time.h>

// min and max for the same pairs of types as in CUDA, so that the same calls are ambiguous.
#define KR_MINMAX(a, b, r)                                                           \
	static inline r max(a x, b y) { return (r)x > (r)y ? (r)x : (r)y; }               \
	static inline r min(a x, b y) { return (r)x < (r)y ? (r)x : (r)y; }
#define KR_MINMAXES(s, u) KR_MINMAX(s, s, s) KR_MINMAX(u, u, u) KR_MINMAX(s, u, u) KR_MINMAX(u, s, u)
KR_MINMAXES(int, unsigned)
KR_MINMAXES(long, unsigned long)
KR_MINMAXES(long long, unsigned long long)
#undef KR_MINMAXES
#undef KR_MINMAX
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline float min(float a, float b) { return fminf(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }

// --- barriers
static inline void __syncthreads() { kr_emu::sync_block(false, "__syncthreads"); }
static inline int __syncthreads_or(int v) { return kr_emu::sync_block(v != 0, "__syncthreads_or") != 0; }
static inline int __syncthreads_and(int v) { return kr_emu::sync_block(v == 0, "__syncthreads_and") == 0; }
static inline int __syncthreads_count(int v) { return (int)kr_emu::sync_block(v != 0, "__syncthreads_count"); }
// The race detection does not see it (race.h).
#define KR_UNSEEN __attribute__((no_sanitize("thread")))
KR_UNSEEN static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
KR_UNSEEN static inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
KR_UNSEEN static inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __nanosleep(unsigned) { kr_emu::yield(); }
[[noreturn]] static inline void __trap() { kr_emu::fail(kr_emu::LAUNCH_FAILED, "__trap"); }
[[noreturn]] static inline void kr_assert_(const char *what) { kr_emu::fail(kr_emu::ASSERT, "assertion failed: %s", what); }

// --- the lanes of a warp
namespace kr_emu {
struct Vote {
	bool v;
	uint32_t r;
};
struct Shuffle {
	uint64_t v;
	int from; // lane to read; own lane where CUDA says so
	uint64_t r;
};
void combine_nothing(void *const *args, uint32_t mask);
void combine_ballot(void *const *args, uint32_t mask);
void combine_shuffle(void *const *args, uint32_t mask);
void combine_match(void *const *args, uint32_t mask);

enum Way { IDX, UP, DOWN, XOR };
template <typename T> inline T shuffle(uint32_t mask, T v, int by, int width, Way way, const char *what) {
	static_assert(sizeof(T) <= 8, "shuffles move 4 or 8 bytes");
	int lane = self()->lane, base = lane & ~(width - 1), from = lane;
	switch (way) {
	case IDX: from = base + (by & (width - 1)); break;
	case UP: from = lane - by < base ? lane : lane - by; break;
	case DOWN: from = lane + by >= base + width ? lane : lane + by; break;
	case XOR: from = (lane ^ by) >= base + width ? lane : lane ^ by; break;
	}
	Shuffle s{0, from, 0};
	memcpy(&s.v, &v, sizeof v);
	meet(mask, combine_shuffle, &s, what);
	memcpy(&v, &s.r, sizeof v);
	return v;
}
inline uint32_t ballot(uint32_t mask, bool v, const char *what) {
	Vote b{v, 0};
	meet(mask, combine_ballot, &b, what);
	return b.r;
}
} // namespace kr_emu

static inline void __syncwarp(unsigned mask = 0xffffffffu) { kr_emu::meet(mask, kr_emu::combine_nothing, 0, "__syncwarp"); }
static inline unsigned __ballot_sync(unsigned mask, int v) { return kr_emu::ballot(mask, v != 0, "__ballot_sync"); }
static inline int __any_sync(unsigned mask, int v) { return kr_emu::ballot(mask, v != 0, "__any_sync") != 0; }
static inline int __all_sync(unsigned mask, int v) { return kr_emu::ballot(mask, v == 0, "__all_sync") == 0; }
template <typename T> inline T __shfl_sync(unsigned mask, T v, int lane, int width = 32) {
	return kr_emu::shuffle(mask, v, lane, width, kr_emu::IDX, "__shfl_sync");
}
template <typename T> inline T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32) {
	return kr_emu::shuffle(mask, v, (int)by, width, kr_emu::UP, "__shfl_up_sync");
}
template <typename T> inline T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32) {
	return kr_emu::shuffle(mask, v, (int)by, width, kr_emu::DOWN, "__shfl_down_sync");
}
template <typename T> inline T __shfl_xor_sync(unsigned mask, T v, int by, int width = 32) {
	return kr_emu::shuffle(mask, v, by, width, kr_emu::XOR, "__shfl_xor_sync");
}
template <typename T> inline unsigned __match_any_sync(unsigned mask, T v) {
	kr_emu::Shuffle s{0, 0, 0};
	memcpy(&s.v, &v, sizeof v);
	kr_emu::meet(mask, kr_emu::combine_match, &s, "__match_any_sync");
	return (unsigned)s.r;
}
// A function of the values of all lanes is one meeting: shuffles would be a switch of fibers a lane for
// each of them.
namespace kr_emu {
template <typename Op, typename T> KR_UNSEEN void combine_reduce(void *const *args, uint32_t mask) {
	T r = *static_cast<T *>(args[__builtin_ctz(mask)]);
	for (uint32_t m = mask & (mask - 1); m; m &= m - 1) r = Op()(r, *static_cast<T *>(args[__builtin_ctz(m)]));
	for (uint32_t m = mask; m; m &= m - 1) *static_cast<T *>(args[__builtin_ctz(m)]) = r;
}
// What v = op(v, the v of lane ^ d) gives for d = 16, 8, 4, 2 and 1 in turn.
template <typename Op, typename T> KR_UNSEEN void combine_butterfly(void *const *args, uint32_t) {
	T v[32];
	for (int l = 0; l < 32; l++) v[l] = *static_cast<T *>(args[l]);
	for (int d = 16; d > 0; d >>= 1)
		for (int l = 0; l < 32; l += 2 * d)
			for (int i = l; i < l + d; i++) {
				T a = v[i], b = v[i + d];
				v[i] = Op()(a, b), v[i + d] = Op()(b, a);
			}
	for (int l = 0; l < 32; l++) *static_cast<T *>(args[l]) = v[l];
}
#define KR_OP(name, expr)                                                 \
	struct name {                                                          \
		template <typename T> T operator()(T a, T b) const { return expr; } \
	};
KR_OP(Add, a + b)
KR_OP(Max, a > b ? a : b)
KR_OP(Min, a < b ? a : b)
KR_OP(Or, a | b)
KR_OP(And, a &b)
KR_OP(FloatMax, fmaxf(a, b))
#undef KR_OP
} // namespace kr_emu
#define KR_REDUCE(name, type, op)                                                   \
	static inline type name(unsigned mask, type v) {                                 \
		kr_emu::meet(mask, kr_emu::combine_reduce<kr_emu::op, type>, &v, #name);      \
		return v;                                                                    \
	}
KR_REDUCE(__reduce_add_sync, unsigned, Add)
KR_REDUCE(__reduce_max_sync, unsigned, Max)
KR_REDUCE(__reduce_max_sync, int, Max)
KR_REDUCE(__reduce_min_sync, unsigned, Min)
KR_REDUCE(__reduce_min_sync, int, Min)
KR_REDUCE(__reduce_or_sync, unsigned, Or)
KR_REDUCE(__reduce_and_sync, unsigned, And)
static inline int __reduce_add_sync(unsigned mask, int v) { return (int)__reduce_add_sync(mask, (unsigned)v); }
#undef KR_REDUCE
static inline unsigned __activemask() { return 1u << kr_emu::self()->lane; } // the only lane that runs just now

// --- atomics
#if KR_EMU_RACE
#define KR_ATOM(p) kr_emu::seen(p)
#else
#define KR_ATOM(p) (void)0
#endif
#define KR_ATOMIC(name, type, op)                                                                      \
	KR_UNSEEN static inline type name(type *p, type v) { KR_ATOM(p); return __atomic_fetch_##op(p, v, __ATOMIC_SEQ_CST); }
#define KR_ATOMICS(type)                                                                               \
	KR_ATOMIC(atomicAdd, type, add) KR_ATOMIC(atomicSub, type, sub) KR_ATOMIC(atomicOr, type, or)       \
	KR_ATOMIC(atomicAnd, type, and) KR_ATOMIC(atomicXor, type, xor)                                    \
	KR_UNSEEN static inline type atomicExch(type *p, type v) { KR_ATOM(p); return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); } \
	KR_UNSEEN static inline type atomicCAS(type *p, type want, type v) { KR_ATOM(p);                               \
		__atomic_compare_exchange_n(p, &want, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);           \
		return want;                                                                                   \
	}                                                                                                  \
	KR_UNSEEN static inline type atomicMax(type *p, type v) {                                                    \
		KR_ATOM(p); type old = __atomic_load_n(p, __ATOMIC_SEQ_CST);                                             \
		while (old < v && !__atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {} \
		return old;                                                                                    \
	}                                                                                                  \
	KR_UNSEEN static inline type atomicMin(type *p, type v) {                                                    \
		KR_ATOM(p); type old = __atomic_load_n(p, __ATOMIC_SEQ_CST);                                             \
		while (old > v && !__atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {} \
		return old;                                                                                    \
	}
KR_ATOMICS(int)
KR_ATOMICS(unsigned)
KR_ATOMICS(unsigned long long)
#undef KR_ATOMICS
#undef KR_ATOMIC
KR_UNSEEN static inline unsigned atomicInc(unsigned *p, unsigned limit) {
	KR_ATOM(p);
	unsigned old = __atomic_load_n(p, __ATOMIC_SEQ_CST);
	while (!__atomic_compare_exchange_n(p, &old, old >= limit ? 0 : old + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
	return old;
}

// --- loads and stores with a hint
template <typename T> static inline T __ldg(const T *p) { return *p; }
template <typename T> static inline T __ldcs(const T *p) { return *p; }
template <typename T> static inline T __ldcg(const T *p) { return *p; }
template <typename T> static inline T __ldca(const T *p) { return *p; }
template <typename T> static inline void __stcs(T *p, T v) { *p = v; }
template <typename T> static inline void __stcg(T *p, T v) { *p = v; }

// --- bits
template <typename R, typename T> static inline R kr_bits_(T v) {
	static_assert(sizeof(R) == sizeof(T), "");
	R r;
	memcpy(&r, &v, sizeof r);
	return r;
}
static inline unsigned __float_as_uint(float v) { return kr_bits_<unsigned>(v); }
static inline int __float_as_int(float v) { return kr_bits_<int>(v); }
static inline float __uint_as_float(unsigned v) { return kr_bits_<float>(v); }
static inline float __int_as_float(int v) { return kr_bits_<float>(v); }
static inline long long __double_as_longlong(double v) { return kr_bits_<long long>(v); }
static inline double __longlong_as_double(long long v) { return kr_bits_<double>(v); }
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline int __ffsll(long long v) { return __builtin_ffsll(v); }
static inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
static inline int __clzll(long long v) { return v ? __builtin_clzll((unsigned long long)v) : 64; }
static inline unsigned __brev(unsigned v) {
	unsigned r = 0;
	for (int i = 0; i < 32; i++) r |= (v >> i & 1) << (31 - i);
	return r;
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned s) {
	uint64_t both = (uint64_t)y << 32 | x;
	unsigned r = 0;
	for (int i = 0; i < 4; i++) {
		unsigned sel = s >> (4 * i) & 0xf, b = both >> (8 * (sel & 7)) & 0xff;
		if (sel & 8) b = b & 0x80 ? 0xff : 0; // the byte's sign
		r |= b << (8 * i);
	}
	return r;
}
static inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned n) { n &= 31; return n ? hi << n | lo >> (32 - n) : hi; }
static inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned n) { n &= 31; return n ? lo >> n | hi << (32 - n) : lo; }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
static inline int __mulhi(int a, int b) { return (int)((int64_t)a * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
	return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline int __dp4a(int a, int b, int c) {
	for (int i = 0; i < 4; i++) c += (int)(signed char)(a >> (8 * i)) * (int)(signed char)(b >> (8 * i));
	return c;
}
static inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
	for (int i = 0; i < 4; i++) c += (a >> (8 * i) & 0xff) * (b >> (8 * i) & 0xff);
	return c;
}

// --- math; the fast ones are exact here (macros: the C library has functions of these names)
#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __exp10f(x) exp10f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __sincosf(x, s, c) sincosf(x, s, c)
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __frcp_rn(float x) { return 1.f / x; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __saturatef(float x) { return x >= 0.f ? (x <= 1.f ? x : 1.f) : 0.f; }
static inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
static inline double rsqrt(double x) { return 1. / sqrt(x); }
// Out of range saturates and NaN becomes 0, as cvt does.
static inline int kr_to_int_(float x) { return x != x ? 0 : x >= 2147483648.f ? INT32_MAX : x <= -2147483648.f ? INT32_MIN : (int)x; }
static inline int __float2int_rn(float x) { return kr_to_int_(rintf(x)); }
static inline int __float2int_rz(float x) { return kr_to_int_(x); }
static inline int __float2int_rd(float x) { return kr_to_int_(floorf(x)); }
static inline int __float2int_ru(float x) { return kr_to_int_(ceilf(x)); }
static inline unsigned __float2uint_rn(float x) {
	x = rintf(x);
	return !(x > 0.f) ? 0u : x >= 4294967296.f ? UINT32_MAX : (unsigned)x;
}
static inline float __int2float_rn(int x) { return (float)x; }
static inline float __uint2float_rn(unsigned x) { return (float)x; }

// --- clocks: nanoseconds
static inline long long clock64() {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}
