// Kernels for the test of the emulator itself. Each primitive occurs once, in a kernel whose
// result main.cpp compares with a plain formula. Some kernels are wrong on purpose.
#include "kr.cuh"

KR_KERNEL(1024, 1) t_index(int *out) {
	int b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
	int t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
	out[b * (int)(blockDim.x * blockDim.y * blockDim.z) + t] = b * 10000 + t;
}
KR_EXPORT(t_index)

KR_KERNEL(256, 1) t_warp(const int *in, int *out) {
	int i = threadIdx.x, lane = i & 31;
	int v = in[i];
	int *o = out + 8 * i;
	o[0] = __shfl_xor_sync(0xffffffffu, v, 5);
	o[1] = __shfl_up_sync(0xffffffffu, v, 3);
	o[2] = __shfl_down_sync(0xffffffffu, v, 2, 8);
	o[3] = __shfl_sync(0xffffffffu, v, 7);
	o[4] = (int)__ballot_sync(0xffffffffu, v & 1);
	if (lane < 16) { // half of the warp alone
		o[5] = __shfl_xor_sync(0x0000ffffu, v, 1);
	} else {
		o[5] = __shfl_xor_sync(0xffff0000u, v, 2);
	}
	__syncwarp();
	o[6] = __any_sync(0xffffffffu, v == 77) * 2 + __all_sync(0xffffffffu, v >= 0);
	long long wide = __shfl_xor_sync(0xffffffffu, (long long)v << 33, 1);
	o[7] = (int)(wide >> 33);
}
KR_EXPORT(t_warp)

// One meeting and exchanges give the same bits.
KR_KERNEL(256, 1) t_reduced(const float *in, int *out) {
	float v = in[threadIdx.x];
	int *o = out + 4 * threadIdx.x;
	o[0] = __float_as_int(warp_sum(v)), o[1] = __float_as_int(warp_sum_by_shuffles(v));
	o[2] = __float_as_int(warp_max(v)), o[3] = __float_as_int(warp_max_by_shuffles(v));
}
KR_EXPORT(t_reduced)
KR_KERNEL(64, 1) t_reduce(const int *in, int *out) {
	int lane = threadIdx.x % 32, v = in[threadIdx.x], *o = out + 8 * threadIdx.x;
	unsigned mask = lane % 3 ? 0xb6db6db6u : 0x49249249u;
	o[0] = __reduce_add_sync(mask, v), o[1] = __reduce_max_sync(mask, v), o[2] = __reduce_min_sync(mask, v);
	o[3] = (int)__reduce_max_sync(mask, (unsigned)v), o[4] = (int)__reduce_min_sync(mask, (unsigned)v);
	o[5] = (int)__reduce_or_sync(mask, (unsigned)v), o[6] = (int)__reduce_and_sync(mask, (unsigned)v);
	o[7] = (int)__reduce_add_sync(mask, (unsigned)v);
}
KR_EXPORT(t_reduce)

// The sum of a block through static and dynamic shared memory, and the last block done.
KR_KERNEL(256, 1) t_sum(const int *in, int n, int *sums, unsigned *count, int *total) {
	KR_SHARED(int, dyn);
	__shared__ int last;
	__shared__ __align__(16) int stat[256];
	int v = 0;
	for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256) v += in[i];
	dyn[threadIdx.x] = v;
	__syncthreads();
	stat[255 - threadIdx.x] = dyn[threadIdx.x];
	for (int s = 128; s > 0; s >>= 1) {
		__syncthreads();
		if (threadIdx.x < s) stat[threadIdx.x] += stat[threadIdx.x + s];
	}
	if (threadIdx.x == 0) {
		sums[blockIdx.x] = stat[0];
		__threadfence();
		last = atomicAdd(count, 1u) == gridDim.x - 1;
	}
	__syncthreads();
	if (!last || threadIdx.x) return;
	int t = 0;
	for (unsigned i = 0; i < gridDim.x; i++) t += sums[i];
	*total = t;
}
KR_EXPORT(t_sum)

KR_KERNEL(128, 1) t_votes(int *out) {
	if (threadIdx.x >= 96) return; // the others go on without it
	int c = __syncthreads_count(threadIdx.x < 40);
	int o = __syncthreads_or(threadIdx.x == 95), a = __syncthreads_and(threadIdx.x < 95);
	out[threadIdx.x] = c * 4 + o * 2 + a;
}
KR_EXPORT(t_votes)

// Warps 0 and 1 produce, warps 2 and 3 consume, over two named barriers.
KR_KERNEL(128, 1) t_named(int *out, int rounds) {
	KR_SHARED(int, buf);
	int i = threadIdx.x % 64;
	for (int r = 0; r < rounds; r++) {
		if (threadIdx.x < 64) {
			if (r > 0) bar_sync(2, 128);
			buf[i] = r * 100 + i;
			bar_arrive(1, 128);
		} else {
			bar_sync(1, 128);
			out[r * 64 + i] = buf[63 - i];
			if (r < rounds - 1) bar_arrive(2, 128);
		}
	}
}
KR_EXPORT(t_named)

// cp.async in three stages: copies in to out, [n][64] ints, ragged rows zeroed.
KR_KERNEL(64, 1) t_cpasync(const int *in, int *out, int n, int valid) {
	KR_SHARED(int, buf); // 3 x 64
	int t = threadIdx.x;
	auto load = [&](int k) {
		if (k < n && t < 16) cp_async16(smem_u32(buf + k % 3 * 64 + 4 * t), in + (k < valid ? k : 0) * 64 + 4 * t, k < valid);
		cp_async_commit();
	};
	load(0), load(1);
	for (int k = 0; k < n; k++) {
		cp_async_wait<1>();
		__syncthreads();
		load(k + 2);
		out[k * 64 + t] = buf[k % 3 * 64 + 63 - t];
	}
}
KR_EXPORT(t_cpasync)

// a [16][16], b [8 n][16 k] bf16 rows in shared memory: c = a b', through ldmatrix.
KR_KERNEL(32, 1) t_mma(const bf16 *a, const bf16 *b, const bf16 *bt, float *c, float *ct) {
	KR_SHARED(bf16, s);
	int l = threadIdx.x;
	for (int i = l; i < 256; i += 32) s[i] = a[i];
	for (int i = l; i < 128; i += 32) s[256 + i] = b[i], s[384 + i] = bt[i];
	__syncwarp();
	uint32_t ra[4], rb[2], rt[2];
	ldmatrix_x4(ra, smem_u32(s + (l % 16) * 16 + l / 16 * 8));
	ldmatrix_x2(rb, smem_u32(s + 256 + (l % 8) * 16 + l / 8 % 2 * 8));
	ldmatrix_x2_trans(rt, smem_u32(s + 384 + (l % 16) * 8)); // [16 k][8 n]
	float d[4] = {0, 0, 0, 0}, e[4] = {1, 1, 1, 1};
	mma_bf16(d, ra, rb[0], rb[1]);
	mma_bf16(e, ra, rt[0], rt[1]);
	for (int i = 0; i < 4; i++) {
		int at = (l / 4 + i / 2 * 8) * 8 + 2 * (l % 4) + i % 2;
		c[at] = d[i], ct[at] = e[i];
	}
}
KR_EXPORT(t_mma)

// a [16][32], b [8][32] int8: c = a b'.
KR_KERNEL(32, 1) t_mma_s8(const uint32_t *a, const uint32_t *b, int *c) {
	int l = threadIdx.x, g = l / 4, q = l % 4;
	uint32_t ra[4] = {a[g * 8 + q], a[(g + 8) * 8 + q], a[g * 8 + q + 4], a[(g + 8) * 8 + q + 4]};
	int d[4] = {0, 0, 0, 0};
	mma_s8(d, ra, b[g * 8 + q], b[g * 8 + q + 4]);
	for (int i = 0; i < 4; i++) c[(g + i / 2 * 8) * 8 + 2 * q + i % 2] = d[i];
}
KR_EXPORT(t_mma_s8)

KR_KERNEL(32, 1) t_bf16(const float *a, const uint32_t *b, uint32_t *out, int n) {
	for (int i = threadIdx.x; i < n; i += 32) {
		out[2 * i] = pack_bf16(a[2 * i], a[2 * i + 1]);
		out[2 * i + 1] = fma_bf16x2(b[3 * i], b[3 * i + 1], b[3 * i + 2]);
	}
}
KR_EXPORT(t_bf16)

// a [16][16], b [8][16] e4m3: c = a b' as f16; and n pairs of x packed.
KR_KERNEL(32, 1) t_f16(const uint32_t *a, const uint32_t *b, float *c, const float *x, uint32_t *packed, int n) {
	int l = threadIdx.x, g = l / 4, q = l % 4;
	uint32_t ra[4], rb[2];
	widen_e4m3_f16(a[g * 4 + q], ra[0], ra[2]);
	widen_e4m3_f16(a[(g + 8) * 4 + q], ra[1], ra[3]);
	widen_e4m3_f16(b[g * 4 + q], rb[0], rb[1]);
	float d[4] = {0, 0, 0, 0};
	mma_f16(d, ra, rb[0], rb[1]);
	for (int i = 0; i < 4; i++) c[(g + i / 2 * 8) * 8 + 2 * q + i % 2] = d[i];
	for (int i = l; i < n; i += 32) packed[i] = pack_f16(x[2 * i], x[2 * i + 1]);
}
KR_EXPORT(t_f16)

KR_KERNEL(32, 1) t_empty(int n) {}
KR_EXPORT(t_empty)
KR_KERNEL(1024, 1) t_one(float *p, int n) {
	size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
	if (i < (size_t)n) p[i] = p[i] * 2.f + 1.f;
}
KR_EXPORT(t_one)
KR_KERNEL(256, 1) t_speed(float *out, int n) { // n times: 5 shuffles and 2 mma
	float v = threadIdx.x, c[4] = {0, 0, 0, 0};
	uint32_t a[4] = {1, 2, 3, 4};
	for (int i = 0; i < n; i++) {
		v = warp_sum_by_shuffles(v);
		mma_bf16(c, a, 1, 2);
		mma_bf16(c, a, 1, 2);
	}
	out[threadIdx.x] = v + c[0];
}
KR_EXPORT(t_speed)
// Waits until the host writes its word, then answers.
KR_KERNEL(32, 1) t_wait(const uint32_t *flag, uint32_t *answer) {
	if (threadIdx.x == 0) {
		while (ld_acquire_sys(flag) != 7) __nanosleep(100);
		st_release_sys(answer, 9);
	}
	__syncwarp();
}
KR_EXPORT(t_wait)
// Waits for the word at most the given number of nanoseconds. Writes 1 if it came, and the 12
// bytes that follow it.
KR_KERNEL(32, 1) t_limit(const uint32_t *flag, uint64_t *answer, int limit) {
	if (threadIdx.x == 0) {
		uint64_t end = nanos() + limit;
		bool came;
		do came = ld_acquire_sys(flag) == 7;
		while (!came && nanos() < end);
		st_release_sys(answer, (uint64_t)ld_fresh(flag).w << 32 | came);
	}
	__syncwarp();
}
KR_EXPORT(t_limit)
// Each lane waits until the upper halves of its two words are 7, and returns the lower halves.
KR_KERNEL(32, 1) t_words(const uint64_t *words, uint64_t *answer) {
	uint64_t a, b;
	do ld_words(words + 2 * threadIdx.x, a, b);
	while (a >> 32 != 7 || b >> 32 != 7);
	st_words(answer + 2 * threadIdx.x, (uint32_t)b, (uint32_t)a);
	if (threadIdx.x == 31) st_words(answer + 64, a + b);
}
KR_EXPORT(t_words)
KR_KERNEL(32, 1) t_pdl(int *p) {
	if (p) pdl_wait();
	pdl_launch();
}
KR_EXPORT(t_pdl)

// --- wrong on purpose
KR_KERNEL(64, 1) bad_deadlock(int *p) {
	if (threadIdx.x < 32) bar_sync(3, 64);
	else __syncthreads();
	*p = 1;
}
KR_EXPORT(bad_deadlock)
KR_KERNEL(64, 1) bad_lane(int *p) {
	if (threadIdx.x % 32 == 5) return;
	p[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1, 1);
}
KR_EXPORT(bad_lane)
KR_KERNEL(64, 1) bad_parted(int *p) {
	if (threadIdx.x & 1) p[0] = __shfl_xor_sync(0xffffffffu, 1, 1);
	else p[1] = (int)__ballot_sync(0xffffffffu, 1);
}
KR_EXPORT(bad_parted)
KR_KERNEL(64, 1) bad_end(const int *in, int *out, int n) { out[0] = in[n + threadIdx.x]; }
KR_EXPORT(bad_end)
KR_KERNEL(64, 1) bad_align(const float *in, float *out, int at) {
	float4 v = *reinterpret_cast<const float4 *>(in + at);
	out[0] = v.x;
}
KR_EXPORT(bad_align)
KR_KERNEL(64, 1) bad_shared(int *out, int n) {
	KR_SHARED(int, s);
	s[n + threadIdx.x] = 1;
	__syncthreads();
	out[threadIdx.x] = s[n + 63 - threadIdx.x];
}
KR_EXPORT(bad_shared)
KR_KERNEL(64, 1) bad_early(const int *in, int *out) { // reads before it has waited
	KR_SHARED(int, s);
	if (threadIdx.x < 16) cp_async16(smem_u32(s + 4 * threadIdx.x), in + 4 * threadIdx.x);
	cp_async_commit();
	__syncthreads();
	out[threadIdx.x] = s[threadIdx.x];
}
KR_EXPORT(bad_early)
KR_KERNEL(64, 1) bad_race(int *out) { // no barrier between the two
	KR_SHARED(int, s);
	s[threadIdx.x] = threadIdx.x;
	out[threadIdx.x] = s[63 - threadIdx.x];
}
KR_EXPORT(bad_race)
// Returns what __shared__ memory holds at the start.
KR_KERNEL(64, 1) t_static(int *out, int write) {
	__shared__ int s[64];
	out[threadIdx.x] = s[threadIdx.x];
	if (write) s[threadIdx.x] = 5;
}
KR_EXPORT(t_static)
