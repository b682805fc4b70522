// The best of a row of ranks (score_rank), by their digits. A block of TOP_THREADS threads computes one row.
#pragma once
#include "kr.cuh"

enum { TOP_THREADS = 1024, TOP_WARPS = TOP_THREADS / 32, DIGIT = 2 * TOP_THREADS, DIGITS = 3, EACH = 16, KEPT = EACH * TOP_THREADS };

// A block's shared memory. state: digit, how many of the equal ones, the number of groups.
struct Top { int counts[DIGIT], sums[TOP_WARPS], state[3]; };

// The sum of v over the threads before this one, and of all; every thread of the block calls it.
KR_DEV int sum_before(int v, int &all, int *sums) {
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sum = v;
	for (int by = 1; by < 32; by *= 2) {
		int u = __shfl_up_sync(0xffffffffu, sum, by);
		if (lane >= by) sum += u;
	}
	if (lane == 31) sums[warp] = sum;
	__syncthreads();
	int warps = sums[lane];
	for (int by = 1; by < 32; by *= 2) {
		int u = __shfl_up_sync(0xffffffffu, warps, by);
		if (lane >= by) warps += u;
	}
	all = __shfl_sync(0xffffffffu, warps, 31);
	int before = __shfl_sync(0xffffffffu, warps, (warp + 31) % 32);
	__syncthreads(); // sums may be used again
	return (warp ? before : 0) + sum - v;
}

// The left-th of the numbers, from the largest down, digit by digit; with fewer than DIGITS digits those behind them are 0. left becomes the
// count of those equal to it (in these digits) that are among the left largest. all(f) calls f(number) for each number that the thread has.
template <class All> KR_DEV uint32_t nth(int digits, int &left, Top &t, All all) {
	uint32_t found = 0u, mask = 0u;
	int tid = threadIdx.x;
#pragma unroll 1
	for (int d = 0; d < digits; d++) {
		const int shift = d == 0 ? 21 : d == 1 ? 10 : 0, most = d == 2 ? 1023 : 2047;
		t.counts[tid] = t.counts[tid + TOP_THREADS] = 0;
		__syncthreads();
		all([&](uint32_t k) {
			if ((k & mask) == found) atomicAdd(&t.counts[k >> shift & most], 1);
		});
		__syncthreads();
		int high = DIGIT - 1 - 2 * tid, a = t.counts[high], b = t.counts[high - 1], total; // the threads go down
		int before = sum_before(a + b, total, t.sums);
		if (before < left && before + a + b >= left) {
			bool second = before + a < left;
			t.state[0] = second ? high - 1 : high, t.state[1] = left - before - (second ? a : 0);
		}
		__syncthreads();
		found |= (uint32_t)t.state[0] << shift, mask |= (uint32_t)most << shift, left = t.state[1];
	}
	return found;
}

// Calls f(i, k) for numbers k[i], i below n, four at a time and thread; there is room for them.
template <class F> KR_DEV void each_four(const uint32_t *k, int n, F f) {
	const int AHEAD = 4;
	for (int from = 4 * (int)threadIdx.x; from < n; from += 4 * AHEAD * TOP_THREADS) {
		uint4 v[AHEAD];
#pragma unroll
		for (int j = 0; j < AHEAD; j++) {
			int i = from + 4 * j * TOP_THREADS;
			v[j] = i < n ? *(const uint4 *)(k + i) : make_uint4(0, 0, 0, 0);
		}
#pragma unroll
		for (int j = 0; j < AHEAD; j++) {
			int i = from + 4 * j * TOP_THREADS;
			if (i < n) f(i, v[j].x);
			if (i + 1 < n) f(i + 1, v[j].y);
			if (i + 2 < n) f(i + 2, v[j].z);
			if (i + 3 < n) f(i + 3, v[j].w);
		}
	}
}

// Memory for what may be among the best of many ranks: positions [KEPT] and a bit for each position, in whole words. most: the largest of every
// eight ranks. No list: there is no memory.
struct Candidates {
	int *list;
	uint8_t *marks;
	const uint32_t *most;
};

// The positions, rising, of ranks that may be among the top best of n: those not below the top-th of the largest of every eight. Returns their
// number; -1: they, or the groups that have them, are more than KEPT.
KR_DEV int candidates(const Candidates &c, Top &t, const uint32_t *ranks, int n, int top) {
	int tid = threadIdx.x, lane = tid % 32, groups = (n + 7) / 8, words = (groups + 3) / 4, left = top;
	const uint32_t least = nth(2, left, t, [&](auto f) { each_four(c.most, groups, [&](int, uint32_t k) { f(k); }); });
	for (int i = tid; i < words; i += TOP_THREADS) ((uint32_t *)c.marks)[i] = 0u;
	if (tid == 0) t.state[2] = 0;
	__syncthreads();
	int mine = 0;
	each_four(c.most, groups, [&](int, uint32_t k) { mine += k >= least; });
	int sum = mine;
	for (int by = 1; by < 32; by *= 2) {
		int v = __shfl_up_sync(0xffffffffu, sum, by);
		if (lane >= by) sum += v;
	}
	int at = 0;
	if (lane == 31) at = atomicAdd(&t.state[2], sum);
	at = __shfl_sync(0xffffffffu, at, 31) + sum - mine;
	each_four(c.most, groups, [&](int i, uint32_t k) {
		if (k < least) return;
		if (at < KEPT) c.list[at] = i;
		at++;
	});
	__syncthreads();
	int hits = t.state[2];
	if (hits > KEPT) return -1;
	const int AHEAD = 2;
	for (int from = tid; from < hits; from += AHEAD * TOP_THREADS) {
		uint4 v[AHEAD][2];
		int group[AHEAD];
#pragma unroll
		for (int j = 0; j < AHEAD; j++) {
			group[j] = c.list[min(from + j * TOP_THREADS, hits - 1)];
			const uint4 *p = (const uint4 *)(ranks + 8 * group[j]);
			v[j][0] = p[0], v[j][1] = p[1];
		}
#pragma unroll
		for (int j = 0; j < AHEAD; j++) {
			const uint32_t k[8] = {v[j][0].x, v[j][0].y, v[j][0].z, v[j][0].w, v[j][1].x, v[j][1].y, v[j][1].z, v[j][1].w};
			uint32_t bits = 0;
#pragma unroll
			for (int i = 0; i < 8; i++) bits |= (uint32_t)(8 * group[j] + i < n && k[i] >= least) << i;
			if (from + j * TOP_THREADS < hits) c.marks[group[j]] = (uint8_t)bits;
		}
	}
	__syncthreads();
	int per = (words + TOP_THREADS - 1) / TOP_THREADS, first = min(tid * per, words), end = min(first + per, words), count;
	mine = 0;
	for (int i = first; i < end; i++) mine += __popc(((const uint32_t *)c.marks)[i]);
	at = sum_before(mine, count, t.sums);
	if (count > KEPT) return -1;
	for (int i = first; i < end; i++)
		for (uint32_t w = ((const uint32_t *)c.marks)[i]; w; w &= w - 1) c.list[at++] = 32 * i + __ffs(w) - 1;
	__syncthreads();
	return count;
}

// Calls put for the top best of n ranks, as each_of_top: a thread has the ranks k of `per` places from its first on; place(i) is the position
// of number i.
template <class Place, class Put> KR_DEV void each_of_kept(Top &t, const uint32_t (&k)[EACH], int n, int per, int top, Place place, Put put) {
	int first = threadIdx.x * per, have = min(max(n - first, 0), per), left = top, total, mine = 0;
	const uint32_t found = nth(DIGITS, left, t, [&](auto f) {
#pragma unroll
		for (int i = 0; i < EACH; i++)
			if (i < have) f(k[i]);
	});
#pragma unroll
	for (int i = 0; i < EACH; i++) mine += i >= have ? 0 : k[i] > found ? 1 : k[i] == found ? 1 << 16 : 0;
	int before = sum_before(mine, total, t.sums), a = before & 0xffff, e = before >> 16;
#pragma unroll
	for (int i = 0; i < EACH; i++) {
		if (i >= have || k[i] < found) continue;
		if (k[i] > found) put(a++ + min(e, left), place(first + i));
		else if (e++ < left) put(a + e - 1, place(first + i));
	}
}

// The same for any number of ranks, which are read again for each digit. Then each warp counts and puts what it chooses of a part of them.
template <class Put> KR_DEV void each_of_all(Top &t, const uint32_t *ranks, int n, int top, Put put) {
	const int STRIDE = 128;
	int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, left = top;
	const uint32_t found = nth(DIGITS, left, t, [&](auto f) { each_four(ranks, n, [&](int, uint32_t k) { f(k); }); });
	int part = (n + TOP_WARPS * STRIDE - 1) / (TOP_WARPS * STRIDE) * STRIDE, from = warp * part, to = min(from + part, n);
	int up = 0, same = 0;
	auto fetch = [&](uint32_t (&k)[4], int p) {
		uint4 v = p < to ? *(const uint4 *)(ranks + p) : make_uint4(0, 0, 0, 0);
		k[0] = v.x, k[1] = v.y, k[2] = v.z, k[3] = v.w;
	};
	for (int p = from + 4 * lane; p < to; p += STRIDE) {
		uint32_t k[4];
		fetch(k, p);
#pragma unroll
		for (int i = 0; i < 4; i++) up += p + i < to && k[i] > found, same += p + i < to && k[i] == found;
	}
	for (int by = 1; by < 32; by *= 2) up += __shfl_xor_sync(0xffffffffu, up, by), same += __shfl_xor_sync(0xffffffffu, same, by);
	int total, ups = lane == 0 ? up : 0, equal = lane == 0 ? same : 0; // of the positions before the warp's
	up = __shfl_sync(0xffffffffu, sum_before(ups, total, t.sums), 0), same = __shfl_sync(0xffffffffu, sum_before(equal, total, t.sums), 0);
	for (int p = from; p < to; p += STRIDE) {
		int at = p + 4 * lane, mine = 0; // above in the low half, equal in the high one
		uint32_t k[4];
		fetch(k, at);
#pragma unroll
		for (int i = 0; i < 4; i++) mine += at + i >= to ? 0 : k[i] > found ? 1 : k[i] == found ? 1 << 16 : 0;
		int sum = mine;
		for (int by = 1; by < 32; by *= 2) {
			int v = __shfl_up_sync(0xffffffffu, sum, by);
			if (lane >= by) sum += v;
		}
		int a = up + ((sum - mine) & 0xffff), e = same + ((sum - mine) >> 16);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			if (at + i >= to || k[i] < found) continue;
			if (k[i] > found) put(a++ + min(e, left), at + i);
			else if (e++ < left) put(a + e - 1, at + i);
		}
		sum = __shfl_sync(0xffffffffu, sum, 31);
		up += sum & 0xffff, same += sum >> 16;
	}
}

// Calls put(i, p) for each i below top: p is the position of the i-th of the top best of n ranks, ordered by position, of
// equal ones the first. top is less than n and not 0. The least rank that is chosen is found digit by digit, among ranks in registers: up to
// KEPT, or of more those that may be among the best. Without memory for these, or where they are too many, ranks are read for each digit.
template <class Put> KR_DEV void each_of_top(Top &t, const uint32_t *ranks, int n, int top, Put put, Candidates may = {}) {
	bool few = n <= KEPT;
	int count = n;
	if (!few) count = may.list && (n + 7) / 8 > top ? candidates(may, t, ranks, n, top) : -1;
	if (count < 0) {
		each_of_all(t, ranks, n, top, put);
		return;
	}
	int per = few ? (count + 4 * TOP_THREADS - 1) / (4 * TOP_THREADS) * 4 : (count + TOP_THREADS - 1) / TOP_THREADS, first = threadIdx.x * per;
	uint32_t k[EACH] = {};
	if (few) {
#pragma unroll
		for (int i = 0; i < EACH; i += 4) {
			if (i >= per) break;
			uint4 v = *(const uint4 *)(ranks + min(first + i, (count - 1) / 4 * 4));
			k[i] = v.x, k[i + 1] = v.y, k[i + 2] = v.z, k[i + 3] = v.w;
		}
	} else {
#pragma unroll
		for (int i = 0; i < EACH; i++)
			if (i < per) k[i] = ranks[may.list[min(first + i, count - 1)]];
	}
	auto place = [&](int i) { return few ? i : may.list[i]; };
	each_of_kept(t, k, count, per, top, place, put);
}
