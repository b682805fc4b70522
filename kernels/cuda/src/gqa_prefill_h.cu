// Flash attention of prompts with grouped heads for Hopper: what kr_gqa_prefill does (gqa_prefill.cu has the
// definitions), with wgmma.
//
// An item of work is a tile of rows of one query head. A block takes items until there are none left, the longest
// first. Its first warps, the producers, bring keys and values from the paged cache to a ring in shared memory, half
// of them keys and half of them values. Behind them are two warpgroups, the consumers, of 64 rows each, which take
// turns: while one computes the weights of its scores, the other's products run. A consumer starts the scores of a
// tile, then adds the values of the tile before it, and computes the weights while the values are added.
//
// Sums of 512 columns would need all registers. So with heads of 512 both consumers have the same 64 rows, and each adds
// half of the values' columns. Each computes all scores, a third of the products twice: then they give each other
// nothing. A stage of the rings has half of the columns of a tile.
//
// The producers widen what has 8 bits: e4m3 to f16 and int8 to bf16. They go on with the next item while the consumers
// finish this one. Tiles of keys lie at absolute positions, so a row's sums are taken in one order however its prompt
// was cut.
#include "gqa_produce.cuh"

#ifdef KR_HOPPER
// --- consumers

// A thread's state for rows g and g+8: sums of weight * value, the score to which weights are relative, and the sum of
// weights of its own keys.
template <int COLS> struct State {
	float sum[COLS / 2];
	float most[2], total[2];
};

// Loads the queries of a consumer's 64 rows and stores them in shared memory: all of them, or its half of the columns.
template <int KIND, int D> struct Queries {
	uint4 v[Tiles<KIND, D>::cols / 16];
};

template <int KIND, int D> KR_DEV void fetch(Queries<KIND, D> &f, const bf16 *q, int q_stride, const Part &p, int group) {
	typedef Tiles<KIND, D> T;
	const int UNITS = T::cols / 8;
	int down = T::halves == 1 ? group * 64 : 0, right = p.head * D + (T::halves == 1 ? 0 : group * T::cols);
#pragma unroll
	for (int k = 0; k < T::cols / 16; k++) {
		int i = k * 128 + threadIdx.x % 128, row = i / UNITS, unit = i % UNITS;
		f.v[k] = *(const uint4 *)(q + (long long)(p.s.row + min(p.first + down + row, p.s.len - 1)) * q_stride + right + unit * 8);
	}
}

KR_DEV uint32_t f16_of_bf16(uint32_t pair) { return pack_f16(lo_f32(pair), hi_f32(pair)); }

template <int KIND, int D> KR_DEV void put(const Queries<KIND, D> &f, unsigned char *dst, int group) {
	const int UNITS = Tiles<KIND, D>::cols / 8;
	int bar = Tiles<KIND, D>::halves == 1 ? QUERIES + group : QUERIES, readers = Tiles<KIND, D>::halves * 128;
	bar_sync(bar, readers); // no warp still reads the previous ones
#pragma unroll
	for (int k = 0; k < Tiles<KIND, D>::cols / 16; k++) {
		int i = k * 128 + threadIdx.x % 128, row = i / UNITS, unit = i % UNITS;
		uint4 v = f.v[k];
		if (KIND == E4M3_ROWS) v = make_uint4(f16_of_bf16(v.x), f16_of_bf16(v.y), f16_of_bf16(v.z), f16_of_bf16(v.w));
		*(uint4 *)(dst + unit / 8 * (64 * 128) + swizzled(row, unit % 8)) = v;
	}
	fence_async();
	bar_sync(bar, readers);
}

// Waits for keys or values. Data written by cp.async needs the fence here, because no thread waited for it before.
template <int KIND> KR_DEV void wait_full(uint32_t bar, uint32_t parity) {
	mbar_wait(bar, parity);
	if (KIND == BF16_ROWS) fence_async();
}

// Starts scores = queries * keys. at: the first stage of the tile's keys, which has arrived.
template <int KIND, int D, int KEYS> KR_DEV void start_scores(float (&s)[KEYS / 2], uint32_t queries, uint32_t base, Place at) {
	typedef Tiles<KIND, D> T;
#pragma unroll
	for (int i = 0; i < KEYS / 2; i++) s[i] = 0.f;
#pragma unroll
	for (int h = 0; h < T::halves; h++) {
		if (h > 0) at = after(at, T::key_stages), wait_full<KIND>(base + T::at_bars + 8 * (KEYS_FULL + at.stage), at.parity);
		uint32_t keys = base + T::at_keys + at.stage * T::stage;
		wgmma_fence();
#pragma unroll
		for (int k = 0; k < T::cols / 16; k++) {
			uint64_t a = wgmma_desc(queries + (h * T::pieces + k / 4) * (64 * 128)) + k % 4 * 2, b = wgmma_desc(keys + k / 4 * (KEYS * 128)) + k % 4 * 2;
			if (KIND == E4M3_ROWS) wgmma_f16_ss<KEYS>(s, a, b);
			else wgmma_ss<KEYS>(s, a, b);
		}
		wgmma_commit();
	}
}

// Waits for a tile's scores, after which came LATER commits, and frees its keys.
template <int KIND, int D, int KEYS, int LATER> KR_DEV void end_scores(float (&s)[KEYS / 2], uint32_t bars, Place at) {
	typedef Tiles<KIND, D> T;
	if (T::halves > 1) {
		wgmma_wait<LATER + 1>();
		arrive(bars + 8 * (KEYS_EMPTY + at.stage));
		at = after(at, T::key_stages);
	}
	wgmma_wait<LATER>();
	wgmma_done(s);
	arrive(bars + 8 * (KEYS_EMPTY + at.stage));
}

// The place of the next tile's keys.
template <int KIND, int D> KR_DEV Place next_keys(Place at) {
	typedef Tiles<KIND, D> T;
	if (T::halves > 1) at = after(at, T::key_stages);
	return after(at, T::key_stages);
}

// Starts sum += weights * values.
template <int KIND, int COLS, int KEYS> KR_DEV void start_values(State<COLS> &st, const uint32_t (&w)[KEYS / 16][4], uint32_t values) {
	wgmma_fence();
#pragma unroll
	for (int k = 0; k < KEYS / 16; k++) {
		uint64_t b = wgmma_desc_t(values, KEYS * 128) + k * 128;
		if (KIND == E4M3_ROWS) wgmma_f16_rs_t<COLS>(st.sum, w[k], b);
		else wgmma_rs_t<COLS>(st.sum, w[k], b);
	}
	wgmma_commit();
}

// Turns scores into weights, and sets old to the factor for the earlier sums. The score to which weights are relative
// may be 8 powers of two below the largest, so old is seldom other than 1. key: the key of column 0. top: the position
// of the warp's row 0.
template <int COLS, int KEYS, bool WINDOW> KR_DEV void weigh(State<COLS> &st, float (&s)[KEYS / 2], float (&old)[2], float scale, int key, int top, int window) {
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

template <int KIND, int COLS, int KEYS> KR_DEV void settle(State<COLS> &st, uint32_t (&w)[KEYS / 16][4], const float (&s)[KEYS / 2], const float (&old)[2]) {
	if (__any_sync(0xffffffffu, old[0] != 1.f || old[1] != 1.f)) { // a factor of 1 changes nothing, so other rows are unaffected
#pragma unroll
		for (int i = 0; i < COLS / 2; i++) st.sum[i] *= old[i / 2 % 2];
	}
#pragma unroll
	for (int k = 0; k < KEYS / 16; k++)
#pragma unroll
		for (int i = 0; i < 4; i++) w[k][i] = pack<KIND>(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
}

// Where a consumer reads next.
struct Places {
	Place keys, values;
};

// A consumer's work on all tiles of an item's keys, except for the wait for the last values. at: on entry the places of
// the first tile, then those of the keys of the next item and of this item's last values. top: the position of the
// warp's row 0.
template <int KIND, int D, bool WINDOW> KR_DEV void consume(State<Tiles<KIND, D>::cols> &st, Places &at, const Part &p, uint32_t base, int group, int top, float scale, int window) {
	typedef Tiles<KIND, D> T;
	const int KEYS = T::keys;
	uint32_t bars = base + T::at_bars, queries = base + (T::halves == 1 ? group * T::pieces * T::sub_q : 0);
	int first = p.low / KEYS, tiles = (p.end + KEYS - 1) / KEYS;
	float s[KEYS / 2], old[2];
	uint32_t w[KEYS / 16][4];
	if (group == 1 && tiles > first + 1) bar_arrive(TURN, CONSUMERS);
	Place keys = at.keys, values = at.values;
	wait_full<KIND>(bars + 8 * (KEYS_FULL + keys.stage), keys.parity);
	start_scores<KIND, D, KEYS>(s, queries, base, keys);
	end_scores<KIND, D, KEYS, 0>(s, bars, keys);
	weigh<T::cols, KEYS, WINDOW>(st, s, old, scale, first * KEYS, top, window);
	settle<KIND, T::cols, KEYS>(st, w, s, old);
	keys = next_keys<KIND, D>(keys);
	if (tiles > first + 1) wait_full<KIND>(bars + 8 * (KEYS_FULL + keys.stage), keys.parity);
#pragma unroll 1
	for (int i = first + 1; i < tiles; i++) {
		bar_sync(TURN + group, CONSUMERS);
		start_scores<KIND, D, KEYS>(s, queries, base, keys);
		wait_full<KIND>(bars + 8 * (VALUES_FULL + values.stage), values.parity);
		start_values<KIND, T::cols, KEYS>(st, w, base + T::at_values + values.stage * T::stage);
		if (group == 0 || i + 1 < tiles) bar_arrive(TURN + 1 - group, CONSUMERS);
		end_scores<KIND, D, KEYS, 1>(s, bars, keys);
		weigh<T::cols, KEYS, WINDOW>(st, s, old, scale, i * KEYS, top, window);
		uint32_t read = bars + 8 * (VALUES_EMPTY + values.stage);
		values = T::halves == 1 ? keys : Place{values.stage, values.parity ^ 1};
		keys = next_keys<KIND, D>(keys);
		// Without this, the compiler would compute weights only after the wait for the values. So the code before the
		// wait uses the weights' sum, which is never below zero.
		uint32_t zero = st.total[0] < 0.f || st.total[1] < 0.f;
		if (i + 1 < tiles) wait_full<KIND>(bars + 8 * (KEYS_FULL + keys.stage), keys.parity ^ zero);
		wgmma_wait<0>();
		wgmma_done(st.sum);
		arrive(read);
		settle<KIND, T::cols, KEYS>(st, w, s, old);
	}
	at.keys = keys, at.values = values;
	wait_full<KIND>(bars + 8 * (VALUES_FULL + values.stage), values.parity);
	start_values<KIND, T::cols, KEYS>(st, w, base + T::at_values + values.stage * T::stage);
}

template <int COLS> KR_DEV void put_row(void *out, int wide, long long at, const State<COLS> &st, int h) {
	float total = st.total[h];
	total += __shfl_xor_sync(0xffffffffu, total, 1);
	total += __shfl_xor_sync(0xffffffffu, total, 2);
	if (at < 0) return;
	total = 1.f / total;
	at += 2 * (threadIdx.x % 4);
#pragma unroll
	for (int n = 0; n < COLS / 8; n++) {
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
		mbar_init(bars + 8 * (KEYS_EMPTY + i), CONSUMERS / 32), mbar_init(bars + 8 * (VALUES_EMPTY + i), CONSUMERS / T::halves / 32);
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
	int item = blockIdx.x, items = heads * table[HEAD_TILES] * (ROW_TILE / T::rows);
	if (item >= items) return;
	Part p = part_of<T::rows, WINDOW>(table, item, heads, key_heads, block_tokens, inverse, window);
	if (threadIdx.x < PRODUCERS) {
		reg_shrink<T::few>();
		Place at = {0, 1};
#pragma unroll 1
		for (;;) {
			if (KIND == BF16_ROWS) produce_bf16<D>(at, p, shared, c, table);
			else if (T::raw) produce_raw<KIND == BF16_ROWS ? E4M3_ROWS : KIND, T::raw ? D : 256>(at, p, shared, c, table);
			else produce_8bit<KIND == BF16_ROWS ? E4M3_ROWS : KIND, T::raw ? 64 : D>(at, p, shared, c, table);
			// All blocks together fetch `items` times. Fetching earlier would give long items to blocks that already
			// have long ones.
			if (threadIdx.x == 0) hand_out(queue, turn ? atomicInc(turn, items - 1) + gridDim.x : items);
			__syncwarp();
			item = take(queue);
			if (item >= items) break;
			p = part_of<T::rows, WINDOW>(table, item, heads, key_heads, block_tokens, inverse, window);
		}
		cp_async_wait<0>();
	} else {
		reg_grow<T::many>();
		int group = (threadIdx.x - PRODUCERS) / 128, row = threadIdx.x % 128 / 32 * 16, g = threadIdx.x % 32 / 4, column = 0;
		Queries<KIND, D> queries;
		Places at = {{0, 0}, {0, 0}};
		if (T::halves == 1) row += group * 64;
		else column = group * T::cols, at.values.stage = group;
		fetch<KIND, D>(queries, q, q_stride, p, group);
#pragma unroll 1
		while (item < items) {
			put<KIND, D>(queries, shared + group * T::pieces * T::sub_q, group);
			State<T::cols> st = {{}, {-INFINITY, -INFINITY}, {}};
			if (T::halves == 1) at.keys = at.values;
			consume<KIND, D, WINDOW>(st, at, p, base, group, p.s.pos + p.first + row, scale, window);
			if (WINDOW && sinks) add_sink(st, sinks[p.head], scale);
			long long to[2];
#pragma unroll
			for (int h = 0; h < 2; h++) {
				int r = p.first + row + g + 8 * h;
				to[h] = r < p.s.len ? (long long)(p.s.row + r) * out_stride + p.head * D + column : -1;
			}
			item = take(queue);
			if (item < items) { // its queries are loaded while the last values are added
				p = part_of<T::rows, WINDOW>(table, item, heads, key_heads, block_tokens, inverse, window);
				fetch<KIND, D>(queries, q, q_stride, p, group);
			}
			wgmma_wait<0>();
			wgmma_done(st.sum);
			arrive(bars + 8 * (VALUES_EMPTY + at.values.stage));
			at.values = T::halves == 1 ? after(at.values, T::value_stages) : Place{at.values.stage, at.values.parity ^ 1};
			for (int h = 0; h < 2; h++) put_row(out, wide, to[h], st, h);
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
	PREFILL(kr_gqa_prefill_##name##_256_h, kind, 256) PREFILL(kr_gqa_prefill_##name##_512_h, kind, 512) \
	PREFILL_WINDOW(kr_gqa_prefill_window_##name##_64_h, kind, 64) PREFILL_WINDOW(kr_gqa_prefill_window_##name##_128_h, kind, 128) \
	PREFILL_WINDOW(kr_gqa_prefill_window_##name##_256_h, kind, 256) PREFILL_WINDOW(kr_gqa_prefill_window_##name##_512_h, kind, 512)
KIND(bf16, BF16_ROWS)
KIND(e4m3, E4M3_ROWS)
KIND(i8, I8_ROWS)
#endif
