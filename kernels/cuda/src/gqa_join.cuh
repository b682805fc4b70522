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

// The generated row that a block joins, and the number of its items; 0: there is no room for them, and the row is NaN.
KR_DEV int joined_row(Span &s, const int *table, int items_max, int window) {
	int prompts = table[HEAD_PREFILL], row = min((int)blockIdx.y, max(table[HEAD_DECODE] - 1, 0));
	s = row_at(table, prompts, row, window);
	if (window > 0) s.start = items_before(table, prompts, row, window);
	return s.start + s.count > items_max ? 0 : s.count;
}

// Groups of items are added in lines: line l of n has groups l, l + n, ... Then the lines are added. Returns the sum, with
// the largest score and the total of the weights.
template <int LINES, class Line> KR_DEV float4 add_lines(float &most, float &total, Line line) {
	float2 ends[LINES];
	float4 x[LINES], all = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
	for (int i = 0; i < LINES; i++) line(i, x[i], ends[i]), most = i ? fmaxf(most, ends[i].x) : ends[i].x;
	total = 0.f;
#pragma unroll
	for (int i = 0; i < LINES; i++) {
		float w = exp2_approx(ends[i].x - most);
		total = fmaf(w, ends[i].y, total);
		all.x = fmaf(w, x[i].x, all.x), all.y = fmaf(w, x[i].y, all.y), all.z = fmaf(w, x[i].z, all.z), all.w = fmaf(w, x[i].w, all.w);
	}
	return all;
}

// Adds a group's sum and mark to a line's.
KR_DEV void add_to_line(float4 &sum, float2 &end, const float4 &x, const float2 &mark) {
	float2 f = fold_factors(end.x, mark.x);
	end.y = fold(end.y, mark.y, f);
	fold(sum, x, f);
}

// Results [rows, heads * D] from part and marks of single items. One block per head of a row; D / 4 threads are a line.
// Grid (heads, rows).
template <int D> KR_DEV void join(const Result &out, const float *part, const float *marks, int items_max, const int *table, int window) {
	const int QUADS = D / 4, LINES = THREADS / QUADS;
	__shared__ __align__(16) float4 sums[THREADS];
	__shared__ float2 ends[LINES];
	int heads = gridDim.x, head = blockIdx.x, quad = threadIdx.x % QUADS, line = threadIdx.x / QUADS;
	pdl_launch();
	Span s;
	int count = joined_row(s, table, items_max, window);
	pdl_wait();
	if ((int)blockIdx.y >= table[HEAD_DECODE]) return;
	float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
	float2 end = make_float2(-INFINITY, 0.f);
	for (int g = line; g * FOLD < count; g += LINES) {
		int n = min((int)FOLD, count - g * FOLD);
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
		add_to_line(sum, end, x[0], m[0]);
	}
	sums[threadIdx.x] = sum;
	if (quad == 0) ends[line] = end;
	__syncthreads();
	if (line > 0) return;
	float most, total;
	float4 all = add_lines<LINES>(most, total, [&](int i, float4 &x, float2 &end) { x = sums[i * QUADS + quad], end = ends[i]; });
	out.store(s.row, head * D + 4 * quad, all, 1.f / out.total(total, most, head));
}

// The same from part and marks of whole groups, which are so few that D / 4 threads have all lines of a head. Grid (parts
// of the heads, rows).
template <int D> KR_DEV void join_groups(const Result &out, const float *part, const float *marks, int items_max, const int *table, int heads, int window) {
	const int QUADS = D / 4, LINES = THREADS / QUADS;
	int head = blockIdx.x * LINES + threadIdx.x / QUADS, quad = threadIdx.x % QUADS;
	pdl_launch();
	Span s;
	int count = joined_row(s, table, items_max, window), groups = (count + FOLD - 1) / FOLD;
	pdl_wait();
	if ((int)blockIdx.y >= table[HEAD_DECODE] || head >= heads) return;
	float4 sum[LINES], x[LINES];
	float2 end[LINES], m[LINES];
#pragma unroll
	for (int i = 0; i < LINES; i++) sum[i] = make_float4(0.f, 0.f, 0.f, 0.f), end[i] = make_float2(-INFINITY, 0.f);
	for (int g = 0; g < groups; g += LINES) {
#pragma unroll
		for (int i = 0; i < LINES; i++) {
			long long at = (long long)(s.start + min(g + i, groups - 1) * FOLD) * heads + head;
			m[i] = ((const float2 *)marks)[at], x[i] = ((const float4 *)part)[at * QUADS + quad];
		}
#pragma unroll
		for (int i = 0; i < LINES; i++)
			if (g + i < groups) add_to_line(sum[i], end[i], x[i], m[i]);
	}
	float most, total;
	float4 all = add_lines<LINES>(most, total, [&](int i, float4 &y, float2 &e) { y = sum[i], e = end[i]; });
	out.store(s.row, head * D + 4 * quad, all, 1.f / out.total(total, most, head));
}
