// Flash attention of prompts for Hopper (gqa_prefill_h.cu): the layout of shared memory, items of work, and the warps that
// bring keys and values from the paged cache to rings in shared memory.
#pragma once
#include "gqa.cuh"

#ifdef KR_HOPPER
// Named barriers. TURN: this consumer may start products. QUERIES: its queries have arrived.
enum { CONSUMERS = 256, STAGES = 3, TURN = 1, QUERIES = 3 };
// mbarriers: STAGES of each at most, and two of each for items of work.
enum {
	KEYS_FULL, KEYS_EMPTY = KEYS_FULL + STAGES, VALUES_FULL = KEYS_EMPTY + STAGES, VALUES_EMPTY = VALUES_FULL + STAGES,
	ITEM_FULL = VALUES_EMPTY + STAGES, ITEM_EMPTY = ITEM_FULL + 2, BARS = ITEM_EMPTY + 2
};

// The layout of shared memory: the consumers' queries, then keys and values, all in pieces of 64 columns with rows of
// 128 bytes; then the mbarriers and two items. m64n256 needs more registers than each of 512 threads can start with.
template <int KIND, int D> struct Tiles {
	static const int halves = D > 256 ? 2 : 1, cols = D / halves; // columns of a stage, and of a consumer's sums
	static const int rows = 128 / halves;                        // of an item
	static const int keys = D > 128 ? 64 : 128, pieces = cols / 64;
	static const int sub_q = 64 * 128, sub = keys * 128, stage = pieces * sub;
	static const bool raw = KIND != BF16_ROWS && D > 128; // producers have a stage as the cache has it
	static const int key_stages = KIND == BF16_ROWS ? halves + 1 : 2, value_stages = 2; // a consumer's values are in the stage of its number if there are two halves
	static const int at_keys = 2 * pieces * sub_q, at_values = at_keys + key_stages * stage, at_raw = at_values + value_stages * stage;
	static const int at_bars = at_raw + (raw ? stage : 0), at_items = at_bars + 8 * BARS, bytes = at_items + 8;
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

template <int ROWS, bool WINDOW> KR_DEV Part part_of(const int *table, int item, int heads, int key_heads, int tokens, uint32_t inverse, int window) {
	const int PARTS = ROW_TILE / ROWS;
	Part p;
	int tile = table[HEAD_TILES] * PARTS - 1 - item / heads;
	p.s = span_at(table, span_of_item(table, 0, table[HEAD_PREFILL], tile / PARTS));
	p.head = item % heads, p.key_heads = key_heads, p.key_head = p.head / (heads / key_heads);
	p.first = (tile - p.s.start * PARTS) * ROWS;
	p.end = p.s.pos + min(p.s.len, p.first + ROWS);
	p.low = WINDOW ? max(p.s.pos + p.first + 1 - window, 0) : 0;
	if (PARTS > 1 && p.first >= p.s.len) p.low = p.end - 1; // no row: the shortest work, whose result is not stored
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
KR_DEV Place after(Place p, uint32_t stages) { return p.stage + 1 == stages ? Place{0, p.parity ^ 1} : Place{p.stage + 1, p.parity}; }

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

// A warp's share of a stage of keys or values: `rows` rows, of which it copies `each` at a time. A lane looks up one
// row of every 32.
template <int KIND, int D> struct Share {
	static const int warps = Tiles<KIND, D>::producers / 2, rows = Tiles<KIND, D>::keys / warps, looks = (rows + 31) / 32;
	static const int units = Tiles<KIND, D>::cols * Element<KIND>::size / 16, each = 32 / units, copies = rows / each;
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
	uint32_t stages; // of the ring
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
	s.stages = T::key_stages != T::value_stages && values ? T::value_stages : T::key_stages;
	return s;
}

// bf16 is copied directly to its place. Copies arrive at the mbarrier by themselves, so several tiles are in flight.
template <int D> KR_DEV void produce_bf16(Place &at, const Part &p, unsigned char *shared, const Cache &c, const int *table) {
	typedef Share<BF16_ROWS, D> S;
	typedef Tiles<BF16_ROWS, D> T;
	uint32_t base = smem_u32(shared);
	int lane = threadIdx.x % 32, r = lane / S::units, first = p.low / T::keys, tiles = (p.end + T::keys - 1) / T::keys;
	Source from = source_of<BF16_ROWS, D>(p, base, c, r, lane % S::units, 8);
	uint32_t rows[S::looks], next[S::looks];
	int slot[S::looks];
	look_up<BF16_ROWS, D>(rows, slot, p, table, c.stride, first);
#pragma unroll 1
	for (int i = first * T::halves; i < tiles * T::halves; i++, at = after(at, from.stages)) {
		mbar_wait(from.empty + 8 * at.stage, at.parity);
		look_up<BF16_ROWS, D>(next, slot, p, table, c.stride, (i + 1) / T::halves);
		uint32_t to = base + from.to + at.stage * T::stage;
		const char *start = from.rows + i % T::halves * (2 * T::cols);
#pragma unroll
		for (int k = 0; k < S::looks; k++) {
#pragma unroll 8
			for (int j = 0; j < 32 / S::each; j++) {
				uint32_t row = __shfl_sync(0xffffffffu, rows[k], j * S::each + r);
				cp_async16(rows_on(to, 32 * k + j * S::each), start + (unsigned long long)row * 16);
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

// The place of a lane's first copy of 8-bit values: eight lanes have 4 units of 2 rows, so that their widened stores go
// to different banks.
template <int KIND, int D> KR_DEV int first_row() { return threadIdx.x / 4 % 2 + threadIdx.x % 32 / 8 / (Share<KIND, D>::units / 4) * 2; }
template <int KIND, int D> KR_DEV int first_unit() { return threadIdx.x % 4 + threadIdx.x % 32 / 8 % (Share<KIND, D>::units / 4) * 4; }

// Stores a lane's 16 values, widened.
template <int KIND> KR_DEV void put_wide(unsigned char *shared, uint32_t at, uint4 v, uint32_t scale) {
	uint32_t out[8];
	widen16<KIND>(out, v, scale);
	*(uint4 *)(shared + at) = make_uint4(out[0], out[1], out[2], out[3]);
	*(uint4 *)(shared + (at ^ 16)) = make_uint4(out[4], out[5], out[6], out[7]);
}

template <int KIND, int D> KR_DEV void look_up_scales(uint32_t (&scale)[Share<KIND, D>::looks], const int (&slot)[Share<KIND, D>::looks], const Cache &c, int head) {
#pragma unroll
	for (int k = 0; k < Share<KIND, D>::looks; k++) scale[k] = KIND == I8_ROWS ? split(c.scales[(long long)slot[k] * c.scales_stride + head]) : 0;
}

// 8-bit values are loaded to registers, a part of a tile ahead, and stored widened.
template <int KIND, int D> KR_DEV void produce_8bit(Place &at, const Part &p, unsigned char *shared, const Cache &c, const int *table) {
	typedef Share<KIND, D> S;
	typedef Tiles<KIND, D> T;
	const int BATCH = 4; // more registers here would mean fewer for consumers
	int r = first_row<KIND, D>(), start = p.low / T::keys, tiles = (p.end + T::keys - 1) / T::keys;
	Source from = source_of<KIND, D>(p, smem_u32(shared), c, r, first_unit<KIND, D>(), 4);
	uint32_t rows[S::looks], next[S::looks], scale[S::looks];
	int slot[S::looks], next_slot[S::looks];
	uint4 v[BATCH];
	auto load = [&](int first) {
#pragma unroll
		for (int j = 0; j < BATCH; j++) {
			int row = (first + j) * S::each;
			v[j] = *(const uint4 *)(from.rows + (unsigned long long)__shfl_sync(0xffffffffu, rows[row / 32], (row + r) % 32) * 16);
		}
		if (first == 0) look_up_scales<KIND, D>(scale, slot, c, from.head);
	};
	look_up<KIND, D>(rows, slot, p, table, c.stride, start);
	load(0);
	look_up<KIND, D>(next, next_slot, p, table, c.stride, start + 1);
#pragma unroll 1
	for (int i = start; i < tiles; i++, at = after(at, from.stages)) {
		mbar_wait(from.empty + 8 * at.stage, at.parity);
		uint32_t to = from.to + at.stage * T::stage;
#pragma unroll
		for (int j = 0; j < S::copies; j++) {
			put_wide<KIND>(shared, rows_on(to, j * S::each), v[j % BATCH], KIND == I8_ROWS ? __shfl_sync(0xffffffffu, scale[j * S::each / 32], (j * S::each + r) % 32) : 0);
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

// The same for large heads, whose fewer producers need more loads in flight than they have registers for: copies, a stage
// ahead, to shared memory. A lane reads what it has copied.
template <int KIND, int D> KR_DEV void produce_raw(Place &at, const Part &p, unsigned char *shared, const Cache &c, const int *table) {
	typedef Share<KIND, D> S;
	typedef Tiles<KIND, D> T;
	const int BATCH = 4, BATCHES = S::copies / BATCH;
	int r = first_row<KIND, D>(), first = p.low / T::keys, end = (p.end + T::keys - 1) / T::keys * T::halves;
	Source from = source_of<KIND, D>(p, smem_u32(shared), c, r, first_unit<KIND, D>(), 4);
	unsigned char *raw = shared + T::at_raw + (threadIdx.x / 32 * S::copies * 32 + threadIdx.x % 32) * 16;
	uint32_t rows[S::looks], next[S::looks], scale[S::looks], next_scale[S::looks];
	int slot[S::looks], next_slot[S::looks];
	auto copy = [&](int batch, int half) {
#pragma unroll
		for (int j = batch * BATCH; j < (batch + 1) * BATCH; j++) {
			uint32_t row = __shfl_sync(0xffffffffu, rows[j * S::each / 32], (j * S::each + r) % 32);
			cp_async16(smem_u32(raw) + j * 512, from.rows + half * T::cols + (unsigned long long)row * 16);
		}
		cp_async_commit();
	};
	look_up<KIND, D>(rows, slot, p, table, c.stride, first);
#pragma unroll
	for (int b = 0; b < BATCHES; b++) copy(b, 0);
	look_up_scales<KIND, D>(scale, slot, c, from.head);
	look_up<KIND, D>(rows, slot, p, table, c.stride, first + 1 / T::halves); // of the next stage from here on
#pragma unroll 1
	for (int i = first * T::halves; i < end; i++, at = after(at, from.stages)) {
		mbar_wait(from.empty + 8 * at.stage, at.parity);
		look_up_scales<KIND, D>(next_scale, slot, c, from.head);
		look_up<KIND, D>(next, next_slot, p, table, c.stride, (i + 2) / T::halves);
		uint32_t to = from.to + at.stage * T::stage;
#pragma unroll
		for (int b = 0; b < BATCHES; b++) {
			cp_async_wait<BATCHES - 1>();
			uint4 v[BATCH];
#pragma unroll
			for (int k = 0; k < BATCH; k++) v[k] = *(const uint4 *)(raw + (b * BATCH + k) * 512);
#pragma unroll
			for (int k = 0; k < BATCH; k++) {
				int row = (b * BATCH + k) * S::each;
				put_wide<KIND>(shared, rows_on(to, row), v[k], KIND == I8_ROWS ? __shfl_sync(0xffffffffu, scale[row / 32], (row + r) % 32) : 0);
			}
			if (i + 1 < end) copy(b, (i + 1) % T::halves);
			else cp_async_commit();
		}
		fence_async();
		__syncwarp();
		arrive(from.full + 8 * at.stage);
#pragma unroll
		for (int k = 0; k < S::looks; k++) rows[k] = next[k], slot[k] = next_slot[k], scale[k] = next_scale[k];
	}
}
#endif
