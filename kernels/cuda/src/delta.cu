// Gated DeltaNet (arXiv 2412.06464): the causal convolution over the inputs, the recurrence of the
// states, and the gated norm of the output. Rows are of bfloat16 or float32, states of float32.
//
// The newest `taps` inputs of a sequence are a ring: that of position p is in row p % taps of the
// sequence's slot.
#include "elem.cuh"
#include "spans.cuh"

// The slot of a span's sequence comes before its block table.
KR_DEV int slot_of(const int *table, const Span &s) { return table[s.first - 1]; }

// Where the values of a kind lie in a row: those of key head h begin at at + h*step.
struct Cols { int at, step; };

// Rows have one type T in a launch: with a type known only at run time every load would wait for its
// value before the next load is issued.
KR_DEV float value(float v) { return v; }
KR_DEV float value(bf16 v) { return f32(v); }
KR_DEV float element(const void *row, int i, bool half) { return half ? f32(((const bf16 *)row)[i]) : ((const float *)row)[i]; }
KR_DEV float silu(float v) { return v / (1.f + expf(-v)); }

enum { CONV_THREADS = 128, TAPS_MAX = 16 };

// A thread computes one channel of a generated row, or of ROW_TILE rows of a prompt. The first tile of
// a span alone reads the inputs that are kept, and then writes the new ones.
template <class T, int TAPS>
KR_DEV void conv(T *out, int out_stride, const T *x, int x_stride, const float *w, int w_stride, float *tail, const int *table, int decode, int slots,
                 int taps, int heads, int key_dim, int values, Cols q, Cols k, Cols v) {
	int prompts = table[HEAD_PREFILL], keys = heads * key_dim, channels = 2 * keys + heads * values;
	int i = decode ? prompts + (int)blockIdx.y : span_of_item(table, 0, prompts, blockIdx.y);
	int c = blockIdx.x * CONV_THREADS + threadIdx.x;
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
	float weight[TAPS], past[TAPS]; // past[j]: the input j+1 rows before
#pragma unroll
	for (int j = 0; j < TAPS; j++) weight[j] = j < taps ? w[(long long)(taps - 1 - j) * w_stride + c] : 0.f;
#pragma unroll
	for (int j = 0; j < TAPS; j++) {
		int row = first - 1 - j;
		past[j] = 0.f;
		if (j >= taps - 1) continue;
		if (row >= 0) past[j] = value(x[(long long)row * x_stride]);
		else if (s.pos + row >= 0) past[j] = kept[(long long)((s.pos + row) % taps) * channels];
	}
	if (first == 0)
		for (int r = max(0, s.len - taps); r < s.len; r++) kept[(long long)((s.pos + r) % taps) * channels] = value(x[(long long)r * x_stride]);
	enum { AHEAD = 8 };
	for (int from = first; from < end; from += AHEAD) {
		T next[AHEAD];
#pragma unroll
		for (int r = 0; r < AHEAD; r++) next[r] = x[(long long)min(from + r, end - 1) * x_stride];
#pragma unroll
		for (int r = 0; r < AHEAD; r++) {
			if (from + r >= end) break;
			float now = value(next[r]), sum = 0.f;
#pragma unroll
			for (int j = TAPS - 1; j > 0; j--) sum = fmaf(weight[j], past[j - 1], sum);
			sum = fmaf(weight[0], now, sum);
#pragma unroll
			for (int j = TAPS - 1; j > 0; j--) past[j] = past[j - 1];
			past[0] = now;
			store(out + (long long)(from + r) * out_stride, silu(sum));
		}
	}
}

// Grid: x channels, y rows. With four taps or fewer only these are kept in registers.
#define DELTA_CONV(T)                                                                                                                      \
	KR_KERNEL(CONV_THREADS, 4)                                                                                                                \
	kr_delta_conv_##T(T *out, int out_stride, const T *x, int x_stride, const float *w, int w_stride, float *tail, const int *table,         \
	                  int decode, int slots, int taps, int heads, int key_dim, int values, Cols q, Cols k, Cols v) {                         \
		pdl_launch();                                                                                                                           \
		pdl_wait();                                                                                                                             \
		if (taps <= 4) conv<T, 4>(out, out_stride, x, x_stride, w, w_stride, tail, table, decode, slots, taps, heads, key_dim, values, q, k, v); \
		else conv<T, TAPS_MAX>(out, out_stride, x, x_stride, w, w_stride, tail, table, decode, slots, taps, heads, key_dim, values, q, k, v);   \
	}                                                                                                                                         \
	KR_EXPORT(kr_delta_conv_##T)
DELTA_CONV(bf16)
DELTA_CONV(float)

enum { RULE_THREADS = 128, RULE_WARPS = RULE_THREADS / 32, RULE_COLUMNS = 8, RULE_PARTS = 4 };

// The operands of a row as a lane loads them: KEEP / 8 values of the query and of the key, the value
// of its column, and the head's two numbers.
template <class T, int KEEP> struct Token { T q[KEEP / 8], k[KEEP / 8], v, a, b; };

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
	enum { PAD = KEEP + 4 };
	int lane = threadIdx.x % 32, part = lane / RULE_COLUMNS;
	float *sq = shared, *sk = shared + RULE_PARTS * PAD;
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
			sq[at] = q[j] * by_q, sk[at] = k[j] * by_k;
		}
		__syncwarp();
		float a = value(t.a) + r.bias, v = value(t.v), strength = 1.f / (1.f + expf(-value(t.b)));
		float decay = expf(r.decay * (fmaxf(a, 0.f) + log1pf(expf(-fabsf(a)))));
		if (n + 1 < s.len) fetch_token(t, r, s.row + n + 1, h, column);
		float known = 0.f, sum = 0.f;
#pragma unroll
		for (int j = 0; j < KEEP; j += 4) {
			float4 k = *(const float4 *)(sk + part * PAD + j);
			known = fmaf(k.x, state[j], known), known = fmaf(k.y, state[j + 1], known);
			known = fmaf(k.z, state[j + 2], known), known = fmaf(k.w, state[j + 3], known);
		}
		known += __shfl_xor_sync(0xffffffffu, known, 8);
		known += __shfl_xor_sync(0xffffffffu, known, 16);
		float change = (v - decay * known) * strength;
#pragma unroll
		for (int j = 0; j < KEEP; j += 4) {
			float4 q = *(const float4 *)(sq + part * PAD + j), k = *(const float4 *)(sk + part * PAD + j);
			state[j] = fmaf(k.x, change, decay * state[j]), sum = fmaf(q.x, state[j], sum);
			state[j + 1] = fmaf(k.y, change, decay * state[j + 1]), sum = fmaf(q.y, state[j + 1], sum);
			state[j + 2] = fmaf(k.z, change, decay * state[j + 2]), sum = fmaf(q.z, state[j + 2], sum);
			state[j + 3] = fmaf(k.w, change, decay * state[j + 3]), sum = fmaf(q.w, state[j + 3], sum);
		}
		sum += __shfl_xor_sync(0xffffffffu, sum, 8);
		sum += __shfl_xor_sync(0xffffffffu, sum, 16);
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

enum { GATED_THREADS = 128 };

// out = RMSNorm(out) * silu(gate), head by head, in place. Grid: x heads of rows, one warp for each.
// Flags: out, x, w.
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
		v *= silu(element(g, gate + i, flags & BF16_1));
		if (flags & BF16_0) store((bf16 *)o + h * dim + i, v);
		else store((float *)o + h * dim + i, v);
	}
}
KR_EXPORT(kr_gated_norm)
