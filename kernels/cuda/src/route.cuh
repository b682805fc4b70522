// The choice of experts for one row, by one warp.
#pragma once
#include "elem.cuh"

// device.Router.
struct Router {
	int experts, k, sigmoid, groups, top_groups, top2, normalize;
	float scale;
};

// Room of a warp: scores and choices of 512 experts.
enum { MOST_EXPERTS = 512, ROOM = 2 * MOST_EXPERTS };

// Logits as they come: of a row the sum of `parts` rows `step` apart, in order, which out
// gets too; or what out would get (0: parts is 1).
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
	for (; p + 3 <= s.parts; p += 3) { // three on the way at once
		float a = __ldcg(at + p * s.step), b = __ldcg(at + (p + 1) * s.step), c = __ldcg(at + (p + 2) * s.step);
		v = ((v + a) + b) + c;
	}
#pragma unroll 1
	for (; p < s.parts; p++) v += __ldcg(at + p * s.step);
	s.out[(long long)row * s.out_stride + e] = v;
	return v;
}

// What a choice writes, and what else it takes.
struct Choice {
	int *ids;
	float *weights;
	int ids_stride, weights_stride;
	const float *bias; // 0: none
	const int *rows;   // 0: all; rows at or past it get ids -1 and weights 0
};

KR_DEV float minus_infinity() { return __uint_as_float(0xff800000u); }

// Bits that rise with the number. NaN counts as minus infinity; nothing gives 0.
KR_DEV uint32_t rising(float v) {
	if (v != v) v = minus_infinity();
	uint32_t u = __float_as_uint(v + 0.f); // -0 is 0
	return u & 0x80000000u ? ~u : u | 0x80000000u;
}

// Which groups are among the best, as a mask with a bit for the first of `each` lanes
// of every group. choice lies in shared memory; groups are of `size` experts.
KR_DEV uint32_t best_groups(const float *choice, const Router &r, int size, int each) {
	int lane = threadIdx.x % 32, group = lane / each;
	float first = minus_infinity(), second = first;
	if (group < r.groups)
		for (int i = lane % each; i < size; i += each) {
			float v = choice[group * size + i];
			if (v > first) second = first, first = v;
			else if (v > second) second = v;
		}
	for (int d = 1; d < each; d <<= 1) { // two pairs become the best two of four
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

// Scores of a row in v, expert lane + 32*j in v[j]; those that do not exist are 0.
template <int P> KR_DEV void score(float (&v)[P], int row, const Sums &s, const Router &r) {
	int lane = threadIdx.x % 32;
	float top = minus_infinity(), sum = 0.f;
#pragma unroll
	for (int j = 0; j < P; j++) {
		int e = lane + 32 * j;
		v[j] = e < r.experts ? get_logit(s, row, e) : minus_infinity();
	}
#pragma unroll
	for (int j = 0; j < P; j++) top = fmaxf(top, v[j]);
	if (r.sigmoid) {
#pragma unroll
		for (int j = 0; j < P; j++) v[j] = 1.f / (1.f + expf(-v[j]));
		return;
	}
	top = warp_max(top);
#pragma unroll
	for (int j = 0; j < P; j++) {
		v[j] = lane + 32 * j < r.experts ? expf(v[j] - top) : 0.f;
		sum += v[j];
	}
	sum = warp_sum(sum);
#pragma unroll
	for (int j = 0; j < P; j++) v[j] = v[j] / sum;
}

// Chooses r.k of at most 32*P experts: the best by score + bias (0: none) of the best
// groups, equal ones by rising id; they come out by falling score, then rising id.
// room: ROOM floats of shared memory of this warp.
template <int P>
KR_DEV void choose(int *ids, float *weights, int row, const Sums &from, const float *bias, const Router &r, float *room) {
	int lane = threadIdx.x % 32;
	float v[P], *scores = room, *choice = room + MOST_EXPERTS;
	score(v, row, from, r);
	__syncwarp(); // the row before is done with the room
#pragma unroll
	for (int j = 0; j < P; j++) {
		int e = lane + 32 * j;
		if (e >= r.experts) continue;
		scores[e] = v[j];
		if (bias) v[j] += bias[e];
		choice[e] = v[j];
	}
	__syncwarp();
	uint32_t kept = 0xffffffffu;
	int size = r.experts, each = 32;
	if (r.groups > 1) {
		size = r.experts / r.groups;
		while (each * r.groups > 32) each /= 2;
		kept = best_groups(choice, r, size, each);
	}
	uint32_t key[P];
#pragma unroll
	for (int j = 0; j < P; j++) {
		int e = lane + 32 * j;
		if (e >= r.experts) key[j] = 0;
		else key[j] = rising(kept >> (e / size * each) & 1 ? v[j] : minus_infinity());
	}
	int id = 0;
	float mine = 0.f, sum = 0.f;
	for (int k = 0; k < r.k; k++) {
		uint32_t best = key[0];
		int at = 0;
#pragma unroll
		for (int j = 1; j < P; j++)
			if (key[j] > best) best = key[j], at = j;
		uint32_t most = __reduce_max_sync(0xffffffffu, best);
		uint32_t e = __reduce_min_sync(0xffffffffu, best == most ? (uint32_t)(lane + 32 * at) : 0xffffffffu);
		float s = scores[e];
		sum += s;
		if (lane == k) id = (int)e, mine = s;
#pragma unroll
		for (int j = 0; j < P; j++)
			if (lane + 32 * j == e) key[j] = 0;
	}
	int rank = lane;
	if (bias) { // the choice was not by score
		float s = mine == mine ? mine : minus_infinity();
		rank = 0;
		for (int k = 0; k < r.k; k++) {
			float other = __shfl_sync(0xffffffffu, s, k);
			int other_id = __shfl_sync(0xffffffffu, id, k);
			rank += other > s || (other == s && other_id < id);
		}
	}
	if (lane >= r.k) return;
	if (r.normalize) mine /= sum + 1e-20f;
	ids[rank] = id;
	weights[rank] = mine * r.scale;
}

// The choice for one row, by one warp.
KR_DEV void choose_row(int row, const Sums &s, const Choice &c, const Router &r, float *room) {
	int *ids = c.ids + (long long)row * c.ids_stride, lane = threadIdx.x % 32;
	float *weights = c.weights + (long long)row * c.weights_stride;
	if (c.rows && row >= *c.rows) {
		for (int e = lane; s.out && e < r.experts; e += 32) get_logit(s, row, e);
		if (lane < r.k) ids[lane] = -1, weights[lane] = 0.f;
		return;
	}
	if (r.experts <= 64) choose<2>(ids, weights, row, s, c.bias, r, room);
	else if (r.experts <= 256) choose<8>(ids, weights, row, s, c.bias, r, room);
	else choose<16>(ids, weights, row, s, c.bias, r, room);
}
