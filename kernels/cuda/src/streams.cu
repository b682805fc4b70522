// Several residual streams of a token side by side (kernels/device, OpSigmoid to OpStreamGates): what
// makes them the input of a block, and adds the block's output to them. A stream has `cols` values.
#include "elem.cuh"

// out * f(in * v), f the sigmoid, or with silu v * sigmoid(v) (kernels/device, Sigmoid).
struct Curve {
	int silu;
	float in, out;
	__device__ __forceinline__ float operator()(float v) const {
		v *= in;
		float s = out / (1.f + expf(-v));
		return silu ? v * s : s;
	}
};

// Chunk i of a row by c, in place.
template <int V> KR_DEV void bend(void *row, int i, const Curve &c, bool half) {
	float v[V];
	get(v, row, i, half);
	for (int j = 0; j < V; j++) v[j] = c(v[j]);
	put(row, i, v, half);
}

// a [rows, a_cols] and b [rows, b_cols], each by its curve, in place; b may have no columns. Grid: x rows, y pieces of both
// rows. Flags: a, b; VEC is of a.
KR_KERNEL(256, 1)
kr_sigmoid(void *a, int a_stride, int a_cols, int a_silu, float a_in, float a_out, void *b, int b_stride, int b_cols, int b_silu, float b_in,
           float b_out, int flags) {
	pdl_launch();
	pdl_wait();
	int i = blockIdx.y * blockDim.x + threadIdx.x, chunks = flags & VEC ? a_cols / 8 : a_cols;
	if (i >= chunks) {
		if (i - chunks < b_cols) bend<1>(row_of(b, blockIdx.x, b_stride, flags & BF16_1), i - chunks, Curve{b_silu, b_in, b_out}, flags & BF16_1);
		return;
	}
	void *row = row_of(a, blockIdx.x, a_stride, flags & BF16_0);
	if (flags & VEC) bend<8>(row, i, Curve{a_silu, a_in, a_out}, flags & BF16_0);
	else bend<1>(row, i, Curve{a_silu, a_in, a_out}, flags & BF16_0);
}
KR_EXPORT(kr_sigmoid)

// What weighs a stream in a sum: nothing (the mean), one number, or one for each value, as it is or by a curve.
enum { MEAN, BY_STREAM, BY_VALUE, BY_CURVE };

// Chunk i of the weighted sum of a row's streams. Four streams are fetched at a time.
template <int V> KR_DEV void collapse(void *out, const void *x, const void *w, int kind, int streams, int cols, const Curve &curve, int i, int flags) {
	const int AHEAD = 4;
	bool x_half = flags & BF16_1, w_half = flags & BF16_2;
	int step = cols / V;
	float sum[V];
	for (int j = 0; j < V; j++) sum[j] = 0.f;
	for (int s = 0; s < streams; s += AHEAD) {
		Chunk<V> a[AHEAD], b[AHEAD];
#pragma unroll
		for (int n = 0; n < AHEAD; n++)
			if (s + n < streams) {
				fetch(a[n], x, (s + n) * step + i, x_half);
				if (kind >= BY_VALUE) fetch(b[n], w, (s + n) * step + i, w_half);
			}
#pragma unroll
		for (int n = 0; n < AHEAD; n++) {
			if (s + n >= streams) break;
			float v[V], by[V], one = 1.f;
			widen(v, a[n], x_half);
			if (kind == BY_STREAM) one = w_half ? load((const bf16 *)w + s + n) : load((const float *)w + s + n);
			if (kind >= BY_VALUE) widen(by, b[n], w_half);
			for (int j = 0; j < V; j++) sum[j] = fmaf(kind < BY_VALUE ? one : kind == BY_CURVE ? curve(by[j]) : by[j], v[j], sum[j]);
		}
	}
	if (kind == MEAN)
		for (int j = 0; j < V; j++) sum[j] /= (float)streams;
	put(out, i, sum, flags & BF16_0);
}

// out [rows, cols] = the sum of the streams of x [rows, streams * cols], weighed by w. Grid: x rows, y pieces of a row of out. Flags: out, x, w.
KR_KERNEL(256, 1)
kr_collapse(void *out, int out_stride, const void *x, int x_stride, const void *w, int w_stride, int kind, int silu, float in, float by,
            int streams, int cols, int flags) {
	pdl_launch();
	pdl_wait();
	int i = blockIdx.y * blockDim.x + threadIdx.x;
	void *to = row_of(out, blockIdx.x, out_stride, flags & BF16_0);
	const void *from = row_of(x, blockIdx.x, x_stride, flags & BF16_1), *with = row_of(w, blockIdx.x, w_stride, flags & BF16_2);
	const Curve curve = {silu, in, by};
	if (flags & VEC) {
		if (i < cols / 8) collapse<8>(to, from, with, kind, streams, cols, curve, i, flags);
	} else if (i < cols) {
		collapse<1>(to, from, with, kind, streams, cols, curve, i, flags);
	}
}
KR_EXPORT(kr_collapse)

KR_DEV float number(const void *row, int i, bool half) { return half ? load((const bf16 *)row + i) : load((const float *)row + i); }

// A row of streams that grows by y: chunk i of each stream.
struct Spread {
	void *out;
	const void *y, *w, *base; // base may be 0, or out
	int streams, cols;
	bool out_half, y_half, w_half, base_half;
};

// Each stream of base, plus y times its weight.
template <int V> KR_DEV void spread(const Spread &a, int i) {
	int step = a.cols / V;
	float y[V];
	get(y, a.y, i, a.y_half);
#pragma unroll 4
	for (int s = 0; s < a.streams; s++) {
		float v[V], w = number(a.w, s, a.w_half);
		if (a.base) get(v, a.base, s * step + i, a.base_half);
		for (int j = 0; j < V; j++) v[j] = a.base ? fmaf(w, y[j], v[j]) : w * y[j];
		put(a.out, s * step + i, v, a.out_half);
	}
}

enum { MIXED_MOST = 64 }; // streams

// The new stream k is the sum of the streams j of base by the numbers n + j*n + k of w, plus y times number k. All streams are read
// before one is written. N: how many there are at most.
template <int V, int N> KR_DEV void spread_mixed(const Spread &a, int i) {
	int step = a.cols / V, n = a.streams;
	float y[V], from[N][V];
	get(y, a.y, i, a.y_half);
#pragma unroll
	for (int j = 0; j < N; j++)
		if (j < n) get(from[j], a.base, j * step + i, a.base_half);
	for (int k = 0; k < n; k++) {
		float v[V], w = number(a.w, k, a.w_half);
		for (int c = 0; c < V; c++) v[c] = w * y[c];
#pragma unroll
		for (int j = 0; j < N; j++) {
			if (j >= n) break;
			w = number(a.w, n + j * n + k, a.w_half);
			for (int c = 0; c < V; c++) v[c] = fmaf(w, from[j][c], v[c]);
		}
		put(a.out, k * step + i, v, a.out_half);
	}
}

// out [rows, streams * cols] = base + y [rows, cols] times the weights w of the streams; mixed: of mixed streams of base. Grid: x rows, y pieces
// of a row of y. Flags: out, y, w, base.
KR_KERNEL(256, 1)
kr_spread(void *out, int out_stride, const void *y, int y_stride, const void *w, int w_stride, const void *base, int base_stride, int mixed,
          int streams, int cols, int flags) {
	pdl_launch();
	pdl_wait();
	int i = blockIdx.y * blockDim.x + threadIdx.x, row = blockIdx.x;
	if (i >= (flags & VEC ? cols / 8 : cols)) return;
	Spread a = {row_of(out, row, out_stride, flags & BF16_0), row_of(y, row, y_stride, flags & BF16_1), row_of(w, row, w_stride, flags & BF16_2),
	            base ? row_of(base, row, base_stride, flags & BF16_3) : nullptr, streams, cols,
	            (flags & BF16_0) != 0, (flags & BF16_1) != 0, (flags & BF16_2) != 0, (flags & BF16_3) != 0};
	if (!mixed) {
		if (flags & VEC) spread<8>(a, i);
		else spread<1>(a, i);
	} else if (flags & VEC) {
		spread_mixed<8, 4>(a, i);
	} else {
		spread_mixed<1, MIXED_MOST>(a, i);
	}
}
KR_EXPORT(kr_spread)

// A stream of a row, which may grow by a * y first, and its norm.
struct Stream {
	void *out, *x;
	const void *y, *w;
	float a, eps;
	int cols;
	bool out_half, x_half, w_half, y_half;
};

template <int V, bool GROWS> KR_DEV void take(float (&v)[V], const Stream &s, int i) {
	Chunk<V> x, y;
	fetch(x, s.x, i, s.x_half);
	if (GROWS) fetch(y, s.y, i, s.y_half);
	widen(v, x, s.x_half);
	if constexpr (GROWS) {
		float d[V];
		widen(d, y, s.y_half);
		for (int j = 0; j < V; j++) v[j] = fmaf(s.a, d[j], v[j]);
		put(s.x, i, v, s.x_half);
		round_to(v, s.x_half);
	}
}

// The order of the sum depends on the block's size alone, which follows from cols.
template <int V, bool GROWS> KR_DEV void norm_stream(const Stream &s, float *parts) {
	const int KEPT = 2;
	int chunks = s.cols / V, step = blockDim.x;
	float v[KEPT][V], sum = 0.f;
#pragma unroll
	for (int c = 0; c < KEPT; c++) {
		int i = threadIdx.x + c * step;
		if (i < chunks) {
			take<V, GROWS>(v[c], s, i);
			for (int j = 0; j < V; j++) sum = fmaf(v[c][j], v[c][j], sum);
		}
	}
	for (int i = threadIdx.x + KEPT * step; i < chunks; i += step) {
		float t[V];
		take<V, GROWS>(t, s, i);
		for (int j = 0; j < V; j++) sum = fmaf(t[j], t[j], sum);
	}
	float scale = rms_scale(block_sum(sum, blockDim.x, parts), s.cols, s.eps);
	for (int i = threadIdx.x, c = 0; i < chunks; i += step, c++) {
		float t[V], w[V];
		get(w, s.w, i, s.w_half);
		if (c >= KEPT) get(t, s.x, i, s.x_half);
		for (int j = 0; j < V; j++) t[j] = (c == 0 ? v[0][j] : c == 1 ? v[1][j] : t[j]) * scale * w[j];
		put(s.out, i, t, s.out_half);
	}
}

// out [rows, streams * cols]: the norm of each stream of x, by its part of w. With y [rows, cols] the streams grow before by y times
// their weights a [rows, streams], and x keeps them. Grid: x rows, y streams. Flags: out, x, w, y, a.
KR_KERNEL(512, 2)
kr_stream_norms(void *out, int out_stride, void *x, int x_stride, const void *w, const void *y, int y_stride, const void *a, int a_stride, int cols,
                float eps, int flags) {
	__shared__ float parts[32];
	pdl_launch();
	pdl_wait();
	int row = blockIdx.x, at = blockIdx.y * cols;
	Stream s = {row_of(row_of(out, row, out_stride, flags & BF16_0), 1, at, flags & BF16_0), row_of(row_of(x, row, x_stride, flags & BF16_1), 1, at, flags & BF16_1),
	            y ? row_of(y, row, y_stride, flags & BF16_3) : nullptr, row_of(w, 1, at, flags & BF16_2), 0.f, eps, cols,
	            (flags & BF16_0) != 0, (flags & BF16_1) != 0, (flags & BF16_2) != 0, (flags & BF16_3) != 0};
	if (y) s.a = number(row_of(a, row, a_stride, flags & BF16_4), blockIdx.y, flags & BF16_4);
	if (flags & VEC) {
		if (y) norm_stream<8, true>(s, parts);
		else norm_stream<8, false>(s, parts);
	} else {
		if (y) norm_stream<1, true>(s, parts);
		else norm_stream<1, false>(s, parts);
	}
}
KR_EXPORT(kr_stream_norms)

enum { GATE_THREADS = 128 };

// out [rows, streams]: d is the product of a stream of x and of y over sqrt(cols), out sign(d) * sqrt(max(|d|, 1e-6)). Sums are of float64: what
// is left of large products may be small, and its root is not. Grid: x rows, y streams. Flags: out, x, y.
KR_KERNEL(GATE_THREADS, 1)
kr_stream_gates(void *out, int out_stride, const void *x, int x_stride, const void *y, int y_stride, int cols, int flags) {
	__shared__ double parts[GATE_THREADS / 32];
	pdl_launch();
	pdl_wait();
	int at = blockIdx.y * cols;
	const void *a = row_of(x, blockIdx.x, x_stride, flags & BF16_1), *b = row_of(y, blockIdx.x, y_stride, flags & BF16_2);
	double sum = 0.;
	for (int i = threadIdx.x; i < cols; i += GATE_THREADS) sum += (double)number(a, at + i, flags & BF16_1) * (double)number(b, at + i, flags & BF16_2);
	for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
	if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
	__syncthreads();
	if (threadIdx.x != 0) return;
	sum = 0.;
	for (int i = 0; i < GATE_THREADS / 32; i++) sum += parts[i];
	sum /= sqrt((double)cols);
	double root = sqrt(fabs(sum) > 1e-6 ? fabs(sum) : 1e-6);
	float gate = sum > 0. ? (float)root : sum < 0. ? (float)-root : (float)sum; // 0 stays, and what is not a number
	void *row = row_of(out, blockIdx.x, out_stride, flags & BF16_0);
	if (flags & BF16_0) store((bf16 *)row + blockIdx.y, gate);
	else store((float *)row + blockIdx.y, gate);
}
KR_EXPORT(kr_stream_gates)
