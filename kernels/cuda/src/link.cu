// Experts that a GPU lacks in the middle of a step, and copies for itself over the link (kernels/cuda/link).
// kr_link_pick chooses some of those that the rows of a layer have chosen, and gives them spare slots.
// kr_link_bring copies them from pinned host memory. A replayed graph has the same arguments each time:
// what changes between steps lies in `terms`.
//
// The launch behind kr_link_bring may start while it copies: coming [slots] has, for each slot, what is left to be
// waited for (coming.cuh), and kr_gemv_gate_up looks there.
#include "coming.cuh"

enum { THREADS = 256, AHEAD = 8 };

// where [experts] has the slot of each expert, below 0 if it has none. terms has the share in 256ths of the missing
// experts that are brought, rounded down, and then `most` slots, -1 after the last one. Of the missing experts that are chosen
// those with the most rows come first, of equal ones the lower ids. now [experts] becomes where, with the slots of those
// that are brought. list gets their ids and slots in turn, and -1 after the last one. coming has a word of each slot, and says
// which of those of terms get an expert now. One block.
KR_KERNEL(256, 2)
kr_link_pick(int *now, int *list, unsigned *coming, const int *ids, int choices, const int *where, int experts, const int *terms, int most) {
	KR_SHARED(int, rows);
	pdl_launch();
	for (int e = threadIdx.x; e < experts; e += THREADS) rows[e] = 0;
	pdl_wait();
	__syncthreads();
	for (int i = threadIdx.x; i < choices; i += THREADS) {
		int e = __ldcg(ids + i);
		if (e >= 0 && e < experts && __ldcg(where + e) < 0) atomicAdd(rows + e, 1);
	}
	__syncthreads();
	int missing = 0, room = 0;
	for (int from = 0; from < experts; from += THREADS) {
		int e = from + threadIdx.x;
		missing += __syncthreads_count(e < experts && rows[e] > 0);
	}
	for (int from = 0; from < most; from += THREADS) {
		int i = from + threadIdx.x;
		room += __syncthreads_count(i < most && __ldcg(terms + 1 + i) >= 0);
	}
	int n = min(room, (missing * __ldcg(terms)) >> 8);
	if (threadIdx.x == 0 && n < most) list[2 * n] = -1;
	for (int i = threadIdx.x; i < room; i += THREADS) coming[__ldcg(terms + 1 + i)] = i < n ? COMING : 0;
	for (int e = threadIdx.x; e < experts; e += THREADS) {
		int slot = __ldcg(where + e), mine = rows[e];
		if (mine > 0 && n > 0) {
			int before = 0;
			for (int f = 0; f < experts; f++) before += rows[f] > mine || (rows[f] == mine && f < e);
			if (before < n) {
				slot = __ldcg(terms + 1 + before);
				list[2 * before] = e;
				list[2 * before + 1] = slot;
			}
		}
		now[e] = slot;
	}
}
KR_EXPORT(kr_link_pick)

// Copies units [from, to) of 16 bytes, this block's part of them.
KR_DEV void copy_units(uint8_t *dst, const uint8_t *src, int from, int to) {
	for (int at = from + blockIdx.x * (THREADS * AHEAD) + threadIdx.x; at < to; at += gridDim.x * (THREADS * AHEAD)) {
		uint4 v[AHEAD];
#pragma unroll
		for (int j = 0; j < AHEAD; j++)
			if (at + j * THREADS < to) v[j] = ld_stream(src + 16ll * (at + j * THREADS));
#pragma unroll
		for (int j = 0; j < AHEAD; j++)
			if (at + j * THREADS < to) *(uint4 *)(dst + 16ll * (at + j * THREADS)) = v[j];
	}
}

// Copies the experts of list, at most most of them: units of 16 bytes from an expert's place in `from`, which is host
// memory, to its slot in `to`. The first `half` units of all come first: they are the first matrices, and coming
// tells when they are there. The launch behind this one starts when what is before it is there, with the copies under way.
KR_KERNEL(256, 2)
kr_link_bring(uint8_t *to, const uint8_t *from, const int *list, unsigned *coming, int most, int units, int half) {
	pdl_wait();
	pdl_launch();
	const long long step = 16ll * units;
	for (int pass = 0; pass < 2; pass++) {
		for (int i = 0; i < most; i++) {
			int e = __ldcg(list + 2 * i);
			if (e < 0) break;
			int slot = __ldcg(list + 2 * i + 1);
			copy_units(to + step * slot, from + step * e, pass ? half : 0, pass ? units : half);
			if (pass) continue;
			__syncthreads(); // one thread's release covers the block
			if (threadIdx.x == 0) arrive(coming + slot, gridDim.x);
		}
	}
}
KR_EXPORT(kr_link_bring)
