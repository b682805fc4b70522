// The choice of experts for one row, by one warp.
#pragma once
#include "elem.cuh"

// device.Router.
struct Router {
	int experts, k, sigmoid, groups, top_groups, top2, normalize;
	float scale;
};

// A warp's memory: what it chose and, with groups, the values by which it chooses.
enum { MOST_EXPERTS = 512, MOST_CHOSEN = 32, ROOM = 2 * MOST_CHOSEN + MOST_EXPERTS };

KR_DEV float minus_infinity() { return __uint_as_float(0xff800000u); }

// The source of logits. Those of a row are the sum of `parts` rows that are `step` apart, in
// order; the sum is also written to out. With 0 they are read from out (parts is 1). No parts:
// all zeros.
struct Sums {
	float *from;
	long long step;
	int stride, parts;
	float *out;
	int out_stride;
};

// parts: [n][tokens][experts], if n is more than 1.
KR_DEV Sums sums_of(float *parts, int n, float *logits, int stride, int tokens, int experts) {
	if (n == 1) return Sums{logits, 0, stride, 1, nullptr, 0};
	return Sums{parts, (long long)tokens * experts, experts, n, logits, stride};
}

KR_DEV float get_logit(const Sums &s, int row, int e) {
	const float *at = s.from + (long long)row * s.stride + e;
	float v = __ldcg(at);
	if (!s.out) return v;
	int p = 1;
#pragma unroll 1
	for (; p + 3 <= s.parts; p += 3) { // three in flight at once
		float a = __ldcg(at + p * s.step), b = __ldcg(at + (p + 1) * s.step), c = __ldcg(at + (p + 2) * s.step);
		v = ((v + a) + b) + c;
	}
#pragma unroll 1
	for (; p < s.parts; p++) v += __ldcg(at + p * s.step);
	s.out[(long long)row * s.out_stride + e] = v;
	return v;
}

// v[j] = get_logit of expert lane + 32*j, or minus infinity if there is none. All reads are in
// flight at once: four parts of one or two experts, fewer if a lane has more. A value that does
// not exist is read from another place, so that no load waits for another's condition.
template <int P> KR_DEV void get_logits(float (&v)[P], int row, const Sums &s, int experts) {
	const int N = P <= 2 ? 4 : P <= 8 ? 2 : 1;
	int lane = threadIdx.x % 32;
	const float *at = s.from + (long long)row * s.stride;
#pragma unroll
	for (int j = 0; j < P; j++) v[j] = 0.f;
#pragma unroll 1
	for (int p = 0; p < s.parts; p += N) {
		float part[N][P];
#pragma unroll
		for (int i = 0; i < N; i++) {
#pragma unroll
			for (int j = 0; j < P; j++) part[i][j] = __ldcg(at + min(lane + 32 * j, experts - 1));
			if (p + i + 1 < s.parts) at += s.step;
		}
#pragma unroll
		for (int i = 0; i < N; i++)
#pragma unroll
			for (int j = 0; j < P; j++)
				if (p + i < s.parts) v[j] = p + i == 0 ? part[i][j] : v[j] + part[i][j];
	}
	float *out = s.out + (long long)row * s.out_stride + lane;
#pragma unroll
	for (int j = 0; j < P; j++) {
		bool real = lane + 32 * j < experts;
		if (real && s.out) out[32 * j] = v[j];
		if (!real) v[j] = minus_infinity();
	}
}

// The outputs of a choice, and its other arguments.
struct Choice {
	int *ids;
	float *weights;
	int ids_stride, weights_stride;
	const float *bias; // 0: none
	const int *rows;   // 0: all; rows at or past it get ids -1 and weights 0
};

// Bits that rise with the number. NaN counts as minus infinity; no number gives 0.
KR_DEV uint32_t rising(float v) {
	if (v != v) v = minus_infinity();
	uint32_t u = __float_as_uint(v + 0.f); // -0 is 0
	return u & 0x80000000u ? ~u : u | 0x80000000u;
}
// The number that rises to u.
KR_DEV float risen(uint32_t u) { return __uint_as_float(u & 0x80000000u ? u & 0x7fffffffu : ~u); }

// The best groups, as a mask with a bit for the first of `each` lanes of every group. choice is
// in shared memory; groups have `size` experts.
KR_DEV uint32_t best_groups(const float *choice, const Router &r, int size, int each) {
	int lane = threadIdx.x % 32, group = lane / each;
	float first = minus_infinity(), second = first;
	if (group < r.groups)
		for (int i = lane % each; i < size; i += each) {
			float v = choice[group * size + i];
			if (v > first) second = first, first = v;
			else if (v > second) second = v;
		}
	for (int d = 1; d < each; d <<= 1) { // two pairs give the best two of four
		float f = __shfl_xor_sync(0xffffffffu, first, d), s = __shfl_xor_sync(0xffffffffu, second, d);
		second = fmaxf(fminf(first, f), fmaxf(second, s));
		first = fmaxf(first, f);
	}
	float rate = r.top2 && size > 1 ? first + second : first;
	int better = 0;
	for (int g = 0; g < r.groups; g++) {
		float other = __shfl_sync(0xffffffffu, rate, g * each);
		better += other > rate || (other == rate && g < group);
	}
	return __ballot_sync(0xffffffffu, group < r.groups && lane % each == 0 && better < r.top_groups);
}

// Scores of a row, in v: expert lane + 32*j is v[j]. Those of experts that do not exist are
// undefined.
template <int P> KR_DEV void score(float (&v)[P], int row, const Sums &s, const Router &r) {
	float top = minus_infinity(), sum = 0.f;
	get_logits(v, row, s, r.experts);
	if (r.sigmoid) {
#pragma unroll
		for (int j = 0; j < P; j++) v[j] = 1.f / (1.f + expf(-v[j]));
		return;
	}
#pragma unroll
	for (int j = 0; j < P; j++) top = fmaxf(top, v[j]);
	top = risen(__reduce_max_sync(0xffffffffu, rising(top)));
#pragma unroll
	for (int j = 0; j < P; j++) {
		v[j] = expf(v[j] - top); // 0 where there is none, or NaN as all are
		sum += v[j];
	}
	sum = warp_sum(sum);
#pragma unroll
	for (int j = 0; j < P; j++) v[j] = v[j] / sum;
}

// Sets the keys of experts outside the best groups to minus infinity. v: the values by which it
// chooses.
template <int P> KR_DEV void keep_groups(uint32_t (&key)[P], const float (&v)[P], const Router &r, float *room) {
	int lane = threadIdx.x % 32, size = r.experts / r.groups, each = 32;
	while (each * r.groups > 32) each /= 2;
#pragma unroll
	for (int j = 0; j < P; j++)
		if (lane + 32 * j < r.experts) room[lane + 32 * j] = v[j];
	__syncwarp();
	uint32_t kept = best_groups(room, r, size, each);
#pragma unroll
	for (int j = 0; j < P; j++) {
		int e = lane + 32 * j;
		if (e < r.experts && !(kept >> (e / size * each) & 1)) key[j] = rising(minus_infinity());
	}
}

// The expert with the largest key, of equal ones the lowest, in the lane that has it. The other
// lanes may get -1.
template <int P> KR_DEV int largest(const uint32_t (&key)[P]) {
	int lane = threadIdx.x % 32, at = 0;
	uint32_t best = key[0];
#pragma unroll
	for (int j = 1; j < P; j++)
		if (key[j] > best) best = key[j], at = j;
	uint32_t most = __reduce_max_sync(0xffffffffu, best);
	if (P == 2) {
		bool a = key[0] == most, b = key[P - 1] == most;
		uint32_t low = __ballot_sync(0xffffffffu, a), high = __ballot_sync(0xffffffffu, b), before = (1u << lane) - 1;
		int own = a & !(low & before), later = b & !low & !(high & before); // no branches
		return own ? lane : later ? lane + 32 : -1;
	}
	return (int)__reduce_min_sync(0xffffffffu, best == most ? (uint32_t)(lane + 32 * at) : 0xffffffffu);
}

template <int P> KR_DEV void get_bias(float (&v)[P], const float *bias, int experts) {
	int lane = threadIdx.x % 32;
#pragma unroll
	for (int j = 0; j < P; j++) v[j] = bias && lane + 32 * j < experts ? __ldg(bias + lane + 32 * j) : 0.f;
}

// The values by which a row's experts are chosen, and their scores: expert lane + 32*j is by[j]
// and v[j], for one warp; 0 for experts that do not exist. The largest keys are chosen, of equal
// ones the lowest expert. room: `experts` floats.
template <int P>
KR_DEV void keys_of(uint32_t (&key)[P], float (&v)[P], int row, const Sums &from, const float *bias, const Router &r, float *room) {
	int lane = threadIdx.x % 32;
	float by[P];
	if (P == 2) get_bias(by, bias, r.experts); // in flight together with the logits
	score(v, row, from, r);
	if (P > 2) get_bias(by, bias, r.experts);
#pragma unroll
	for (int j = 0; j < P; j++) {
		by[j] += v[j];
		key[j] = lane + 32 * j < r.experts ? rising(by[j]) : 0;
	}
	if (r.groups > 1) keep_groups(key, by, r, room);
}

// Ends a choice, by one warp. ids_of and scores are in the order of the values by which they were
// chosen. They become ids and weights by falling score, then rising id.
KR_DEV void order_chosen(int *ids, float *weights, const int *ids_of, const float *scores, bool biased, const Router &r) {
	int lane = threadIdx.x % 32;
	if (lane >= r.k) return;
	float mine = scores[lane], sum = 0.f;
	int id = ids_of[lane], rank = lane;
	if (biased) { // the choice was not by score
		float s = mine == mine ? mine : minus_infinity();
		rank = 0;
		for (int k = 0; k < r.k; k++) {
			float other = scores[k] == scores[k] ? scores[k] : minus_infinity();
			rank += other > s || (other == s && ids_of[k] < id);
		}
	}
	if (r.normalize) {
		for (int k = 0; k < r.k; k++) sum += scores[k];
		mine /= sum + 1e-20f;
	}
	ids[rank] = id;
	weights[rank] = mine * r.scale;
}

// Chooses r.k of at most 32*P experts: the best by score + bias (0: none) of the best groups,
// equal ones by rising id. The results are ordered by falling score, then rising id. room: ROOM
// floats of this warp's shared memory, for one row.
template <int P>
KR_DEV void choose(int *ids, float *weights, int row, const Sums &from, const float *bias, const Router &r, float *room) {
	int lane = threadIdx.x % 32, *ids_of = (int *)room + MOST_CHOSEN;
	float v[P], *scores = room;
	uint32_t key[P];
	keys_of(key, v, row, from, bias, r, room + 2 * MOST_CHOSEN);
	// A lane that has a chosen expert writes it: in place, if neither order nor weight changes.
	bool done = P == 2 && !bias && !r.normalize;
#pragma unroll 1
	for (int k = 0; k < r.k; k++) {
		int e = largest(key);
#pragma unroll
		for (int j = 0; j < P; j++)
			if (e == lane + 32 * j) {
				key[j] = 0;
				if (done) ids[k] = e, weights[k] = v[j] * r.scale;
				else ids_of[k] = e, scores[k] = v[j];
			}
	}
	if (done) return;
	__syncwarp();
	order_chosen(ids, weights, ids_of, scores, bias, r);
}

// The same choice of at most 64 experts by several warps, which takes less time: each warp counts
// how many experts are better than each of some experts.
struct FewChosen {
	uint32_t key[64]; // aligned to 16
	float score[64];
	int ids[MOST_CHOSEN]; // in the order of keys
	float scores[MOST_CHOSEN];

	// Warps 0 to warps-1 of the block call it; the first of them has read the logits. Afterwards
	// all of them see the earlier writes of each to shared memory. It uses barrier 1.
	__device__ __forceinline__ void choose(int row, const Sums &from, const float *bias, const Router &r, int warps) {
		int lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = lane % 4; // of 16 keys
		if (warp == 0) {
			uint32_t k[2];
			float v[2];
			keys_of(k, v, row, from, bias, r, score);
			if (r.groups > 1) __syncwarp(); // score was its room
			key[lane] = k[0], key[lane + 32] = k[1];
			score[lane] = v[0], score[lane + 32] = v[1];
		}
		bar_sync(1, 32 * warps);
#pragma unroll 1
		for (int e = warp * 8 + lane / 4; e < 64; e += 8 * warps) {
			const uint4 *other = reinterpret_cast<const uint4 *>(key) + 4 * part;
			uint32_t mine = key[e];
			int better = 0;
#pragma unroll
			for (int i = 0; i < 4; i++) {
				uint4 v = other[i];
				int before = e - (16 * part + 4 * i); // how many of these, and of those that follow, have lower ids
				better += v.x > mine || (v.x == mine && before > 0);
				better += v.y > mine || (v.y == mine && before > 1);
				better += v.z > mine || (v.z == mine && before > 2);
				better += v.w > mine || (v.w == mine && before > 3);
			}
			better += __shfl_xor_sync(0xffffffffu, better, 1);
			better += __shfl_xor_sync(0xffffffffu, better, 2);
			if (part == 0 && mine && better < r.k) ids[better] = e, scores[better] = score[e];
		}
		bar_sync(1, 32 * warps);
	}
};

// The choice for one row, by one warp. real: the number of rows that exist, from c.rows.
KR_DEV void choose_row(int row, int real, const Sums &s, const Choice &c, const Router &r, float *room) {
	int *ids = c.ids + (long long)row * c.ids_stride, lane = threadIdx.x % 32;
	float *weights = c.weights + (long long)row * c.weights_stride;
	if (row >= real) {
		for (int e = lane; s.out && e < r.experts; e += 32) get_logit(s, row, e);
		if (lane < r.k) ids[lane] = -1, weights[lane] = 0.f;
		return;
	}
	if (r.experts <= 64) choose<2>(ids, weights, row, s, c.bias, r, room);
	else if (r.experts <= 128) choose<4>(ids, weights, row, s, c.bias, r, room);
	else if (r.experts <= 256) choose<8>(ids, weights, row, s, c.bias, r, room);
	else choose<16>(ids, weights, row, s, c.bias, r, room);
}

// The number of rows, of `rows`, for which experts are chosen. Earlier kernels write it.
KR_DEV int real_rows(const Choice &c, int rows) { return c.rows ? __ldcg(c.rows) : rows; }
