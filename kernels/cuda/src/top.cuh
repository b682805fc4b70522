// The best of a row of ranks (score_rank), by their digits. A block of TOP_THREADS threads computes one row.
#pragma once
#include "kr.cuh"

enum { TOP_THREADS = 1024, TOP_WARPS = TOP_THREADS / 32, DIGIT = 2 * TOP_THREADS, DIGITS = 3, EACH = 4, STRIDE = 32 * EACH };

// A block's shared memory. state: digit, how many of the equal ones.
struct Top { int counts[DIGIT], above[TOP_WARPS], equal[TOP_WARPS], state[2]; };

// EACH ranks from position p on. There is room for them.
KR_DEV void fetch_ranks(uint32_t (&k)[EACH], const uint32_t *ranks, int p) {
	uint4 v = *(const uint4 *)(ranks + p);
	k[0] = v.x, k[1] = v.y, k[2] = v.z, k[3] = v.w;
}

// Calls put(i, p) for each i below top: p is the position of the i-th of the top best of n ranks, ordered by position, of
// equal ones the first. top is less than n and not 0. The least rank that is chosen is found digit by digit. Then each warp
// counts and puts what it chooses of a part of the positions.
template <class Put> KR_DEV void each_of_top(Top &t, const uint32_t *ranks, int n, int top, Put put) {
	int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
	const int shift[DIGITS] = {21, 10, 0}, most[DIGITS] = {2047, 2047, 1023};
	uint32_t found = 0u, mask = 0u, k[EACH];
	int left = top;
#pragma unroll 1
	for (int d = 0; d < DIGITS; d++) {
		t.counts[tid] = t.counts[tid + TOP_THREADS] = 0;
		__syncthreads();
		for (int p = EACH * tid; p < n; p += EACH * TOP_THREADS) {
			fetch_ranks(k, ranks, p);
#pragma unroll
			for (int i = 0; i < EACH; i++)
				if (p + i < n && (k[i] & mask) == found) atomicAdd(&t.counts[k[i] >> shift[d] & most[d]], 1);
		}
		__syncthreads();
		int high = DIGIT - 1 - 2 * tid, a = t.counts[high], b = t.counts[high - 1], sum = a + b; // the threads go down
		for (int by = 1; by < 32; by *= 2) {
			int v = __shfl_up_sync(0xffffffffu, sum, by);
			if (lane >= by) sum += v;
		}
		if (lane == 31) t.above[warp] = sum;
		__syncthreads();
		int before = sum - a - b;
		for (int w = 0; w < warp; w++) before += t.above[w];
		if (before < left && before + a + b >= left) {
			bool second = before + a < left;
			t.state[0] = second ? high - 1 : high, t.state[1] = left - before - (second ? a : 0);
		}
		__syncthreads();
		found |= (uint32_t)t.state[0] << shift[d], mask |= (uint32_t)most[d] << shift[d], left = t.state[1];
	}
	int part = (n + TOP_WARPS * STRIDE - 1) / (TOP_WARPS * STRIDE) * STRIDE, from = warp * part, to = min(from + part, n);
	int up = 0, same = 0;
	for (int p = from + EACH * lane; p < to; p += STRIDE) {
		fetch_ranks(k, ranks, p);
#pragma unroll
		for (int i = 0; i < EACH; i++) up += p + i < to && k[i] > found, same += p + i < to && k[i] == found;
	}
	for (int by = 1; by < 32; by *= 2) up += __shfl_xor_sync(0xffffffffu, up, by), same += __shfl_xor_sync(0xffffffffu, same, by);
	__syncthreads(); // no warp still reads above
	if (lane == 0) t.above[warp] = up, t.equal[warp] = same;
	__syncthreads();
	up = same = 0; // now of the positions before
	for (int w = 0; w < warp; w++) up += t.above[w], same += t.equal[w];
	for (int p = from; p < to; p += STRIDE) {
		int at = p + EACH * lane, mine = 0; // above in the low half, equal in the high one
		k[0] = k[1] = k[2] = k[3] = 0u;
		if (at < to) fetch_ranks(k, ranks, at);
#pragma unroll
		for (int i = 0; i < EACH; i++) mine += at + i >= to ? 0 : k[i] > found ? 1 : k[i] == found ? 1 << 16 : 0;
		int sum = mine;
		for (int by = 1; by < 32; by *= 2) {
			int v = __shfl_up_sync(0xffffffffu, sum, by);
			if (lane >= by) sum += v;
		}
		int a = up + ((sum - mine) & 0xffff), e = same + ((sum - mine) >> 16);
#pragma unroll
		for (int i = 0; i < EACH; i++) {
			if (at + i >= to || k[i] < found) continue;
			if (k[i] > found) put(a++ + min(e, left), at + i);
			else if (e++ < left) put(a + e - 1, at + i);
		}
		sum = __shfl_sync(0xffffffffu, sum, 31);
		up += sum & 0xffff, same += sum >> 16;
	}
}
