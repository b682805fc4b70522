// Gated DeltaNet for generated rows: the convolution and the rule (delta.cu) in one launch, with their bits. Every block computes
// the convolution for the head and the columns that it has. Up to four taps, rows of bfloat16.
//
// The state, the inputs that are kept and the convolution's weights are there before the kernel before this one ends (early), so they
// are loaded before the wait.
#include "delta.cuh"

#define KR_MEMBER __device__ __forceinline__

enum { STEP_THREADS = 128, STEP_WARPS = STEP_THREADS / 32, STEP_TAPS = 4, STEP_KEYS = 128 };

struct Step {
	bf16 *out;
	const bf16 *x, *ba;
	const float *w;
	float *tail, *states;
	int out_stride, x_stride, ba_stride, w_stride, taps, slots, heads, group, key_dim, value_dim;
	Cols q, k, v, a, b;
	KR_MEMBER int channels() const { return heads * (2 * key_dim + group * value_dim); }
};

// A channel of the convolution, and what is known of it before the row is: its weights, and past[j], the input j+1 rows before.
struct Channel {
	int number, column; // column: its place in a row of x; below 0: there is no channel
	float weight[STEP_TAPS], past[STEP_TAPS - 1];

	KR_MEMBER Channel(const Step &r, const Span &s, int slot, int number_of, int column_of, bool there) : number(number_of), column(there ? column_of : -1) {
#pragma unroll
		for (int j = 0; j < STEP_TAPS; j++) weight[j] = there && j < r.taps ? r.w[(long long)(r.taps - 1 - j) * r.w_stride + number] : 0.f;
#pragma unroll
		for (int j = 0; j < STEP_TAPS - 1; j++) {
			int row = s.pos - 1 - j;
			past[j] = there && j < r.taps - 1 && row >= 0 ? r.tail[((long long)slot * r.taps + row % r.taps) * r.channels() + number] : 0.f;
		}
	}
	// Stores the channel's result for the row's input; keep: this block is the one that keeps the input.
	KR_MEMBER void give(bf16 *to, const Step &r, const Span &s, int slot, bf16 in, bool keep) const {
		if (column < 0) return;
		float sum = 0.f, now = value(in);
#pragma unroll
		for (int j = STEP_TAPS - 1; j > 0; j--) sum = fmaf(weight[j], past[j - 1], sum);
		store(to, silu(fmaf(weight[0], now, sum)));
		if (keep) r.tail[((long long)slot * r.taps + s.pos % r.taps) * r.channels() + number] = now;
	}
};

// A warp has eight columns of a head's state; a lane has KEEP rows of one of them (delta.cu, rule).
template <int KEEP> KR_DEV void step(const Step &r, const Span &s, int slot, int h, int piece, float decay, float bias, int early) {
	__shared__ __align__(16) float shared[STEP_WARPS][2 * RULE_PARTS * (KEEP + 4)];
	__shared__ bf16 query[STEP_KEYS], key[STEP_KEYS], values[STEP_WARPS * RULE_COLUMNS];
	int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, part = lane / RULE_COLUMNS, own = warp * RULE_COLUMNS + lane % RULE_COLUMNS;
	int from = h / r.group, keys = r.heads * r.key_dim, column = piece * 32 + own;
	float *states = r.states + ((long long)slot * r.heads * r.group + h) * r.key_dim * r.value_dim + column, state[KEEP];
	bool mine = column < r.value_dim, first = h % r.group == 0 && piece == 0;
	if (!early) pdl_wait();
#pragma unroll
	for (int j = 0; j < KEEP; j++) {
		int i = part * KEEP + j;
		state[j] = s.pos > 0 && mine && i < r.key_dim ? states[(long long)i * r.value_dim] : 0.f;
	}
	int at = min(tid, r.key_dim - 1), in_head = h % r.group * r.value_dim + piece * 32 + tid;
	Channel q(r, s, slot, from * r.key_dim + at, r.q.at + from * r.q.step + at, tid < r.key_dim);
	Channel k(r, s, slot, keys + from * r.key_dim + at, r.k.at + from * r.k.step + at, tid < r.key_dim);
	Channel v(r, s, slot, 2 * keys + h * r.value_dim + piece * 32 + tid, r.v.at + from * r.v.step + in_head, tid < 32 && piece * 32 + tid < r.value_dim);
	if (early) pdl_wait();
	const bf16 *x = r.x + (long long)s.row * r.x_stride, *ba = r.ba + (long long)s.row * r.ba_stride;
	bf16 now[3] = {x[max(q.column, 0)], x[max(k.column, 0)], x[max(v.column, 0)]};
	Token<bf16, KEEP> t;
	t.a = ba[r.a.at + from * r.a.step + h % r.group], t.b = ba[r.b.at + from * r.b.step + h % r.group];
	q.give(query + at, r, s, slot, now[0], first);
	k.give(key + at, r, s, slot, now[1], first);
	v.give(values + tid % 32, r, s, slot, now[2], true);
	__syncthreads();
#pragma unroll
	for (int j = 0; j < KEEP / 8; j++) {
		int i = min(j * 32 + lane, r.key_dim - 1); // values past the last one are not used
		t.q[j] = query[i], t.k[j] = key[i];
	}
	t.v = values[mine ? own : 0];
	float *sq = shared[warp], *sk = sq + RULE_PARTS * (KEEP + 4);
	Numbers n = prepare(t, r.key_dim, decay, bias, sq, sk);
	float sum = advance(state, n, sq, sk);
	if (part == 0 && mine) store(r.out + (long long)s.row * r.out_stride + h * r.value_dim + column, sum);
#pragma unroll
	for (int j = 0; j < KEEP; j++) {
		int i = part * KEEP + j;
		if (mine && i < r.key_dim) states[(long long)i * r.value_dim] = state[j];
	}
}

// Grid: x value heads times pieces of 32 columns, y generated rows.
#define DELTA_STEP(KEEP)                                                                                                              \
	KR_KERNEL(STEP_THREADS, 2)                                                                                                          \
	kr_delta_step_##KEEP(bf16 *out, int out_stride, const bf16 *x, int x_stride, const bf16 *ba, int ba_stride, const float *w,          \
	                     int w_stride, float *tail, int taps, const float *decay, const float *bias, float *states, const int *table,   \
	                     int slots, int heads, int group, int key_dim, int value_dim, Cols q, Cols k, Cols v, Cols a, Cols b, int early) { \
		pdl_launch();                                                                                                                   \
		int pieces = (value_dim + 31) / 32, h = blockIdx.x / pieces;                                                                       \
		Span s = {};                                                                                                                      \
		int slot = -1;                                                                                                                     \
		if ((int)blockIdx.y < table[HEAD_DECODE]) s = span_at(table, table[HEAD_PREFILL] + blockIdx.y), slot = slot_of(table, s);           \
		if (slot < 0 || slot >= slots) {                                                                                                   \
			pdl_wait();                                                                                                                     \
			return;                                                                                                                          \
		}                                                                                                                                   \
		const Step r = {out, x, ba, w, tail, states, out_stride, x_stride, ba_stride, w_stride, taps, slots, heads, group, key_dim, value_dim, q, k, v, a, b}; \
		step<KEEP>(r, s, slot, h, blockIdx.x % pieces, decay[h], bias[h], early);                                                             \
	}                                                                                                                                     \
	KR_EXPORT(kr_delta_step_##KEEP)
DELTA_STEP(8)
DELTA_STEP(16)
DELTA_STEP(32)
