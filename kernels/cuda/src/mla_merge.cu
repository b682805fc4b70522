// The two ends of latent attention of generated rows. Before it, absorb projects queries into the
// latent space. After it, merge turns the sums of latents into values. Merge also joins the items
// if there is a single row; for several rows join does that first, and for many join_merge does
// both.
#include "absorb.cuh"

// Grid (RANK / ABSORB_COLS, heads, rows / each).
KR_KERNEL(ABSORB_THREADS, 2)
kr_mla_absorb(uint32_t *qa, const bf16 *q, int q_stride, const bf16 *kvb, int kvb_stride, const int *table, int heads, int half,
              int each) {
	KR_SHARED(unsigned char, shared);
	absorb<false>(shared, qa, q, q_stride, kvb, kvb_stride, table, blockIdx.x, blockIdx.y, heads, half, each, Angles());
}
KR_EXPORT(kr_mla_absorb)

// --- the items of a row

enum { GROUPS_MAX = ITEMS_MAX / FOLD, LINES = 4, QUADS = RANK / 4 };

// How the items of a row are summed for a head. A single item counts step.y, and the earlier
// items of its group count step.x (1 and 0 where there is nothing to add). A group counts weight.
struct Plan {
	float4 steps[ITEMS_MAX / 2]; // of two items each
	float weight[GROUPS_MAX], scale;
	int folded[GROUPS_MAX];
	int count;
};

// The part of the plan that follows from the table, by one warp. A row whose items had no room
// has no plan.
KR_DEV void plan_items(Plan &p, const Span &s, int items, int items_max, int shares) {
	int g = threadIdx.x % 32, n = s.start + s.count > items_max ? 0 : s.count;
	int size = shares > 0 ? share_size(min(items, items_max), shares) : 0;
	if (g * FOLD < n) p.folded[g] = folded(s.start + g * FOLD, min((int)FOLD, n - g * FOLD), size);
	if (g == 0) p.count = n;
}

// The items of a group that have sums of their own, one bit each: the first, and those that were
// not added to it.
KR_DEV int members(const Plan &p, int g) {
	int n = min((int)FOLD, p.count - g * FOLD);
	return n > 0 ? 1 | ((1 << n) - (1 << p.folded[g])) : 0;
}

KR_DEV bool has(int members, int j) { return members >> j & 1; }

// Largest scores and sums of weights of a group; mark is that of its first item.
KR_DEV void fetch_marks(float2 (&m)[FOLD], int of, const float2 *mark, int heads) {
#pragma unroll
	for (int j = 0; j < FOLD; j++, mark += heads) m[j] = has(of, j) ? *mark : make_float2(0.f, 0.f);
	__syncwarp(); // these come first, because they need more work
}

// The rest of the plan, by the same warp: one lane per group, whose marks it has. There are no
// branches here, because all other warps wait for this.
KR_DEV void plan_weights(Plan &p, const float2 (&m)[FOLD], int of) {
	int g = threadIdx.x % 32;
	float most = of ? m[0].x : -INFINITY, total = m[0].y;
	float2 f[FOLD];
	f[0] = make_float2(1.f, 0.f);
#pragma unroll
	for (int j = 1; j < FOLD; j++) {
		f[j] = fold_factors(most, has(of, j) ? m[j].x : most);
		if (!has(of, j)) f[j] = make_float2(1.f, 0.f);
		total = fmaf(f[j].y, m[j].y, total * f[j].x);
	}
	float all = most;
	int far = GROUPS_MAX / 2; // lanes from 2 * far on have no group
	while (far * FOLD >= p.count && far > 0) far /= 2;
	for (int d = far; d > 0; d /= 2) all = fmaxf(all, __shfl_xor_sync(0xffffffffu, all, d));
	float weight = exp2_approx(most - all);
	total = of ? weight * total : 0.f;
	for (int d = far; d > 0; d /= 2) total += __shfl_xor_sync(0xffffffffu, total, d);
	if (of) {
		p.weight[g] = weight;
#pragma unroll
		for (int j = 0; j < FOLD; j += 2) p.steps[(g * FOLD + j) / 2] = make_float4(f[j].x, f[j].y, f[j + 1].x, f[j + 1].y);
	}
	if (g == 0) p.scale = p.count > 0 ? 1.f / total : NAN;
}

KR_DEV void fold(float4 &a, float fx, float fy, float4 x) {
	a.x = fmaf(fy, x.x, a.x * fx), a.y = fmaf(fy, x.y, a.y * fx), a.z = fmaf(fy, x.z, a.z * fx), a.w = fmaf(fy, x.w, a.w * fx);
}

// Four columns of a group, the first item's of which are part; 0 where there is no item.
KR_DEV void fetch_group(float4 (&x)[FOLD], int of, const float4 *part, long long step) {
#pragma unroll
	for (int j = 0; j < FOLD; j++, part += step) x[j] = has(of, j) ? *part : make_float4(0.f, 0.f, 0.f, 0.f);
}

// The sum of every LINES'th group from g on; part is the columns of their first item. x has the
// first group already.
KR_DEV float4 sum_line(float4 (&x)[FOLD], const Plan &p, const float4 *part, long long step, int g) {
	float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
	if (g * FOLD >= p.count) return sum;
#pragma unroll 1
	for (;;) {
		float4 a = x[0];
#pragma unroll
		for (int j = 0; j < FOLD; j += 2) {
			float4 f = p.steps[(g * FOLD + j) / 2];
			if (j > 0) fold(a, f.x, f.y, x[j]);
			fold(a, f.z, f.w, x[j + 1]);
		}
		float w = p.weight[g];
		sum.x = fmaf(w, a.x, sum.x), sum.y = fmaf(w, a.y, sum.y), sum.z = fmaf(w, a.z, sum.z), sum.w = fmaf(w, a.w, sum.w);
		g += LINES, part += LINES * FOLD * step;
		if (g * FOLD >= p.count) return sum;
		fetch_group(x, members(p, g), part, step);
	}
}

// Adds the lines of four columns, and returns bf16.
KR_DEV uint2 join_lines(float4 a, float4 b, float4 c, float4 d, float scale) {
	float4 s = make_float4((a.x + b.x) + (c.x + d.x), (a.y + b.y) + (c.y + d.y), (a.z + b.z) + (c.z + d.z), (a.w + b.w) + (c.w + d.w));
	return make_uint2(pack_bf16(s.x * scale, s.y * scale), pack_bf16(s.z * scale, s.w * scale));
}

enum { JOIN_QUADS = 16 };

// latents [decode rows, heads, RANK] from part and marks (mla_decode.cu). A block has a row, a
// head and every parts'th 4 * JOIN_QUADS columns. Grid (heads * parts, rows).
KR_KERNEL(JOIN_QUADS *LINES, 12)
kr_mla_join(bf16 *latents, const float *part, const float *marks, int items_max, int shares, const int *table, int heads, int parts) {
	__shared__ __align__(16) Plan plan;
	__shared__ __align__(16) float4 lines[2][LINES][JOIN_QUADS];
	int tid = threadIdx.x, head = blockIdx.x / parts, row = blockIdx.y;
	int quad = blockIdx.x % parts * JOIN_QUADS + tid % JOIN_QUADS, line = tid / JOIN_QUADS;
	pdl_launch();
	int prompts = table[HEAD_PREFILL], rows = table[HEAD_DECODE], items = table[HEAD_ITEMS];
	Span s = span_at(table, prompts + min(row, max(rows - 1, 0)));
	if (tid < 32) plan_items(plan, s, items, items_max, shares);
	__syncthreads();
	long long at = (long long)s.start * heads + head, step = (long long)heads * QUADS;
	const float4 *from = (const float4 *)part + at * QUADS + line * FOLD * step;
	const float2 *mark = (const float2 *)marks + at + tid % 32 * FOLD * heads;
	const int of = members(plan, line), mine = members(plan, tid % 32);
	pdl_wait();
	if (row >= rows) return;
	float2 m[FOLD];
	float4 x[FOLD];
	if (tid < 32) fetch_marks(m, mine, mark, heads);
	fetch_group(x, of, from + quad, step);
	if (tid < 32) plan_weights(plan, m, mine);
	__syncthreads(); // the plan is complete
	uint2 *to = (uint2 *)(latents + ((long long)row * heads + head) * RANK);
#pragma unroll 1
	for (int odd = 0;; odd ^= 1) {
		lines[odd][line][tid % JOIN_QUADS] = sum_line(x, plan, from + quad, step, line);
		int next = quad + parts * JOIN_QUADS;
		if (next < QUADS) fetch_group(x, of, from + next, step);
		__syncthreads();
		const float4(&sums)[LINES][JOIN_QUADS] = lines[odd];
		if (line == 0) to[quad] = join_lines(sums[0][tid], sums[1][tid], sums[2][tid], sums[3][tid], plan.scale);
		if (next >= QUADS) return;
		quad = next;
	}
}
KR_EXPORT(kr_mla_join)

// --- merge

enum { MERGE_ROWS = 8, MERGE_V = 32, MERGE_THREADS = 512, PIECES = 8, PIECE = RANK / PIECES };

// Joins the items of the only row, by all threads of the block, into latents [RANK]. It waits for
// the kernels that made them.
KR_DEV void join_row(bf16 *latents, float4 (&lines)[LINES][QUADS], Plan &plan, const float *part, const float *marks, const Span &s, int head, int heads) {
	int tid = threadIdx.x, quad = tid % QUADS, line = tid / QUADS;
	long long at = (long long)s.start * heads + head, step = (long long)heads * QUADS;
	const float4 *from = (const float4 *)part + at * QUADS + quad + line * FOLD * step;
	const float2 *mark = (const float2 *)marks + at + tid % 32 * FOLD * heads;
	const int of = members(plan, line), mine = members(plan, tid % 32);
	pdl_wait();
	float2 m[FOLD];
	float4 x[FOLD];
	if (tid < 32) fetch_marks(m, mine, mark, heads);
	fetch_group(x, of, from, step);
	if (tid < 32) plan_weights(plan, m, mine);
	__syncthreads(); // the plan is complete
	lines[line][quad] = sum_line(x, plan, from, step, line);
	__syncthreads();
	if (line == 0) ((uint2 *)latents)[quad] = join_lines(lines[0][quad], lines[1][quad], lines[2][quad], lines[3][quad], plan.scale);
	__syncthreads();
}

// out [rows, heads * VDIM] = latents * w_vc. A block has MERGE_V of a head's values for
// MERGE_ROWS generated rows; a warp has 16 of the values, for a piece of the latent columns.
// latents [decode rows, heads, RANK]; null: there is one row, and its items are joined here. Grid
// (heads * VDIM / MERGE_V, rows / MERGE_ROWS).
KR_KERNEL(MERGE_THREADS, 1)
kr_mla_merge(void *out, int wide, int out_stride, const bf16 *latents, const float *part, const float *marks, int items_max, int shares, const bf16 *kvb, int kvb_stride, const int *table, int heads) {
	__shared__ __align__(16) Plan plan;
	__shared__ __align__(16) float4 lines[LINES][QUADS]; // then the pieces of the product
	__shared__ __align__(16) bf16 joined[RANK];
	int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, g = lane / 4, c = lane % 4;
	int head = blockIdx.x / (VDIM / MERGE_V), v = blockIdx.x % (VDIM / MERGE_V) * MERGE_V, piece = warp / 2 * PIECE;
	pdl_launch();
	// w_vc as the left operand; lane 4g+c has 8 neighbouring columns of rows g and g+8, and the
	// same columns of the latents below.
	const bf16 *w = kvb + ((long long)head * EXPANDED + NOPE + v + warp % 2 * 16 + g) * kvb_stride + piece + 8 * c;
	uint4 one[PIECE / 32], two[PIECE / 32], x[PIECE / 32];
#pragma unroll
	for (int i = 0; i < PIECE / 32; i++) {
		one[i] = *(const uint4 *)(w + 32 * i);
		two[i] = *(const uint4 *)(w + 8LL * kvb_stride + 32 * i);
	}
	int prompts = table[HEAD_PREFILL], rows = table[HEAD_DECODE], first = blockIdx.y * MERGE_ROWS, to = 0;
	if (tid < 32 * MERGE_ROWS && first + warp < rows) to = table[SPAN_HEAD + (prompts + first + warp) * SPAN_RECORD];
	Span s = {};
	if (latents == nullptr) {
		if (rows > 0) s = span_at(table, prompts);
		if (tid < 32) plan_items(plan, s, table[HEAD_ITEMS], items_max, shares);
		__syncthreads();
	}
	if (first >= rows) {
		pdl_wait();
		return;
	}
	if (latents == nullptr) {
		join_row(joined, lines, plan, part, marks, s, head, heads);
#pragma unroll
		for (int i = 0; i < PIECE / 32; i++) x[i] = g == 0 ? *(const uint4 *)(joined + piece + 32 * i + 8 * c) : make_uint4(0, 0, 0, 0);
	} else {
		pdl_wait();
		const bf16 *from = latents + ((long long)(first + g) * heads + head) * RANK + piece + 8 * c;
#pragma unroll
		for (int i = 0; i < PIECE / 32; i++) x[i] = first + g < rows ? *(const uint4 *)(from + 32 * i) : make_uint4(0, 0, 0, 0);
	}
	float d[2][4] = {};
#pragma unroll
	for (int i = 0; i < PIECE / 32; i++) {
		uint32_t lo[4] = {one[i].x, two[i].x, one[i].y, two[i].y}, hi[4] = {one[i].z, two[i].z, one[i].w, two[i].w};
		mma_bf16(d[0], lo, x[i].x, x[i].y);
		mma_bf16(d[1], hi, x[i].z, x[i].w);
	}
	float4 *sums = lines[0]; // [piece][half of the values][lane]: value g of rows 2c, 2c+1, then value g+8
	sums[warp * 32 + lane] = make_float4(d[0][0] + d[1][0], d[0][1] + d[1][1], d[0][2] + d[1][2], d[0][3] + d[1][3]);
	__syncthreads();
	if (tid >= 32 * MERGE_ROWS || first + warp >= rows) return;
	// Now one warp per row, and one lane per value.
	const float *mine = (const float *)sums + lane / 16 * 128 + (4 * (lane % 8) + warp / 2) * 4 + lane / 8 % 2 * 2 + warp % 2;
	float p[PIECES];
#pragma unroll
	for (int i = 0; i < PIECES; i++) p[i] = mine[i * 256];
	put(out, wide, (long long)to * out_stride + head * VDIM + v + lane, ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7])));
}
KR_EXPORT(kr_mla_merge)

// --- both for many rows

// The next item of a group, over a row's groups from line `line` on. The groups of a line follow
// one another.
struct Cursor {
	int line, group, left; // left: the remaining items of the group, one bit each; 0: none is left in any group

	__device__ __forceinline__ void start(const Plan &p, int at) { line = group = at, left = members(p, at); }
	__device__ __forceinline__ int item() const { return group * FOLD + __ffs(left) - 1; }
	__device__ __forceinline__ bool group_ends() const { return (left & (left - 1)) == 0; }
	__device__ __forceinline__ bool line_ends(const Plan &p) const { return group_ends() && (group + LINES) * FOLD >= p.count; }
	__device__ __forceinline__ void step(const Plan &p, int lines_end) {
		left &= left - 1;
		if (left) return;
		group += LINES;
		if (group * FOLD >= p.count) {
			group = ++line;
			if (line >= lines_end) return;
		}
		left = members(p, group);
	}
};

// The sum of four columns of a row's lines first..end-1; part is the columns of their first item.
// AHEAD items are in flight at a time. Lines 0 and 1, and lines 2 and 3, are added before these
// two sums.
template <int AHEAD> struct Walk {
	float4 x[AHEAD];
	Cursor next, at;
	int end;

	__device__ __forceinline__ void fetch(float4 &x, const Plan &p, const float4 *part, long long step) {
		if (!next.left) return;
		x = part[next.item() * step];
		next.step(p, end);
	}
	__device__ __forceinline__ void start(const Plan &p, int first, int lines_end, const float4 *part, long long step) {
		end = lines_end;
		next.start(p, first), at = next;
#pragma unroll
		for (int i = 0; i < AHEAD; i++) {
			x[i] = make_float4(0.f, 0.f, 0.f, 0.f);
			fetch(x[i], p, part, step);
		}
	}
	__device__ __forceinline__ float4 sum(const Plan &p, const float4 *part, long long step) {
		const float4 zero = make_float4(0.f, 0.f, 0.f, 0.f);
		float4 a = zero, line = zero, early = zero, late = zero;
#pragma unroll 1
		while (at.left) {
#pragma unroll
			for (int i = 0; i < AHEAD; i++) {
				if (!at.left) break;
				int item = at.item();
				float2 f = ((const float2 *)p.steps)[item];
				if (item % FOLD == 0) a = x[i];
				else fold(a, f.x, f.y, x[i]);
				fetch(x[i], p, part, step);
				if (at.group_ends()) {
					float w = p.weight[at.group];
					line.x = fmaf(w, a.x, line.x), line.y = fmaf(w, a.y, line.y), line.z = fmaf(w, a.z, line.z), line.w = fmaf(w, a.w, line.w);
					if (at.line_ends(p)) {
						if (at.line >= LINES / 2) add(late, line);
						else add(early, line);
						line = zero;
					}
				}
				at.step(p, end);
			}
		}
		add(early, late);
		return early;
	}
	static __device__ __forceinline__ void add(float4 &a, float4 b) { a.x += b.x, a.y += b.y, a.z += b.z, a.w += b.w; }
};

enum { UNITS = MERGE_THREADS / QUADS, MOST_ROWS = 4, LATENTS = RANK + 32, TILES = VDIM / 16, HALF = PIECES / 2 };
static_assert((int)UNITS == LINES && (int)UNITS == MOST_ROWS && MERGE_THREADS / 32 == 2 * TILES, "a unit of threads has two lines of a row or all of them");

// out [rows, heads * VDIM] from part and marks (mla_decode.cu), with the bits of kr_mla_join and
// kr_mla_merge. A block has a head's values for `each` generated rows (2 or 4); a warp has 16 of
// the values, for half of the latent columns. Grid (heads, rows / each).
KR_KERNEL(MERGE_THREADS, 1)
kr_mla_join_merge(void *out, int wide, int out_stride, const float *part, const float *marks, int items_max, int shares, const bf16 *kvb, int kvb_stride, const int *table, int heads, int each) {
	__shared__ __align__(16) Plan plans[MOST_ROWS];
	__shared__ __align__(16) float4 sums[MERGE_THREADS];               // of units; then [half of the columns][tile of values][lane]
	__shared__ __align__(16) bf16 latents[MOST_ROWS * LATENTS];         // row distance, which spreads rows over the banks
	__shared__ int targets[MOST_ROWS];
	int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, g = lane / 4, c = lane % 4;
	int quad = tid % QUADS, unit = tid / QUADS, of = UNITS / each, row = unit / of, head = blockIdx.x;
	pdl_launch();
	// w_vc as the left operand, as in kr_mla_merge
	const bf16 *w = kvb + ((long long)head * EXPANDED + NOPE + warp % TILES * 16 + g) * kvb_stride + warp / TILES * HALF * PIECE + 8 * c;
	uint4 one[HALF][PIECE / 32], two[HALF][PIECE / 32];
#pragma unroll
	for (int p = 0; p < HALF; p++) {
#pragma unroll
		for (int i = 0; i < PIECE / 32; i++) {
			one[p][i] = *(const uint4 *)(w + p * PIECE + 32 * i);
			two[p][i] = *(const uint4 *)(w + 8LL * kvb_stride + p * PIECE + 32 * i);
		}
	}
	int prompts = table[HEAD_PREFILL], rows = table[HEAD_DECODE], first = blockIdx.y * each, there = min(each, rows - first);
	if (there <= 0) {
		pdl_wait();
		return;
	}
	Span s = span_at(table, prompts + first + min(row, there - 1));
	Plan &plan = plans[row];
	bool planner = unit % of == 0 && quad < 32; // the warp of the row makes its plan
	if (planner) {
		plan_items(plan, s, table[HEAD_ITEMS], items_max, shares);
		if (quad == 0) targets[row] = s.row;
	}
	__syncthreads();
	long long at = (long long)s.start * heads + head, step = (long long)heads * QUADS;
	const float4 *from = (const float4 *)part + at * QUADS + quad;
	const int mine = members(plan, lane);
	pdl_wait();
	float2 m[FOLD];
	Walk<6> walk;
	if (planner) fetch_marks(m, mine, (const float2 *)marks + at + lane * FOLD * heads, heads);
	walk.start(plan, unit % of * each, unit % of * each + each, from, step);
	if (planner) plan_weights(plan, m, mine);
	__syncthreads(); // the plans are complete
	float4 sum = walk.sum(plan, from, step);
	if (of > 1) { // two units have two lines each
		sums[tid] = sum;
		__syncthreads();
		if (unit % of == 0) walk.add(sum, sums[tid + QUADS]);
	}
	float scale = plan.scale;
	if (unit % of == 0) *(uint2 *)(latents + row * LATENTS + 4 * quad) = make_uint2(pack_bf16(sum.x * scale, sum.y * scale), pack_bf16(sum.z * scale, sum.w * scale));
	__syncthreads();
	const bf16 *x = latents + g * LATENTS + warp / TILES * HALF * PIECE + 8 * c;
	float d[HALF][4];
#pragma unroll
	for (int p = 0; p < HALF; p++) {
		float e[2][4] = {};
#pragma unroll
		for (int i = 0; i < PIECE / 32; i++) {
			uint4 v = g < there ? *(const uint4 *)(x + p * PIECE + 32 * i) : make_uint4(0, 0, 0, 0);
			uint32_t lo[4] = {one[p][i].x, two[p][i].x, one[p][i].y, two[p][i].y}, hi[4] = {one[p][i].z, two[p][i].z, one[p][i].w, two[p][i].w};
			mma_bf16(e[0], lo, v.x, v.y);
			mma_bf16(e[1], hi, v.z, v.w);
		}
#pragma unroll
		for (int i = 0; i < 4; i++) d[p][i] = e[0][i] + e[1][i];
	}
#pragma unroll
	for (int i = 0; i < 4; i++) d[0][i] = (d[0][i] + d[1][i]) + (d[2][i] + d[3][i]);
	sums[tid] = make_float4(d[0][0], d[0][1], d[0][2], d[0][3]); // value g of rows 2c, 2c+1, then value g+8
	__syncthreads();
	row = tid / VDIM;
	if (row >= there) return;
	int v = tid % VDIM;
	const float *half = (const float *)(sums + v / 16 * 32 + 4 * (v % 8) + row / 2) + v / 8 % 2 * 2 + row % 2;
	put(out, wide, (long long)targets[row] * out_stride + head * VDIM + v, half[0] + half[TILES * 128]);
}
KR_EXPORT(kr_mla_join_merge)
