// Flash attention of prompts for Hopper: the work of kr_mla_prefill (mla_prefill.cu has the
// definitions and the argument list), with wgmma and KEYS_H keys at a time.
//
// A block has ROW_TILE rows of a head. Warpgroup 0 copies keys and values to shared memory, two
// stages of each. Warpgroups 1 and 2 have 64 rows each and take turns: while one computes its
// weights, the other's products run. A warpgroup starts the scores of a tile, then the values of
// the tile before it, and computes the weights while the values are added.
#include "mla.cuh"

#ifdef KR_HOPPER

enum {
	KEYS_H = 128, CONSUMERS = 256, THREADS_H = 384, STAGES = 2,
	SUB_Q = 64 * 128, SUB_KEYS = KEYS_H * 128, // a piece of 64 columns: rows of 128 bytes
	AT_KEYS = 2 * 3 * SUB_Q, AT_VALUES = AT_KEYS + STAGES * 3 * SUB_KEYS, AT_BARS = AT_VALUES + STAGES * 2 * SUB_KEYS,
	KEPT = 68, // floats a thread keeps between pieces of the keys
};
// Barriers of parts of the block: which warpgroup may use the tensor cores, and whether a
// warpgroup's queries have arrived.
enum { TURN = 1, QUERIES = 3 };
// mbarriers, STAGES of each.
enum { KEYS_FULL, KEYS_EMPTY = KEYS_FULL + STAGES, VALUES_FULL = KEYS_EMPTY + STAGES, VALUES_EMPTY = VALUES_FULL + STAGES, BARS = VALUES_EMPTY + STAGES };

// The work of a block.
struct Part {
	Span s;
	int tile, head, heads;
	int first;  // row of the tile, counted in the sequence
	int end;    // the number of keys that the tile needs
	int lo, hi; // those of them that this launch has
	int at;     // row of expanded with key lo
};

KR_DEV bool part_of(Part &p, const int *table, int from, int keys) {
	p.head = blockIdx.x, p.heads = gridDim.x;
	p.tile = table[HEAD_TILES] - 1 - (int)blockIdx.y;
	int found = p.tile < 0 ? -1 : span_of_item(table, 0, table[HEAD_PREFILL], p.tile);
	if (found < 0) return false;
	p.s = span_at(table, found);
	p.first = (p.tile - p.s.start) * ROW_TILE;
	p.end = p.s.pos + min(p.s.len, p.first + ROW_TILE);
	p.lo = max(0, from - p.s.five), p.hi = min(p.end, from + keys - p.s.five);
	p.at = p.s.five + p.lo - from;
	return p.lo < p.hi;
}

// Unit u of row r lies at u ^ r%8, as wgmma requires.
KR_DEV uint32_t swizzled(uint32_t row, uint32_t unit) { return row * 128 + ((unit ^ (row & 7)) << 4); }

// --- the warpgroup that copies

// Copies 16 units of 16 bytes of rows tid/16 + 8j, to two pieces of 64 columns.
KR_DEV void copy_wide(uint32_t dst, const bf16 *src, long long row_step) {
	int t = threadIdx.x % 128, unit = t % 16, row = t / 16;
	dst += unit / 8 * SUB_KEYS + swizzled(row, unit % 8);
	src += row * row_step + unit * 8;
#pragma unroll
	for (int j = 0; j < KEYS_H / 8; j++) cp_async16(dst + j * 1024, src + j * 8 * row_step);
}
KR_DEV void copy_narrow(uint32_t dst, const bf16 *src) {
	int t = threadIdx.x % 128, row = t / 8;
	dst += swizzled(row, t % 8);
	src += row * ROPE + t % 8 * 8;
#pragma unroll
	for (int j = 0; j < KEYS_H / 16; j++) cp_async16(dst + j * 2048, src + j * 16 * ROPE);
}

// The arrival of a copy is signalled after the next copy has started.
KR_DEV void produce(const Part &p, uint32_t base, const bf16 *expanded, const bf16 *ropes) {
	long long row_step = (long long)p.heads * EXPANDED;
	const bf16 *key = expanded + p.at * row_step + p.head * EXPANDED, *rope = ropes + (long long)p.at * ROPE;
	uint32_t bars = base + AT_BARS;
	int tiles = (p.hi - p.lo + KEYS_H - 1) / KEYS_H;
	for (int i = 0; i < tiles; i++) {
		uint32_t stage = i % STAGES, parity = i / STAGES & 1, keys = base + AT_KEYS + stage * 3 * SUB_KEYS;
		mbar_wait(bars + 8 * (KEYS_EMPTY + stage), parity ^ 1);
		copy_wide(keys, key, row_step);
		copy_narrow(keys + 2 * SUB_KEYS, rope);
		cp_async_commit();
		if (i > 0) {
			cp_async_wait<1>();
			fence_async();
			mbar_arrive(bars + 8 * (VALUES_FULL + (i - 1) % STAGES));
		}
		mbar_wait(bars + 8 * (VALUES_EMPTY + stage), parity ^ 1);
		copy_wide(base + AT_VALUES + stage * 2 * SUB_KEYS, key + NOPE, row_step);
		cp_async_commit();
		cp_async_wait<1>();
		fence_async();
		mbar_arrive(bars + 8 * (KEYS_FULL + stage));
		key += KEYS_H * row_step, rope += KEYS_H * ROPE;
	}
	cp_async_wait<0>();
	fence_async();
	mbar_arrive(bars + 8 * (VALUES_FULL + (tiles - 1) % STAGES));
}

// --- the warpgroups that compute

// A thread's state for rows g and g+8: sums of weight * value (two halves of 64 columns), the
// largest score, and the sum of weights of its own keys.
struct State {
	float sum[2][32];
	float most[2], total[2];
};

// Copies the queries of a warpgroup's 64 rows to shared memory, three pieces of 64 columns.
KR_DEV void fetch_queries(uint32_t dst, const bf16 *q, int q_stride, const Part &p, int group) {
	int t = threadIdx.x % 128;
	for (int i = t; i < 64 * QK / 8; i += 128) {
		int row = i / (QK / 8), unit = i % (QK / 8);
		const bf16 *src = q + (long long)(p.s.row + min(p.first + group * 64 + row, p.s.len - 1)) * q_stride + p.head * QK + unit * 8;
		cp_async16(dst + unit / 8 * SUB_Q + swizzled(row, unit % 8), src);
	}
	cp_async_commit();
	cp_async_wait<0>();
	fence_async();
	bar_sync(QUERIES + group, 128);
}

// Starts scores = queries * keys.
KR_DEV void start_scores(float (&s)[64], uint32_t queries, uint32_t keys) {
#pragma unroll
	for (int i = 0; i < 64; i++) s[i] = 0.f;
	wgmma_fence();
#pragma unroll
	for (int k = 0; k < QK / 16; k++) wgmma_ss<KEYS_H>(s, wgmma_desc(queries + k / 4 * SUB_Q) + k % 4 * 2, wgmma_desc(keys + k / 4 * SUB_KEYS) + k % 4 * 2);
	wgmma_commit();
}

// Starts sum += weights * values.
KR_DEV void start_values(State &st, const uint32_t (&w)[KEYS_H / 16][4], uint32_t values) {
	wgmma_fence();
#pragma unroll
	for (int k = 0; k < KEYS_H / 16; k++) {
		wgmma_rs_t<64>(st.sum[0], w[k], wgmma_desc(values) + k * (16 * 128 / 16));
		wgmma_rs_t<64>(st.sum[1], w[k], wgmma_desc(values + SUB_KEYS) + k * (16 * 128 / 16));
	}
	wgmma_commit();
}

// Turns scores into weights, and sets old to the factor for the earlier sums. key: the key of
// column 0. top: the position of the warp's row 0.
KR_DEV void weigh(State &st, float (&s)[64], float (&old)[2], float scale, int key, int top) {
	int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
	if (key + KEYS_H - 1 > top) {
#pragma unroll
		for (int i = 0; i < 64; i++)
			if (key + i / 4 * 8 + 2 * c + i % 2 > top + g + i / 2 % 2 * 8) s[i] = -INFINITY;
	}
#pragma unroll
	for (int h = 0; h < 2; h++) {
		float m = st.most[h];
#pragma unroll
		for (int n = 0; n < KEYS_H / 8; n++) m = fmaxf(m, fmaxf(s[4 * n + 2 * h], s[4 * n + 2 * h + 1]));
		m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
		m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
		old[h] = exp2_approx((st.most[h] - m) * scale);
		float base = m * scale, total = st.total[h] * old[h];
		st.most[h] = m;
#pragma unroll
		for (int n = 0; n < KEYS_H / 8; n++) {
			float a = exp2_approx(fmaf(s[4 * n + 2 * h], scale, -base)), b = exp2_approx(fmaf(s[4 * n + 2 * h + 1], scale, -base));
			s[4 * n + 2 * h] = a, s[4 * n + 2 * h + 1] = b;
			total += a + b;
		}
		st.total[h] = total;
	}
}

KR_DEV void settle(State &st, uint32_t (&w)[KEYS_H / 16][4], const float (&s)[64], const float (&old)[2]) {
#pragma unroll
	for (int i = 0; i < 64; i++) st.sum[i / 32][i % 32] *= old[i / 2 % 2];
#pragma unroll
	for (int k = 0; k < KEYS_H / 16; k++)
#pragma unroll
		for (int i = 0; i < 4; i++) w[k][i] = pack_bf16(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
}

KR_DEV void release(uint32_t bar) {
	if (threadIdx.x % 32 == 0) mbar_arrive(bar);
}

// A warpgroup's work on all tiles of keys. top: the position of the warp's row 0.
KR_DEV void consume(State &st, const Part &p, uint32_t base, int group, int top, float scale) {
	uint32_t bars = base + AT_BARS, queries = base + group * 3 * SUB_Q;
	int tiles = (p.hi - p.lo + KEYS_H - 1) / KEYS_H;
	float s[64], old[2];
	uint32_t w[KEYS_H / 16][4];
	if (group == 1 && tiles > 1) bar_arrive(TURN, CONSUMERS);
	mbar_wait(bars + 8 * KEYS_FULL, 0);
	start_scores(s, queries, base + AT_KEYS);
	wgmma_wait<0>();
	wgmma_done(s);
	release(bars + 8 * KEYS_EMPTY);
	weigh(st, s, old, scale, p.lo, top);
	settle(st, w, s, old);
	for (int i = 1; i < tiles; i++) {
		uint32_t stage = i % STAGES, before = (i - 1) % STAGES;
		mbar_wait(bars + 8 * (KEYS_FULL + stage), i / STAGES & 1);
		bar_sync(TURN + group, CONSUMERS);
		start_scores(s, queries, base + AT_KEYS + stage * 3 * SUB_KEYS);
		mbar_wait(bars + 8 * (VALUES_FULL + before), (i - 1) / STAGES & 1);
		start_values(st, w, base + AT_VALUES + before * 2 * SUB_KEYS);
		if (group == 0 || i + 1 < tiles) bar_arrive(TURN + 1 - group, CONSUMERS);
		wgmma_wait<1>();
		wgmma_done(s);
		release(bars + 8 * (KEYS_EMPTY + stage));
		weigh(st, s, old, scale, p.lo + i * KEYS_H, top);
		wgmma_wait<0>();
		wgmma_done(st.sum[0]), wgmma_done(st.sum[1]);
		release(bars + 8 * (VALUES_EMPTY + before));
		settle(st, w, s, old);
	}
	mbar_wait(bars + 8 * (VALUES_FULL + (tiles - 1) % STAGES), (tiles - 1) / STAGES & 1);
	start_values(st, w, base + AT_VALUES + (tiles - 1) % STAGES * 2 * SUB_KEYS);
	wgmma_wait<0>();
	wgmma_done(st.sum[0]), wgmma_done(st.sum[1]);
}

// Between two pieces of the keys a thread's state is KEPT floats, CONSUMERS apart.
KR_DEV void keep(float *to, const State &st) {
#pragma unroll
	for (int i = 0; i < 64; i++) to[i * CONSUMERS] = st.sum[i / 32][i % 32];
#pragma unroll
	for (int h = 0; h < 2; h++) to[(64 + h) * CONSUMERS] = st.most[h], to[(66 + h) * CONSUMERS] = st.total[h];
}
KR_DEV void recall(State &st, const float *from) {
#pragma unroll
	for (int i = 0; i < 64; i++) st.sum[i / 32][i % 32] = from[i * CONSUMERS];
#pragma unroll
	for (int h = 0; h < 2; h++) st.most[h] = from[(64 + h) * CONSUMERS], st.total[h] = from[(66 + h) * CONSUMERS];
}

KR_DEV void put_row(void *out, int wide, long long at, const State &st, int h) {
	float total = st.total[h];
	total += __shfl_xor_sync(0xffffffffu, total, 1);
	total += __shfl_xor_sync(0xffffffffu, total, 2);
	if (at < 0) return;
	total = 1.f / total;
	at += 2 * (threadIdx.x % 4);
#pragma unroll
	for (int n = 0; n < VDIM / 8; n++) {
		float a = st.sum[n / 8][n % 8 * 4 + 2 * h] * total, b = st.sum[n / 8][n % 8 * 4 + 2 * h + 1] * total;
		if (wide) store2((float *)out + at + 8 * n, a, b);
		else store2((bf16 *)out + at + 8 * n, a, b);
	}
}

KR_KERNEL(THREADS_H, 1)
kr_mla_prefill_h(void *out, int wide, int out_stride, const bf16 *q, int q_stride, const bf16 *expanded, const bf16 *ropes, int from, int keys,
                 float *kept, const int *table, float scale) {
	KR_SHARED(unsigned char, shared);
	uint32_t base = smem_u32(shared), bars = base + AT_BARS;
	pdl_launch();
	pdl_wait();
	Part p;
	if (!part_of(p, table, from, keys)) return;
	if (threadIdx.x == 0) {
		for (int i = 0; i < STAGES; i++) {
			mbar_init(bars + 8 * (KEYS_FULL + i), 128), mbar_init(bars + 8 * (VALUES_FULL + i), 128);
			mbar_init(bars + 8 * (KEYS_EMPTY + i), CONSUMERS / 32), mbar_init(bars + 8 * (VALUES_EMPTY + i), CONSUMERS / 32);
		}
		mbar_init_fence();
	}
	__syncthreads();
	if (threadIdx.x < 128) {
		reg_shrink<40>();
		produce(p, base, expanded, ropes);
	} else {
		reg_grow<232>();
		int group = threadIdx.x / 128 - 1, warp = threadIdx.x % 128 / 32, g = threadIdx.x % 32 / 4;
		fetch_queries(base + group * 3 * SUB_Q, q, q_stride, p, group);
		State st;
#pragma unroll
		for (int i = 0; i < 64; i++) st.sum[i / 32][i % 32] = 0.f;
		st.most[0] = st.most[1] = -INFINITY;
		st.total[0] = st.total[1] = 0.f;
		kept += ((long long)p.tile * p.heads + p.head) * KEPT * CONSUMERS + threadIdx.x - 128;
		if (p.lo > 0) recall(st, kept);
		int row = p.first + group * 64 + warp * 16;
		consume(st, p, base, group, p.s.pos + row, scale);
		if (p.hi < p.end) {
			keep(kept, st);
		} else {
#pragma unroll
			for (int h = 0; h < 2; h++) {
				int r = row + g + 8 * h;
				put_row(out, wide, r < p.s.len ? (long long)(p.s.row + r) * out_stride + p.head * VDIM : -1, st, h);
			}
		}
	}
}
KR_EXPORT(kr_mla_prefill_h)

#endif
