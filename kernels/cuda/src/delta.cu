// Gated DeltaNet (arXiv 2412.06464): the causal convolution over the inputs, the recurrence of the
// states, and the gated norm of the output. Rows are of bfloat16 or float32, states of float32.
//
// The newest `taps` inputs of a sequence are a ring: that of position p is in row p % taps of the
// sequence's slot.
#include "delta.cuh"
#include "elem.cuh"

enum { CONV_THREADS = 128, TAPS_MAX = 16 };

// V neighbours of a row, which are aligned to their size.
template <class T, int V> struct __align__(sizeof(T) * V) Few { T v[V]; };

template <class T, int V> KR_DEV Few<T, V> few(const T *p) { return *(const Few<T, V> *)p; }

// A thread computes V channels of a generated row, or of ROW_TILE rows of a prompt. The first tile of
// a span alone reads the inputs that are kept, and then writes the new ones.
template <class T, int V, int TAPS>
KR_DEV void conv(T *out, int out_stride, const T *x, int x_stride, const float *w, int w_stride, float *tail, const int *table, int decode, int slots,
                 int taps, int heads, int key_dim, int values, Cols q, Cols k, Cols v) {
	int prompts = table[HEAD_PREFILL], keys = heads * key_dim, channels = 2 * keys + heads * values;
	int i = decode ? prompts + (int)blockIdx.y : span_of_item(table, 0, prompts, blockIdx.y);
	int c = (blockIdx.x * CONV_THREADS + threadIdx.x) * V;
	if (i < 0 || i >= prompts + table[HEAD_DECODE] || c >= channels) return;
	Span s = span_at(table, i);
	int slot = slot_of(table, s);
	if (slot < 0 || slot >= slots) return;
	int in = c, first = decode ? 0 : ((int)blockIdx.y - s.start) * ROW_TILE, end = min(s.len, first + ROW_TILE);
	if (c < keys) in = q.at + c / key_dim * q.step + c % key_dim;
	else if (c < 2 * keys) in = k.at + (c - keys) / key_dim * k.step + (c - keys) % key_dim;
	else in = v.at + (c - 2 * keys) / values * v.step + (c - 2 * keys) % values;
	float *kept = tail + (long long)slot * taps * channels + c;
	x += (long long)s.row * x_stride + in;
	out += (long long)s.row * out_stride + c;
	float weight[TAPS][V], past[TAPS][V]; // past[j]: the input j+1 rows before
#pragma unroll
	for (int j = 0; j < TAPS; j++)
#pragma unroll
		for (int n = 0; n < V; n++) weight[j][n] = j < taps ? w[(long long)(taps - 1 - j) * w_stride + c + n] : 0.f;
#pragma unroll
	for (int j = 0; j < TAPS; j++) {
		int row = first - 1 - j;
#pragma unroll
		for (int n = 0; n < V; n++) {
			past[j][n] = 0.f;
			if (j >= taps - 1) continue;
			if (row >= 0) past[j][n] = value(x[(long long)row * x_stride + n]);
			else if (s.pos + row >= 0) past[j][n] = kept[(long long)((s.pos + row) % taps) * channels + n];
		}
	}
	if (first == 0)
		for (int r = max(0, s.len - taps); r < s.len; r++)
#pragma unroll
			for (int n = 0; n < V; n++) kept[(long long)((s.pos + r) % taps) * channels + n] = value(x[(long long)r * x_stride + n]);
	enum { AHEAD = 8 };
	for (int from = first; from < end; from += AHEAD) {
		Few<T, V> next[AHEAD];
#pragma unroll
		for (int r = 0; r < AHEAD; r++) next[r] = few<T, V>(x + (long long)min(from + r, end - 1) * x_stride);
#pragma unroll
		for (int r = 0; r < AHEAD; r++) {
			if (from + r >= end) break;
			float sum[V];
#pragma unroll
			for (int n = 0; n < V; n++) {
				float now = value(next[r].v[n]);
				sum[n] = 0.f;
#pragma unroll
				for (int j = TAPS - 1; j > 0; j--) sum[n] = fmaf(weight[j][n], past[j - 1][n], sum[n]);
				sum[n] = silu(fmaf(weight[0][n], now, sum[n]));
#pragma unroll
				for (int j = TAPS - 1; j > 0; j--) past[j][n] = past[j - 1][n];
				past[0][n] = now;
			}
			T *to = out + (long long)(from + r) * out_stride;
			if (V == 1) store(to, sum[0]);
			else store2(to, sum[0], sum[V - 1]);
		}
	}
}

// Grid: x channels, y rows. With four taps or fewer only these are kept in registers; pairs of channels
// have no more.
#define DELTA_CONV(NAME, T, V)                                                                                                                  \
	KR_KERNEL(CONV_THREADS, 4)                                                                                                                     \
	NAME(T *out, int out_stride, const T *x, int x_stride, const float *w, int w_stride, float *tail, const int *table, int decode, int slots,     \
	     int taps, int heads, int key_dim, int values, Cols q, Cols k, Cols v) {                                                                   \
		pdl_launch();                                                                                                                                \
		pdl_wait();                                                                                                                                  \
		if (V > 1 || taps <= 4) conv<T, V, 4>(out, out_stride, x, x_stride, w, w_stride, tail, table, decode, slots, taps, heads, key_dim, values, q, k, v); \
		else conv<T, 1, TAPS_MAX>(out, out_stride, x, x_stride, w, w_stride, tail, table, decode, slots, taps, heads, key_dim, values, q, k, v);       \
	}                                                                                                                                              \
	KR_EXPORT(NAME)
DELTA_CONV(kr_delta_conv_bf16, bf16, 1)
DELTA_CONV(kr_delta_conv_pairs, bf16, 2)
DELTA_CONV(kr_delta_conv_float, float, 1)

enum { RULE_THREADS = 128, RULE_WARPS = RULE_THREADS / 32 };

template <class T> struct Rule {
	T *out;
	const T *x, *ba;
	float *states;
	int out_stride, x_stride, ba_stride, heads, group, key_dim, value_dim;
	float decay, bias;
	Cols a, b;
};

template <class T, int KEEP> KR_DEV void fetch_token(Token<T, KEEP> &t, const Rule<T> &r, int row, int h, int column) {
	int lane = threadIdx.x % 32, key = h / r.group, keys = r.heads * r.key_dim;
	const T *x = r.x + (long long)row * r.x_stride, *ba = r.ba + (long long)row * r.ba_stride;
#pragma unroll
	for (int j = 0; j < KEEP / 8; j++) {
		int i = min(j * 32 + lane, r.key_dim - 1); // values past the last one are not used
		t.q[j] = x[key * r.key_dim + i];
		t.k[j] = x[keys + key * r.key_dim + i];
	}
	t.v = x[2 * keys + h * r.value_dim + min(column, r.value_dim - 1)];
	t.a = ba[r.a.at + key * r.a.step + h % r.group];
	t.b = ba[r.b.at + key * r.b.step + h % r.group];
}

// A warp passes all rows of a span over eight columns of a head's state, which it keeps in registers:
// a lane has KEEP rows of one column. Nothing is shared with other warps, and the order of every sum
// depends on the sizes alone. KEEP: a multiple of 8, at least a quarter of key_dim.
template <class T, int KEEP> KR_DEV void rule(const Rule<T> &r, const Span &s, int slot, int h, int column, float *shared) {
	int lane = threadIdx.x % 32, part = lane / RULE_COLUMNS;
	float *sq = shared, *sk = shared + RULE_PARTS * (KEEP + 4);
	float *states = r.states + ((long long)slot * r.heads * r.group + h) * r.key_dim * r.value_dim + column;
	float state[KEEP];
	bool mine = column < r.value_dim;
#pragma unroll
	for (int j = 0; j < KEEP; j++) {
		int i = part * KEEP + j;
		state[j] = s.pos > 0 && mine && i < r.key_dim ? states[(long long)i * r.value_dim] : 0.f;
	}
	Token<T, KEEP> t;
	fetch_token(t, r, s.row, h, column);
	for (int n = 0; n < s.len; n++) {
		Numbers now = prepare(t, r.key_dim, r.decay, r.bias, sq, sk);
		if (n + 1 < s.len) fetch_token(t, r, s.row + n + 1, h, column);
		float sum = advance(state, now, sq, sk);
		if (part == 0 && mine) store(r.out + (long long)(s.row + n) * r.out_stride + h * r.value_dim + column, sum);
	}
#pragma unroll
	for (int j = 0; j < KEEP; j++) {
		int i = part * KEEP + j;
		if (mine && i < r.key_dim) states[(long long)i * r.value_dim] = state[j];
	}
}

// Grid: x value heads times pieces of 32 columns, y spans.
#define DELTA_RULE(T, KEEP, BLOCKS)                                                                                               \
	KR_KERNEL(RULE_THREADS, BLOCKS)                                                                                                 \
	kr_delta_rule_##T##_##KEEP(T *out, int out_stride, const T *x, int x_stride, const T *ba, int ba_stride, const float *decay,    \
	                           const float *bias, float *states, const int *table, int decode, int slots, int heads, int group,     \
	                           int key_dim, int value_dim, Cols a, Cols b) {                                                        \
		__shared__ __align__(16) float shared[RULE_WARPS][2 * RULE_PARTS * (KEEP + 4)];                                               \
		pdl_launch();                                                                                                                 \
		pdl_wait();                                                                                                                   \
		int prompts = table[HEAD_PREFILL], i = (decode ? prompts : 0) + (int)blockIdx.y;                                              \
		int pieces = (value_dim + 31) / 32, h = blockIdx.x / pieces, warp = threadIdx.x / 32;                                         \
		int column = blockIdx.x % pieces * 32 + warp * RULE_COLUMNS + threadIdx.x % RULE_COLUMNS;                                     \
		if (i >= (decode ? prompts + table[HEAD_DECODE] : prompts)) return;                                                           \
		Span s = span_at(table, i);                                                                                                   \
		int slot = slot_of(table, s);                                                                                                 \
		if (slot < 0 || slot >= slots) return;                                                                                        \
		Rule<T> r = {out, x, ba, states, out_stride, x_stride, ba_stride, heads, group, key_dim, value_dim, decay[h], bias[h], a, b}; \
		rule<T, KEEP>(r, s, slot, h, column, shared[warp]);                                                                           \
	}                                                                                                                               \
	KR_EXPORT(kr_delta_rule_##T##_##KEEP)
DELTA_RULE(bf16, 8, 4)
DELTA_RULE(bf16, 16, 4)
DELTA_RULE(bf16, 32, 3)
DELTA_RULE(float, 8, 4)
DELTA_RULE(float, 16, 4)
DELTA_RULE(float, 32, 3)

enum { GATED_THREADS = 128, SIGMOID_GATE = 64 };

// out = RMSNorm(out) * silu(gate), or * sigmoid(gate), head by head, in place. Grid: x heads of rows, one warp for each.
// Flags: out, x, w, SIGMOID_GATE.
KR_KERNEL(GATED_THREADS, 4)
kr_gated_norm(void *out, int out_stride, const void *x, int x_stride, const void *w, int rows, int heads, int group, int dim, Cols z, float eps, int flags) {
	pdl_launch();
	pdl_wait();
	int lane = threadIdx.x % 32, at = blockIdx.x * (GATED_THREADS / 32) + threadIdx.x / 32;
	if (at >= rows * heads) return;
	int row = at / heads, h = at % heads, gate = z.at + h / group * z.step + h % group * dim;
	char *o = row_of(out, row, out_stride, flags & BF16_0);
	const char *g = row_of(x, row, x_stride, flags & BF16_1);
	float sum = 0.f;
	for (int i = lane; i < dim; i += 32) {
		float v = element(o, h * dim + i, flags & BF16_0);
		sum = fmaf(v, v, sum);
	}
	float scale = rms_scale(warp_sum(sum), dim, eps);
	for (int i = lane; i < dim; i += 32) {
		float v = element(o, h * dim + i, flags & BF16_0) * scale * element(w, i, flags & BF16_2);
		float by = element(g, gate + i, flags & BF16_1);
		v *= flags & SIGMOID_GATE ? 1.f / (1.f + expf(-by)) : silu(by);
		if (flags & BF16_0) store((bf16 *)o + h * dim + i, v);
		else store((float *)o + h * dim + i, v);
	}
}
KR_EXPORT(kr_gated_norm)
