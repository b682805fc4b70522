// Letters between a card and the host in the middle of a step (kernels/cuda/mail): kr_post
// sends rows to memory of the host, kr_take waits for the sums that come back. Arguments are
// the same each time a graph of them runs, so letters are counted here.
//
// A look at host memory takes a microsecond, and so does each of its loads: what the card
// has to know lies in its own memory, who waits reads one word a turn, and loads are all on
// their way before the first is used.
#include "kr.cuh"

// What the card keeps of a mailbox; aligned to 16.
struct State {
	uint32_t round; // letters so far
	uint32_t rows;  // of the last one; 0: nothing was asked
	uint32_t late;  // an answer did not come in time: nobody asks or waits any more in this step
	unsigned turn;  // of kr_post's blocks; 0 between launches
};

KR_DEV State state_now(const State *s) { // in one load
	uint4 v = __ldcg((const uint4 *)s);
	return State{v.x, v.y, v.z, v.w};
}

// A thread's units of 16 bytes of a piece: a block takes pieces of THREADS * AHEAD of them.
enum { THREADS = 256, AHEAD = 4, PIECE = THREADS * AHEAD };

// Unit i of rows of `units` units each, that lie `stride` bytes apart.
KR_DEV uint8_t *unit_at(uint8_t *rows, int i, int units, long long stride) { return rows + i / units * stride + 16ll * (i % units); }

// What is written to the host: all within the mailbox, rows without gaps.
struct Letter {
	uint8_t *x;
	int *ids;
	float *weights;
	uint64_t *posted; // the letter's number in the upper half, its rows in the lower
};

// The choices that are the host's: those of experts that `where` has below 0.
struct Asked {
	const int *ids, *where;
	int experts;
	__device__ __forceinline__ bool host(int e) const { return e >= 0 && e < experts && __ldcg(where + e) < 0; }
};

// Every block finds out whether anything is asked, for all choices; the last to finish says
// so to the host. With nothing asked x stays here. Blocks take pieces of x in turn, the first
// of which is on its way meanwhile.
KR_KERNEL(256, 2)
kr_post(uint8_t *to_x, int *to_ids, float *to_weights, uint64_t *posted, State *s, uint8_t *x, long long x_stride, int units,
        const int *ids, const float *weights, const int *where, int experts, int rows, int top_k) {
	pdl_launch();
	for (int i = 32 * threadIdx.x; i < experts; i += 32 * THREADS) prefetch_l2(where + i); // it was last read a step ago
	pdl_wait();
	const Letter to = {to_x, to_ids, to_weights, posted};
	const Asked of = {ids, where, experts};
	int total = rows * units, choices = rows * top_k, first = blockIdx.x * PIECE + threadIdx.x, step = gridDim.x * PIECE;
	const State now = state_now(s);
	uint4 v[AHEAD];
	auto load = [&](int at) {
#pragma unroll
		for (int j = 0; j < AHEAD; j++)
			if (at + j * THREADS < total) v[j] = *(const uint4 *)unit_at(x, at + j * THREADS, units, x_stride);
	};
	load(first);
	bool mine = false;
	int id = -1;
	float share = 0.f;
	if ((int)threadIdx.x < choices) { // what a thread will write of these is there when it is due
		id = __ldcg(ids + threadIdx.x), share = __ldcg(weights + threadIdx.x);
		mine = of.host(id);
		if (!mine) id = -1;
	}
	for (int i = threadIdx.x + THREADS; i < choices; i += THREADS) mine |= of.host(__ldcg(ids + i));
	bool asked = __syncthreads_or(mine) && !now.late;
	if (asked) {
		for (int at = first; at < total; at += step) {
			if (at != first) load(at);
#pragma unroll
			for (int j = 0; j < AHEAD; j++)
				if (at + j * THREADS < total) *(uint4 *)(to.x + 16ll * (at + j * THREADS)) = v[j];
		}
		if (blockIdx.x == 0) {
			if ((int)threadIdx.x < choices) to.ids[threadIdx.x] = id, to.weights[threadIdx.x] = share;
			for (int i = threadIdx.x + THREADS; i < choices; i += THREADS) {
				int e = __ldcg(ids + i);
				to.ids[i] = of.host(e) ? e : -1;
				to.weights[i] = __ldcg(weights + i);
			}
		}
	}
	// One thread's release is the whole block's after a barrier; that of the last block, which
	// has acquired the others', is all blocks'.
	__syncthreads();
	if (threadIdx.x != 0) return;
	unsigned last = gridDim.x - 1;
	if (last != 0 && atomic_inc_acq_rel(&s->turn, last) != last) return;
	uint32_t round = now.round + 1, n = asked ? rows : 0;
	s->round = round;
	s->rows = n;
	st_release_sys(to.posted, (uint64_t)round << 32 | n);
}
KR_EXPORT(kr_post)

// Waits until the host has answered letter `round`. An answer that is late once ends all
// waits of the step, so that a host that is gone costs one limit and not one a layer.
KR_DEV bool answered_in_time(State *s, uint32_t round, const uint32_t *answered, uint32_t *late, uint32_t limit_us) {
	uint64_t end = nanos() + 1000ull * limit_us;
	while (ld_acquire_sys(answered) != round) {
		if (nanos() < end) continue;
		s->late = 1;
		st_release_sys(late, 1u);
		return false;
	}
	return true;
}

// hidden [rows, 4*units] F32 += from, rows that lie stride bytes apart and without gaps. Every
// block waits for itself: few do for what a bus carries.
KR_KERNEL(256, 2)
kr_take(uint8_t *hidden, long long stride, int units, int rows, const uint8_t *from, const uint32_t *answered, uint32_t *late, State *s,
        uint32_t limit_us) {
	__shared__ int there;
	pdl_launch();
	pdl_wait();
	const State now = state_now(s);
	if (now.rows == 0) return;
	int total = rows * units, first = blockIdx.x * PIECE + threadIdx.x, step = gridDim.x * PIECE;
	float4 h[AHEAD];
	auto load = [&](int at) {
#pragma unroll
		for (int j = 0; j < AHEAD; j++)
			if (at + j * THREADS < total) h[j] = *(const float4 *)unit_at(hidden, at + j * THREADS, units, stride);
	};
	load(first);
	if (threadIdx.x == 0) there = !now.late && answered_in_time(s, now.round, answered, late, limit_us);
	__syncthreads();
	if (!there) return;
	for (int at = first; at < total; at += step) {
		uint4 v[AHEAD];
#pragma unroll
		for (int j = 0; j < AHEAD; j++)
			if (at + j * THREADS < total) v[j] = ld_fresh(from + 16ll * (at + j * THREADS));
		if (at != first) load(at);
#pragma unroll
		for (int j = 0; j < AHEAD; j++) {
			if (at + j * THREADS >= total) break;
			h[j].x += __uint_as_float(v[j].x), h[j].y += __uint_as_float(v[j].y);
			h[j].z += __uint_as_float(v[j].z), h[j].w += __uint_as_float(v[j].w);
			*(float4 *)unit_at(hidden, at + j * THREADS, units, stride) = h[j];
		}
	}
}
KR_EXPORT(kr_take)
