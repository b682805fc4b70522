// The counterparts of kr.cuh's instructions: the same names, signatures and meaning.
#pragma once

KR_DEV uint32_t smem_u32(const void *p) { return kr_emu::shared_address(p); }

KR_DEV void cp_async16(uint32_t dst, const void *src, bool ok = true) { kr_emu::copy_async(dst, src, 16, ok); }
KR_DEV void cp_async16_once(uint32_t dst, const void *src, bool ok = true) { cp_async16(dst, src, ok); }
template <int N> KR_DEV void cp_async_small(uint32_t dst, const void *src, bool ok = true) {
	static_assert(N == 4 || N == 8, "4 or 8 bytes");
	kr_emu::copy_async(dst, src, N, ok);
}
KR_DEV void cp_async_commit() { kr_emu::copy_commit(); }
template <int N> KR_DEV void cp_async_wait() { kr_emu::copy_wait(N); }

KR_DEV void prefetch_l2(const void *) {}
KR_DEV uint4 ld_stream(const void *p) { return *static_cast<const uint4 *>(p); }

KR_DEV void ldmatrix_x4(uint32_t (&r)[4], uint32_t at) { kr_emu::ldmatrix(r, at, 4, false); }
KR_DEV void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t at) { kr_emu::ldmatrix(r, at, 4, true); }
KR_DEV void ldmatrix_x2(uint32_t (&r)[2], uint32_t at) { kr_emu::ldmatrix(r, at, 2, false); }
KR_DEV void ldmatrix_x2_trans(uint32_t (&r)[2], uint32_t at) { kr_emu::ldmatrix(r, at, 2, true); }

KR_DEV void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { kr_emu::mma(c, a, b0, b1); }
KR_DEV void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { kr_emu::mma_f16(c, a, b0, b1); }
KR_DEV void mma_s8(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { kr_emu::mma(c, a, b0, b1); }

namespace kr_emu {
inline float bf16_f32(uint32_t bits) { return __uint_as_float(bits << 16); }
inline uint32_t f32_bf16(float v) { // round to nearest even; every NaN is 0x7fff
	uint32_t u = __float_as_uint(v);
	if (v != v) return 0x7fff;
	return (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
inline float f16_f32(uint32_t bits) {
	int e = bits >> 10 & 31, m = bits & 0x3ff;
	float v = e == 0 ? ldexpf(m, -24) : e < 31 ? ldexpf(m | 0x400, e - 25) : m ? NAN : INFINITY;
	return bits & 0x8000 ? -v : v;
}
inline uint32_t f32_f16(float v) { // round to nearest even; every NaN is 0x7fff
	uint32_t u = __float_as_uint(v), sign = u >> 16 & 0x8000;
	if (v != v) return 0x7fff;
	float a = fabsf(v);
	if (a >= 65520.f) return sign | 0x7c00;
	if (a < 6.103515625e-5f) return sign | (uint32_t)rintf(a * 16777216.f); // below 2^-14: steps of 2^-24
	u &= 0x7fffffff;
	return sign | (((u + 0xfff + (u >> 13 & 1)) >> 13) - (112 << 10));
}
inline uint32_t e4m3_f16(uint32_t v) { // NaN too
	int e = v >> 3 & 15, m = v & 7;
	float a = (v & 0x7f) == 0x7f ? NAN : e ? ldexpf(8 + m, e - 10) : ldexpf(m, -9);
	return f32_f16(v & 0x80 ? -a : a);
}
// a*b + c rounded once to bf16. The product is exact in double, and so is the sum unless
// the exponents are more than 53 bits apart; then the sum is rounded to odd, which makes
// the second rounding harmless.
inline uint32_t fma_bf16(uint32_t a, uint32_t b, uint32_t c) {
	double p = (double)bf16_f32(a) * bf16_f32(b), q = bf16_f32(c), s = p + q;
	double rest = (p - (s - (s - p))) + (q - (s - p)); // what the sum lost
	if (rest != 0 && rest == rest && !(kr_bits_<uint64_t>(s) & 1)) s = nextafter(s, rest > 0 ? INFINITY : -INFINITY);
	float f = (float)s;
	if (f == f && (double)f != s && !(__float_as_uint(f) & 1)) f = nextafterf(f, s > f ? INFINITY : -INFINITY); // to odd
	return f32_bf16(f);
}
} // namespace kr_emu

KR_DEV uint32_t pack_bf16(float lo, float hi) { return kr_emu::f32_bf16(lo) | kr_emu::f32_bf16(hi) << 16; }
KR_DEV uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
	return kr_emu::fma_bf16(a & 0xffff, b & 0xffff, c & 0xffff) | kr_emu::fma_bf16(a >> 16, b >> 16, c >> 16) << 16;
}
KR_DEV uint32_t pack_f16(float lo, float hi) { return kr_emu::f32_f16(lo) | kr_emu::f32_f16(hi) << 16; }
KR_DEV void widen_e4m3_f16(uint32_t w, uint32_t &lo, uint32_t &hi) {
	lo = kr_emu::e4m3_f16(w & 0xff) | kr_emu::e4m3_f16(w >> 8 & 0xff) << 16;
	hi = kr_emu::e4m3_f16(w >> 16 & 0xff) | kr_emu::e4m3_f16(w >> 24) << 16;
}
template <uint32_t MASK, uint32_t BITS> KR_DEV uint32_t and_or(uint32_t a) { return (a & MASK) | BITS; }
template <uint32_t MASK, uint32_t BITS> KR_DEV uint32_t andn_or(uint32_t a) { return (~a & MASK) | BITS; }
KR_DEV float exp2_approx(float x) { // denormals, in and out, are zero
	float r = exp2f(x);
	return r < 1.17549435e-38f ? 0.f : r;
}

KR_DEV void bar_sync(int id, int threads) { kr_emu::barrier(id, threads, true); }
KR_DEV void bar_arrive(int id, int threads) { kr_emu::barrier(id, threads, false); }

KR_UNSEEN KR_DEV void st_release_sys(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
KR_UNSEEN KR_DEV uint32_t ld_acquire_sys(const uint32_t *p) {
	kr_emu::yield(); // waiting loops call this
	return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
KR_UNSEEN KR_DEV void st_release_sys(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
KR_DEV uint4 ld_fresh(const void *p) { return *static_cast<const uint4 *>(p); }
KR_UNSEEN KR_DEV void st_words(void *p, uint64_t a) { __atomic_store_n(static_cast<uint64_t *>(p), a, __ATOMIC_RELAXED); }
KR_UNSEEN KR_DEV void st_words(void *p, uint64_t a, uint64_t b) { // in no order that anybody may rely on
	st_words(static_cast<uint64_t *>(p) + 1, b);
	st_words(p, a);
}
KR_UNSEEN KR_DEV void ld_words(const void *p, uint64_t &a, uint64_t &b) {
	kr_emu::yield(); // waiting loops call this
	a = __atomic_load_n(static_cast<const uint64_t *>(p), __ATOMIC_RELAXED);
	b = __atomic_load_n(static_cast<const uint64_t *>(p) + 1, __ATOMIC_RELAXED);
}
KR_DEV uint64_t nanos() { return (uint64_t)clock64(); }

KR_DEV unsigned atomic_inc_acq_rel(unsigned *p, unsigned limit) { return atomicInc(p, limit); }

KR_DEV void pdl_wait() { kr_emu::pdl_wait(); }
KR_DEV void pdl_launch() { kr_emu::pdl_launch(); }

#ifdef KR_HOPPER
KR_DEV void wgmma_fence() { kr_emu::wgmma_fence(); }
KR_DEV void wgmma_commit() { kr_emu::wgmma_commit(); }
template <int N> KR_DEV void wgmma_done(float (&)[N]) {}
template <int N> KR_DEV void wgmma_wait() { kr_emu::wgmma_wait(N); }
KR_DEV void fence_async() { kr_emu::fence_async(); }
template <int N> KR_DEV void reg_grow() {}
template <int N> KR_DEV void reg_shrink() {}

KR_DEV void mbar_init(uint32_t bar, int arrivals) { kr_emu::mbarrier_init(bar, arrivals); }
KR_DEV void mbar_init_fence() {}
KR_DEV void mbar_arrive(uint32_t bar) { kr_emu::mbarrier_arrive(bar, 0); }
KR_DEV void mbar_expect(uint32_t bar, uint32_t bytes) { kr_emu::mbarrier_arrive(bar, bytes); }
KR_DEV void mbar_arrive_cp_async(uint32_t bar) { kr_emu::mbarrier_arrive_copies(bar); }
KR_DEV void mbar_wait(uint32_t bar, uint32_t parity) { kr_emu::mbarrier_wait(bar, parity); }
KR_DEV void bulk_copy(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar) { kr_emu::bulk(dst, src, bytes, bar); }

#define KR_WGMMA_RS(name, type, trans, format)                                                       \
	template <int N> KR_DEV void name(type (&d)[N / 2], const uint32_t (&a)[4], uint64_t db) {        \
		kr_emu::wgmma({d, N, {a[0], a[1], a[2], a[3]}, 0, db, false, trans, kr_emu::Format::format, kr_emu::OPEN}); \
	}
#define KR_WGMMA_SS(name, type, trans, format)                                                       \
	template <int N> KR_DEV void name(type (&d)[N / 2], uint64_t da, uint64_t db) {                   \
		kr_emu::wgmma({d, N, {0, 0, 0, 0}, da, db, true, trans, kr_emu::Format::format, kr_emu::OPEN}); \
	}
KR_WGMMA_RS(wgmma_rs, float, false, bf16)
KR_WGMMA_RS(wgmma_rs_t, float, true, bf16)
KR_WGMMA_SS(wgmma_ss, float, false, bf16)
KR_WGMMA_SS(wgmma_ss_t, float, true, bf16)
KR_WGMMA_SS(wgmma_f16_ss, float, false, f16)
KR_WGMMA_RS(wgmma_f16_rs_t, float, true, f16)
KR_WGMMA_RS(wgmma_s8_rs, int, false, s8)
KR_WGMMA_SS(wgmma_s8_ss, int, false, s8)
#undef KR_WGMMA_RS
#undef KR_WGMMA_SS
#endif // KR_HOPPER
