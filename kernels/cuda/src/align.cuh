// Sorts assignments by expert and cuts them into tiles (kernels/cuda/route, Aligned). The order
// is that of a stable sort for every number of blocks: ranks come from counts over fixed parts of
// the list, not from the order in which blocks run.
#pragma once
#include "kr.cuh"

// Where the sorted assignments are written. slots 0: nowhere.
struct Sorted {
	int *slots;
	int4 *tiles;
	int *count, *loads;
	int tile;
	const int *map; // [experts]: the bank's slot of each expert; below 0: none, so its assignments are left out; null: slot e is expert e
};

// The expert of assignment i, or -1.
KR_DEV int expert_at(const int *ids, int i, int to, int experts) {
	int e = i < to ? ids[i] : -1;
	return e >= 0 && e < experts ? e : -1;
}

// first[e] = the number of tiles of the experts before e. Returns the sum. One warp calls it;
// each lane has some neighbouring experts.
KR_DEV int scan_tiles(int *first, const int *loads, int experts, int tile) {
	int lane = threadIdx.x % 32, each = (experts + 31) / 32, from = lane * each, to = min(experts, from + each), own = 0;
	for (int e = from; e < to; e++) {
		int tiles = (loads[e] + tile - 1) / tile;
		first[e] = tiles;
		own += tiles;
	}
	int sum = own;
	for (int d = 1; d < 32; d <<= 1) {
		int v = __shfl_up_sync(0xffffffffu, sum, d);
		if (lane >= d) sum += v;
	}
	int before = sum - own;
	for (int e = from; e < to; e++) {
		int tiles = first[e];
		first[e] = before;
		before += tiles;
	}
	return __shfl_sync(0xffffffffu, sum, 31);
}

// Reports whether place_few can place them.
KR_DEV bool few_enough(int n, int experts) { return n <= (int)blockDim.x && experts <= (int)blockDim.x && experts >= (int)blockDim.x / 32; }

// Does the work of place in a single block with one thread per assignment and per expert. The
// bits of a mask are an expert's assignments. shared: as for place.
KR_DEV void place_few(const Sorted &s, const int *ids, int n, int experts, int *shared) {
	int i = threadIdx.x, lane = i % 32, warp = i / 32, warps = blockDim.x / 32, words = (n + 31) / 32;
	unsigned *masks = (unsigned *)shared; // [experts][words]
	int *first = shared + warps * experts, *sums = first + experts;
	for (int k = i; k < experts * words; k += blockDim.x) masks[k] = 0;
	int e = expert_at(ids, i, n, experts), lies = i;
	if (s.map) {
		if (e >= 0 && __ldcg(s.map + e) < 0) e = -1; // the expert has no slot
		if (i < experts) lies = __ldcg(s.map + i);
	}
	__syncthreads();
	if (e >= 0) atomicOr(&masks[e * words + warp], 1u << lane);
	__syncthreads();
	int load = 0;
	if (i < experts)
		for (int w = 0; w < words; w++) load += __popc(masks[i * words + w]);
	int tiles = (load + s.tile - 1) / s.tile, at = tiles;
	for (int d = 1; d < 32; d <<= 1) {
		int v = __shfl_up_sync(0xffffffffu, at, d);
		if (lane >= d) at += v;
	}
	if (lane == 31) sums[warp] = at;
	__syncthreads();
	for (int w = 0; w < warp; w++) at += sums[w];
	if (i == (int)blockDim.x - 1) *s.count = at;
	at -= tiles;
	if (i < experts) first[i] = at;
	__syncthreads();
	if (e >= 0) {
		int rank = __popc(masks[e * words + warp] & ((1u << lane) - 1));
		for (int w = 0; w < warp; w++) rank += __popc(masks[e * words + w]);
		s.slots[first[e] * s.tile + rank] = i;
	}
	if (i >= experts) return;
	for (int t = 0; t < tiles; t++) s.tiles[at + t] = make_int4(lies, (at + t) * s.tile, min(s.tile, load - t * s.tile), 0);
	for (int k = load; k < tiles * s.tile; k++) s.slots[at * s.tile + k] = -1;
	s.loads[i] = load;
}

// Places the assignments of one part. The part is that of block `block` of `blocks`, and warp w
// places a part of it. counts is the result of kr_align_count, or 0 if a single block counts by
// itself. shared: [warps + 2][experts] ints. At most 16 warps.
KR_DEV void place(const Sorted &s, const int *ids, int n, int experts, int part, const int *counts, int block, int blocks, int *shared) {
	if (blocks == 1 && few_enough(n, experts)) {
		place_few(s, ids, n, experts, shared);
		return;
	}
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
	int *next = shared, *total = shared + warps * experts, *first = total + experts;
	for (int i = threadIdx.x; i < warps * experts; i += blockDim.x) next[i] = 0;
	__syncthreads();
	// Count each expert in the part of each warp.
	int *mine = next + warp * experts, share = ((part + warps - 1) / warps + 31) / 32 * 32;
	int end = min(n, (block + 1) * part), from = block * part + warp * share, to = min(end, from + share);
	for (int i = from + lane; i < to; i += 32) {
		int e = expert_at(ids, i, to, experts);
		if (e >= 0) atomicAdd(&mine[e], 1);
	}
	__syncthreads();
	// Find the place of each warp's first assignment of an expert among all of that expert.
	for (int e = threadIdx.x; e < experts; e += blockDim.x) {
		int before = 0, all = 0, at = s.map ? __ldcg(s.map + e) : e;
		if (counts)
			for (int b = 0; b < blocks; b++) {
				int c = counts[b * experts + e];
				if (b < block) before += c;
				all += c;
			}
		int c[16];
#pragma unroll
		for (int w = 0; w < 16; w++) c[w] = w < warps ? next[w * experts + e] : 0; // all in flight at once
#pragma unroll
		for (int w = 0; w < 16; w++) {
			if (w < warps) next[w * experts + e] = before;
			before += c[w];
		}
		total[e] = at < 0 ? 0 : counts ? all : before;
	}
	__syncthreads();
	if (warp == 0) {
		int sum = scan_tiles(first, total, experts, s.tile);
		if (block == 0 && lane == 0) *s.count = sum;
	}
	__syncthreads();
	for (int i = from + lane; i - lane < to; i += 32) {
		int e = expert_at(ids, i, to, experts);
		if (s.map && e >= 0 && total[e] == 0) e = -1; // the expert has no slot
		unsigned same = __match_any_sync(0xffffffffu, e);
		int rank = __popc(same & ((1u << lane) - 1));
		if (e >= 0) s.slots[first[e] * s.tile + mine[e] + rank] = i;
		__syncwarp();
		if (e >= 0 && rank == 0) mine[e] += __popc(same);
		__syncwarp();
	}
	// Write the tiles, and fill the empty slots of each expert's last tile: eight threads per
	// expert.
	int l = threadIdx.x % 8;
	for (int e = (block * blockDim.x + threadIdx.x) / 8; e < experts; e += blocks * blockDim.x / 8) {
		int at = first[e], load = total[e], n_tiles = (load + s.tile - 1) / s.tile;
		int lies = s.map ? __ldcg(s.map + e) : e;
		for (int t = l; t < n_tiles; t += 8) s.tiles[at + t] = make_int4(lies, (at + t) * s.tile, min(s.tile, load - t * s.tile), 0);
		for (int i = load + l; i < n_tiles * s.tile; i += 8) s.slots[at * s.tile + i] = -1;
		if (l == 0) s.loads[e] = load;
	}
}
