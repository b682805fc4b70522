// Kimi Delta Attention (KDA, arXiv 2510.26692) token by token: the gated delta rule with a decay for each row of a
// head's state. It has the convolution and the norm of gated DeltaNet (delta.cu).
#include "delta.cuh"

enum { RULE_THREADS = 128, RULE_WARPS = RULE_THREADS / 32 };

template <class T> struct Rule {
	T *out;
	const T *x, *ba;
	const float *decay, *bias; // [heads], [heads, key_dim]
	float *states;
	int out_stride, x_stride, ba_stride, slots, heads, group, key_dim, value_dim;
	float floor; // of the logarithm of a decay, below 0
	Cols a, b;
};

// The operands of a row as a lane loads them: KEEP / 8 values of the query, of the key and of its
// numbers a, the value of its column, and the head's b.
template <class T, int KEEP> struct Row { T q[KEEP / 8], k[KEEP / 8], a[KEEP / 8], v, b; };

template <class T, int KEEP> KR_DEV void fetch_row(Row<T, KEEP> &t, const Rule<T> &r, int row, int h, int column) {
	int lane = threadIdx.x % 32, key = h / r.group;
	const T *x = r.x + (long long)row * r.x_stride, *ba = r.ba + (long long)row * r.ba_stride, *a = ba + r.a.at + h * r.key_dim;
#pragma unroll
	for (int j = 0; j < KEEP / 8; j++) {
		int i = min(j * 32 + lane, r.key_dim - 1); // values past the last one are not used
		t.q[j] = x[key * r.key_dim + i], t.k[j] = x[(r.heads + key) * r.key_dim + i], t.a[j] = a[i];
	}
	t.v = x[2 * r.heads * r.key_dim + h * r.value_dim + min(column, r.value_dim - 1)];
	t.b = ba[r.b.at + h];
}

// Writes query, key and decays in their places for pass: each has RULE_PARTS * (KEEP + 4) values of shared memory
// that belong to the warp. The query is of length 1 / sqrt(key_dim), the key of length 1.
template <class T, int KEEP> KR_DEV void put_row(const Row<T, KEEP> &t, const Rule<T> &r, float by, const float (&bias)[KEEP / 8], float *shared) {
	enum { PAD = KEEP + 4, EACH = RULE_PARTS * PAD };
	int lane = threadIdx.x % 32;
	float q2 = 0.f, k2 = 0.f, q[KEEP / 8], k[KEEP / 8];
#pragma unroll
	for (int j = 0; j < KEEP / 8; j++) {
		bool in = j * 32 + lane < r.key_dim;
		q[j] = in ? value(t.q[j]) : 0.f, k[j] = in ? value(t.k[j]) : 0.f;
		q2 = fmaf(q[j], q[j], q2), k2 = fmaf(k[j], k[j], k2);
	}
	q2 = warp_sum(q2), k2 = warp_sum(k2);
	float by_q = 1.f / (sqrtf(q2 + 1e-6f) * sqrtf((float)r.key_dim)), by_k = 1.f / sqrtf(k2 + 1e-6f);
	__syncwarp(); // all have read the row before
#pragma unroll
	for (int j = 0; j < KEEP / 8; j++) {
		int i = j * 32 + lane, at = i / KEEP * PAD + i % KEEP;
		shared[at] = q[j] * by_q, shared[EACH + at] = k[j] * by_k;
		shared[2 * EACH + at] = expf(r.floor / (1.f + expf(by * (value(t.a[j]) + bias[j]))));
	}
	__syncwarp();
}

// Passes a row over KEEP rows of a column of the state, and returns the column's output. The four lanes of a
// column have different rows.
template <int KEEP> KR_DEV float pass(float (&state)[KEEP], float v, float strength, const float *shared) {
	enum { PAD = KEEP + 4, EACH = RULE_PARTS * PAD };
	const float *own = shared + threadIdx.x % 32 / RULE_COLUMNS * PAD;
	float known = 0.f, sum = 0.f;
#pragma unroll
	for (int j = 0; j < KEEP; j += 4) {
		float4 k = *(const float4 *)(own + EACH + j), d = *(const float4 *)(own + 2 * EACH + j);
		state[j] *= d.x, state[j + 1] *= d.y, state[j + 2] *= d.z, state[j + 3] *= d.w;
		known = fmaf(k.x, state[j], known), known = fmaf(k.y, state[j + 1], known);
		known = fmaf(k.z, state[j + 2], known), known = fmaf(k.w, state[j + 3], known);
	}
	known += __shfl_xor_sync(0xffffffffu, known, 8);
	known += __shfl_xor_sync(0xffffffffu, known, 16);
	float change = (v - known) * strength;
#pragma unroll
	for (int j = 0; j < KEEP; j += 4) {
		float4 q = *(const float4 *)(own + j), k = *(const float4 *)(own + EACH + j);
		state[j] = fmaf(k.x, change, state[j]), sum = fmaf(q.x, state[j], sum);
		state[j + 1] = fmaf(k.y, change, state[j + 1]), sum = fmaf(q.y, state[j + 1], sum);
		state[j + 2] = fmaf(k.z, change, state[j + 2]), sum = fmaf(q.z, state[j + 2], sum);
		state[j + 3] = fmaf(k.w, change, state[j + 3]), sum = fmaf(q.w, state[j + 3], sum);
	}
	sum += __shfl_xor_sync(0xffffffffu, sum, 8);
	sum += __shfl_xor_sync(0xffffffffu, sum, 16);
	return sum;
}

// A warp passes all rows of a span over eight columns of a head's state, which it keeps in registers:
// a lane has KEEP rows of one column. Nothing is shared with other warps, and the order of every sum
// depends on the sizes alone. KEEP: a multiple of 8, at least a quarter of key_dim.
template <class T, int KEEP> KR_DEV void rule(const Rule<T> &r, const Span &s, int slot, int h, int column, float *shared) {
	int lane = threadIdx.x % 32, part = lane / RULE_COLUMNS;
	float *states = r.states + ((long long)slot * r.heads * r.group + h) * r.key_dim * r.value_dim + column;
	float state[KEEP], bias[KEEP / 8], by = r.decay[h];
	bool mine = column < r.value_dim;
#pragma unroll
	for (int j = 0; j < KEEP; j++) {
		int i = part * KEEP + j;
		state[j] = s.pos > 0 && mine && i < r.key_dim ? states[(long long)i * r.value_dim] : 0.f;
	}
#pragma unroll
	for (int j = 0; j < KEEP / 8; j++) bias[j] = r.bias[h * r.key_dim + min(j * 32 + lane, r.key_dim - 1)];
	Row<T, KEEP> t;
	fetch_row(t, r, s.row, h, column);
	for (int n = 0; n < s.len; n++) {
		put_row(t, r, by, bias, shared);
		float v = value(t.v), strength = 1.f / (1.f + expf(-value(t.b)));
		float sum = pass(state, v, strength, shared);
		if (n + 1 < s.len) fetch_row(t, r, s.row + n + 1, h, column); // not before: there are no registers for it
		if (part == 0 && mine) store(r.out + (long long)(s.row + n) * r.out_stride + h * r.value_dim + column, sum);
	}
#pragma unroll
	for (int j = 0; j < KEEP; j++) {
		int i = part * KEEP + j;
		if (mine && i < r.key_dim) states[(long long)i * r.value_dim] = state[j];
	}
}

// Grid: x value heads times pieces of 32 columns, y spans.
#define KDA_RULE(T, KEEP, BLOCKS)                                                                                               \
	KR_KERNEL(RULE_THREADS, BLOCKS)                                                                                               \
	kr_kda_rule_##T##_##KEEP(T *out, int out_stride, const T *x, int x_stride, const T *ba, int ba_stride, const float *decay,    \
	                         const float *bias, float *states, const int *table, int decode, float floor, int slots, int heads,   \
	                         int group, int key_dim, int value_dim, Cols a, Cols b) {                                             \
		__shared__ __align__(16) float shared[RULE_WARPS][3 * RULE_PARTS * (KEEP + 4)];                                             \
		pdl_launch();                                                                                                               \
		pdl_wait();                                                                                                                 \
		int prompts = table[HEAD_PREFILL], i = (decode ? prompts : 0) + (int)blockIdx.y;                                            \
		int pieces = (value_dim + 31) / 32, h = blockIdx.x / pieces, warp = threadIdx.x / 32;                                       \
		int column = blockIdx.x % pieces * 32 + warp * RULE_COLUMNS + threadIdx.x % RULE_COLUMNS;                                   \
		if (i >= (decode ? prompts + table[HEAD_DECODE] : prompts)) return;                                                         \
		Span s = span_at(table, i);                                                                                                 \
		int slot = slot_of(table, s);                                                                                               \
		if (slot < 0 || slot >= slots) return;                                                                                      \
		Rule<T> r = {out, x, ba, decay, bias, states, out_stride, x_stride, ba_stride, slots, heads, group, key_dim, value_dim, floor, a, b}; \
		rule<T, KEEP>(r, s, slot, h, column, shared[warp]);                                                                         \
	}                                                                                                                             \
	KR_EXPORT(kr_kda_rule_##T##_##KEEP)
KDA_RULE(bf16, 8, 4)
KDA_RULE(bf16, 16, 4)
KDA_RULE(bf16, 32, 3)
KDA_RULE(float, 8, 4)
KDA_RULE(float, 16, 4)
KDA_RULE(float, 32, 3)
