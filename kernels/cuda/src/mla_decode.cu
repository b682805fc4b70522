// Latent attention of generated rows, absorbed: queries are brought into the latent
// space, so all heads of a row read the same latents, each byte of them once.
//
//   absorb: qa = q_nope * w_kc, and q_rope beside it
//   attend: flash decoding over an item of a row's keys, 16 heads a block
//   merge:  the items of a row, and out = latent * w_vc
//
// The table of spans was copied before the step's first kernel, so it is read without
// waiting for kernels before; so are cache rows of positions before a row's own, which
// earlier steps stored.
//
// An item is cut by the row's own length alone (kernels/cuda/spans) and its sums are
// taken in one order, so a row's bits do not depend on the batch.
#include "mla.cuh"

// --- absorb

enum { ABSORB_COLS = 64, ABSORB_ROWS = 64 };

// qa [decode rows, heads, WIDTH] of q [rows, heads * QK]. A block: ABSORB_COLS latent
// columns of a head, ABSORB_ROWS rows; a warp 16 of the columns. Grid (RANK /
// ABSORB_COLS, heads, rows / ABSORB_ROWS).
KR_KERNEL(128, 4)
kr_mla_absorb(bf16 *qa, const bf16 *q, int q_stride, const bf16 *kvb, int kvb_stride, const int *table, int heads) {
	KR_SHARED(unsigned char, shared);
	uint32_t base = smem_u32(shared);
	int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, g = lane / 4, c = lane % 4, head = blockIdx.y;
	pdl_launch();
	// the weights do not wait for anybody
	const bf16 *w = kvb + (long long)head * EXPANDED * kvb_stride + blockIdx.x * ABSORB_COLS;
#pragma unroll
	for (int i = 0; i < NOPE * 8 / 128; i++) {
		int row = i * 16 + tid / 8, unit = tid % 8;
		cp_async16(base + unit_at(row, unit, 128), w + (long long)row * kvb_stride + unit * 8);
	}
	cp_async_commit();
	int prompts = table[HEAD_PREFILL], rows = table[HEAD_DECODE], first = blockIdx.z * ABSORB_ROWS;
	const int *records = table + SPAN_HEAD + prompts * SPAN_RECORD;
	pdl_wait();
	cp_async_wait<0>();
	__syncthreads();
	uint32_t b[NOPE / 16][4];
#pragma unroll
	for (int k = 0; k < NOPE / 16; k++) ldmatrix_x4_trans(b[k], base + unit_at(k * 16 + lane % 16, warp * 2 + lane / 16, 128));
	for (int at = first; at < min(first + ABSORB_ROWS, rows); at += 16) {
		int one = at + g, two = at + g + 8;
		const bf16 *x = q + (long long)records[min(one, rows - 1) * SPAN_RECORD] * q_stride + head * QK + 2 * c;
		const bf16 *y = q + (long long)records[min(two, rows - 1) * SPAN_RECORD] * q_stride + head * QK + 2 * c;
		uint32_t a[NOPE / 16][4];
#pragma unroll
		for (int k = 0; k < NOPE / 16; k++) {
			a[k][0] = *(const uint32_t *)(x + k * 16), a[k][2] = *(const uint32_t *)(x + k * 16 + 8);
			a[k][1] = *(const uint32_t *)(y + k * 16), a[k][3] = *(const uint32_t *)(y + k * 16 + 8);
		}
		float d[2][4] = {};
#pragma unroll
		for (int k = 0; k < NOPE / 16; k++) mma_bf16(d[0], a[k], b[k][0], b[k][1]), mma_bf16(d[1], a[k], b[k][2], b[k][3]);
		int col = blockIdx.x * ABSORB_COLS + warp * 16 + 2 * c;
#pragma unroll
		for (int n = 0; n < 2; n++) {
			if (one < rows) *(uint32_t *)(qa + ((long long)one * heads + head) * WIDTH + col + n * 8) = pack_bf16(d[n][0], d[n][1]);
			if (two < rows) *(uint32_t *)(qa + ((long long)two * heads + head) * WIDTH + col + n * 8) = pack_bf16(d[n][2], d[n][3]);
		}
	}
	if (blockIdx.x != 0) return;
	for (int i = tid; i < min(ABSORB_ROWS, rows - first) * (ROPE / 8); i += 128) {
		int row = first + i / (ROPE / 8), unit = i % (ROPE / 8);
		const uint4 *from = (const uint4 *)(q + (long long)records[row * SPAN_RECORD] * q_stride + head * QK + NOPE) + unit;
		((uint4 *)(qa + ((long long)row * heads + head) * WIDTH + RANK))[unit] = *from;
	}
}
KR_EXPORT(kr_mla_absorb)

// --- attend

enum {
	ATTEND_THREADS = 256, ATTEND_WARPS = 8, HEADS = 16, // of a block
	ROW_BYTES = 2 * WIDTH, TILE_BYTES = KEY_TILE * ROW_BYTES,
	AT_P = 2 * TILE_BYTES,                              // weights [HEADS][KEY_TILE] bf16
	AT_MOST = AT_P + HEADS * KEY_TILE * 2,              // [ATTEND_WARPS][HEADS] float
	AT_SUM = AT_MOST + 4 * ATTEND_WARPS * HEADS,        // the same
};

// An item for 16 heads: keys [at, to) of a sequence are still to be read.
struct Work {
	Span s;
	int row;         // its number among the generated rows
	int item, heads; // item < 0: there is none
	int at, to;
};

KR_DEV Work work_at(const int *table, int number, int groups, int items_max) {
	Work w;
	w.item = number / groups, w.heads = number % groups * HEADS;
	int prompts = table[HEAD_PREFILL];
	int i = number < min(table[HEAD_ITEMS], items_max) * groups ? span_of_item(table, prompts, prompts + table[HEAD_DECODE], w.item) : -1;
	if (i < 0) {
		w.item = -1;
		return w;
	}
	w.s = span_at(table, i);
	w.row = i - prompts;
	w.at = (w.item - w.s.start) * w.s.five;
	w.to = min(w.at + w.s.five, w.s.pos + w.s.len);
	return w;
}

// Starts the copy of the tile of keys at w.at; rows past the end are zeros. Of an 8-bit
// cache the bytes come as they are, each thread's own to widen.
template <int KIND> KR_DEV void fetch_tile(uint32_t dst, const Cache &c, const int *table, const Work &w, int block_tokens) {
	int tid = threadIdx.x;
	if (KIND == BF16_ROWS) {
#pragma unroll
		for (int half = 0; half < 2; half++) {
			int row = tid / 8 + 32 * half, unit = tid % 8;
			bool ok = w.at + row < w.to;
			long long slot = ok ? span_slot(table, w.s, w.at + row, block_tokens) : 0;
			const char *src = c.rows + slot * c.stride * 2 + unit * 16;
			uint32_t to = dst + row * ROW_BYTES + ((unit ^ twist(row)) << 4);
#pragma unroll
			for (int j = 0; j < WIDTH / 64; j++) cp_async16(to + j * 128, src + j * 128, ok);
		}
	} else {
		int row = tid / 4, unit = tid % 4;
		bool ok = w.at + row < w.to;
		long long slot = ok ? span_slot(table, w.s, w.at + row, block_tokens) : 0;
		const char *src = c.rows + slot * c.stride + unit * 16;
		uint32_t to = dst + row * WIDTH + unit * 16;
#pragma unroll
		for (int j = 0; j < WIDTH / 64; j++) cp_async16(to + j * 64, src + j * 64, ok);
	}
}

// The tile of bf16 from this thread's bytes of an 8-bit one.
template <int KIND> KR_DEV void widen_tile(unsigned char *tile, const unsigned char *raw, const Cache &c, const int *table, const Work &w, int block_tokens) {
	int row = threadIdx.x / 4, unit = threadIdx.x % 4;
	const float *scales = c.scales;
	if (KIND == I8_ROWS && w.at + row < w.to) scales += span_slot(table, w.s, w.at + row, block_tokens) * c.scales_stride;
	bool real = w.at + row < w.to;
#pragma unroll
	for (int j = 0; j < WIDTH / 64; j++) {
		uint4 v = lds16(raw, row * WIDTH + unit * 16 + j * 64);
		uint32_t in[4] = {v.x, v.y, v.z, v.w}, out[8];
#pragma unroll
		for (int i = 0; i < 4; i++) {
			if (KIND == E4M3_ROWS) widen_e4m3(in[i], out[2 * i], out[2 * i + 1]);
			else widen_i8(in[i], real ? scales[(unit * 16 + j * 64 + 4 * i) / c.group] : 0.f, out[2 * i], out[2 * i + 1]);
		}
		uint32_t u = 2 * unit + 8 * j;
		*(uint4 *)(tile + unit_at(row, u, ROW_BYTES)) = make_uint4(out[0], out[1], out[2], out[3]);
		*(uint4 *)(tile + unit_at(row, u + 1, ROW_BYTES)) = make_uint4(out[4], out[5], out[6], out[7]);
	}
}

// Queries of 16 heads, WIDTH in blocks of 32 columns. Lane 4g+c has columns 8c..8c+7 of a
// block, of heads g and g+8: the columns of two products, taken in another order than
// they lie in, as the keys' are too.
struct Queries { uint4 one[WIDTH / 32], two[WIDTH / 32]; };

KR_DEV void fetch_queries(Queries &q, const bf16 *qa, long long row, int first, int heads) {
	int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
	const uint4 *one = (const uint4 *)(qa + (row * heads + first + g) * WIDTH) + c;
	const uint4 *two = one + 8 * (WIDTH / 8);
	bool has_one = first + g < heads, has_two = first + g + 8 < heads;
#pragma unroll
	for (int i = 0; i < WIDTH / 32; i++) {
		q.one[i] = has_one ? one[4 * i] : make_uint4(0, 0, 0, 0);
		q.two[i] = has_two ? two[4 * i] : make_uint4(0, 0, 0, 0);
	}
}

// Scores of 16 heads for this warp's 8 keys: lane 4g+c has heads g (s[0], s[1]) and g+8
// for keys 2c and 2c+1.
KR_DEV void scores(float (&s)[4], const Queries &q, const unsigned char *tile) {
	int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, row = threadIdx.x / 32 * 8 + g;
	float part[4][4] = {};
#pragma unroll
	for (int i = 0; i < WIDTH / 32; i++) {
		uint4 k = lds16(tile, unit_at(row, 4 * i + c, ROW_BYTES));
		uint32_t lo[4] = {q.one[i].x, q.two[i].x, q.one[i].y, q.two[i].y}, hi[4] = {q.one[i].z, q.two[i].z, q.one[i].w, q.two[i].w};
		mma_bf16(part[i % 2 * 2], lo, k.x, k.y);
		mma_bf16(part[i % 2 * 2 + 1], hi, k.z, k.w);
	}
#pragma unroll
	for (int i = 0; i < 4; i++) s[i] = (part[0][i] + part[1][i]) + (part[2][i] + part[3][i]);
}

// What a warp keeps of the 16 heads: sums over keys of weight * latent for 64 of the
// latent columns, the largest score so far, and the sum of its own keys' weights. Lane
// 4g+c has heads g and g+8.
struct State {
	float sum[8][4];
	float most[2], total[2];
};

// The weights of a tile's keys, as powers of two below the largest score, into p; what
// was summed so far is brought down to it. Two meetings of the block.
KR_DEV void weigh(State &st, unsigned char *shared, float (&s)[4]) {
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
	float *most = (float *)(shared + AT_MOST);
#pragma unroll
	for (int h = 0; h < 2; h++) {
		float m = fmaxf(s[2 * h], s[2 * h + 1]);
		m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
		m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
		if (c == 0) most[warp * HEADS + g + 8 * h] = m;
	}
	__syncthreads();
#pragma unroll
	for (int h = 0; h < 2; h++) {
		float m = st.most[h];
#pragma unroll
		for (int i = 0; i < ATTEND_WARPS; i++) m = fmaxf(m, most[i * HEADS + g + 8 * h]);
		float old = exp2_approx(st.most[h] - m);
		st.most[h] = m;
		uint32_t p = pack_bf16(exp2_approx(s[2 * h] - m), exp2_approx(s[2 * h + 1] - m));
		st.total[h] = st.total[h] * old + (lo_f32(p) + hi_f32(p));
		*(uint32_t *)(shared + AT_P + unit_at(g + 8 * h, warp, 2 * KEY_TILE) + 4 * c) = p;
#pragma unroll
		for (int n = 0; n < 8; n++) st.sum[n][2 * h] *= old, st.sum[n][2 * h + 1] *= old;
	}
	__syncthreads();
}

// sum += weights [16, 64] * latents [64, 64 columns of this warp].
KR_DEV void add_latents(State &st, uint32_t p, uint32_t tile) {
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
	for (int k = 0; k < KEY_TILE / 16; k++) {
		uint32_t a[4];
		ldmatrix_x4(a, p + unit_at(lane % 16, 2 * k + lane / 16, 2 * KEY_TILE));
#pragma unroll
		for (int n = 0; n < 4; n++) {
			uint32_t v[4];
			ldmatrix_x4_trans(v, tile + unit_at(16 * k + lane % 16, 8 * warp + 2 * n + lane / 16, ROW_BYTES));
			mma_bf16(st.sum[2 * n], a, v[0], v[1]);
			mma_bf16(st.sum[2 * n + 1], a, v[2], v[3]);
		}
	}
}

// Writes an item's sums, largest scores and totals.
KR_DEV void finish(const State &st, unsigned char *shared, float *part, float *marks, const Work &w, int heads) {
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
	float *sums = (float *)(shared + AT_SUM);
#pragma unroll
	for (int h = 0; h < 2; h++) {
		float total = st.total[h];
		total += __shfl_xor_sync(0xffffffffu, total, 1);
		total += __shfl_xor_sync(0xffffffffu, total, 2);
		if (c == 0) sums[warp * HEADS + g + 8 * h] = total;
		if (w.heads + g + 8 * h >= heads) continue;
		float *to = part + ((long long)w.item * heads + w.heads + g + 8 * h) * RANK + warp * 64 + 2 * c;
#pragma unroll
		for (int n = 0; n < 8; n++) store2(to + 8 * n, st.sum[n][2 * h], st.sum[n][2 * h + 1]);
	}
	__syncthreads();
	if (warp != 0 || c != 0) return;
#pragma unroll
	for (int h = 0; h < 2; h++) {
		if (w.heads + g + 8 * h >= heads) continue;
		float total = 0.f;
		for (int i = 0; i < ATTEND_WARPS; i++) total += sums[i * HEADS + g + 8 * h];
		store2(marks + 2 * ((long long)w.item * heads + w.heads + g + 8 * h), st.most[h], total);
	}
}

// part [items_max, heads, RANK], marks [items_max, heads, 2]. Each block takes items in turn, as
// many as there are; the next tile of keys, of this item or the next, is on its way while
// one is worked on. scale has log2(e) in it.
template <int KIND> KR_DEV void attend_items(unsigned char *shared, float *part, float *marks, int items_max, const bf16 *qa, const Cache &cache, const int *table, int heads, float scale, int block_tokens) {
	uint32_t base = smem_u32(shared);
	const bool raw = KIND != BF16_ROWS;
	int groups = (heads + HEADS - 1) / HEADS, number = blockIdx.x, stage = 0;
	pdl_launch();
	Work w = work_at(table, number, groups, items_max);
	bool stored = w.item >= 0 && w.at + KEY_TILE <= w.s.pos; // all of the tile, in earlier steps
	if (stored) fetch_tile<KIND>(base, cache, table, w, block_tokens);
	pdl_wait();
	if (w.item < 0) return;
	const uint32_t step = raw ? TILE_BYTES / 2 : TILE_BYTES;
	if (!stored) fetch_tile<KIND>(base, cache, table, w, block_tokens);
	cp_async_commit();
	bool begins = true;
	Queries q;
	State st;
	while (w.item >= 0) {
		Work next = w;
		bool ends = w.at + KEY_TILE >= w.to;
		if (ends) next = work_at(table, number += gridDim.x, groups, items_max);
		else next.at += KEY_TILE;
		if (begins) {
			fetch_queries(q, qa, w.row, w.heads, heads);
			st = State();
			st.most[0] = st.most[1] = -INFINITY;
		}
		cp_async_wait<0>();
		__syncthreads(); // the tile is there, and nobody reads the other one any more
		if (next.item >= 0) fetch_tile<KIND>(base + (stage ^ 1) * step, cache, table, next, block_tokens);
		cp_async_commit();
		uint32_t tile = raw ? TILE_BYTES : stage * TILE_BYTES;
		if (raw) {
			widen_tile<KIND>(shared + tile, shared + stage * step, cache, table, w, block_tokens);
			__syncthreads();
		}
		float s[4];
		scores(s, q, shared + tile);
		int key = w.at + threadIdx.x / 32 * 8 + threadIdx.x % 4 * 2;
#pragma unroll
		for (int i = 0; i < 4; i++) s[i] = key + i % 2 < w.to ? s[i] * scale : -INFINITY;
		weigh(st, shared, s);
		add_latents(st, base + AT_P, base + tile);
		if (ends) finish(st, shared, part, marks, w, heads);
		begins = ends;
		w = next;
		stage ^= 1;
	}
}

#define ATTEND(name, kind)                                                                                                       \
	KR_KERNEL(ATTEND_THREADS, 1)                                                                                                   \
	name(float *part, float *marks, int items_max, const bf16 *qa, const char *cache, const float *scales, int stride,             \
	     int scales_stride, int group, const int *table, int heads, float scale, int block_tokens) {                                                   \
		KR_SHARED(unsigned char, shared);                                                                                            \
		Cache c = {cache, scales, kind, stride, scales_stride, group};                                                              \
		attend_items<kind>(shared, part, marks, items_max, qa, c, table, heads, scale, block_tokens);                                                  \
	}                                                                                                                             \
	KR_EXPORT(name)
ATTEND(kr_mla_decode_bf16, BF16_ROWS)
ATTEND(kr_mla_decode_e4m3, E4M3_ROWS)
ATTEND(kr_mla_decode_i8, I8_ROWS)

// --- merge

enum { MERGE_ROWS = 8, MERGE_V = 64, ITEMS_MAX = 128, LATENT_STRIDE = RANK + 32, QUADS = RANK / 4 };

// How the items of a row count, by a warp: powers of two below the largest
// score, and one by the sum of all. A row whose items had no room becomes NaN.
KR_DEV void weigh_items(float *weights, float &scale, int &items, int &start, const float *marks, int items_max, const Span &s, int head, int heads) {
	int lane = threadIdx.x % 32;
	if (s.start + s.count > items_max) {
		if (lane == 0) items = start = 0, scale = NAN;
		return;
	}
	const float2 *mark = (const float2 *)marks + (long long)s.start * heads + head;
	float most = -INFINITY, total = 0.f;
	for (int i = lane; i < s.count; i += 32) most = fmaxf(most, mark[(long long)i * heads].x);
	most = warp_max(most);
	for (int i = lane; i < s.count; i += 32) {
		float2 m = mark[(long long)i * heads];
		float weight = exp2_approx(m.x - most);
		weights[i] = weight;
		total = fmaf(weight, m.y, total);
	}
	total = warp_sum(total);
	if (lane == 0) scale = 1.f / total, items = s.count, start = s.start;
}

KR_DEV void add(float4 &sum, float weight, float4 x) {
	sum.x = fmaf(weight, x.x, sum.x), sum.y = fmaf(weight, x.y, sum.y), sum.z = fmaf(weight, x.z, sum.z), sum.w = fmaf(weight, x.w, sum.w);
}

// out [rows, heads * VDIM]. A block: MERGE_V of a head's values for MERGE_ROWS generated
// rows. First it joins the items of each row, half of the threads the even ones, half the
// odd ones, 4 columns a thread; then a warp multiplies 16 rows of w_vc, a half of the
// latent columns, with all rows. Grid (heads * VDIM / MERGE_V, rows / MERGE_ROWS).
KR_KERNEL(256, 1)
kr_mla_merge(void *out, int wide, int out_stride, const float *part, const float *marks, int items_max, const bf16 *kvb, int kvb_stride, const int *table, int heads) {
	__shared__ __align__(16) bf16 latents[MERGE_ROWS][LATENT_STRIDE];
	__shared__ __align__(16) float4 odd[MERGE_ROWS][QUADS];
	__shared__ float weights[MERGE_ROWS][ITEMS_MAX], scale[MERGE_ROWS];
	__shared__ int items[MERGE_ROWS], start[MERGE_ROWS];
	__shared__ float halves[4][32][4];
	int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, g = lane / 4, c = lane % 4;
	int head = blockIdx.x / (VDIM / MERGE_V), v = blockIdx.x % (VDIM / MERGE_V) * MERGE_V + warp % 4 * 16, half = warp / 4;
	pdl_launch();
	// w_vc as the left operand; lane 4g+c has 8 neighbouring columns of rows g and g+8, as
	// of the latents below
	const bf16 *w = kvb + ((long long)head * EXPANDED + NOPE + v + g) * kvb_stride + half * (RANK / 2) + 8 * c;
	uint4 one[RANK / 64], two[RANK / 64];
#pragma unroll
	for (int i = 0; i < RANK / 64; i++) {
		one[i] = *(const uint4 *)(w + 32 * i);
		two[i] = *(const uint4 *)(w + 8LL * kvb_stride + 32 * i);
	}
	int prompts = table[HEAD_PREFILL], rows = table[HEAD_DECODE], first = blockIdx.y * MERGE_ROWS;
	Span s = {};
	if (first + warp < rows) s = span_at(table, prompts + first + warp);
	pdl_wait();
	if (first >= rows) return;
	if (first + warp < rows) weigh_items(weights[warp], scale[warp], items[warp], start[warp], marks, items_max, s, head, heads);
	else if (lane == 0) items[warp] = start[warp] = 0, scale[warp] = 0.f;
	__syncthreads();
	int parity = tid / QUADS, quad = tid % QUADS;
	long long step = (long long)heads * QUADS;
	float4 even[MERGE_ROWS];
#pragma unroll
	for (int r = 0; r < MERGE_ROWS; r += 2) { // two rows at a time, to have more loads on their way
		const float4 *p = (const float4 *)part + ((long long)start[r] * heads + head) * QUADS + quad;
		const float4 *q = (const float4 *)part + ((long long)start[r + 1] * heads + head) * QUADS + quad;
		float4 a = make_float4(0.f, 0.f, 0.f, 0.f), b = a;
		int n = items[r], m = items[r + 1];
		for (int i = parity; i < max(n, m); i += 16) {
			float4 x[8], y[8];
#pragma unroll
			for (int j = 0; j < 8; j++) {
				if (i + 2 * j < n) x[j] = p[(i + 2 * j) * step];
				if (i + 2 * j < m) y[j] = q[(i + 2 * j) * step];
			}
#pragma unroll
			for (int j = 0; j < 8; j++) {
				if (i + 2 * j < n) add(a, weights[r][i + 2 * j], x[j]);
				if (i + 2 * j < m) add(b, weights[r + 1][i + 2 * j], y[j]);
			}
		}
		even[r] = a, even[r + 1] = b;
		if (parity) odd[r][quad] = a, odd[r + 1][quad] = b;
	}
	__syncthreads();
	if (!parity) {
#pragma unroll
		for (int r = 0; r < MERGE_ROWS; r++) {
			float4 a = even[r];
			add(a, 1.f, odd[r][quad]);
			float f = scale[r];
			*(uint2 *)&latents[r][4 * quad] = make_uint2(pack_bf16(a.x * f, a.y * f), pack_bf16(a.z * f, a.w * f));
		}
	}
	__syncthreads();
	float d[2][4] = {};
#pragma unroll
	for (int i = 0; i < RANK / 64; i++) {
		uint4 x = *(const uint4 *)&latents[g][half * (RANK / 2) + 32 * i + 8 * c];
		uint32_t lo[4] = {one[i].x, two[i].x, one[i].y, two[i].y}, hi[4] = {one[i].z, two[i].z, one[i].w, two[i].w};
		mma_bf16(d[0], lo, x.x, x.y);
		mma_bf16(d[1], hi, x.z, x.w);
	}
#pragma unroll
	for (int i = 0; i < 4; i++) d[0][i] += d[1][i];
	if (half == 1) {
#pragma unroll
		for (int i = 0; i < 4; i++) halves[warp % 4][lane][i] = d[0][i];
	}
	__syncthreads();
	if (half == 1) return;
	// d: value g of row 2c, of row 2c+1; value g+8
#pragma unroll
	for (int i = 0; i < 4; i++) {
		int row = first + 2 * c + i % 2;
		if (row >= rows) continue;
		long long to = (long long)table[SPAN_HEAD + (prompts + row) * SPAN_RECORD] * out_stride + head * VDIM + v + g + i / 2 * 8;
		put(out, wide, to, d[0][i] + halves[warp][lane][i]);
	}
}
KR_EXPORT(kr_mla_merge)
