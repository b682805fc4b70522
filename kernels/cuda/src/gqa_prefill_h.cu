// Flash attention of prompts with grouped heads for Hopper: what kr_gqa_prefill does
// (gqa_prefill.cu has the definitions and the argument list), with wgmma.
//
// A block has ROW_TILE rows of a query head. Warpgroup 0 brings keys and values from the paged
// cache to shared memory as bf16, two stages of each; what has 8 bits it copies as it is and then
// widens. Warpgroups 1 and 2 have 64 rows each and take turns: while one weighs its
// scores, the other's products run. A warpgroup starts the scores of a tile, then the values
// of the tile before it, and weighs the scores while the values are added.
//
// Tiles of keys lie at absolute positions, so a row's sums are taken in one order however its
// prompt was cut.
#include "gqa.cuh"

#ifdef KR_HOPPER

enum { CONSUMERS = 256, THREADS_H = 384, STAGES = 2 };

// A piece is 64 columns: rows of 128 bytes.
template <int KIND, int D> struct Tiles {
	static const int keys = D > 128 ? 64 : 128, pieces = D / 64;
	static const int sub_q = 64 * 128, sub = keys * 128;
	static const int raw = KIND == BF16_ROWS ? 0 : keys * D; // bytes of keys or of values as they lie in the cache
	static const int at_keys = 2 * pieces * sub_q, at_values = at_keys + STAGES * pieces * sub, at_raw = at_values + STAGES * pieces * sub;
	static const int at_bars = at_raw + 2 * raw, bytes = at_bars + 64;
	static const int producer = KIND == I8_ROWS && D < 256 ? 56 : 40, consumer = KIND == I8_ROWS && D < 256 ? 224 : 232; // registers of a thread
};

// Barriers of the block's parts: whose turn it is on the tensor cores, and the queries of a
// warpgroup.
enum { TURN = 1, QUERIES = 3 };
// mbarriers, STAGES of each.
enum { KEYS_FULL, KEYS_EMPTY = KEYS_FULL + STAGES, VALUES_FULL = KEYS_EMPTY + STAGES, VALUES_EMPTY = VALUES_FULL + STAGES, BARS = VALUES_EMPTY + STAGES };

// The work of a block.
struct Part {
	Span s;
	int head, key_head, key_heads;
	int first; // row of the tile among the sequence's
	int end;   // keys that the tile needs
	int tokens, shift;
};

KR_DEV bool part_of(Part &p, const int *table, int key_heads, int block_tokens) {
	p.head = blockIdx.x, p.key_heads = key_heads, p.key_head = p.head / ((int)gridDim.x / key_heads);
	p.tokens = block_tokens, p.shift = __popc(block_tokens) == 1 ? 31 - __clz(block_tokens) : -1;
	int tile = table[HEAD_TILES] - 1 - (int)blockIdx.y;
	int found = tile < 0 ? -1 : span_of_item(table, 0, table[HEAD_PREFILL], tile);
	if (found < 0) return false;
	p.s = span_at(table, found);
	p.first = (tile - p.s.start) * ROW_TILE;
	p.end = p.s.pos + min(p.s.len, p.first + ROW_TILE);
	return true;
}

// Unit u of row r lies at u ^ r%8, as wgmma wants it.
KR_DEV uint32_t swizzled(uint32_t row, uint32_t unit) { return row * 128 + ((unit ^ (row & 7)) << 4); }

// --- the warpgroup that copies

// The cache's row of key `key`, < 0 past the end.
KR_DEV int slot_of(const Part &p, const int *table, int key) {
	if (key >= p.end) return -1;
	int i = p.shift >= 0 ? key >> p.shift : key / p.tokens;
	return table[p.s.first + i] * p.tokens + (key - i * p.tokens);
}

// Two warps bring keys, two others values, each half of a tile's rows: a lane looks up one row
// of every 32.
template <int KIND, int D> struct Half {
	static const int rows = Tiles<KIND, D>::keys / 2, looks = rows / 32, bytes = D * Element<KIND>::size;
	static const int lanes = bytes / 16, each = 32 / lanes; // of a row; rows that a warp copies at a time
};

template <int KIND, int D> KR_DEV void look_up(int (&slot)[Half<KIND, D>::looks], const Part &p, const int *table, int tile) {
	int at = tile * Tiles<KIND, D>::keys + threadIdx.x / 32 % 2 * Half<KIND, D>::rows + threadIdx.x % 32;
#pragma unroll
	for (int i = 0; i < Half<KIND, D>::looks; i++) slot[i] = slot_of(p, table, at + 32 * i);
}

// Starts the copy of rows to dst, or as they lie in the cache to raw. from: column and unit of a
// lane in the cache's first row.
template <int KIND, int D> KR_DEV void start_copy(uint32_t dst, uint32_t raw, const char *from, int stride, const int (&slot)[Half<KIND, D>::looks]) {
	typedef Half<KIND, D> H;
	int lane = threadIdx.x % 32, half = threadIdx.x / 32 % 2, r = lane / H::lanes, u = lane % H::lanes;
#pragma unroll
	for (int k = 0; k < H::looks; k++) {
#pragma unroll (KIND == I8_ROWS ? 1 : 4)
		for (int i = 0; i < 32 / H::each; i++) {
			int at = __shfl_sync(0xffffffffu, slot[k], i * H::each + r), row = half * H::rows + 32 * k + i * H::each + r;
			uint32_t to = KIND == BF16_ROWS ? dst + u / 8 * Tiles<KIND, D>::sub + swizzled(row, u % 8) : raw + row * H::bytes + u * 16;
			cp_async16(to, from + (long long)max(at, 0) * stride, at >= 0);
		}
	}
	cp_async_commit();
}

// Widens what this thread has copied, with the scales of this lane's rows (of an int8 cache).
template <int KIND, int D> KR_DEV void widen_copy(unsigned char *dst, const unsigned char *raw, const float (&scale)[Half<KIND, D>::looks]) {
	typedef Half<KIND, D> H;
	int lane = threadIdx.x % 32, half = threadIdx.x / 32 % 2, r = lane / H::lanes, u = lane % H::lanes;
#pragma unroll
	for (int k = 0; k < H::looks; k++) {
#pragma unroll 1
		for (int i = 0; i < 32 / H::each; i++) {
			int row = half * H::rows + 32 * k + i * H::each + r;
			uint4 v = lds16(raw, row * H::bytes + u * 16);
			uint32_t in[4] = {v.x, v.y, v.z, v.w}, out[8];
			float s = KIND == I8_ROWS ? __shfl_sync(0xffffffffu, scale[k], i * H::each + r) : 0.f;
#pragma unroll
			for (int j = 0; j < 4; j++) {
				if (KIND == I8_ROWS) widen_i8(in[j], s, out[2 * j], out[2 * j + 1]);
				else widen_e4m3(in[j], out[2 * j], out[2 * j + 1]);
			}
			unsigned char *to = dst + u / 4 * Tiles<KIND, D>::sub;
			*(uint4 *)(to + swizzled(row, u % 4 * 2)) = make_uint4(out[0], out[1], out[2], out[3]);
			*(uint4 *)(to + swizzled(row, u % 4 * 2 + 1)) = make_uint4(out[4], out[5], out[6], out[7]);
		}
	}
}

// All tiles of keys, or of values. What has 8 bits is on its way a tile ahead.
template <int KIND, int D> KR_DEV void produce(const Part &p, unsigned char *shared, const Cache &c, const int *table) {
	typedef Tiles<KIND, D> T;
	const int LOOKS = Half<KIND, D>::looks;
	bool values = threadIdx.x >= 64;
	int tiles = (p.end + T::keys - 1) / T::keys, head = p.key_head + (values ? p.key_heads : 0), stride = c.stride * Element<KIND>::size;
	const char *from = c.rows + (long long)head * D * Element<KIND>::size + threadIdx.x % 32 % Half<KIND, D>::lanes * 16;
	uint32_t base = smem_u32(shared), full = base + T::at_bars + 8 * (values ? VALUES_FULL : KEYS_FULL), empty = base + T::at_bars + 8 * (values ? VALUES_EMPTY : KEYS_EMPTY);
	uint32_t at = values ? T::at_values : T::at_keys, raw = T::at_raw + (values ? T::raw : 0);
	int slot[LOOKS];
	look_up<KIND, D>(slot, p, table, 0);
	if (KIND != BF16_ROWS) start_copy<KIND, D>(0, base + raw, from, stride, slot);
#pragma unroll 1
	for (int i = 0; i < tiles; i++) {
		uint32_t stage = i % STAGES, parity = i / STAGES & 1, to = at + stage * T::pieces * T::sub;
		float scale[LOOKS];
#pragma unroll
		for (int k = 0; k < LOOKS; k++) scale[k] = KIND == I8_ROWS && slot[k] >= 0 ? c.scales[(long long)slot[k] * c.scales_stride + head] : 0.f;
		mbar_wait(empty + 8 * stage, parity ^ 1);
		if (KIND == BF16_ROWS) start_copy<KIND, D>(base + to, 0, from, stride, slot);
		look_up<KIND, D>(slot, p, table, i + 1);
		cp_async_wait<0>();
		if (KIND != BF16_ROWS) {
			widen_copy<KIND, D>(shared + to, shared + raw, scale);
			start_copy<KIND, D>(0, base + raw, from, stride, slot); // a tile too many, of zeros
		}
		fence_async();
		mbar_arrive(full + 8 * stage);
	}
	cp_async_wait<0>();
}

// --- the warpgroups that compute

// What a thread has of rows g and g+8: sums of weight * value, the largest
// score, its own keys' weights.
template <int D> struct State {
	float sum[D / 2];
	float most[2], total[2];
};

// The queries of a warpgroup's 64 rows to shared memory.
template <int D> KR_DEV void fetch_queries(uint32_t dst, const bf16 *q, int q_stride, const Part &p, int group) {
	const int units = D / 8;
	int t = threadIdx.x % 128;
	for (int i = t; i < 64 * units; i += 128) {
		int row = i / units, unit = i % units;
		const bf16 *src = q + (long long)(p.s.row + min(p.first + group * 64 + row, p.s.len - 1)) * q_stride + p.head * D + unit * 8;
		cp_async16(dst + unit / 8 * (64 * 128) + swizzled(row, unit % 8), src);
	}
	cp_async_commit();
	cp_async_wait<0>();
	fence_async();
	bar_sync(QUERIES + group, 128);
}

// Starts scores = queries * keys.
template <int D, int KEYS> KR_DEV void start_scores(float (&s)[KEYS / 2], uint32_t queries, uint32_t keys) {
#pragma unroll
	for (int i = 0; i < KEYS / 2; i++) s[i] = 0.f;
	wgmma_fence();
#pragma unroll
	for (int k = 0; k < D / 16; k++) wgmma_ss<KEYS>(s, wgmma_desc(queries + k / 4 * (64 * 128)) + k % 4 * 2, wgmma_desc(keys + k / 4 * (KEYS * 128)) + k % 4 * 2);
	wgmma_commit();
}

// Starts sum += weights * values.
template <int D, int KEYS> KR_DEV void start_values(State<D> &st, const uint32_t (&w)[KEYS / 16][4], uint32_t values) {
	wgmma_fence();
#pragma unroll
	for (int k = 0; k < KEYS / 16; k++) wgmma_rs_t<D>(st.sum, w[k], wgmma_desc_t(values, KEYS * 128) + k * 128);
	wgmma_commit();
}

// Scores become weights, and old what the sums so far are to be multiplied with. key: of
// column 0; top: position of row 0 of the warp.
template <int D, int KEYS> KR_DEV void weigh(State<D> &st, float (&s)[KEYS / 2], float (&old)[2], float scale, int key, int top) {
	int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
	if (key + KEYS - 1 > top) {
#pragma unroll
		for (int i = 0; i < KEYS / 2; i++)
			if (key + i / 4 * 8 + 2 * c + i % 2 > top + g + i / 2 % 2 * 8) s[i] = -INFINITY;
	}
#pragma unroll
	for (int h = 0; h < 2; h++) {
		float m = st.most[h];
#pragma unroll
		for (int n = 0; n < KEYS / 8; n++) m = fmaxf(m, fmaxf(s[4 * n + 2 * h], s[4 * n + 2 * h + 1]));
		m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
		m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
		old[h] = exp2_approx((st.most[h] - m) * scale);
		float base = m * scale, total = st.total[h] * old[h];
		st.most[h] = m;
#pragma unroll
		for (int n = 0; n < KEYS / 8; n++) {
			float a = exp2_approx(fmaf(s[4 * n + 2 * h], scale, -base)), b = exp2_approx(fmaf(s[4 * n + 2 * h + 1], scale, -base));
			s[4 * n + 2 * h] = a, s[4 * n + 2 * h + 1] = b;
			total += a + b;
		}
		st.total[h] = total;
	}
}

template <int D, int KEYS> KR_DEV void settle(State<D> &st, uint32_t (&w)[KEYS / 16][4], const float (&s)[KEYS / 2], const float (&old)[2]) {
	if (__any_sync(0xffffffffu, old[0] != 1.f || old[1] != 1.f)) { // most tiles: nothing would change
#pragma unroll
		for (int i = 0; i < D / 2; i++) st.sum[i] *= old[i / 2 % 2];
	}
#pragma unroll
	for (int k = 0; k < KEYS / 16; k++)
#pragma unroll
		for (int i = 0; i < 4; i++) w[k][i] = pack_bf16(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
}

KR_DEV void release(uint32_t bar) {
	if (threadIdx.x % 32 == 0) mbar_arrive(bar);
}

template <int D> KR_DEV void sums_done(State<D> &st) {
	wgmma_wait<0>();
	wgmma_done(st.sum);
}

// All tiles of keys for a warpgroup. top: position of row 0 of the warp.
template <int KIND, int D> KR_DEV void consume(State<D> &st, const Part &p, uint32_t base, int group, int top, float scale) {
	typedef Tiles<KIND, D> T;
	const int KEYS = T::keys, STEP = T::pieces * T::sub;
	uint32_t bars = base + T::at_bars, queries = base + group * T::pieces * T::sub_q;
	int tiles = (p.end + KEYS - 1) / KEYS;
	float s[KEYS / 2], old[2];
	uint32_t w[KEYS / 16][4];
	if (group == 1 && tiles > 1) bar_arrive(TURN, CONSUMERS);
	mbar_wait(bars + 8 * KEYS_FULL, 0);
	start_scores<D, KEYS>(s, queries, base + T::at_keys);
	wgmma_wait<0>();
	wgmma_done(s);
	release(bars + 8 * KEYS_EMPTY);
	weigh<D, KEYS>(st, s, old, scale, 0, top);
	settle<D, KEYS>(st, w, s, old);
#pragma unroll 1
	for (int i = 1; i < tiles; i++) {
		uint32_t stage = i % STAGES, before = (i - 1) % STAGES;
		mbar_wait(bars + 8 * (KEYS_FULL + stage), i / STAGES & 1);
		bar_sync(TURN + group, CONSUMERS);
		start_scores<D, KEYS>(s, queries, base + T::at_keys + stage * STEP);
		mbar_wait(bars + 8 * (VALUES_FULL + before), (i - 1) / STAGES & 1);
		start_values<D, KEYS>(st, w, base + T::at_values + before * STEP);
		if (group == 0 || i + 1 < tiles) bar_arrive(TURN + 1 - group, CONSUMERS);
		wgmma_wait<1>();
		wgmma_done(s);
		release(bars + 8 * (KEYS_EMPTY + stage));
		weigh<D, KEYS>(st, s, old, scale, i * KEYS, top);
		sums_done(st);
		release(bars + 8 * (VALUES_EMPTY + before));
		settle<D, KEYS>(st, w, s, old);
	}
	mbar_wait(bars + 8 * (VALUES_FULL + (tiles - 1) % STAGES), (tiles - 1) / STAGES & 1);
	start_values<D, KEYS>(st, w, base + T::at_values + (tiles - 1) % STAGES * STEP);
	sums_done(st);
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

template <int KIND, int D> KR_DEV void prefill(unsigned char *shared, void *out, int wide, int out_stride, const bf16 *q, int q_stride, const Cache &c, int key_heads, const int *table, float scale, int block_tokens) {
	typedef Tiles<KIND, D> T;
	uint32_t base = smem_u32(shared), bars = base + T::at_bars;
	pdl_launch();
	pdl_wait();
	Part p;
	if (!part_of(p, table, key_heads, block_tokens)) return;
	if (threadIdx.x == 0) {
		for (int i = 0; i < STAGES; i++) {
			mbar_init(bars + 8 * (KEYS_FULL + i), 64), mbar_init(bars + 8 * (VALUES_FULL + i), 64);
			mbar_init(bars + 8 * (KEYS_EMPTY + i), CONSUMERS / 32), mbar_init(bars + 8 * (VALUES_EMPTY + i), CONSUMERS / 32);
		}
		mbar_init_fence();
	}
	__syncthreads();
	if (threadIdx.x < 128) {
		reg_shrink<T::producer>();
		produce<KIND, D>(p, shared, c, table);
	} else {
		reg_grow<T::consumer>();
		int group = threadIdx.x / 128 - 1, warp = threadIdx.x % 128 / 32, g = threadIdx.x % 32 / 4;
		fetch_queries<D>(base + group * T::pieces * T::sub_q, q, q_stride, p, group);
		State<D> st;
#pragma unroll
		for (int i = 0; i < D / 2; i++) st.sum[i] = 0.f;
		st.most[0] = st.most[1] = -INFINITY;
		st.total[0] = st.total[1] = 0.f;
		int row = p.first + group * 64 + warp * 16;
		consume<KIND, D>(st, p, base, group, p.s.pos + row, scale);
#pragma unroll
		for (int h = 0; h < 2; h++) {
			int r = row + g + 8 * h;
			put_row<D>(out, wide, r < p.s.len ? (long long)(p.s.row + r) * out_stride + p.head * D : -1, st, h);
		}
	}
}

#define PREFILL(name, kind, d)                                                                                                      \
	KR_KERNEL(THREADS_H, 1)                                                                                                            \
	name(void *out, int wide, int out_stride, const bf16 *q, int q_stride, const char *cache, const float *scales, int stride,        \
	     int scales_stride, const int *table, int key_heads, float scale, int block_tokens) {                                          \
		KR_SHARED(unsigned char, shared);                                                                                                \
		Cache c = {cache, scales, kind, stride, scales_stride, d};                                                                      \
		prefill<kind, d>(shared, out, wide, out_stride, q, q_stride, c, key_heads, table, scale, block_tokens);                          \
	}                                                                                                                                  \
	KR_EXPORT(name)
PREFILL(kr_gqa_prefill_bf16_64_h, BF16_ROWS, 64)
PREFILL(kr_gqa_prefill_bf16_128_h, BF16_ROWS, 128)
PREFILL(kr_gqa_prefill_bf16_256_h, BF16_ROWS, 256)
PREFILL(kr_gqa_prefill_e4m3_64_h, E4M3_ROWS, 64)
PREFILL(kr_gqa_prefill_e4m3_128_h, E4M3_ROWS, 128)
PREFILL(kr_gqa_prefill_e4m3_256_h, E4M3_ROWS, 256)
PREFILL(kr_gqa_prefill_i8_64_h, I8_ROWS, 64)
PREFILL(kr_gqa_prefill_i8_128_h, I8_ROWS, 128)
PREFILL(kr_gqa_prefill_i8_256_h, I8_ROWS, 256)

#endif
