// Changes logits before a choice, in place: biases, tokens that are not allowed, penalties.
#include "draw.cuh"

// CHANGE_TOKENS and the layout of Change are also in kernels/device, RANGE and WIDE, the
// threads of a block, in kernels/cuda/sample.
enum { CHANGE_TOKENS = 1280, RANGE = 8192, WIDE = 1024 };

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

// NaN and +Inf stay as they are: the search for the largest logit reports them.
KR_DEV bool bannable(float x) { return x <= 3.4028234664e38f; }

KR_DEV void ban(float *x) {
	if (bannable(*x)) *x = minus_infinity();
}

// Counts the block's tokens among the tokens at positions [0, last): 2 for each occurrence in the
// answer, 1 once for the prompt.
KR_DEV void count(unsigned *had, int first, int n, const int *tokens, int prompt, int last, int token) {
	auto note = [&](int id, int at) {
		if ((unsigned)(id - first) >= (unsigned)n) return;
		if (at < prompt) atomicOr(&had[id - first], 1u);
		else atomicAdd(&had[id - first], 2u);
	};
	for (int i = 4 * (int)threadIdx.x; i < last; i += 4 * WIDE) {
		if (i + 4 <= last) {
			int4 v = *reinterpret_cast<const int4 *>(tokens + i);
			note(v.x, i), note(v.y, i + 1), note(v.z, i + 2), note(v.w, i + 3);
		} else
			for (int j = i; j < last; j++) note(tokens[j], j);
	}
	if (threadIdx.x == 0) note(token, last);
}

// The mask of a row in host memory: words of bits, padded to 16 bytes, then these. The host writes it while
// the device computes.
struct Mail {
	uint32_t flag;   // 2 * number + 1: the mask of the step with that number is there; 2 * number: none will come
	uint32_t gaveup; // the number, written by the device if it has waited for too long
	uint32_t spare[2];
};

// Waits for the mask of step `number`. False: none comes.
KR_DEV bool mask_comes(Mail *m, uint32_t number, uint32_t limit_us) {
	uint64_t end = nanos() + 1000ull * limit_us;
	for (;;) {
		uint32_t flag = ld_acquire_sys(&m->flag);
		if (flag >> 1 == number) return flag & 1;
		if (nanos() < end) continue;
		st_release_sys(&m->gaveup, number);
		return false;
	}
}

// table [rows]: the row of store that has the Change, below 0 for none, and the number of the row's mask, 0 for
// none. It was there before the step began. A row's last token is this step's, ids[wanted]. Each operation rounds
// once, as on the host. A row whose mask does not come may have no token. Grid: x ranges of tokens, y rows.
KR_KERNEL(WIDE, 1)
kr_change_logits(float *logits, int stride, int vocab, const Params *params, const int2 *table, const int *ids, const int *wanted,
                 int *store, long long store_stride, uint32_t *masks, uint32_t limit_us) {
	__shared__ unsigned had[RANGE];
	__shared__ uint4 allowed[RANGE / 128];
	__shared__ int comes;
	pdl_launch();
	int2 at = table[blockIdx.y];
	int first = blockIdx.x * RANGE, n = min((int)RANGE, vocab - first);
	if (at.y) { // a read of host memory takes a microsecond, so it comes before the wait for the logits
		int units = (vocab + 127) / 128;
		uint32_t *mask = masks + (long long)blockIdx.y * (4 * units + 4);
		if (threadIdx.x == 0) comes = mask_comes(reinterpret_cast<Mail *>(mask + 4 * units), at.y, limit_us);
		__syncthreads();
		if (threadIdx.x < (n + 127) / 128)
			allowed[threadIdx.x] = comes ? ld_fresh(mask + first / 32 + 4 * threadIdx.x) : make_uint4(0, 0, 0, 0);
	}
	pdl_wait();
	if (at.x < 0 && !at.y) return;
	float *x = logits + (long long)blockIdx.y * stride + first;
	const Change *c = 0;
	bool penalises = false;
	if (at.x >= 0) {
		int *row = store + at.x * store_stride;
		c = reinterpret_cast<const Change *>(row);
		penalises = c->penalises;
		for (int i = threadIdx.x; i < c->biases; i += WIDE) {
			int id = c->list[i].id - first;
			if ((unsigned)id < (unsigned)n) x[id] += c->list[i].add;
		}
		if (penalises)
			for (int i = threadIdx.x; i < n; i += WIDE) had[i] = 0;
		__syncthreads();
		long long chosen = (long long)params[blockIdx.y].n;
		if (chosen < c->least)
			for (int i = c->biases + threadIdx.x; i < c->biases + c->ends; i += WIDE) {
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
		// The loads of several tokens are in flight at once: a store may be to what a later load reads, for all the compiler knows.
		enum { AT_ONCE = 8 };
		const uint32_t *mask = reinterpret_cast<const uint32_t *>(allowed);
		for (int from = threadIdx.x; from < n; from += AT_ONCE * WIDE) {
			bool banned[AT_ONCE];
#pragma unroll
			for (int j = 0; j < AT_ONCE; j++) {
				int i = from + j * WIDE;
				banned[j] = i < n && !(mask[i / 32] >> (i % 32) & 1) && bannable(x[i]);
			}
#pragma unroll
			for (int j = 0; j < AT_ONCE; j++)
				if (banned[j]) x[from + j * WIDE] = minus_infinity();
		}
	}
	if (!penalises) return;
	for (int i = threadIdx.x; i < n; i += WIDE) { // the thread that masked i
		if (!had[i]) continue;
		float v = x[i];
		v = v > 0.f ? v / c->repetition : v * c->repetition;
		unsigned times = had[i] / 2;
		if (times) v = __fsub_rn(v, __fadd_rn(c->presence, __fmul_rn(c->frequency, (float)times)));
		x[i] = v;
	}
}
KR_EXPORT(kr_change_logits)
