// Kernels that have a race each, and their correct twins. The build that detects races (race.h)
// finds them.
#include "kr.cuh"

// fix 1: has the barrier that the wrong kernel lacks.
KR_KERNEL(64, 1) r_block(int *out, int fix) {
	KR_SHARED(int, s);
	s[threadIdx.x] = threadIdx.x;
	if (fix) __syncthreads();
	out[threadIdx.x] = s[63 - threadIdx.x];
}
KR_EXPORT(r_block)
KR_KERNEL(32, 1) r_warp(int *out, int fix) {
	__shared__ int s[32];
	s[threadIdx.x] = threadIdx.x;
	if (fix) __syncwarp();
	else out[32] = __shfl_xor_sync(0xffffffffu, 1, 1); // orders nothing
	out[threadIdx.x] = s[31 - threadIdx.x];
}
KR_EXPORT(r_warp)
// Overwrites memory that others may still read: the loop lacks its second barrier.
KR_KERNEL(64, 1) r_again(int *out, int fix) {
	KR_SHARED(int, s);
	for (int k = 0; k < 3; k++) {
		s[threadIdx.x] = k;
		__syncthreads();
		out[threadIdx.x] = s[63 - threadIdx.x];
		if (fix) __syncthreads();
	}
}
KR_EXPORT(r_again)
// Neighbouring bytes are no race.
KR_KERNEL(64, 1) r_bytes(int *out, int fix) {
	KR_SHARED(uint8_t, s);
	s[threadIdx.x] = 1;
	__syncthreads();
	if (!fix) s[5] = 2;
	out[threadIdx.x] = s[threadIdx.x];
}
KR_EXPORT(r_bytes)
// Follows r_fill. mode 0: waits first; 1: reads too early; 2: writes too early; 3: counts too
// early; 4: one thread waits for all. Weights may be read at any time.
KR_KERNEL(64, 1) r_fill(int *x) { x[threadIdx.x] = threadIdx.x; }
KR_EXPORT(r_fill)
KR_KERNEL(64, 1) r_pdl(const int *weights, const int *x, int *out, unsigned *count, int mode) {
	__shared__ unsigned own;
	if (threadIdx.x == 0) own = 0;
	__syncthreads();
	atomicAdd(&own, 1u);
	int v = weights[threadIdx.x];
	if (mode == 1) v += x[threadIdx.x];
	if (mode == 2) out[threadIdx.x] = 0;
	if (mode == 3) atomicAdd(count, 1u);
	if (mode != 4 || threadIdx.x == 0) pdl_wait();
	if (mode == 4) __syncthreads();
	out[threadIdx.x] = v + x[threadIdx.x];
}
KR_EXPORT(r_pdl)
// Runs between the two, and lets the next kernel start before it has waited, or after (late).
KR_KERNEL(64, 1) r_middle(int *y, int late) {
	if (!late) pdl_launch();
	pdl_wait();
	if (late) pdl_launch();
	y[threadIdx.x] = 0;
}
KR_EXPORT(r_middle)
#ifdef KR_HOPPER
// Copies into memory that others may still read: they report too early that they are done.
KR_KERNEL(64, 1) r_bulk(const int *in, int *out, int fix) {
	KR_SHARED(int, s);
	uint32_t full = smem_u32(s + 64), empty = full + 8;
	if (threadIdx.x == 0) mbar_init(full, 1), mbar_init(empty, 64);
	__syncthreads();
	for (int k = 0; k < 3; k++) {
		if (threadIdx.x == 0) {
			if (k > 0) mbar_wait(empty, (k - 1) & 1);
			mbar_expect(full, 256);
			bulk_copy(smem_u32(s), in, 256, full);
		}
		mbar_wait(full, k & 1);
		if (!fix) mbar_arrive(empty);
		out[threadIdx.x] = s[63 - threadIdx.x];
		if (fix) mbar_arrive(empty);
	}
}
KR_EXPORT(r_bulk)
#endif
