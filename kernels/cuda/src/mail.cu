// Calls of the host by a GPU in the middle of a step (kernels/cuda/hostcall). kr_post sends rows
// to host memory; kr_take waits for the sums that come back. A replayed graph has the same
// arguments each time, so the kernels count the calls.
//
// A read of host memory takes about a microsecond. So the GPU keeps its own state in its own
// memory, a waiting block polls a single word, and all loads are in flight before the first is
// used.
//
// Few rows are sent as tagged words: 4 bytes of data below the call's number (kr_post_few,
// kr_take_few). A reader that finds the number in a word has its data too. So no release waits
// for earlier writes, and the read that finds an answer also returns its rows.
#include "kr.cuh"

// The GPU's state of a mailbox, aligned to 16 bytes.
struct State {
	uint32_t round; // the number of calls so far
	uint32_t rows;  // rows of the last call; 0: it asked for nothing
	uint32_t late;  // an answer came too late: nothing is sent or awaited for the rest of this step
	unsigned turn;  // counts kr_post's blocks; 0 between launches
};

KR_DEV State state_now(const State *s) { // in one load
	uint4 v = __ldcg((const uint4 *)s);
	return State{v.x, v.y, v.z, v.w};
}

// The 16-byte units per thread in a piece. A block takes pieces of THREADS * AHEAD units.
enum { THREADS = 256, AHEAD = 4, PIECE = THREADS * AHEAD };

// Unit i of rows that have `units` units of BYTES each and lie `stride` bytes apart.
template <int BYTES = 16> KR_DEV uint8_t *unit_at(uint8_t *rows, int i, int units, long long stride) {
	return rows + i / units * stride + (long long)BYTES * (i % units);
}

// The data sent to the host. All of it lies in the mailbox, with no gaps between rows.
struct Letter {
	uint8_t *x;
	int *ids;
	float *weights;
	uint64_t *posted; // the call's number in the upper half, its rows in the lower
};

// Finds the choices that the host computes: those of experts whose entry in `where` is below 0.
struct Asked {
	const int *ids, *where;
	int experts;
	const float *weights;
	__device__ __forceinline__ bool host(int e) const { return e >= 0 && e < experts && __ldcg(where + e) < 0; }
	// Reports whether any of this thread's choices (every THREADS-th) is the host's. It also
	// loads the thread's first choice, which is written later.
	__device__ __forceinline__ bool look(int choices, int &id, float &share) const {
		bool any = false;
		id = -1, share = 0.f;
		if ((int)threadIdx.x < choices) {
			id = __ldcg(ids + threadIdx.x), share = __ldcg(weights + threadIdx.x);
			any = host(id);
			if (!any) id = -1;
		}
		for (int i = threadIdx.x + THREADS; i < choices; i += THREADS) any |= host(__ldcg(ids + i));
		return any;
	}
	// Loads another choice for writing.
	__device__ __forceinline__ int other(int i) const {
		int e = __ldcg(ids + i);
		return host(e) ? e : -1;
	}
};
// Prefetches the entries of its experts, which were last read a step ago.
KR_DEV void call_places(const int *where, int experts) {
	for (int i = 32 * threadIdx.x; i < experts; i += 32 * THREADS) prefetch_l2(where + i);
}

// Every block checks all choices for ones that the host computes. The last block to finish
// notifies the host. If there are none, x is not sent. Blocks take pieces of x in turn; the first
// is already in flight during the check.
KR_KERNEL(256, 2)
kr_post(uint8_t *to_x, int *to_ids, float *to_weights, uint64_t *posted, State *s, uint8_t *x, long long x_stride, int units,
        const int *ids, const float *weights, const int *where, int experts, int rows, int top_k) {
	pdl_launch();
	call_places(where, experts);
	pdl_wait();
	const Letter to = {to_x, to_ids, to_weights, posted};
	const Asked of = {ids, where, experts, weights};
	int total = rows * units, choices = rows * top_k, first = blockIdx.x * PIECE + threadIdx.x, step = gridDim.x * PIECE;
	const State now = state_now(s);
	uint4 v[AHEAD];
	auto load = [&](int at) {
#pragma unroll
		for (int j = 0; j < AHEAD; j++)
			if (at + j * THREADS < total) v[j] = *(const uint4 *)unit_at(x, at + j * THREADS, units, x_stride);
	};
	load(first);
	int id;
	float share;
	bool mine = of.look(choices, id, share);
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
				to.ids[i] = of.other(i);
				to.weights[i] = __ldcg(weights + i);
			}
		}
	}
	// After a barrier, one thread's release covers the whole block. The last block has acquired
	// the others' writes, so its release covers all blocks.
	__syncthreads();
	if (threadIdx.x != 0) return;
	unsigned last = gridDim.x - 1;
	if (last != 0 && atomic_inc_acq_rel(&s->turn, last) != last) return;
	uint32_t round = now.round + 1, n = asked ? rows : 0;
	s->round = round;
	s->rows = n;
	if (asked) st_release_sys(to.posted, (uint64_t)round << 32 | n);
	else st_words(to.posted, (uint64_t)round << 32);
}
KR_EXPORT(kr_post)

KR_DEV uint64_t tagged(uint32_t v, uint32_t number) { return (uint64_t)number << 32 | v; }

// Does the work of kr_post in one block, for at most a piece of 8-byte units. All its writes are
// tagged words, which may arrive in any order. The words hold ids, weights, and then x.
KR_KERNEL(256, 2)
kr_post_few(uint64_t *words, uint64_t *posted, State *s, uint8_t *x, long long x_stride, int units, const int *ids, const float *weights,
            const int *where, int experts, int rows, int top_k) {
	pdl_launch();
	call_places(where, experts);
	int total = rows * units, choices = rows * top_k;
	const uint2 *from[AHEAD];
#pragma unroll
	for (int j = 0; j < AHEAD; j++) from[j] = (const uint2 *)unit_at<8>(x, threadIdx.x + j * THREADS, units, x_stride);
	pdl_wait();
	const Asked of = {ids, where, experts, weights};
	const State now = state_now(s);
	int id;
	float share;
	bool mine = of.look(choices, id, share);
	uint2 v[AHEAD];
#pragma unroll
	for (int j = 0; j < AHEAD; j++)
		if ((int)threadIdx.x + j * THREADS < total) v[j] = *from[j];
	bool asked = __syncthreads_or(mine) && !now.late;
	const uint32_t round = now.round + 1, n = asked ? rows : 0;
	if (threadIdx.x == 0) {
		st_words(posted, tagged(n, round));
		s->round = round;
		s->rows = n;
	}
	if (!asked) return;
	for (int i = threadIdx.x; i < choices; i += THREADS) {
		if (i >= THREADS) id = of.other(i), share = __ldcg(weights + i);
		st_words(words + i, tagged(id, round));
		st_words(words + choices + i, tagged(__float_as_uint(share), round));
	}
#pragma unroll
	for (int j = 0; j < AHEAD; j++) {
		int i = threadIdx.x + j * THREADS;
		if (i < total) st_words(words + 2 * (choices + i), tagged(v[j].x, round), tagged(v[j].y, round));
	}
}
KR_EXPORT(kr_post_few)

// Gives up this wait, and all that follow in the step.
KR_DEV void give_up(State *s, uint32_t *late) {
	s->late = 1;
	st_release_sys(late, 1u);
}

// Waits until the host has answered call `round`. One late answer ends all waits of the step. So
// a host that has stopped costs one timeout per step, not one per layer.
KR_DEV bool answered_in_time(State *s, uint32_t round, const uint32_t *answered, uint32_t *late, uint32_t limit_us) {
	uint64_t end = nanos() + 1000ull * limit_us;
	while (ld_acquire_sys(answered) != round) {
		if (nanos() < end) continue;
		give_up(s, late);
		return false;
	}
	return true;
}

// hidden [rows, 4*units] F32 += from. The rows of hidden lie stride bytes apart, those of from
// without gaps. Every block waits by itself: a few blocks suffice for the bandwidth of the bus.
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

// Does the work of kr_take in one block, for an answer of at most a piece of 8-byte units in
// tagged words. Threads poll in step. If each polled by itself, they would see the last word at
// different times, and the block would wait for the latest.
KR_KERNEL(256, 2)
kr_take_few(uint8_t *hidden, long long stride, int units, int rows, const uint64_t *words, uint32_t *late, State *s, uint32_t limit_us) {
	pdl_launch();
	int total = rows * units;
	float2 *to[AHEAD];
	bool due[AHEAD];
#pragma unroll
	for (int j = 0; j < AHEAD; j++) {
		int i = threadIdx.x + j * THREADS;
		to[j] = (float2 *)unit_at<8>(hidden, i, units, stride);
		due[j] = i < total;
	}
	pdl_wait();
	const State now = state_now(s);
	if (now.rows == 0) return;
	float2 h[AHEAD];
#pragma unroll
	for (int j = 0; j < AHEAD; j++)
		if (due[j]) h[j] = *to[j];
	const uint64_t end = nanos() + 1000ull * limit_us;
	uint64_t a[AHEAD], b[AHEAD];
	for (;;) {
		bool missing = false;
#pragma unroll
		for (int j = 0; j < AHEAD; j++)
			if (due[j]) ld_words(words + 2 * (threadIdx.x + j * THREADS), a[j], b[j]);
#pragma unroll
		for (int j = 0; j < AHEAD; j++)
			if (due[j]) missing |= a[j] >> 32 != now.round || b[j] >> 32 != now.round;
		if (!__syncthreads_or(missing)) break;
		if (__syncthreads_or(threadIdx.x == 0 && nanos() >= end)) {
			if (threadIdx.x == 0) give_up(s, late);
			return;
		}
	}
#pragma unroll
	for (int j = 0; j < AHEAD; j++)
		if (due[j]) *to[j] = make_float2(h[j].x + __uint_as_float((uint32_t)a[j]), h[j].y + __uint_as_float((uint32_t)b[j]));
}
KR_EXPORT(kr_take_few)

// Rows of y [choices, 4*units], float32 or bf16, whose experts have an entry in `where` below 0 become those of
// from [choices, 4*units] F32 in host memory. Every block waits by itself.
KR_KERNEL(256, 2)
kr_take_rows(uint8_t *y, int wide, long long stride, int units, int choices, const int *ids, const int *where, int experts, const uint8_t *from,
             const uint32_t *answered, uint32_t *late, State *s, uint32_t limit_us) {
	__shared__ int there;
	pdl_launch();
	pdl_wait();
	const State now = state_now(s);
	if (now.rows == 0) return;
	const Asked of = {ids, where, experts, 0};
	if (threadIdx.x == 0) there = !now.late && answered_in_time(s, now.round, answered, late, limit_us);
	__syncthreads();
	if (!there) return;
	const int total = choices * units, step = gridDim.x * PIECE;
	for (int at = blockIdx.x * PIECE + threadIdx.x; at < total; at += step) {
		uint4 v[AHEAD];
		bool mine[AHEAD];
#pragma unroll
		for (int j = 0; j < AHEAD; j++) {
			const int i = at + j * THREADS;
			mine[j] = i < total && of.host(__ldcg(ids + i / units));
			if (mine[j]) v[j] = ld_fresh(from + 16ll * i);
		}
#pragma unroll
		for (int j = 0; j < AHEAD; j++) {
			const int i = at + j * THREADS;
			if (!mine[j]) continue;
			if (wide) *(uint4 *)unit_at(y, i, units, stride) = v[j];
			else
				*(uint2 *)unit_at<8>(y, i, units, stride) = make_uint2(pack_bf16(__uint_as_float(v[j].x), __uint_as_float(v[j].y)),
				                                                       pack_bf16(__uint_as_float(v[j].z), __uint_as_float(v[j].w)));
		}
	}
}
KR_EXPORT(kr_take_rows)
