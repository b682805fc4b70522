// Sums of gqa_decode.cu: those of a block's warps at the end of an item, and those of a row's items.
#pragma once
#include "gqa_step.cuh"

// Where a row's result goes. Result.rows null (of attend): the row has several items, which go to part and marks. sinks: of
// the heads, or null.
struct Result {
	void *rows;
	int wide, stride;
	const float *sinks;

	// Stores four columns of a batch's row.
	__device__ __forceinline__ void store(long long row, int column, const float4 &x, float scale) const {
		long long at = row * stride + column;
		if (wide) {
			*(float4 *)((float *)rows + at) = make_float4(x.x * scale, x.y * scale, x.z * scale, x.w * scale);
		} else {
			*(uint2 *)((bf16 *)rows + at) = make_uint2(pack_bf16(x.x * scale, x.y * scale), pack_bf16(x.z * scale, x.w * scale));
		}
	}
	// The sum of a head's weights and its sink's, relative to the score `most`, which includes log2(e).
	__device__ __forceinline__ float total(float sum, float most, int head) const {
		return sinks ? sum + exp2_approx(fmaf(1.44269504f, sinks[head], -most)) : sum;
	}
};

// A thread's sums when warps are joined: of one head (head_of), a float4 of every `cols` columns (quad_of).
template <int D, int N> struct Joined {
	float4 sum[D * N / 64];
	float most, total;
};
template <int N> KR_DEV int head_of() { return threadIdx.x / (16 / N); }
template <int N> KR_DEV int quad_of() { return threadIdx.x % (16 / N); }

// Stores columns k * chunk.. of a warp's sums and, with k 0, the marks of its heads.
template <int KIND, int D, int N> KR_DEV void store_warp(const State<D, N> &st, unsigned char *shared, int k) {
	typedef Ring<KIND, D, N> R;
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
	float2 *marks = (float2 *)(shared + R::at_marks);
	float *sums = (float *)(shared + R::at_sums);
#pragma unroll
	for (int n = 0; n < N; n++) {
		if (k == 0) {
#pragma unroll
			for (int i = 0; i < 2; i++) {
				float total = st.total[n][i];
#pragma unroll
				for (int d = 4; d < 32; d *= 2) total += __shfl_xor_sync(0xffffffffu, total, d);
				if (g == 0) marks[warp * R::heads + 8 * n + 2 * c + i] = make_float2(st.most[n][i], total);
			}
		}
		float *to = sums + (warp * R::heads + 8 * n + 2 * c) * R::gap;
#pragma unroll
		for (int t = 0; t < R::chunk / 16; t++) {
			const float(&x)[4] = st.sum[k * (R::chunk / 16) + t][n];
			if (KIND == BF16_ROWS) {
				to[16 * t + g] = x[0], to[R::gap + 16 * t + g] = x[1];
				to[16 * t + 8 + g] = x[2], to[R::gap + 16 * t + 8 + g] = x[3];
			} else {
				store2(to + 16 * t + 2 * g, x[0], x[2]);
				store2(to + R::gap + 16 * t + 2 * g, x[1], x[3]);
			}
		}
	}
}

// Joins what all warps have stored. f: their factors, which k 0 sets.
template <int KIND, int D, int N> KR_DEV void read_warps(Joined<D, N> &out, float (&f)[WARPS], const unsigned char *shared, int k) {
	typedef Ring<KIND, D, N> R;
	int head = head_of<N>();
	if (k == 0) {
		const float2 *marks = (const float2 *)(shared + R::at_marks);
		float2 m[WARPS];
		out.most = -INFINITY;
#pragma unroll
		for (int w = 0; w < WARPS; w++) m[w] = marks[w * R::heads + head], out.most = fmaxf(out.most, m[w].x);
#pragma unroll
		for (int w = 0; w < WARPS; w++) f[w] = exp2_approx(m[w].x - out.most);
		out.total = fmaf(f[0], m[0].y, f[1] * m[1].y) + fmaf(f[2], m[2].y, f[3] * m[3].y);
	}
	const float4 *from = (const float4 *)((const float *)(shared + R::at_sums) + head * R::gap) + quad_of<N>();
	const int next = R::heads * R::gap / 4; // warp
#pragma unroll
	for (int i = 0; i < R::chunk / R::cols; i++, from += R::cols / 4) {
		float4 x = from[0], y = from[next], z = from[2 * next], u = from[3 * next];
		out.sum[k * (R::chunk / R::cols) + i] =
		    make_float4(fmaf(f[0], x.x, f[1] * y.x) + fmaf(f[2], z.x, f[3] * u.x), fmaf(f[0], x.y, f[1] * y.y) + fmaf(f[2], z.y, f[3] * u.y),
		                fmaf(f[0], x.z, f[1] * y.z) + fmaf(f[2], z.z, f[3] * u.z), fmaf(f[0], x.w, f[1] * y.w) + fmaf(f[2], z.w, f[3] * u.w));
	}
}

// Joins the sums of all warps. All threads call it.
template <int KIND, int D, int N> KR_DEV void join_warps(Joined<D, N> &out, const State<D, N> &st, unsigned char *shared) {
	float f[WARPS];
#pragma unroll
	for (int k = 0; k < D / Ring<KIND, D, N>::chunk; k++) {
		__syncthreads(); // the previous result has been read
		store_warp<KIND, D, N>(st, shared, k);
		__syncthreads();
		read_warps<KIND, D, N>(out, f, shared, k);
	}
}

// A block's sums for a group's items so far, in registers or in shared memory.
template <int KIND, int D, int N> struct Group {
	static const bool away = Ring<KIND, D, N>::far || Ring<KIND, D, N>::late;
	float4 sum[away ? 1 : D * N / 64];
	float2 mark; // largest score, sum of weights
};

template <int KIND, int D, int N> KR_DEV float4 &group_sum(Group<KIND, D, N> &g, unsigned char *shared, int i) {
	const bool away = Group<KIND, D, N>::away;
	if (away) return ((float4 *)(shared + Ring<KIND, D, N>::at_kept))[i * THREADS + threadIdx.x];
	return g.sum[away ? 0 : i];
}

template <int KIND, int D, int N> KR_DEV float2 &group_mark(Group<KIND, D, N> &g, unsigned char *shared) {
	typedef Ring<KIND, D, N> R;
	if (Group<KIND, D, N>::away) return ((float2 *)(shared + R::at_kept + D / R::cols * THREADS * 16))[threadIdx.x];
	return g.mark;
}

template <int KIND, int D, int N> KR_DEV void keep_item(Group<KIND, D, N> &g, unsigned char *shared, const Joined<D, N> &x) {
	group_mark(g, shared) = make_float2(x.most, x.total);
#pragma unroll
	for (int i = 0; i < D * N / 64; i++) group_sum(g, shared, i) = x.sum[i];
}

// Adds x to the group's sums, and returns them in x.
template <int KIND, int D, int N> KR_DEV void add_group(Joined<D, N> &x, Group<KIND, D, N> &g, unsigned char *shared) {
	float2 mark = group_mark(g, shared), f = fold_factors(mark.x, x.most);
	x.most = mark.x, x.total = fold(mark.y, x.total, f);
#pragma unroll
	for (int i = 0; i < D * N / 64; i++) {
		float4 a = group_sum(g, shared, i);
		fold(a, x.sum[i], f);
		x.sum[i] = a;
	}
}

// part [items, heads, D] and marks [items, heads, 2]; at is item * heads + head of the thread.
template <int D, int N> KR_DEV void put(float *part, float *marks, const Joined<D, N> &x, long long at) {
#pragma unroll
	for (int i = 0; i < D * N / 64; i++) ((float4 *)(part + at * D + i * (64 / N)))[quad_of<N>()] = x.sum[i];
	if (quad_of<N>() == 0) store2(marks + 2 * at, x.most, x.total);
}

// Writes a row of the batch that has one item.
template <int D, int N> KR_DEV void finish(const Result &out, const Joined<D, N> &x, int row, int head) {
	float scale = 1.f / out.total(x.total, x.most, head);
#pragma unroll
	for (int i = 0; i < D * N / 64; i++) out.store(row, head * D + i * (64 / N) + 4 * quad_of<N>(), x.sum[i], scale);
}

// --- join

// Results [rows, heads * D] from part and marks. One block per head of a row; a line of D / 4 threads has every LINES'th
// group of items. Grid (heads, rows).
template <int D> KR_DEV void join(const Result &out, const float *part, const float *marks, int items_max, int groups, const int *table, int window) {
	const int QUADS = D / 4, LINES = THREADS / QUADS;
	__shared__ __align__(16) float4 sums[THREADS];
	__shared__ float2 ends[LINES];
	int heads = gridDim.x, head = blockIdx.x, row = blockIdx.y, quad = threadIdx.x % QUADS, line = threadIdx.x / QUADS;
	pdl_launch();
	int prompts = table[HEAD_PREFILL], rows = table[HEAD_DECODE];
	Span s = row_at(table, prompts, min(row, max(rows - 1, 0)), window);
	if (window > 0) s.start = items_before(table, prompts, min(row, max(rows - 1, 0)), window);
	int count = s.start + s.count > items_max ? 0 : s.count; // a row without room is NaN
	pdl_wait();
	if (row >= rows) return;
	float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
	float most = -INFINITY, total = 0.f;
	for (int g = line; g * FOLD < count; g += LINES) {
		int n = groups ? 1 : min((int)FOLD, count - g * FOLD);
		long long at = (long long)(s.start + g * FOLD) * heads + head;
		float4 x[FOLD];
		float2 m[FOLD];
#pragma unroll
		for (int i = 0; i < FOLD; i++) {
			if (i >= n) continue;
			m[i] = ((const float2 *)marks)[at + (long long)i * heads];
			x[i] = ((const float4 *)part)[(at + (long long)i * heads) * QUADS + quad];
		}
#pragma unroll
		for (int i = 1; i < FOLD; i++) {
			if (i >= n) continue;
			float2 f = fold_factors(m[0].x, m[i].x);
			m[0].y = fold(m[0].y, m[i].y, f);
			fold(x[0], x[i], f);
		}
		float2 f = fold_factors(most, m[0].x);
		total = fold(total, m[0].y, f);
		fold(sum, x[0], f);
	}
	sums[threadIdx.x] = sum;
	if (quad == 0) ends[line] = make_float2(most, total);
	__syncthreads();
	if (line > 0) return;
	for (int i = 1; i < LINES; i++) most = fmaxf(most, ends[i].x);
	float4 all = make_float4(0.f, 0.f, 0.f, 0.f);
	total = 0.f;
#pragma unroll
	for (int i = 0; i < LINES; i++) {
		float w = exp2_approx(ends[i].x - most);
		float4 x = sums[i * QUADS + quad];
		total = fmaf(w, ends[i].y, total);
		all.x = fmaf(w, x.x, all.x), all.y = fmaf(w, x.y, all.y), all.z = fmaf(w, x.z, all.z), all.w = fmaf(w, x.w, all.w);
	}
	out.store(s.row, head * D + 4 * quad, all, 1.f / out.total(total, most, head));
}
