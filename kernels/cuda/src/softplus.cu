// The choice of experts where a score is sqrt(log(1 + exp(logit))), and the weights of experts that a table has for a token
// (DeepSeek-V4). A warp computes a row.
#include "route.cuh"

enum { ROWS = 4, EACH = MOST_EXPERTS / 32, SOFTMAX = 0, SIGMOID = 1 };

KR_DEV float root_softplus(float x) { return sqrtf(fmaxf(x, 0.f) + log1pf(expf(-fabsf(x)))); }

// As kr_route_top_k, by these scores.
KR_KERNEL(32 * ROWS, 1)
kr_softplus_top_k(int *ids, int ids_stride, float *weights, int weights_stride, const float *logits, int logits_stride, const float *bias, int tokens, int experts,
                  int k, int groups, int top_groups, int top2, int normalize, float scale) {
	__shared__ float rooms[ROWS][ROOM];
	pdl_launch();
	pdl_wait();
	int lane = threadIdx.x % 32, row = blockIdx.x * ROWS + threadIdx.x / 32;
	if (row >= tokens) return;
	float *room = rooms[threadIdx.x / 32], v[EACH], by[EACH];
	int *ids_of = (int *)room + MOST_CHOSEN;
	uint32_t key[EACH];
	Router r = {experts, k, 0, groups, top_groups, top2, normalize, scale};
	get_bias(by, bias, experts);
#pragma unroll
	for (int j = 0; j < EACH; j++) {
		int e = lane + 32 * j;
		v[j] = e < experts ? root_softplus(logits[(long long)row * logits_stride + e]) : 0.f;
		by[j] += v[j];
		key[j] = e < experts ? rising(by[j]) : 0;
	}
	if (groups > 1) keep_groups(key, by, r, room + 2 * MOST_CHOSEN);
#pragma unroll 1
	for (int i = 0; i < k; i++) {
		int e = largest(key);
#pragma unroll
		for (int j = 0; j < EACH; j++)
			if (e == lane + 32 * j) key[j] = 0, ids_of[i] = e, room[i] = v[j];
	}
	__syncwarp();
	order_chosen(ids + (long long)row * ids_stride, weights + (long long)row * weights_stride, ids_of, room, true, r);
}
KR_EXPORT(kr_softplus_top_k)

// ids, weights [tokens, k]: the experts that a row of table [rows, k] has for each token, as numbers, by falling score, then rising id; scoring
// as device.Scoring. A number that is no expert's becomes the nearest one, a token that is not in the table the nearest row's.
KR_KERNEL(32 * ROWS, 1)
kr_route_by_token(int *ids, int ids_stride, float *weights, int weights_stride, const float *logits, int logits_stride, const int *of, const float *table,
                  int table_stride, int rows, int tokens, int experts, int k, int scoring, int normalize, float scale) {
	pdl_launch();
	pdl_wait();
	int lane = threadIdx.x % 32, row = blockIdx.x * ROWS + threadIdx.x / 32;
	if (row >= tokens) return;
	logits += (long long)row * logits_stride;
	float top = minus_infinity(), all = 1.f;
	if (scoring == SOFTMAX) {
		for (int e = lane; e < experts; e += 32) top = fmaxf(top, logits[e]);
		top = warp_max(top), all = 0.f;
		for (int e = lane; e < experts; e += 32) all += expf(logits[e] - top);
		all = warp_sum(all);
	}
	int token = min(max(of[row], 0), rows - 1), id = 0;
	float score = 0.f;
	if (lane < k) {
		id = min(max((int)table[(long long)token * table_stride + lane], 0), experts - 1);
		float x = logits[id];
		score = scoring == SOFTMAX ? expf(x - top) / all : scoring == SIGMOID ? 1.f / (1.f + expf(-x)) : root_softplus(x);
	}
	float sum = 0.f, mine = score == score ? score : minus_infinity();
	int rank = 0;
	for (int i = 0; i < k; i++) {
		float s = __shfl_sync(0xffffffffu, score, i);
		int other = __shfl_sync(0xffffffffu, id, i);
		sum += s;
		if (s != s) s = minus_infinity();
		rank += s > mine || (s == mine && (other < id || (other == id && i < lane)));
	}
	if (lane >= k) return;
	if (normalize) score /= sum + 1e-20f;
	ids[(long long)row * ids_stride + rank] = id;
	weights[(long long)row * weights_stride + rank] = score * scale;
}
KR_EXPORT(kr_route_by_token)
