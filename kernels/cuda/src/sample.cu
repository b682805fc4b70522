// The choice of the next token: the largest logit, or a draw. A block has a row.
#include "sample.cuh"

KR_DEV Row row_at(const float *logits, int row, int stride, int vocab, int vec) {
	return Row{logits + (long long)row * stride, vocab, (vocab + PART - 1) / PART, vec != 0};
}

// Few rows: the search for the largest logit by several blocks a row. Grid: x blocks of a
// row, y rows; found [rows][blocks] {key, token, nan, 0}.
KR_KERNEL(256, 1)
kr_find_best(int4 *found, const float *logits, int stride, int vocab, int vec) {
	pdl_launch();
	pdl_wait();
	Found f = scan(row_at(logits, blockIdx.y, stride, vocab, vec), blockIdx.x * warps() + threadIdx.x / 32, gridDim.x * warps());
	if (threadIdx.x == 0) found[blockIdx.y * gridDim.x + blockIdx.x] = make_int4((int)f.key, f.token, f.nan, 0);
}
KR_EXPORT(kr_find_best)

// What kr_find_best found (n a row, up to 32), or if it did not run, what this block does.
KR_DEV Best best_or_found(const Row &r, const int4 *found, int n) {
	if (n == 0) return best_of(r);
	int lane = threadIdx.x % 32;
	Found f = {0, 0x7fffffff, 0};
	if (lane < n) {
		int4 v = found[blockIdx.x * n + lane];
		f = Found{(uint32_t)v.x, v.y, v.z};
	}
	return verdict(join(f));
}

KR_KERNEL(1024, 1)
kr_argmax(int *out, const float *logits, int stride, int vocab, int vec) {
	pdl_launch();
	pdl_wait();
	Best b = best_of(row_at(logits, blockIdx.x, stride, vocab, vec));
	if (threadIdx.x == 0) out[blockIdx.x] = b.token;
}
KR_EXPORT(kr_argmax)

// One row's way to choose (kernels/cuda/sample, Row).
struct Params {
	double temperature, top_p, min_p;
	unsigned long long seed, n;
	int top_k, logprob;
};

// Philox4x32-10 (Salmon and others, 2011), as stages/sample has it: the n-th number in
// [0, 1) of a seed.
static __device__ __noinline__ double uniform(unsigned long long seed, unsigned long long n) {
	uint32_t c0 = (uint32_t)n, c1 = (uint32_t)(n >> 32), c2 = 0, c3 = 0, k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
	for (int i = 0; i < 10; i++) {
		uint32_t hi0 = __umulhi(0xd2511f53u, c0), lo0 = 0xd2511f53u * c0, hi1 = __umulhi(0xcd9e8d57u, c2), lo1 = 0xcd9e8d57u * c2;
		c0 = hi1 ^ c1 ^ k0, c1 = lo1, c2 = hi0 ^ c3 ^ k1, c3 = lo0;
		k0 += 0x9e3779b9u, k1 += 0xbb67ae85u;
	}
	return (double)((unsigned long long)c0 << 21 | c1 >> 11) * 0x1p-53;
}

// The tokens that top_p may keep: a list a warp, in the order in which the warp met them.
struct List {
	double *weights;
	uint32_t *keys;
	int n;
};

// The sum of weights of the list with a key of at least `key`, and their number; in every
// thread.
KR_DEV double mass_from(const List &l, uint32_t key, int &count, double *room) {
	double sum = 0.;
	int n = 0;
	for (int i = threadIdx.x % 32; i < l.n; i += 32)
		if (l.keys[i] >= key) sum += l.weights[i], n++;
	__shared__ int counts[MOST_WARPS];
	n = __reduce_add_sync(0xffffffffu, n);
	__syncthreads(); // counts are free
	if (threadIdx.x % 32 == 0) counts[threadIdx.x / 32] = n;
	sum = block_sum_f64(sum, room);
	count = __reduce_add_sync(0xffffffffu, (int)threadIdx.x % 32 < warps() ? counts[threadIdx.x % 32] : 0);
	return sum;
}

// Keeps the fewest most preferred tokens of pool whose weights reach the share p of their
// sum: the edge moves up to the one that crosses p. total is the sum of the pool's n
// weights; scratch has room for every token.
KR_DEV Edge top_p(const Row &r, const Weigher &pool, double p, double total, int n, double *weights, uint32_t *keys, double *sums, double *room) {
	// Tokens that weigh less than (1-p) * total / n have less than 1-p together, so none of
	// them is needed. Most logits are below that; only the others are put to exp.
	double low = log_of((1. - p) * total / n) - 1e-6, need = p * total;
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, each = (r.parts + warps() - 1) / warps() * PART;
	List l = {weights + (long long)warp * each, keys + (long long)warp * each, 0};
	__shared__ uint32_t least;
	uint32_t lowest = 0xffffffffu;
	if (threadIdx.x == 0) least = 0xffffffffu;
	__syncthreads();
	for (int part = warp; part < r.parts; part += warps()) {
		float x[8];
		int first = part * PART + 8 * lane;
		load8(x, r, first);
		for (int j = 0; j < 8; j++) {
			double v = 0.;
			if (((double)x[j] - pool.top) * pool.scale >= low) v = weight(pool, x[j], first + j);
			bool in = v > 0.;
			uint32_t lanes = __ballot_sync(0xffffffffu, in);
			if (in) {
				int at = l.n + __popc(lanes & ((1u << lane) - 1));
				l.weights[at] = v, l.keys[at] = rising(x[j]);
				lowest = min(lowest, l.keys[at]);
			}
			l.n += __popc(lanes);
		}
	}
	atomicMin(&least, __reduce_min_sync(0xffffffffu, lowest));
	__syncthreads();
	// The crossing token's key is in [lo, hi): from lo on there is enough, from hi on there
	// is not. All tokens from lo on are in the list.
	uint32_t lo = least, hi = rising((float)pool.top) + 1;
	int many, few = 0;
	double above = 0.;
	mass_from(l, lo, many, room);
	while (hi - lo > 1 && many - few > 1) {
		uint32_t mid = lo + (hi - lo) / 2;
		int count;
		double mass = mass_from(l, mid, count, room);
		if (mass >= need) lo = mid, many = count;
		else hi = mid, few = count, above = mass;
	}
	Edge e = {lo, 0x7fffffff};
	if (many - few > 1) { // equal logits: the first few of them
		double one = exp_of(((double)from_rising(lo) - pool.top) * pool.scale), want = ceil((need - above) / one);
		int k = want < 1. ? 1 : want > (double)(many - few) ? many - few : (int)want;
		if (k < many - few) e.token = nth_equal(r, lo, k, sums, room);
	}
	if (e.key < pool.edge.key) return pool.edge;
	if (e.key == pool.edge.key) e.token = min(e.token, pool.edge.token);
	return e;
}

// The logarithm of a token's probability under a row whose largest logit is top.
KR_DEV float log_probability(const Row &r, float top, int token, double *sums, double *room) {
	Weigher w = {{0, 0x7fffffff}, top, 1., 0., r.vocab, false};
	double sum = weigh_parts(r, w, sums, room);
	return (float)((double)r.x[token] - ((double)top + log_of(sum)));
}

// out[row] = the token; logprobs[row] (where there are any and the row asks) its logarithm of
// probability under raw. weights and keys: scratch for `room_tokens` tokens a row. found:
// see best_or_found.
// Shared memory: a double for every part.
KR_KERNEL(1024, 1)
kr_sample(int *out, float *logprobs, const float *logits, int stride, const float *raw, int raw_stride, int vocab, int vec,
          const Params *params, double *weights, uint32_t *keys, int room_tokens, const int4 *found, int n_found) {
	KR_SHARED(double, sums);
	__shared__ double room[MOST_WARPS];
	__shared__ int hist[BINS];
	pdl_launch();
	pdl_wait();
	Row r = row_at(logits, blockIdx.x, stride, vocab, vec);
	Params p = params[blockIdx.x];
	Best best = best_or_found(r, found, n_found);
	int token = best.token;
	if (token >= 0 && p.temperature > 0.) {
		Weigher w = {{0, 0x7fffffff}, best.x, 1. / p.temperature, 0., vocab, false};
		bool top_k = p.top_k > 0 && p.top_k < vocab;
		if (top_k) w.edge = kth(r, p.top_k, hist, sums, room);
		if (p.top_p < 1.) {
			double total = weigh_parts(r, w, sums, room);
			long long first = (long long)blockIdx.x * room_tokens;
			w.edge = top_p(r, w, p.top_p, total, top_k ? p.top_k : vocab, weights + first, keys + first, sums, room);
		}
		w.least = p.min_p;
		double total = weigh_parts(r, w, sums, room);
		token = find_all(r, w, sums, uniform(p.seed, p.n) * total);
	}
	if (logprobs && p.logprob && token >= 0) {
		Row own = row_at(raw, blockIdx.x, raw_stride, vocab, vec);
		Best b = raw == logits ? best : best_of(own);
		float v = 0.f;
		if (b.token < 0) token = b.token;
		else v = log_probability(own, b.x, token, sums, room);
		if (threadIdx.x == 0) logprobs[blockIdx.x] = v;
	}
	if (threadIdx.x == 0) out[blockIdx.x] = token;
}
KR_EXPORT(kr_sample)

// --- changes of logits before a choice, in place

// logits[row, ids[i]] += values[i] for i in starts[row] .. starts[row+1].
KR_KERNEL(256, 1)
kr_apply_bias(float *logits, int stride, int vocab, const int *starts, const int *ids, const float *values) {
	pdl_launch();
	pdl_wait();
	float *row = logits + (long long)blockIdx.x * stride;
	for (int i = starts[blockIdx.x] + threadIdx.x; i < starts[blockIdx.x + 1]; i += blockDim.x)
		if (ids[i] >= 0 && ids[i] < vocab) row[ids[i]] += values[i];
}
KR_EXPORT(kr_apply_bias)

// Minus infinity where the row's bit is 0. words: 32-bit words of a row. Grid: x rows, y
// pieces.
KR_KERNEL(256, 1)
kr_apply_mask(float *logits, int stride, int vocab, const uint32_t *mask, int words) {
	pdl_launch();
	pdl_wait();
	int i = blockIdx.y * blockDim.x + threadIdx.x;
	if (i < vocab && !(mask[(long long)blockIdx.x * words + i / 32] >> (i % 32) & 1))
		logits[(long long)blockIdx.x * stride + i] = minus_infinity();
}
KR_EXPORT(kr_apply_mask)

// For the tokens a row has had, ids[i] with counts[i] times in the answer (0: in the prompt
// only): penalties [rows][3] are repetition, presence, frequency. One rounding an operation,
// as on the host.
KR_KERNEL(256, 1)
kr_apply_penalties(float *logits, int stride, int vocab, const int *starts, const int *ids, const int *counts, const float *penalties) {
	pdl_launch();
	pdl_wait();
	float *row = logits + (long long)blockIdx.x * stride;
	float repetition = penalties[3 * blockIdx.x], presence = penalties[3 * blockIdx.x + 1], frequency = penalties[3 * blockIdx.x + 2];
	for (int i = starts[blockIdx.x] + threadIdx.x; i < starts[blockIdx.x + 1]; i += blockDim.x) {
		if (ids[i] < 0 || ids[i] >= vocab) continue;
		float x = row[ids[i]];
		x = x > 0.f ? x / repetition : x * repetition;
		if (counts[i] > 0) x = __fsub_rn(x, __fadd_rn(presence, __fmul_rn(frequency, (float)counts[i])));
		row[ids[i]] = x;
	}
}
KR_EXPORT(kr_apply_penalties)
