// The base of all kernels: number formats, and a function for every instruction that has no name
// in CUDA C++. No other file in this folder has inline assembly, so the same sources also compile
// for a CPU (KR_EMU, kernels/cuda/emu), where these functions do the instruction's work in plain
// C++.
//
// There are two builds: compute_80 (mma.sync, cp.async, ldmatrix), which runs on every GPU from
// 8.0 on, and sm_90a, which adds the parts guarded by KR_HOPPER (wgmma, bulk copies, programmatic
// launch). A kernel that needs these parts exists in that build only.
#pragma once
#include <stdint.h>

#ifdef KR_EMU
#include "../emu/emu.h" // defines KR_HOPPER for its sm_90 variant, and everything below up to "plain"
#else

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define KR_HOPPER 1
#endif

#define KR_DEV static __device__ __forceinline__
// A kernel is KR_KERNEL(threads per block, blocks per multiprocessor) name(...) { }, followed by
// KR_EXPORT(name).
#define KR_KERNEL(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define KR_EXPORT(name)
// The block's dynamic shared memory as an array of type named name.
#define KR_SHARED(type, name)                                       \
	extern __shared__ __align__(1024) unsigned char kr_shared_[];    \
	type *name = reinterpret_cast<type *>(kr_shared_)

// Addresses of shared memory as instructions take them. They work for dynamic shared memory only.
KR_DEV uint32_t smem_u32(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

// --- asynchronous copies, global to shared, 16 bytes per thread
//
// ok false: writes zeros and does not read src.
KR_DEV void cp_async16(uint32_t dst, const void *src, bool ok = true) {
	int n = ok ? 16 : 0;
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(n) : "memory");
}
// As cp_async16, for data that is read once: the L2 cache evicts it first.
KR_DEV void cp_async16_once(uint32_t dst, const void *src, bool ok = true) {
	int n = ok ? 16 : 0;
	uint64_t policy;
	asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
	asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(dst), "l"(src), "r"(n), "l"(policy) : "memory");
}
// As cp_async16 for 4 or 8 bytes (through L1).
template <int N> KR_DEV void cp_async_small(uint32_t dst, const void *src, bool ok = true) {
	int n = ok ? N : 0;
	asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(dst), "l"(src), "n"(N), "r"(n) : "memory");
}
KR_DEV void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most N of this thread's groups are in flight.
template <int N> KR_DEV void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// --- loads that should not stay in a cache (weights read once)
//
// Prefetches the 128 bytes at p into the L2 cache, without waiting.
KR_DEV void prefetch_l2(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
KR_DEV uint4 ld_stream(const void *p) {
	uint4 v;
	asm volatile("ld.global.cs.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
	return v;
}

// --- fragments from shared memory: four (or two) 8x8 matrices of 16-bit elements; lane i passes
// the address of row i%8 of matrix i/8
KR_DEV void ldmatrix_x4(uint32_t (&r)[4], uint32_t at) {
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
	             : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
KR_DEV void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t at) {
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
	             : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
KR_DEV void ldmatrix_x2(uint32_t (&r)[2], uint32_t at) {
	asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(at) : "memory");
}
KR_DEV void ldmatrix_x2_trans(uint32_t (&r)[2], uint32_t at) {
	asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(at) : "memory");
}

// --- matrix products of a warp: c += a * b
// m16n8k16, lane 4g+c: a0 (g, 2c..) a1 (g+8, 2c..) a2 (g, 2c+8..) a3 (g+8, 2c+8..);
// b0 (k 2c.., n g) b1 (k 2c+8.., n g); c0,c1 (g, n 2c,2c+1) c2,c3 (g+8, n 2c,2c+1)
KR_DEV void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
	             : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
	             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// The same product with operands of f16.
KR_DEV void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
	             : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
	             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// m16n8k32 of int8: as above, with four bytes in place of two bf16.
KR_DEV void mma_s8(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
	asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
	             : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
	             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// --- pairs of bf16
KR_DEV uint32_t pack_bf16(float lo, float hi) { // round to nearest even
	uint32_t r;
	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
	return r;
}
KR_DEV uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
	uint32_t r;
	asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
	return r;
}
// --- pairs of f16
KR_DEV uint32_t pack_f16(float lo, float hi) { // round to nearest even
	uint32_t r;
	asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
	return r;
}
// Four e4m3 as f16, exactly: bytes 0 and 1, bytes 2 and 3.
KR_DEV void widen_e4m3_f16(uint32_t w, uint32_t &lo, uint32_t &hi) {
#ifdef KR_HOPPER
	asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.rn.f16x2.e4m3x2 %0, l;\ncvt.rn.f16x2.e4m3x2 %1, h;\n}" : "=r"(lo), "=r"(hi) : "r"(w));
#else // the seven bits move to the place of f16's exponent and fraction; 2^8 corrects the exponent bias
	uint32_t a = __byte_perm(w, 0, 0x1404), b = __byte_perm(w, 0, 0x3424), up = 0x5c005c00;
	asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(lo) : "r"((a & 0x80008000) | (a >> 1 & 0x3f803f80)), "r"(up));
	asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(hi) : "r"((b & 0x80008000) | (b >> 1 & 0x3f803f80)), "r"(up));
#endif
}
// (a & mask) | bits, in one instruction.
template <uint32_t MASK, uint32_t BITS> KR_DEV uint32_t and_or(uint32_t a) {
	uint32_t r;
	asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(a), "n"(MASK), "n"(BITS));
	return r;
}
// (~a & mask) | bits, in one instruction.
template <uint32_t MASK, uint32_t BITS> KR_DEV uint32_t andn_or(uint32_t a) {
	uint32_t r;
	asm("lop3.b32 %0, %1, %2, %3, 0xae;" : "=r"(r) : "r"(a), "n"(MASK), "n"(BITS));
	return r;
}
KR_DEV float exp2_approx(float x) {
	float r;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
	return r;
}

// --- barriers of a part of the block (id 1..15, a multiple of 32 threads)
KR_DEV void bar_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
KR_DEV void bar_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// --- memory shared with the host: release and acquire at system scope
KR_DEV void st_release_sys(uint32_t *p, uint32_t v) { asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
KR_DEV uint32_t ld_acquire_sys(const uint32_t *p) {
	uint32_t v;
	asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}
KR_DEV void st_release_sys(uint64_t *p, uint64_t v) { asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
// 16 bytes from memory itself, from no cache.
KR_DEV uint4 ld_fresh(const void *p) {
	uint4 v;
	asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
	return v;
}
// Words of 8 bytes, each of which the other side sees as a whole; p is aligned to all of them.
KR_DEV void st_words(void *p, uint64_t a) { asm volatile("st.volatile.global.u64 [%0], %1;" ::"l"(p), "l"(a) : "memory"); }
KR_DEV void st_words(void *p, uint64_t a, uint64_t b) { asm volatile("st.volatile.global.v2.u64 [%0], {%1,%2};" ::"l"(p), "l"(a), "l"(b) : "memory"); }
KR_DEV void ld_words(const void *p, uint64_t &a, uint64_t &b) { asm volatile("ld.volatile.global.v2.u64 {%0,%1}, [%2];" : "=l"(a), "=l"(b) : "l"(p) : "memory"); }
// The GPU's clock in nanoseconds. It advances about every microsecond.
KR_DEV uint64_t nanos() {
	uint64_t t;
	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
	return t;
}

// --- atomics that are release and acquire at the scope of the GPU
//
// atomicInc returns the old value, and sets it to 0 if it was limit, else to one more.
KR_DEV unsigned atomic_inc_acq_rel(unsigned *p, unsigned limit) {
	unsigned v;
	asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(v) : "l"(p), "r"(limit) : "memory");
	return v;
}

// --- programmatic dependent launch: nothing in the compute_80 build
KR_DEV void pdl_wait() {
#ifdef KR_HOPPER
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
KR_DEV void pdl_launch() {
#ifdef KR_HOPPER
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#ifdef KR_HOPPER
// --- wgmma: the 128 threads of a warpgroup, c += a * b, B [N rows][64 k] of 128-byte
// rows in shared memory, 1024-aligned, 128-byte swizzle (16-byte unit u of row r lies at
// unit u ^ r%8)
KR_DEV void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
KR_DEV void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Follows the wait for a product: the compiler moves no read of its sums above this.
template <int N> KR_DEV void wgmma_done(float (&d)[N]) {
#pragma unroll
	for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}
template <int N> KR_DEV void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
// Separates writes to shared memory by ordinary stores or cp.async from their reads by wgmma or a
// bulk copy.
KR_DEV void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
template <int N> KR_DEV void reg_grow() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> KR_DEV void reg_shrink() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }

// --- mbarriers (8 bytes of shared memory) and bulk copies
KR_DEV void mbar_init(uint32_t bar, int arrivals) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory"); }
KR_DEV void mbar_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
KR_DEV void mbar_arrive(uint32_t bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory"); }
KR_DEV void mbar_expect(uint32_t bar, uint32_t bytes) { // arrives, and expects that many more bytes
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
// This thread's earlier cp.async arrive when they are done (one arrival, which init counts).
KR_DEV void mbar_arrive_cp_async(uint32_t bar) { asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory"); }
KR_DEV void mbar_wait(uint32_t bar, uint32_t parity) {
	asm volatile("{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done;\nbra again;\ndone:\n}"
	             ::"r"(bar), "r"(parity) : "memory");
}
// bytes: a multiple of 16, both ends aligned to 16
KR_DEV void bulk_copy(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar) {
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
	             ::"r"(dst), "l"(src), "r"(bytes), "r"(bar) : "memory");
}
#include "wgmma.cuh" // generated: wgmma_rs<N>, wgmma_ss<N>, wgmma_ss_t<N>, wgmma_rs_t<N>, wgmma_s8_rs<N>, wgmma_s8_ss<N>
#endif // KR_HOPPER
#endif // KR_EMU

// --- plain: the same everywhere
typedef uint16_t bf16;  // the bits
typedef uint8_t e4m3;   // the bits

// Descriptor of a tile [rows][64 k] of 128-byte rows in shared memory, 1024-aligned, 128-byte
// swizzle, as wgmma reads A and B; + 2 is 16 bf16 (32 bytes) further along k.
KR_DEV uint64_t wgmma_desc(uint32_t at) { return (uint64_t)((at & 0x3ffff) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62); }
// Descriptor of B for wgmma_.._t: [k rows][64 n] of 128-byte rows, 1024-aligned, the same
// swizzle (16-byte unit u of row k lies at unit u ^ k%8). Columns 64..127 are a second such
// tile, step bytes (a multiple of 1024: 128 * rows) further, and so on. + 128 is 16 rows
// (2048 bytes) further along k.
KR_DEV uint64_t wgmma_desc_t(uint32_t at, uint32_t step) {
	return (uint64_t)((at & 0x3ffff) >> 4) | ((uint64_t)(step >> 4) << 16) | (64ull << 32) | (1ull << 62);
}

KR_DEV float f32(bf16 v) { return __uint_as_float((uint32_t)v << 16); }
KR_DEV float lo_f32(uint32_t pair) { return __uint_as_float(pair << 16); }
KR_DEV float hi_f32(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
KR_DEV bf16 to_bf16(float v) { return (bf16)(pack_bf16(v, 0.f) & 0xffff); }

// An element as float32, and float32 stored as an element, whatever its type.
KR_DEV float load(const float *p) { return *p; }
KR_DEV float load(const bf16 *p) { return f32(*p); }
KR_DEV void store(float *p, float v) { *p = v; }
KR_DEV void store(bf16 *p, float v) { *p = to_bf16(v); }

// Two neighbours; p must be aligned to the pair.
KR_DEV float2 load2(const float *p) { return *reinterpret_cast<const float2 *>(p); }
KR_DEV float2 load2(const bf16 *p) {
	uint32_t v = *reinterpret_cast<const uint32_t *>(p);
	return make_float2(lo_f32(v), hi_f32(v));
}
KR_DEV void store2(float *p, float a, float b) { *reinterpret_cast<float2 *>(p) = make_float2(a, b); }
KR_DEV void store2(bf16 *p, float a, float b) { *reinterpret_cast<uint32_t *>(p) = pack_bf16(a, b); }

// e4m3 (OCP FP8, no infinity). The conversion to float32 is exact. The conversion from float32
// rounds to nearest even and saturates at 448; NaN becomes 0, as the KV cache requires
// (kernels/device.KV).
KR_DEV float from_e4m3(e4m3 v) {
	uint32_t m = v & 0x7f;
	float f = __uint_as_float(m << 20) * 1.329227995784916e36f; // 2^120: exponent bias 127 - 7, denormals too
	return __uint_as_float(__float_as_uint(f) | ((uint32_t)(v & 0x80) << 24));
}
KR_DEV e4m3 to_e4m3(float v) {
	uint32_t sign = (__float_as_uint(v) >> 24) & 0x80;
	float a = fminf(fabsf(v), 448.f);
	// Computes both cases without branches: below 2^-6 steps of 2^-9, else nearest even at 3
	// bits.
	uint32_t tiny = __float_as_uint(a + 16384.f) & 0xf; // 2^14, whose last bit is 2^-9
	uint32_t u = __float_as_uint(a), large = ((u + 0x7ffff + (u >> 20 & 1)) >> 20) - (120 << 3);
	uint32_t kept = sign | (a < 0.015625f ? tiny : large);
	return (e4m3)(v == v ? kept : 0);
}

// The sum over a warp, the same bits in every lane.
KR_DEV float warp_sum(float v) {
	for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
	return v;
}
KR_DEV float warp_max(float v) {
	for (int d = 16; d > 0; d >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, d));
	return v;
}
