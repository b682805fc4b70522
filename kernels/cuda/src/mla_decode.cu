// Latent attention of generated rows, absorbed: queries are projected into the latent space, so
// all heads of a row read the same latents, and each byte is read once.
//
//   absorb: qa = q_nope * w_kc, followed by q_rope (mla_merge.cu)
//   attend: flash decoding over items of rows' keys, 16 heads per block
//   merge:  joins the items of a row, and out = latent * w_vc (mla_merge.cu)
//
// The table of spans was copied before the step's first kernel, so it is read without waiting for
// earlier kernels. The same holds for cache rows of positions before a row's own, which earlier
// steps stored.
//
// Items are cut by the row's own length alone (kernels/cuda/spans). The sums within an item, and those
// over several items (spans.cuh), are added in the same order in every kernel. So a row's bits do not
// depend on the batch.
#include "mla.cuh"

enum {
	ATTEND_THREADS = 256, ATTEND_WARPS = 8,
	ROW_BYTES = 2 * WIDTH, TILE_BYTES = KEY_TILE * ROW_BYTES,
	AT_P = 2 * TILE_BYTES,                              // weights [HEADS][KEY_TILE] bf16
	AT_MOST = AT_P + HEADS * KEY_TILE * 2,              // [ATTEND_WARPS][HEADS] float
	AT_TILES = AT_MOST + 4 * ATTEND_WARPS * HEADS,      // a Tile a stage
	AT_SCORES = AT_TILES + 128,                         // sums of other warps for scores [ATTEND_WARPS][PARTS - 1][32] float4
	AT_FOLD = AT_SCORES + ATTEND_WARPS * 3 * 512,       // a thread's sums of a group's items, if there is room
};

// The number of tiles in shared memory or in flight to it, and their size there. Tiles of e4m3
// stay packed and become f16 (which represents every e4m3) when they are multiplied. Tiles of
// int8 are widened to bf16, in the second half of the memory.
template <int KIND> struct Ring {
	static const int stages = KIND == E4M3_ROWS ? 4 : 2, row = KIND == BF16_ROWS ? (int)ROW_BYTES : (int)WIDTH, tile = KEY_TILE * row;
};

// Row r of a tile of e4m3 has unit u at u ^ turn(r). Rows are 4.5 times 128 bytes long. So a unit
// of eight neighbouring rows lies in different banks, and so does a quad of units of two
// neighbouring rows.
KR_DEV uint32_t turn(uint32_t r) { return r >> 1 & 3; }

// --- copies of tiles to shared memory

// Describes a tile in shared memory: keys at.. of a row's item, whose keys end before to.
struct Tile {
	int at, to;
	int item, row;     // the number of the item, and of the row among the generated rows
	int number, count; // the item's number in the row, and the row's number of items
};

// What is fetched next: the tile at `at` of an item, then the items before end. A thread copies a
// quarter of a tile's row.
struct Feed {
	Span s;
	int row, item, end, at, to; // row < 0: nothing is left
	int block, offset;          // the source of this thread's row of the tile; offset < 0: past the end
	int last;                   // this thread's cache row in the previous tile, or < 0
};

// block_tokens and, if it is a power of two, its logarithm.
struct Blocks { int tokens, shift; };

// No function here waits for its loads.
KR_DEV void look_up(Feed &f, const int *table, const Blocks &b) {
	int key = f.at + threadIdx.x / 4;
	if (key < f.to) {
		int i = b.shift >= 0 ? key >> b.shift : key / b.tokens;
		f.block = table[f.s.first + i];
		f.offset = key - i * b.tokens;
	} else {
		f.offset = -1;
	}
}

KR_DEV void begin_item(Feed &f) {
	unsigned i = (f.item - f.s.start) * f.s.five, n = f.s.count;
	f.at = i / n * KEY_TILE;
	f.to = min((int)((i + f.s.five) / n) * KEY_TILE, f.s.pos + f.s.len);
}

// The first tile of this block's share of the items. All lanes of a warp get the same.
KR_DEV Feed feed_at(const int *table, int share, int shares, int items_max, const Blocks &b) {
	Feed f = {};
	f.row = -1;
	int prompts = table[HEAD_PREFILL], rows = table[HEAD_DECODE], items = min(table[HEAD_ITEMS], items_max);
	int size = share_size(items, shares);
	f.item = share * size, f.end = min(f.item + size, items);
	if (f.item >= f.end) return f;
	int i = span_of_item(table, prompts, prompts + rows, f.item);
	f.s = span_at(table, i);
	f.row = i - prompts;
	begin_item(f);
	look_up(f, table, b);
	return f;
}

KR_DEV void advance(Feed &f, const int *table, const Blocks &b) {
	f.at += KEY_TILE;
	if (f.at >= f.to) {
		if (++f.item >= f.end) return;
		if (f.item == f.s.start + f.s.count) f.s = span_at(table, table[HEAD_PREFILL] + ++f.row);
		begin_item(f);
	}
	look_up(f, table, b);
}

// Starts the copy of a tile and advances to the next one; rows past the end are zeros. Bytes of
// an int8 cache are copied packed, and each thread widens its own.
template <int KIND> KR_DEV void fetch_tile(unsigned char *shared, int stage, Feed &f, const Cache &c, const int *table, const Blocks &b) {
	const int size = Ring<KIND>::row / WIDTH;
	int row = threadIdx.x / 4, unit = threadIdx.x % 4;
	bool ok = f.offset >= 0;
	int slot = ok ? f.block * b.tokens + f.offset : 0;
	const char *src = c.rows + (long long)slot * c.stride * size + unit * 16;
	uint32_t to = smem_u32(shared) + stage * Ring<KIND>::tile + row * Ring<KIND>::row;
	uint32_t moved = KIND == BF16_ROWS ? twist(row) : KIND == E4M3_ROWS ? turn(row) : 0;
#pragma unroll
	for (int j = 0; j < Ring<KIND>::row / 64; j++) cp_async16_once(to + (((unit + 4 * j) ^ moved) << 4), src + j * 64, ok);
	if (threadIdx.x == 0) ((Tile *)(shared + AT_TILES))[stage] = {f.at, f.to, f.item, f.row, f.item - f.s.start, f.s.count};
	f.last = ok ? slot : -1;
	advance(f, table, b);
}

// Makes the tile of bf16 from this thread's bytes of an int8 tile; slot is that of its row.
KR_DEV void widen_tile(unsigned char *tile, const unsigned char *raw, const Cache &c, int slot) {
	int row = threadIdx.x / 4, unit = threadIdx.x % 4;
	const float *scales = c.scales;
	bool real = slot >= 0;
	if (real) scales += (long long)slot * c.scales_stride;
#pragma unroll
	for (int j = 0; j < WIDTH / 64; j++) {
		uint4 v = lds16(raw, row * WIDTH + unit * 16 + j * 64);
		uint32_t in[4] = {v.x, v.y, v.z, v.w}, out[8];
#pragma unroll
		for (int i = 0; i < 4; i++) widen_i8(in[i], real ? scales[(unit * 16 + j * 64 + 4 * i) / c.group] : 0.f, out[2 * i], out[2 * i + 1]);
		uint32_t u = 2 * unit + 8 * j;
		*(uint4 *)(tile + unit_at(row, u, ROW_BYTES)) = make_uint4(out[0], out[1], out[2], out[3]);
		*(uint4 *)(tile + unit_at(row, u + 1, ROW_BYTES)) = make_uint4(out[4], out[5], out[6], out[7]);
	}
}

// --- scores

// Four warps share 32 keys and divide their columns: a warp computes a quarter of the products
// with all 32 keys, and then adds the quarters for 8 of the keys. So each warp needs a quarter of
// the queries only, whose load to registers takes long for a block with one tile.
enum { PARTS = 4, EACH = PRODUCTS / PARTS, LATENT = RANK / 16 / PARTS };
static_assert(PARTS - 1 == 3 && EACH == LATENT + 1 && ATTEND_WARPS * 8 == KEY_TILE, "a warp has one product of q_rope");

// Queries of 16 heads: left operands (query_at), first of LATENT products, then one of q_rope.
struct Queries { uint32_t a[EACH][4]; };

// from: this lane's part of the row's products.
KR_DEV void fetch_queries(Queries &q, const uint4 *from) {
	int part = threadIdx.x / 32 % PARTS;
#pragma unroll
	for (int i = 0; i < EACH; i++) {
		uint4 v = from[32 * (i < LATENT ? part * LATENT + i : RANK / 16 + part)];
		q.a[i][0] = v.x, q.a[i][1] = v.y, q.a[i][2] = v.z, q.a[i][3] = v.w;
	}
}

// One product with 8 keys, of which this lane has the bytes k0 (e4m3) or k0 and k1 (bf16).
template <int KIND> KR_DEV void score(float (&s)[4], const uint32_t (&q)[4], uint32_t k0, uint32_t k1) {
	if (KIND == E4M3_ROWS) {
		uint32_t b0, b1;
		widen_e4m3_f16(k0, b0, b1);
		mma_f16(s, q, b0, b1);
	} else {
		mma_bf16(s, q, k0, k1);
	}
}

// Scores of 16 heads for this warp's 8 keys: lane 4g+c has heads g (s[0], s[1]) and g+8
// for keys 2c and 2c+1.
template <int KIND> KR_DEV void scores(float (&s)[4], const Queries &q, unsigned char *shared, const unsigned char *tile) {
	const int step = KIND == E4M3_ROWS ? 4 : 2; // products per 16 bytes of a key
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4, part = warp % PARTS;
	float sum[PARTS][4] = {}; // of the warp's own keys, then of its neighbours'
	const int row = KIND == E4M3_ROWS ? (int)WIDTH : (int)ROW_BYTES;
	const unsigned char *from = tile + ((warp - part) * 8 + g) * row;
	// The quad of units of neighbour n.
	auto at = [&](int n, uint32_t quad) {
		uint32_t unit = 4 * quad + c;
		return from + (part + n) % PARTS * 8 * row + ((unit ^ (KIND == E4M3_ROWS ? turn(g) : twist(g))) << 4);
	};
#pragma unroll
	for (int i = 0; i < LATENT / step; i++) {
		uint4 v[PARTS];
#pragma unroll
		for (int n = 0; n < PARTS; n++) v[n] = *(const uint4 *)at(n, part * (LATENT / step) + i);
#pragma unroll
		for (int j = 0; j < step; j++) {
#pragma unroll
			for (int n = 0; n < PARTS; n++) {
				uint32_t k[4] = {v[n].x, v[n].y, v[n].z, v[n].w};
				score<KIND>(sum[n], q.a[i * step + j], k[KIND == E4M3_ROWS ? j : 2 * j], k[KIND == E4M3_ROWS ? j : 2 * j + 1]);
			}
		}
	}
#pragma unroll
	for (int n = 0; n < PARTS; n++) {
		if (KIND == E4M3_ROWS) {
			uint32_t k = *(const uint32_t *)(at(n, RANK / 16 / step) + 4 * part);
			score<KIND>(sum[n], q.a[LATENT], k, k);
		} else {
			uint2 k = *(const uint2 *)(at(n, RANK / 16 / step + part / 2) + part % 2 * 8);
			score<KIND>(sum[n], q.a[LATENT], k.x, k.y);
		}
	}
	float4 *others = (float4 *)(shared + AT_SCORES) + lane;
#pragma unroll
	for (int n = 1; n < PARTS; n++)
		others[((warp - part + (part + n) % PARTS) * (PARTS - 1) + n - 1) * 32] = make_float4(sum[n][0], sum[n][1], sum[n][2], sum[n][3]);
	if (warp < PARTS) bar_sync(1, 32 * PARTS);
	else bar_sync(2, 32 * PARTS);
	others += warp * (PARTS - 1) * 32;
	float4 x = others[0], y = others[32], z = others[64];
	s[0] = (sum[0][0] + x.x) + (y.x + z.x), s[1] = (sum[0][1] + x.y) + (y.y + z.y);
	s[2] = (sum[0][2] + x.z) + (y.z + z.z), s[3] = (sum[0][3] + x.w) + (y.w + z.w);
}

// --- sums

// A warp's sums for the 16 heads: over keys, weight * latent for 64 of the latent columns; and
// for all heads the sum of weights (a product with a column of ones: count[0] and count[2]) and
// the largest score so far. Lane 4g+c has heads g and g+8.
struct State {
	float sum[8][4];
	float count[4];
	float most[2];
};

KR_DEV void begin(State &st) {
	st = State();
	st.most[0] = st.most[1] = -INFINITY;
}

// Writes this warp's largest scores, for all warps to read after the next barrier.
KR_DEV void put_most(unsigned char *shared, const float (&s)[4]) {
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
#pragma unroll
	for (int h = 0; h < 2; h++) {
		float m = fmaxf(s[2 * h], s[2 * h + 1]);
		m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
		m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
		if (c == 0) ((float *)(shared + AT_MOST))[(g + 8 * h) * ATTEND_WARPS + warp] = m;
	}
}

// Writes the weights of a tile's keys, as powers of two relative to the largest score, for all
// warps to read after the next barrier. Rescales the earlier sums to the new largest score.
template <int KIND> KR_DEV void weigh(State &st, unsigned char *shared, const float (&s)[4]) {
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
	const float4 *most = (const float4 *)(shared + AT_MOST) + g * (ATTEND_WARPS / 4);
	float4 all[4] = {most[0], most[1], most[8 * ATTEND_WARPS / 4], most[8 * ATTEND_WARPS / 4 + 1]};
#pragma unroll
	for (int h = 0; h < 2; h++) {
		float4 a = all[2 * h], b = all[2 * h + 1];
		float m = fmaxf(fmaxf(fmaxf(a.x, a.y), fmaxf(a.z, a.w)), fmaxf(fmaxf(b.x, b.y), fmaxf(b.z, b.w)));
		m = fmaxf(m, st.most[h]);
		float old = exp2_approx(st.most[h] - m), lo = exp2_approx(s[2 * h] - m), hi = exp2_approx(s[2 * h + 1] - m);
		st.most[h] = m;
		*(uint32_t *)(shared + AT_P + unit_at(g + 8 * h, warp, 2 * KEY_TILE) + 4 * c) = KIND == E4M3_ROWS ? pack_f16(lo, hi) : pack_bf16(lo, hi);
		st.count[2 * h] *= old;
#pragma unroll
		for (int n = 0; n < 8; n++) st.sum[n][2 * h] *= old, st.sum[n][2 * h + 1] *= old;
	}
}

// sum += weights [16, 64] * latents [64, 64 columns of this warp].
KR_DEV void add_latents(State &st, uint32_t p, uint32_t tile) {
	const uint32_t ones = 0x3f803f80;
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
	for (int k = 0; k < KEY_TILE / 16; k++) {
		uint32_t a[4];
		ldmatrix_x4(a, p + unit_at(lane % 16, 2 * k + lane / 16, 2 * KEY_TILE));
		mma_bf16(st.count, a, ones, ones);
#pragma unroll
		for (int n = 0; n < 4; n++) {
			uint32_t v[4];
			ldmatrix_x4_trans(v, tile + unit_at(16 * k + lane % 16, 8 * warp + 2 * n + lane / 16, ROW_BYTES));
			mma_bf16(st.sum[2 * n], a, v[0], v[1]);
			mma_bf16(st.sum[2 * n + 1], a, v[2], v[3]);
		}
	}
}

// sum += weights * latents for a tile of e4m3: sum[2n] has the even ones of 16 columns, sum[2n+1]
// the odd ones. The bytes of a row are read in pairs, as one number, and separated afterwards.
KR_DEV void add_latents_e4m3(State &st, uint32_t p, uint32_t tile) {
	const uint32_t ones = 0x3c003c00;
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	tile += lane % 16 * WIDTH + warp * 64;
#pragma unroll
	for (int k = 0; k < KEY_TILE / 16; k++) {
		uint32_t a[4];
		ldmatrix_x4(a, p + unit_at(lane % 16, 2 * k + lane / 16, 2 * KEY_TILE));
		mma_f16(st.count, a, ones, ones);
#pragma unroll
		for (int n = 0; n < 2; n++) {
			uint32_t v[4];
			ldmatrix_x4_trans(v, tile + k * 16 * WIDTH + (((2 * n + lane / 16) ^ turn(lane)) << 4));
#pragma unroll
			for (int i = 0; i < 2; i++) {
				uint32_t even[2], odd[2];
				widen_e4m3_f16(__byte_perm(v[2 * i], 0, 0x3120), even[0], odd[0]);
				widen_e4m3_f16(__byte_perm(v[2 * i + 1], 0, 0x3120), even[1], odd[1]);
				mma_f16(st.sum[4 * n + 2 * i], a, even[0], even[1]);
				mma_f16(st.sum[4 * n + 2 * i + 1], a, odd[0], odd[1]);
			}
		}
	}
}

// --- items

// The largest score and the sum of weights of a group of items so far, if this block's share
// begins with the group's first item. Each thread's sums lie in shared memory.
struct Group {
	bool open;
	float most[2], total[2];
};

KR_DEV void add_item(State &st, Group &group, const float4 *kept) {
	float2 f[2];
#pragma unroll
	for (int h = 0; h < 2; h++) {
		f[h] = fold_factors(group.most[h], st.most[h]);
		st.most[h] = group.most[h];
		st.count[2 * h] = fmaf(f[h].y, st.count[2 * h], group.total[h] * f[h].x);
	}
#pragma unroll
	for (int n = 0; n < 8; n++) {
		float4 a = kept[n * ATTEND_THREADS];
		st.sum[n][0] = fmaf(f[0].y, st.sum[n][0], a.x * f[0].x), st.sum[n][1] = fmaf(f[0].y, st.sum[n][1], a.y * f[0].x);
		st.sum[n][2] = fmaf(f[1].y, st.sum[n][2], a.z * f[1].x), st.sum[n][3] = fmaf(f[1].y, st.sum[n][3], a.w * f[1].x);
	}
}

KR_DEV void keep_item(const State &st, Group &group, float4 *kept) {
#pragma unroll
	for (int h = 0; h < 2; h++) group.most[h] = st.most[h], group.total[h] = st.count[2 * h];
#pragma unroll
	for (int n = 0; n < 8; n++) kept[n * ATTEND_THREADS] = make_float4(st.sum[n][0], st.sum[n][1], st.sum[n][2], st.sum[n][3]);
}

// Writes sums, largest scores and totals to an item's place.
template <int KIND> KR_DEV void put_item(const State &st, float *part, float *marks, int item, int first, int heads) {
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
#pragma unroll
	for (int h = 0; h < 2; h++) {
		int head = first + g + 8 * h;
		if (head >= heads) continue;
		long long at = (long long)item * heads + head;
		float *to = part + at * RANK + warp * 64;
#pragma unroll
		for (int n = 0; n < 8; n += 2) {
			const float *x = st.sum[n] + 2 * h, *y = st.sum[n + 1] + 2 * h;
			if (KIND == E4M3_ROWS) *(float4 *)(to + 8 * n + 4 * c) = make_float4(x[0], y[0], x[1], y[1]);
			else store2(to + 8 * n + 2 * c, x[0], x[1]), store2(to + 8 * n + 8 + 2 * c, y[0], y[1]);
		}
		if (warp == 0 && c == 0) store2(marks + 2 * at, st.most[h], st.count[2 * h]);
	}
}

// Ends an item; `ends` means the last of the share. The item is joined to its group's earlier
// items if this block has them. The result is written if no item of this block follows.
template <int KIND> KR_DEV void finish(State &st, Group &group, unsigned char *shared, float *part, float *marks, const Tile &t, bool folds, bool ends, int first, int heads) {
	int place = t.number % FOLD;
	float4 *kept = (float4 *)(shared + AT_FOLD) + threadIdx.x;
	group.open = folds && (group.open || place == 0);
	if (group.open && place > 0) add_item(st, group, kept);
	if (group.open && place < FOLD - 1 && t.number < t.count - 1 && !ends) keep_item(st, group, kept);
	else put_item<KIND>(st, part, marks, group.open ? t.item - place : t.item, first, heads);
}

// part [items_max, heads, RANK], marks [items_max, heads, 2]: of every item or, with folds, of
// this block's share of a group from the share's first item on. blockIdx.x: heads. blockIdx.y:
// the share of the items. The next tiles are in flight while one is in use. scale includes
// log2(e).
template <int KIND> KR_DEV void attend_items(unsigned char *shared, float *part, float *marks, int items_max, bool folds, const uint32_t *qa, const Cache &cache, const int *table, int heads, float scale, int block_tokens) {
	const int stages = Ring<KIND>::stages;
	const bool deep = stages > 2; // enough to read one tile while another is in flight
	const Blocks blocks = {block_tokens, __popc(block_tokens) == 1 ? 31 - __clz(block_tokens) : -1};
	int first = blockIdx.x * HEADS;
	pdl_launch();
	Feed feed = feed_at(table, blockIdx.y, gridDim.y, items_max, blocks);
	const int end = feed.end;
	int row = feed.row;
	const uint4 *queries = (const uint4 *)qa + blockIdx.x * (QUERY_PAIRS / 4) + threadIdx.x % 32, *from = queries;
	const long long step = (long long)gridDim.x * (QUERY_PAIRS / 4);
	from += row * step;
	bool waited = false;
#pragma unroll 1
	for (int i = 0; i < stages - 1; i++) {
		bool stored = feed.at + KEY_TILE <= feed.s.pos; // the whole tile was stored by earlier steps
		if (feed.item < end && !stored && !waited) pdl_wait(), waited = true;
		if (feed.item < end) fetch_tile<KIND>(shared, i, feed, cache, table, blocks);
		cp_async_commit();
	}
	if (!waited) pdl_wait();
	if (row < 0) return;
	Queries q;
	fetch_queries(q, from);
	__syncwarp(); // they are in flight before the wait for a tile
	State st;
	begin(st);
	Group group = {};
	if (deep) {
		cp_async_wait<stages - 2>();
		__syncthreads(); // the first tile has arrived
	}
	for (int stage = 0;; stage = stage + 1 == stages ? 0 : stage + 1) {
		int free = stage == 0 ? stages - 1 : stage - 1, slot = feed.last;
		if (!deep) {
			cp_async_wait<0>();
			__syncthreads(); // the tile has arrived, and no warp still reads the one before
			if (feed.item < end) fetch_tile<KIND>(shared, free, feed, cache, table, blocks);
			cp_async_commit();
		}
		const Tile &t = ((const Tile *)(shared + AT_TILES))[stage];
		if (t.row != row) {
			row = t.row;
			fetch_queries(q, queries + row * step);
		}
		unsigned char *tile = shared + (KIND == I8_ROWS ? TILE_BYTES : stage * Ring<KIND>::tile);
		if (KIND == I8_ROWS) {
			widen_tile(tile, shared + stage * Ring<KIND>::tile, cache, slot);
			__syncthreads();
		}
		float s[4];
		scores<KIND>(s, q, shared, tile);
		int key = t.at + threadIdx.x / 32 * 8 + threadIdx.x % 4 * 2;
#pragma unroll
		for (int i = 0; i < 4; i++) s[i] = key + i % 2 < t.to ? s[i] * scale : -INFINITY;
		put_most(shared, s);
		__syncthreads(); // and no warp still reads the weights and the tile
		weigh<KIND>(st, shared, s);
		if (deep) cp_async_wait<deep ? stages - 3 : 0>();
		__syncthreads(); // if deep, the next tile has arrived
		if (deep) {
			if (feed.item < end) fetch_tile<KIND>(shared, free, feed, cache, table, blocks);
			cp_async_commit();
		}
		if (KIND == E4M3_ROWS) add_latents_e4m3(st, smem_u32(shared) + AT_P, smem_u32(tile));
		else add_latents(st, smem_u32(shared) + AT_P, smem_u32(tile));
		if (t.at + KEY_TILE < t.to) continue;
		finish<KIND>(st, group, shared, part, marks, t, folds, t.item + 1 == end, first, heads);
		if (t.item + 1 == end) return;
		begin(st);
	}
}

#define ATTEND(name, kind)                                                                                                       \
	KR_KERNEL(ATTEND_THREADS, 1)                                                                                                   \
	name(float *part, float *marks, int items_max, int shares, const uint32_t *qa, const char *cache, const float *scales, int stride,  \
	     int scales_stride, int group, const int *table, int heads, float scale, int block_tokens) {                               \
		KR_SHARED(unsigned char, shared);                                                                                            \
		Cache c = {cache, scales, kind, stride, scales_stride, group};                                                              \
		attend_items<kind>(shared, part, marks, items_max, shares != 0, qa, c, table, heads, scale, block_tokens);                    \
	}                                                                                                                              \
	KR_EXPORT(name)
ATTEND(kr_mla_decode_bf16, BF16_ROWS)
ATTEND(kr_mla_decode_e4m3, E4M3_ROWS)
ATTEND(kr_mla_decode_i8, I8_ROWS)
