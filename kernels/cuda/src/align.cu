// Sorts assignments by expert (align.cuh) in launches of their own.
#include "align.cuh"

// counts [blocks][experts]: the number of assignments of each expert in a block's `part`
// assignments.
KR_KERNEL(512, 1)
kr_align_count(int *counts, const int *ids, int n, int experts, int part) {
	KR_SHARED(int, hist);
	pdl_launch();
	pdl_wait();
	for (int e = threadIdx.x; e < experts; e += blockDim.x) hist[e] = 0;
	__syncthreads();
	int to = min(n, (int)(blockIdx.x + 1) * part);
	for (int i = blockIdx.x * part + threadIdx.x; i < to; i += blockDim.x) {
		int e = expert_at(ids, i, to, experts);
		if (e >= 0) atomicAdd(&hist[e], 1);
	}
	__syncthreads();
	for (int e = threadIdx.x; e < experts; e += blockDim.x) counts[blockIdx.x * experts + e] = hist[e];
}
KR_EXPORT(kr_align_count)

KR_KERNEL(512, 1)
kr_align(int *slots, int4 *tiles, int *count, int *loads, const int *ids, int n, int experts, int tile, int part, const int *counts,
         const int *map) {
	KR_SHARED(int, shared);
	pdl_launch();
	pdl_wait();
	place(Sorted{slots, tiles, count, loads, tile, map}, ids, n, experts, part, counts, blockIdx.x, gridDim.x, shared);
}
KR_EXPORT(kr_align)
