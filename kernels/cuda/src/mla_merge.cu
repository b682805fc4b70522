// The two ends of latent attention of generated rows: queries are brought into the latent
// space before it (absorb), and what it has summed up is brought to values after it
// (merge, which joins the items of a row first; of many items join does that).
#include "absorb.cuh"

// Grid (RANK / ABSORB_COLS, heads, rows / ABSORB_ROWS).
KR_KERNEL(ABSORB_THREADS, 2)
kr_mla_absorb(uint32_t *qa, const bf16 *q, int q_stride, const bf16 *kvb, int kvb_stride, const int *table, int heads, int half) {
	KR_SHARED(unsigned char, shared);
	absorb<false>(shared, qa, q, q_stride, kvb, kvb_stride, table, blockIdx.x, blockIdx.y, heads, half, Angles());
}
KR_EXPORT(kr_mla_absorb)

// --- the items of a row

enum { GROUPS_MAX = ITEMS_MAX / FOLD, LINES = 4, QUADS = RANK / 4 };

// How the items of a row are summed up for a head: an item by itself counts step.y, what
// was summed up before it in its group step.x; a group counts weight.
struct Plan {
	float2 step[ITEMS_MAX];
	float weight[GROUPS_MAX], scale;
	int folded[GROUPS_MAX];
	int count;
};

// The part of the plan that the table tells, by a warp. A row whose items had no room has
// none.
KR_DEV void plan_items(Plan &p, const Span &s, int items, int items_max, int shares) {
	int g = threadIdx.x % 32, n = s.start + s.count > items_max ? 0 : s.count;
	int size = shares > 0 ? share_size(min(items, items_max), shares) : 0;
	if (g * FOLD < n) p.folded[g] = folded(s.start + g * FOLD, min((int)FOLD, n - g * FOLD), size);
	if (g == 0) p.count = n;
}

// The rest of it, of marks (the largest score and the sum of weights) from the row's
// first item on, by the same warp: a lane a group.
KR_DEV void plan_weights(Plan &p, const float2 *mark, int heads) {
	int g = threadIdx.x % 32, n = min((int)FOLD, p.count - g * FOLD);
	float most = -INFINITY, total = 0.f;
	if (n > 0) {
		int from = p.folded[g];
		float2 m[FOLD];
#pragma unroll
		for (int j = 0; j < FOLD; j++)
			if (j == 0 || (j >= from && j < n)) m[j] = mark[(long long)(g * FOLD + j) * heads];
		most = m[0].x, total = m[0].y;
#pragma unroll
		for (int j = 1; j < FOLD; j++) {
			if (j < from || j >= n) continue;
			float2 f = fold_factors(most, m[j].x);
			total = fmaf(f.y, m[j].y, total * f.x);
			p.step[g * FOLD + j] = f;
		}
	}
	float weight = exp2_approx(most - warp_max(most));
	if (n > 0) p.weight[g] = weight;
	total = warp_sum(n > 0 ? weight * total : 0.f);
	if (g == 0) p.scale = p.count > 0 ? 1.f / total : NAN;
}

KR_DEV void fold(float4 &a, float2 f, float4 x) {
	a.x = fmaf(f.y, x.x, a.x * f.x), a.y = fmaf(f.y, x.y, a.y * f.x), a.z = fmaf(f.y, x.z, a.z * f.x), a.w = fmaf(f.y, x.w, a.w * f.x);
}

// Four columns of group g, part being the row's first item there.
KR_DEV void fetch_group(float4 (&x)[FOLD], const Plan &p, const float4 *part, long long step, int g) {
	int n = min((int)FOLD, p.count - g * FOLD);
	if (n <= 0) return;
	int from = p.folded[g];
	part += g * FOLD * step;
#pragma unroll
	for (int j = 0; j < FOLD; j++)
		if (j == 0 || (j >= from && j < n)) x[j] = part[j * step];
}

// Every LINES'th group from g on, summed up; x has the first of them already. The plan is
// whole behind the block's meeting in here.
KR_DEV float4 sum_line(float4 (&x)[FOLD], const Plan &p, const float4 *part, long long step, int g) {
	float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
	__syncthreads();
	for (; g * FOLD < p.count; g += LINES) {
		int n = min((int)FOLD, p.count - g * FOLD), from = p.folded[g];
		float4 a = x[0];
#pragma unroll
		for (int j = 1; j < FOLD; j++)
			if (j >= from && j < n) fold(a, p.step[g * FOLD + j], x[j]);
		fetch_group(x, p, part, step, g + LINES);
		float w = p.weight[g];
		sum.x = fmaf(w, a.x, sum.x), sum.y = fmaf(w, a.y, sum.y), sum.z = fmaf(w, a.z, sum.z), sum.w = fmaf(w, a.w, sum.w);
	}
	return sum;
}

// The lines of four columns together, as bf16.
KR_DEV uint2 join_lines(float4 a, float4 b, float4 c, float4 d, float scale) {
	float4 s = make_float4((a.x + b.x) + (c.x + d.x), (a.y + b.y) + (c.y + d.y), (a.z + b.z) + (c.z + d.z), (a.w + b.w) + (c.w + d.w));
	return make_uint2(pack_bf16(s.x * scale, s.y * scale), pack_bf16(s.z * scale, s.w * scale));
}

enum { JOIN_QUADS = 16 };

// latents [decode rows, heads, RANK] of part and marks (mla_decode.cu). A block: a row, a
// head, 4 * JOIN_QUADS columns. Grid (heads * QUADS / JOIN_QUADS, rows).
KR_KERNEL(JOIN_QUADS *LINES, 12)
kr_mla_join(bf16 *latents, const float *part, const float *marks, int items_max, int shares, const int *table, int heads) {
	__shared__ Plan plan;
	__shared__ __align__(16) float4 lines[LINES][JOIN_QUADS];
	int tid = threadIdx.x, head = blockIdx.x / (QUADS / JOIN_QUADS), row = blockIdx.y;
	int quad = blockIdx.x % (QUADS / JOIN_QUADS) * JOIN_QUADS + tid % JOIN_QUADS, line = tid / JOIN_QUADS;
	pdl_launch();
	int prompts = table[HEAD_PREFILL], rows = table[HEAD_DECODE], items = table[HEAD_ITEMS];
	Span s = span_at(table, prompts + min(row, max(rows - 1, 0)));
	if (tid < 32) plan_items(plan, s, items, items_max, shares);
	__syncthreads();
	pdl_wait();
	if (row >= rows) return;
	long long at = (long long)s.start * heads + head, step = (long long)heads * QUADS;
	const float4 *from = (const float4 *)part + at * QUADS + quad;
	float4 x[FOLD];
	fetch_group(x, plan, from, step, line);
	if (tid < 32) plan_weights(plan, (const float2 *)marks + at, heads);
	lines[line][tid % JOIN_QUADS] = sum_line(x, plan, from, step, line);
	__syncthreads();
	if (line != 0) return;
	*((uint2 *)(latents + ((long long)row * heads + head) * RANK) + quad) = join_lines(lines[0][tid], lines[1][tid], lines[2][tid], lines[3][tid], plan.scale);
}
KR_EXPORT(kr_mla_join)

// --- merge

enum { MERGE_ROWS = 8, MERGE_V = 32, MERGE_THREADS = 512, PIECES = 8, PIECE = RANK / PIECES };

// Joins the items of the one row there is, by all threads of the block, into latents [RANK].
KR_DEV void join_row(bf16 *latents, float4 (&lines)[LINES][QUADS], Plan &plan, const float *part, const float *marks, const Span &s, int head, int heads) {
	int tid = threadIdx.x, quad = tid % QUADS, line = tid / QUADS;
	long long at = (long long)s.start * heads + head, step = (long long)heads * QUADS;
	const float4 *from = (const float4 *)part + at * QUADS + quad;
	float4 x[FOLD];
	fetch_group(x, plan, from, step, line);
	if (tid < 32) plan_weights(plan, (const float2 *)marks + at, heads);
	lines[line][quad] = sum_line(x, plan, from, step, line);
	__syncthreads();
	if (line == 0) ((uint2 *)latents)[quad] = join_lines(lines[0][quad], lines[1][quad], lines[2][quad], lines[3][quad], plan.scale);
	__syncthreads();
}

// out [rows, heads * VDIM] = latents * w_vc. A block: MERGE_V of a head's values for
// MERGE_ROWS generated rows; a warp 16 of the values, of a piece of the latent columns.
// latents [decode rows, heads, RANK]; null: there is one row, and its items are joined
// here. Grid (heads * VDIM / MERGE_V, rows / MERGE_ROWS).
KR_KERNEL(MERGE_THREADS, 1)
kr_mla_merge(void *out, int wide, int out_stride, const bf16 *latents, const float *part, const float *marks, int items_max, int shares, const bf16 *kvb, int kvb_stride, const int *table, int heads) {
	__shared__ Plan plan;
	__shared__ __align__(16) float4 lines[LINES][QUADS]; // then the pieces of the product
	__shared__ __align__(16) bf16 joined[RANK];
	int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, g = lane / 4, c = lane % 4;
	int head = blockIdx.x / (VDIM / MERGE_V), v = blockIdx.x % (VDIM / MERGE_V) * MERGE_V, piece = warp / 2 * PIECE;
	pdl_launch();
	// w_vc as the left operand; lane 4g+c has 8 neighbouring columns of rows g and g+8, as
	// of the latents below
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
	pdl_wait();
	if (first >= rows) return;
	if (latents == nullptr) {
		join_row(joined, lines, plan, part, marks, s, head, heads);
#pragma unroll
		for (int i = 0; i < PIECE / 32; i++) x[i] = g == 0 ? *(const uint4 *)(joined + piece + 32 * i + 8 * c) : make_uint4(0, 0, 0, 0);
	} else {
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
	// a warp a row now, a lane a value
	const float *mine = (const float *)sums + lane / 16 * 128 + (4 * (lane % 8) + warp / 2) * 4 + lane / 8 % 2 * 2 + warp % 2;
	float p[PIECES];
#pragma unroll
	for (int i = 0; i < PIECES; i++) p[i] = mine[i * 256];
	put(out, wide, (long long)to * out_stride + head * VDIM + v + lane, ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7])));
}
KR_EXPORT(kr_mla_merge)
