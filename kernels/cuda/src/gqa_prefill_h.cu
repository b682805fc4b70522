// Flash attention of prompts with grouped heads for Hopper: what kr_gqa_prefill does (gqa_prefill.cu has the
// definitions), with wgmma.
//
// An item of work is a tile of rows of one query head. A block takes items until there are none left, the longest
// first. Its first warps, the producers, bring keys and values from the paged cache to a ring in shared memory, half
// of them keys and half of them values. Behind them are two warpgroups, the consumers, of 64 rows each, which take
// turns: while one computes the weights of its scores, the other's products run. A consumer starts the scores of a
// tile, then adds the values of the tile before it, and computes the weights while the values are added.
//
// The producers widen what has 8 bits: e4m3 to f16 and int8 to bf16. They go on with the next item while the consumers
// finish this one. Tiles of keys lie at absolute positions, so a row's sums are taken in one order however its prompt
// was cut.
#include "gqa.cuh"

#ifdef KR_HOPPER

// Named barriers. TURN: this consumer may start products. QUERIES: its queries have arrived.
enum { CONSUMERS = 256, STAGES = 2, TURN = 1, QUERIES = 3 };
// mbarriers: STAGES of each, and two of each for items of work.
enum {
	KEYS_FULL, KEYS_EMPTY = KEYS_FULL + STAGES, VALUES_FULL = KEYS_EMPTY + STAGES, VALUES_EMPTY = VALUES_FULL + STAGES,
	ITEM_FULL = VALUES_EMPTY + STAGES, ITEM_EMPTY = ITEM_FULL + 2, BARS = ITEM_EMPTY + 2
};

// The layout of shared memory: the consumers' queries, then keys and values, all in pieces of 64 columns with rows of
// 128 bytes; then the mbarriers and two items. m64n256 needs more registers than each of 512 threads can start with.
template <int KIND, int D> struct Tiles {
	static const int keys = D > 128 ? 64 : 128, pieces = D / 64;
	static const int sub_q = 64 * 128, sub = keys * 128, stage = pieces * sub;
	static const int at_keys = 2 * pieces * sub_q, at_values = at_keys + STAGES * stage, at_bars = at_values + STAGES * stage;
	static const int at_items = at_bars + 8 * BARS, bytes = at_items + 8;
	static const int producers = KIND == BF16_ROWS || D > 128 ? 4 : 8, threads = CONSUMERS + 32 * producers; // producer warps; fewer of heads of 256
	// Registers per thread of producers and of consumers.
	static const int few = KIND == BF16_ROWS || D <= 128 ? 40 : 56, many = threads > 384 ? 216 : KIND == BF16_ROWS ? 232 : 224;
};

// An item of work.
struct Part {
	Span s;
	int head, key_head, key_heads;
	int first; // row of the tile, counted in the sequence
	int low, end; // the tile needs keys low..end-1
	int tokens;
	uint32_t inverse; // divides by tokens: quotients are exact for keys below 2^32 / tokens; 0: divides by 1
};

template <bool WINDOW> KR_DEV Part part_of(const int *table, int item, int heads, int key_heads, int tokens, uint32_t inverse, int window) {
	Part p;
	int tile = table[HEAD_TILES] - 1 - item / heads;
	p.s = span_at(table, span_of_item(table, 0, table[HEAD_PREFILL], tile));
	p.head = item % heads, p.key_heads = key_heads, p.key_head = p.head / (heads / key_heads);
	p.first = (tile - p.s.start) * ROW_TILE;
	p.end = p.s.pos + min(p.s.len, p.first + ROW_TILE);
	p.low = WINDOW ? max(p.s.pos + p.first + 1 - window, 0) : 0;
	p.tokens = tokens, p.inverse = inverse;
	return p;
}

// Unit u of row r lies at u ^ r%8, as wgmma requires.
KR_DEV uint32_t swizzled(uint32_t row, uint32_t unit) { return row * 128 + ((unit ^ (row & 7)) << 4); }
// The distance from a unit of a row to the same unit `rows` rows further. The bits that are set in rows must be zero
// in the row.
KR_DEV uint32_t rows_on(uint32_t at, uint32_t rows) { return (at ^ (rows & 7) << 4) + rows * 128; }

// A position in a ring. Consumers begin with parity 0, producers with 1.
struct Place {
	uint32_t stage, parity;
};
KR_DEV Place after(Place p) { return p.stage + 1 == STAGES ? Place{0, p.parity ^ 1} : Place{p.stage + 1, p.parity}; }

// All lanes of a warp call it; the warp arrives once.
KR_DEV void arrive(uint32_t bar) {
	if (threadIdx.x % 32 == 0) mbar_arrive(bar);
}

// --- items: thread 0 hands each to all warps

struct Items {
	volatile int *two;
	uint32_t bars, taken;
};

KR_DEV void hand_out(Items &q, int item) {
	mbar_wait(q.bars + 8 * (ITEM_EMPTY + q.taken % 2), q.taken / 2 % 2 ^ 1);
	q.two[q.taken % 2] = item;
	mbar_arrive(q.bars + 8 * (ITEM_FULL + q.taken % 2));
}

KR_DEV int take(Items &q) {
	mbar_wait(q.bars + 8 * (ITEM_FULL + q.taken % 2), q.taken / 2 % 2);
	int item = q.two[q.taken % 2];
	__syncwarp();
	arrive(q.bars + 8 * (ITEM_EMPTY + q.taken % 2));
	q.taken++;
	return item;
}

// --- producers

// A warp's share of a tile of keys or values: `rows` rows, of which it copies `each` at a time. A lane looks up one
// row of every 32.
template <int KIND, int D> struct Share {
	static const int warps = Tiles<KIND, D>::producers / 2, rows = Tiles<KIND, D>::keys / warps, looks = (rows + 31) / 32;
	static const int units = D * Element<KIND>::size / 16, each = 32 / units, copies = rows / each;
};

// The starts of the cache's rows, in units of 16 bytes. Outside low..end it is a row at the end: its scores are not read
// and its weights are zero.
template <int KIND, int D> KR_DEV void look_up(uint32_t (&row)[Share<KIND, D>::looks], int (&slot)[Share<KIND, D>::looks], const Part &p, const int *table, int stride, int tile) {
	int at = tile * Tiles<KIND, D>::keys + threadIdx.x / 32 % Share<KIND, D>::warps * Share<KIND, D>::rows + threadIdx.x % 32;
#pragma unroll
	for (int k = 0; k < Share<KIND, D>::looks; k++) {
		int key = min(max(at + 32 * k, p.low), p.end - 1), i = p.inverse ? (int)__umulhi((uint32_t)key, p.inverse) : key;
		slot[k] = table[p.s.first + i] * p.tokens + (key - i * p.tokens);
		row[k] = (uint32_t)slot[k] * (uint32_t)(stride * Element<KIND>::size / 16);
	}
}

// A warp's copies of an item's keys or values.
struct Source {
	const char *rows; // the lane's 16 bytes of the cache's first row
	int head;         // tile number, counted over keys and values
	uint32_t to;      // the destination of the lane's first copy, relative to the first stage
	uint32_t full, empty;
};

// row, unit: those of the lane's first copy. per: the cache's units per row of a piece.
template <int KIND, int D> KR_DEV Source source_of(const Part &p, uint32_t base, const Cache &c, int row, int unit, int per) {
	typedef Tiles<KIND, D> T;
	typedef Share<KIND, D> S;
	bool values = threadIdx.x >= 32 * S::warps;
	int size = Element<KIND>::size;
	Source s;
	s.head = p.key_head + (values ? p.key_heads : 0);
	s.rows = c.rows + (long long)s.head * D * size + unit * 16;
	s.to = (values ? T::at_values : T::at_keys) + unit / per * T::sub + swizzled(threadIdx.x / 32 % S::warps * S::rows + row, unit % per * (8 / per));
	s.full = base + T::at_bars + 8 * (values ? VALUES_FULL : KEYS_FULL), s.empty = base + T::at_bars + 8 * (values ? VALUES_EMPTY : KEYS_EMPTY);
	return s;
}

// bf16 is copied directly to its place. Copies arrive at the mbarrier by themselves, so several tiles are in flight.
template <int D> KR_DEV void produce_bf16(Place &at, const Part &p, unsigned char *shared, const Cache &c, const int *table) {
	typedef Share<BF16_ROWS, D> S;
	uint32_t base = smem_u32(shared);
	int lane = threadIdx.x % 32, r = lane / S::units, first = p.low / Tiles<BF16_ROWS, D>::keys, tiles = (p.end + Tiles<BF16_ROWS, D>::keys - 1) / Tiles<BF16_ROWS, D>::keys;
	Source from = source_of<BF16_ROWS, D>(p, base, c, r, lane % S::units, 8);
	uint32_t rows[S::looks], next[S::looks];
	int slot[S::looks];
	look_up<BF16_ROWS, D>(rows, slot, p, table, c.stride, first);
#pragma unroll 1
	for (int i = first; i < tiles; i++, at = after(at)) {
		mbar_wait(from.empty + 8 * at.stage, at.parity);
		look_up<BF16_ROWS, D>(next, slot, p, table, c.stride, i + 1);
		uint32_t to = base + from.to + at.stage * Tiles<BF16_ROWS, D>::stage;
#pragma unroll
		for (int k = 0; k < S::looks; k++) {
#pragma unroll 8
			for (int j = 0; j < 32 / S::each; j++) {
				uint32_t row = __shfl_sync(0xffffffffu, rows[k], j * S::each + r);
				cp_async16(rows_on(to, 32 * k + j * S::each), from.rows + (unsigned long long)row * 16);
			}
			rows[k] = next[k];
		}
		mbar_arrive_cp_async(from.full + 8 * at.stage);
	}
}

// A lane's 16 values as operands of products. scale: of int8, in the two parts that split returns.
template <int KIND> KR_DEV void widen16(uint32_t (&out)[8], uint4 v, uint32_t scale) {
	uint32_t in[4] = {v.x, v.y, v.z, v.w}, high = __byte_perm(scale, 0, 0x1010), low = __byte_perm(scale, 0, 0x3232);
#pragma unroll
	for (int k = 0; k < 4; k++) {
		widen<KIND>(in[k], out[2 * k], out[2 * k + 1]);
		if (KIND == I8_ROWS) {
#pragma unroll
			for (int h = 0; h < 2; h++) out[2 * k + h] = fma_bf16x2(out[2 * k + h], high, fma_bf16x2(out[2 * k + h], low, 0x80008000));
		}
	}
}

// Splits a float into a sum of two bf16.
KR_DEV uint32_t split(float v) { return pack_bf16(v, v - lo_f32(pack_bf16(v, 0.f))); }

// 8-bit values are loaded to registers, a part of a tile ahead, and stored widened. Eight lanes have 4 units of 2
// rows, so that their stores go to different banks.
template <int KIND, int D> KR_DEV void produce_8bit(Place &at, const Part &p, unsigned char *shared, const Cache &c, const int *table) {
	typedef Share<KIND, D> S;
	const int BATCH = D > 128 ? 8 : 4; // more registers here would mean fewer for consumers
	int lane = threadIdx.x % 32, r = lane / 4 % 2 + lane / 8 / (S::units / 4) * 2;
	int start = p.low / Tiles<KIND, D>::keys, tiles = (p.end + Tiles<KIND, D>::keys - 1) / Tiles<KIND, D>::keys;
	Source from = source_of<KIND, D>(p, smem_u32(shared), c, r, lane % 4 + lane / 8 % (S::units / 4) * 4, 4);
	uint32_t rows[S::looks], next[S::looks], scale[S::looks];
	int slot[S::looks], next_slot[S::looks];
	uint4 v[BATCH];
	auto load = [&](int first) {
#pragma unroll
		for (int j = 0; j < BATCH; j++) {
			int row = (first + j) * S::each;
			v[j] = *(const uint4 *)(from.rows + (unsigned long long)__shfl_sync(0xffffffffu, rows[row / 32], (row + r) % 32) * 16);
		}
		if (KIND == I8_ROWS && first == 0) {
#pragma unroll
			for (int k = 0; k < S::looks; k++) scale[k] = split(c.scales[(long long)slot[k] * c.scales_stride + from.head]);
		}
	};
	look_up<KIND, D>(rows, slot, p, table, c.stride, start);
	load(0);
	look_up<KIND, D>(next, next_slot, p, table, c.stride, start + 1);
#pragma unroll 1
	for (int i = start; i < tiles; i++, at = after(at)) {
		mbar_wait(from.empty + 8 * at.stage, at.parity);
		uint32_t to = from.to + at.stage * Tiles<KIND, D>::stage;
#pragma unroll
		for (int j = 0; j < S::copies; j++) {
			uint32_t out[8], x = rows_on(to, j * S::each);
			widen16<KIND>(out, v[j % BATCH], KIND == I8_ROWS ? __shfl_sync(0xffffffffu, scale[j * S::each / 32], (j * S::each + r) % 32) : 0);
			*(uint4 *)(shared + x) = make_uint4(out[0], out[1], out[2], out[3]);
			*(uint4 *)(shared + (x ^ 16)) = make_uint4(out[4], out[5], out[6], out[7]);
			if (j % BATCH == BATCH - 1 && j + 1 < S::copies) load(j + 1);
		}
		fence_async(); // it also waits for loads, so the next ones are issued after it
		__syncwarp();
		arrive(from.full + 8 * at.stage);
#pragma unroll
		for (int k = 0; k < S::looks; k++) rows[k] = next[k], slot[k] = next_slot[k];
		load(0);
		look_up<KIND, D>(next, next_slot, p, table, c.stride, i + 2);
	}
}

// --- consumers

// A thread's state for rows g and g+8: sums of weight * value, the score to which weights are relative, and the sum of
// weights of its own keys.
template <int D> struct State {
	float sum[D / 2];
	float most[2], total[2];
};

// Loads the queries of a consumer's 64 rows and stores them in shared memory.
template <int KIND, int D> struct Queries {
	uint4 v[D / 16];
};

template <int KIND, int D> KR_DEV void fetch(Queries<KIND, D> &f, const bf16 *q, int q_stride, const Part &p, int group) {
#pragma unroll
	for (int k = 0; k < D / 16; k++) {
		int i = k * 128 + threadIdx.x % 128, row = i / (D / 8), unit = i % (D / 8);
		f.v[k] = *(const uint4 *)(q + (long long)(p.s.row + min(p.first + group * 64 + row, p.s.len - 1)) * q_stride + p.head * D + unit * 8);
	}
}

KR_DEV uint32_t f16_of_bf16(uint32_t pair) { return pack_f16(lo_f32(pair), hi_f32(pair)); }

template <int KIND, int D> KR_DEV void put(const Queries<KIND, D> &f, unsigned char *dst, int group) {
	bar_sync(QUERIES + group, 128); // no warp still reads the previous ones
#pragma unroll
	for (int k = 0; k < D / 16; k++) {
		int i = k * 128 + threadIdx.x % 128, row = i / (D / 8), unit = i % (D / 8);
		uint4 v = f.v[k];
		if (KIND == E4M3_ROWS) v = make_uint4(f16_of_bf16(v.x), f16_of_bf16(v.y), f16_of_bf16(v.z), f16_of_bf16(v.w));
		*(uint4 *)(dst + unit / 8 * (64 * 128) + swizzled(row, unit % 8)) = v;
	}
	fence_async();
	bar_sync(QUERIES + group, 128);
}

// Waits for keys or values. Data written by cp.async needs the fence here, because no thread waited for it before.
template <int KIND> KR_DEV void wait_full(uint32_t bar, uint32_t parity) {
	mbar_wait(bar, parity);
	if (KIND == BF16_ROWS) fence_async();
}

// Starts scores = queries * keys.
template <int KIND, int D, int KEYS> KR_DEV void start_scores(float (&s)[KEYS / 2], uint32_t queries, uint32_t keys) {
#pragma unroll
	for (int i = 0; i < KEYS / 2; i++) s[i] = 0.f;
	wgmma_fence();
#pragma unroll
	for (int k = 0; k < D / 16; k++) {
		uint64_t a = wgmma_desc(queries + k / 4 * (64 * 128)) + k % 4 * 2, b = wgmma_desc(keys + k / 4 * (KEYS * 128)) + k % 4 * 2;
		if (KIND == E4M3_ROWS) wgmma_f16_ss<KEYS>(s, a, b);
		else wgmma_ss<KEYS>(s, a, b);
	}
	wgmma_commit();
}

// Starts sum += weights * values.
template <int KIND, int D, int KEYS> KR_DEV void start_values(State<D> &st, const uint32_t (&w)[KEYS / 16][4], uint32_t values) {
	wgmma_fence();
#pragma unroll
	for (int k = 0; k < KEYS / 16; k++) {
		uint64_t b = wgmma_desc_t(values, KEYS * 128) + k * 128;
		if (KIND == E4M3_ROWS) wgmma_f16_rs_t<D>(st.sum, w[k], b);
		else wgmma_rs_t<D>(st.sum, w[k], b);
	}
	wgmma_commit();
}

// Turns scores into weights, and sets old to the factor for the earlier sums. The score to which weights are relative
// may be 8 powers of two below the largest, so old is seldom other than 1. key: the key of column 0. top: the position
// of the warp's row 0.
template <int D, int KEYS, bool WINDOW> KR_DEV void weigh(State<D> &st, float (&s)[KEYS / 2], float (&old)[2], float scale, int key, int top, int window) {
	int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
	if (key + KEYS - 1 > top || (WINDOW && key <= top + 15 - window)) {
#pragma unroll
		for (int i = 0; i < KEYS / 2; i++)
			if (unseen<WINDOW>(key + i / 4 * 8 + 2 * c + i % 2, top + g + i / 2 % 2 * 8, window)) s[i] = -INFINITY;
	}
#pragma unroll
	for (int h = 0; h < 2; h++) {
		float m = st.most[h];
#pragma unroll
		for (int n = 0; n < KEYS / 8; n++) m = fmaxf(m, fmaxf(s[4 * n + 2 * h], s[4 * n + 2 * h + 1]));
		m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
		m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
		if ((m - st.most[h]) * scale <= 8.f) m = st.most[h];
		old[h] = exp2_approx((st.most[h] - base_of<WINDOW>(m)) * scale);
		st.most[h] = m;
	}
#pragma unroll
	for (int h = 0; h < 2; h++) {
		float base = base_of<WINDOW>(st.most[h]) * scale, even = st.total[h] * old[h], odd = 0.f;
#pragma unroll
		for (int n = 0; n < KEYS / 8; n++) {
			float &a = s[4 * n + 2 * h], &b = s[4 * n + 2 * h + 1];
			a = exp2_approx(fmaf(a, scale, -base)), b = exp2_approx(fmaf(b, scale, -base));
			even += a, odd += b;
		}
		st.total[h] = even + odd;
	}
}

template <int KIND, int D, int KEYS> KR_DEV void settle(State<D> &st, uint32_t (&w)[KEYS / 16][4], const float (&s)[KEYS / 2], const float (&old)[2]) {
	if (__any_sync(0xffffffffu, old[0] != 1.f || old[1] != 1.f)) { // a factor of 1 changes nothing, so other rows are unaffected
#pragma unroll
		for (int i = 0; i < D / 2; i++) st.sum[i] *= old[i / 2 % 2];
	}
#pragma unroll
	for (int k = 0; k < KEYS / 16; k++)
#pragma unroll
		for (int i = 0; i < 4; i++) w[k][i] = pack<KIND>(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
}

// A consumer's work on all tiles of an item's keys, except for the wait for the last values. at: on entry the first
// tile's place, then the last one's. top: the position of the warp's row 0.
template <int KIND, int D, bool WINDOW> KR_DEV void consume(State<D> &st, Place &at, const Part &p, uint32_t base, int group, int top, float scale, int window) {
	typedef Tiles<KIND, D> T;
	const int KEYS = T::keys;
	uint32_t bars = base + T::at_bars, queries = base + group * T::pieces * T::sub_q;
	int first = p.low / KEYS, tiles = (p.end + KEYS - 1) / KEYS;
	float s[KEYS / 2], old[2];
	uint32_t w[KEYS / 16][4];
	if (group == 1 && tiles > first + 1) bar_arrive(TURN, CONSUMERS);
	wait_full<KIND>(bars + 8 * (KEYS_FULL + at.stage), at.parity);
	start_scores<KIND, D, KEYS>(s, queries, base + T::at_keys + at.stage * T::stage);
	wgmma_wait<0>();
	wgmma_done(s);
	arrive(bars + 8 * (KEYS_EMPTY + at.stage));
	weigh<D, KEYS, WINDOW>(st, s, old, scale, first * KEYS, top, window);
	settle<KIND, D, KEYS>(st, w, s, old);
	Place next = after(at);
	if (tiles > first + 1) wait_full<KIND>(bars + 8 * (KEYS_FULL + next.stage), next.parity);
#pragma unroll 1
	for (int i = first + 1; i < tiles; i++) {
		bar_sync(TURN + group, CONSUMERS);
		start_scores<KIND, D, KEYS>(s, queries, base + T::at_keys + next.stage * T::stage);
		wait_full<KIND>(bars + 8 * (VALUES_FULL + at.stage), at.parity);
		start_values<KIND, D, KEYS>(st, w, base + T::at_values + at.stage * T::stage);
		if (group == 0 || i + 1 < tiles) bar_arrive(TURN + 1 - group, CONSUMERS);
		wgmma_wait<1>();
		wgmma_done(s);
		arrive(bars + 8 * (KEYS_EMPTY + next.stage));
		weigh<D, KEYS, WINDOW>(st, s, old, scale, i * KEYS, top, window);
		uint32_t read = bars + 8 * (VALUES_EMPTY + at.stage);
		at = next, next = after(at);
		// Without this, the compiler would compute weights only after the wait for the values. So the code before the
		// wait uses the weights' sum, which is never below zero.
		uint32_t zero = st.total[0] < 0.f || st.total[1] < 0.f;
		if (i + 1 < tiles) wait_full<KIND>(bars + 8 * (KEYS_FULL + next.stage), next.parity ^ zero);
		wgmma_wait<0>();
		wgmma_done(st.sum);
		arrive(read);
		settle<KIND, D, KEYS>(st, w, s, old);
	}
	wait_full<KIND>(bars + 8 * (VALUES_FULL + at.stage), at.parity);
	start_values<KIND, D, KEYS>(st, w, base + T::at_values + at.stage * T::stage);
}

template <int D> KR_DEV void put_row(void *out, int wide, long long at, const State<D> &st, int h) {
	float total = st.total[h];
	total += __shfl_xor_sync(0xffffffffu, total, 1);
	total += __shfl_xor_sync(0xffffffffu, total, 2);
	if (at < 0) return;
	total = 1.f / total;
	at += 2 * (threadIdx.x % 4);
#pragma unroll
	for (int n = 0; n < D / 8; n++) {
		float a = st.sum[4 * n + 2 * h] * total, b = st.sum[4 * n + 2 * h + 1] * total;
		if (wide) store2((float *)out + at + 8 * n, a, b);
		else store2((bf16 *)out + at + 8 * n, a, b);
	}
}

// --- the kernel

template <int KIND, int D> KR_DEV void make_barriers(uint32_t bars) {
	typedef Tiles<KIND, D> T;
	// cp.async arrives once per thread, other producers once per warp.
	int full = T::producers / 2 * (KIND == BF16_ROWS ? 32 : 1);
	for (int i = 0; i < STAGES; i++) {
		mbar_init(bars + 8 * (KEYS_FULL + i), full), mbar_init(bars + 8 * (VALUES_FULL + i), full);
		mbar_init(bars + 8 * (KEYS_EMPTY + i), CONSUMERS / 32), mbar_init(bars + 8 * (VALUES_EMPTY + i), CONSUMERS / 32);
	}
	for (int i = 0; i < 2; i++) mbar_init(bars + 8 * (ITEM_FULL + i), 1), mbar_init(bars + 8 * (ITEM_EMPTY + i), T::threads / 32);
	mbar_init_fence();
}

// turn: a word that counts the fetched items. It is zero at the start and again at the end; null: a block has one
// item. Grid: at most as many blocks as there are items.
template <int KIND, int D, bool WINDOW> KR_DEV void prefill(unsigned char *shared, void *out, int wide, int out_stride, const bf16 *q, int q_stride, const Cache &c, int key_heads, const int *table, float scale, int block_tokens, int heads, unsigned *turn, int window, const float *sinks) {
	typedef Tiles<KIND, D> T;
	const int PRODUCERS = 32 * T::producers;
	uint32_t base = smem_u32(shared), bars = base + T::at_bars, inverse = 0xffffffffu / block_tokens + 1;
	pdl_launch();
	if (threadIdx.x == 0) make_barriers<KIND, D>(bars);
	pdl_wait();
	__syncthreads();
	Items queue = {(volatile int *)(shared + T::at_items), bars, 0};
	int item = blockIdx.x, items = heads * table[HEAD_TILES];
	if (item >= items) return;
	Part p = part_of<WINDOW>(table, item, heads, key_heads, block_tokens, inverse, window);
	if (threadIdx.x < PRODUCERS) {
		reg_shrink<T::few>();
		Place at = {0, 1};
#pragma unroll 1
		for (;;) {
			if (KIND == BF16_ROWS) produce_bf16<D>(at, p, shared, c, table);
			else produce_8bit<KIND == BF16_ROWS ? E4M3_ROWS : KIND, D>(at, p, shared, c, table);
			// All blocks together fetch `items` times. Fetching earlier would give long items to blocks that already
			// have long ones.
			if (threadIdx.x == 0) hand_out(queue, turn ? atomicInc(turn, items - 1) + gridDim.x : items);
			__syncwarp();
			item = take(queue);
			if (item >= items) break;
			p = part_of<WINDOW>(table, item, heads, key_heads, block_tokens, inverse, window);
		}
		cp_async_wait<0>();
	} else {
		reg_grow<T::many>();
		int group = (threadIdx.x - PRODUCERS) / 128, row = group * 64 + threadIdx.x % 128 / 32 * 16, g = threadIdx.x % 32 / 4;
		Queries<KIND, D> queries;
		Place at = {0, 0};
		fetch<KIND, D>(queries, q, q_stride, p, group);
#pragma unroll 1
		while (item < items) {
			put<KIND, D>(queries, shared + group * T::pieces * T::sub_q, group);
			State<D> st = {{}, {-INFINITY, -INFINITY}, {}};
			consume<KIND, D, WINDOW>(st, at, p, base, group, p.s.pos + p.first + row, scale, window);
			if (WINDOW && sinks) add_sink(st, sinks[p.head], scale);
			long long to[2];
#pragma unroll
			for (int h = 0; h < 2; h++) {
				int r = p.first + row + g + 8 * h;
				to[h] = r < p.s.len ? (long long)(p.s.row + r) * out_stride + p.head * D : -1;
			}
			item = take(queue);
			if (item < items) { // its queries are loaded while the last values are added
				p = part_of<WINDOW>(table, item, heads, key_heads, block_tokens, inverse, window);
				fetch<KIND, D>(queries, q, q_stride, p, group);
			}
			wgmma_wait<0>();
			wgmma_done(st.sum);
			arrive(bars + 8 * (VALUES_EMPTY + at.stage));
			at = after(at);
			for (int h = 0; h < 2; h++) put_row<D>(out, wide, to[h], st, h);
		}
	}
}

#define PREFILL_KERNEL(name, kind, d, with_window, window, sinks, ...) \
	KR_KERNEL((Tiles<kind, d>::threads), 1) \
	name(void *out, int wide, int out_stride, const bf16 *q, int q_stride, const char *cache, const float *scales, int stride, \
	     int scales_stride, const int *table, int key_heads, float scale, int block_tokens, int heads, unsigned *turn __VA_ARGS__) { \
		KR_SHARED(unsigned char, shared); \
		Cache c = {cache, scales, kind, stride, scales_stride, d}; \
		prefill<kind, d, with_window>(shared, out, wide, out_stride, q, q_stride, c, key_heads, table, scale, block_tokens, heads, turn, window, sinks); \
	} \
	KR_EXPORT(name)
#define PREFILL(name, kind, d) PREFILL_KERNEL(name, kind, d, false, 0, nullptr)
#define PREFILL_WINDOW(name, kind, d) PREFILL_KERNEL(name, kind, d, true, window, sinks, , int window, const float *sinks)
#define KIND(name, kind) \
	PREFILL(kr_gqa_prefill_##name##_64_h, kind, 64) PREFILL(kr_gqa_prefill_##name##_128_h, kind, 128) \
	PREFILL(kr_gqa_prefill_##name##_256_h, kind, 256) \
	PREFILL_WINDOW(kr_gqa_prefill_window_##name##_64_h, kind, 64) PREFILL_WINDOW(kr_gqa_prefill_window_##name##_128_h, kind, 128) \
	PREFILL_WINDOW(kr_gqa_prefill_window_##name##_256_h, kind, 256)
KIND(bf16, BF16_ROWS)
KIND(e4m3, E4M3_ROWS)
KIND(i8, I8_ROWS)
#endif
