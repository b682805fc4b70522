// Changes logits before a choice, in place: biases, tokens that are not allowed, penalties.
#include "draw.cuh"

// CHANGE_TOKENS and the layout of Change are also in kernels/device, RANGE in
// kernels/cuda/sample.
enum { CHANGE_TOKENS = 1280, RANGE = 8192 };

// The changes of a sequence's logits. The sequence's tokens, by position, follow it in memory.
struct Change {
	float repetition, presence, frequency;
	int prompt; // the number of tokens
	int biases, ends, least, penalises;
	struct Named {
		int id;
		float add;
	} list[CHANGE_TOKENS]; // the number of biases, then of the tokens that may not be among the answer's first `least`
};

// Leaves NaN and +Inf as they are: the search for the largest logit reports them.
KR_DEV void ban(float *x) {
	if (*x <= 3.4028234664e38f) *x = minus_infinity();
}

// Counts the block's tokens among the tokens at positions [0, last): 2 for each occurrence in the
// answer, 1 once for the prompt.
KR_DEV void count(unsigned *had, int first, int n, const int *tokens, int prompt, int last, int token) {
	auto note = [&](int id, int at) {
		if ((unsigned)(id - first) >= (unsigned)n) return;
		if (at < prompt) atomicOr(&had[id - first], 1u);
		else atomicAdd(&had[id - first], 2u);
	};
	for (int i = 4 * (int)threadIdx.x; i < last; i += 4 * THREADS) {
		if (i + 4 <= last) {
			int4 v = *reinterpret_cast<const int4 *>(tokens + i);
			note(v.x, i), note(v.y, i + 1), note(v.z, i + 2), note(v.w, i + 3);
		} else
			for (int j = i; j < last; j++) note(tokens[j], j);
	}
	if (threadIdx.x == 0) note(token, last);
}

// table [rows]: the row of store that has the Change, below 0 for none, and whether the row has a
// mask. A row's last token is this step's, ids[wanted]. Each operation rounds once, as on the
// host. Grid: x ranges of tokens, y rows.
KR_KERNEL(THREADS, 4)
kr_change_logits(float *logits, int stride, int vocab, const Params *params, const int2 *table, const int *ids, const int *wanted,
                 int *store, long long store_stride, const uint32_t *masks) {
	__shared__ unsigned had[RANGE];
	pdl_launch();
	pdl_wait();
	int2 at = table[blockIdx.y];
	if (at.x < 0 && !at.y) return;
	int first = blockIdx.x * RANGE, n = min((int)RANGE, vocab - first);
	float *x = logits + (long long)blockIdx.y * stride + first;
	const Change *c = 0;
	bool penalises = false;
	if (at.x >= 0) {
		int *row = store + at.x * store_stride;
		c = reinterpret_cast<const Change *>(row);
		penalises = c->penalises;
		for (int i = threadIdx.x; i < c->biases; i += THREADS) {
			int id = c->list[i].id - first;
			if ((unsigned)id < (unsigned)n) x[id] += c->list[i].add;
		}
		if (penalises)
			for (int i = threadIdx.x; i < n; i += THREADS) had[i] = 0;
		__syncthreads();
		long long chosen = (long long)params[blockIdx.y].n;
		if (chosen < c->least)
			for (int i = c->biases + threadIdx.x; i < c->biases + c->ends; i += THREADS) {
				int id = c->list[i].id - first;
				if ((unsigned)id < (unsigned)n) ban(x + id);
			}
		if (penalises) {
			int *tokens = row + sizeof(Change) / sizeof(int), last = c->prompt + (int)chosen - 1, token = ids[wanted[blockIdx.y]];
			count(had, first, n, tokens, c->prompt, last, token);
			if (blockIdx.x == 0 && threadIdx.x == 0) tokens[last] = token;
		}
	}
	__syncthreads();
	if (at.y) {
		const uint32_t *mask = masks + (long long)blockIdx.y * ((vocab + 31) / 32) + first / 32;
		for (int i = threadIdx.x; i < n; i += THREADS)
			if (!(mask[i / 32] >> (i % 32) & 1)) ban(x + i);
	}
	if (!penalises) return;
	for (int i = threadIdx.x; i < n; i += THREADS) { // the thread that masked i
		if (!had[i]) continue;
		float v = x[i];
		v = v > 0.f ? v / c->repetition : v * c->repetition;
		unsigned times = had[i] / 2;
		if (times) v = __fsub_rn(v, __fadd_rn(c->presence, __fmul_rn(c->frequency, (float)times)));
		x[i] = v;
	}
}
KR_EXPORT(kr_change_logits)
