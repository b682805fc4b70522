// Flash attention of prompts with grouped heads, for every GPU. A block has 16 rows of a query
// head for each of its warps. It reads keys and values directly from the paged cache, a tile
// ahead. 8-bit tiles are widened to bf16 between the use of two tiles. Two warps share rows of 512 columns.
//
// Tiles of keys lie at absolute positions, so the order of a row's sums does not depend on how
// its prompt was cut.
#include "gqa.cuh"

template <int KIND, int D> struct Tiles {
	static const bool far = D > 128; // queries stay in shared memory, and a block has fewer rows
	// Warps that have the same rows, each with its part of the columns: sums of whole rows would need more registers.
	static const int split = D > 256 ? 2 : 1, cols = D / split;
	static const int warps = far ? 4 : 8, threads = 32 * warps, keys = D > 256 ? 16 : far ? 32 : 64, rows = 16 * warps / split;
	static const int mine = keys / warps; // keys of a tile that a warp fetches
	static const int row = 2 * D, part = keys * row, stage = 2 * part; // keys, then values
	static const int raw = KIND == BF16_ROWS ? 0 : keys * D;           // of keys or of values, as stored in the cache
	static const int at_raw = KIND == BF16_ROWS ? 2 * stage : stage;   // two stages of bf16, or one stage and the cache's bytes
	static const int at_queries = at_raw + 2 * raw, at_scores = at_queries + (far ? rows * row : 0);
	static const int bytes = at_scores + (split > 1 ? warps * 16 * keys * 4 : 0); // scores of a part of the columns
};

// The work of a block.
struct Part {
	Span s;
	int head, key_head, key_heads;
	int first; // its rows, counted in the sequence
	int low, end; // its rows need keys low..end-1
	int tokens, shift;
};

template <int ROWS, bool WINDOW> KR_DEV bool part_of(Part &p, const int *table, int key_heads, int block_tokens, int window) {
	const int PARTS = ROW_TILE / ROWS;
	p.head = blockIdx.x, p.key_heads = key_heads, p.key_head = p.head / ((int)gridDim.x / key_heads);
	p.tokens = block_tokens, p.shift = __popc(block_tokens) == 1 ? 31 - __clz(block_tokens) : -1;
	int tile = table[HEAD_TILES] * PARTS - 1 - (int)blockIdx.y;
	int found = tile < 0 ? -1 : span_of_item(table, 0, table[HEAD_PREFILL], tile / PARTS);
	if (found < 0) return false;
	p.s = span_at(table, found);
	p.first = (tile - p.s.start * PARTS) * ROWS;
	p.end = p.s.pos + min(p.s.len, p.first + ROWS);
	p.low = WINDOW ? max(p.s.pos + p.first + 1 - window, 0) : 0;
	return p.first < p.s.len;
}

// --- keys and values

// The cache's row of a key, < 0 outside low..end. A warp has KEYS keys of a tile; lane i looks up
// key i % KEYS.
template <int KEYS> KR_DEV int slot_of(const Part &p, const int *table, int tile_at) {
	int key = tile_at + threadIdx.x / 32 * KEYS + threadIdx.x % KEYS;
	if (key < p.low || key >= p.end) return -1;
	int i = p.shift >= 0 ? key >> p.shift : key / p.tokens;
	return table[p.s.first + i] * p.tokens + (key - i * p.tokens);
}

// Starts the copy of a tile, from column `column` of its rows on. slot: that of this lane's key.
template <int KIND, int D> KR_DEV void start_copy(uint32_t to, const Cache &c, int slot, int column) {
	typedef Tiles<KIND, D> T;
	const int size = Element<KIND>::size, units = D * size / 16;
	int t = threadIdx.x, lane = t % 32;
	const char *from = c.rows + (long long)column * size;
#pragma unroll
	for (int i = 0; i < T::mine * units / 32; i++) {
		int r = (32 * i + lane) / units, u = (32 * i + lane) % units, at = __shfl_sync(0xffffffffu, slot, r);
		uint32_t place_at = KIND == BF16_ROWS ? place<2 * D>(t / 32 * T::mine + r, u) : (i * T::threads + t) * 16;
		cp_async16(to + place_at, from + (long long)max(at, 0) * c.stride * size + u * 16, at >= 0);
	}
}

// Copies the keys and values of a tile; 8-bit values stay packed.
template <int KIND, int D> KR_DEV void fetch(uint32_t base, int stage, const Part &p, const Cache &c, int slot) {
	typedef Tiles<KIND, D> T;
	uint32_t to = KIND == BF16_ROWS ? base + stage * T::stage : base + T::at_raw;
	start_copy<KIND, D>(to, c, slot, p.key_head * D);
	start_copy<KIND, D>(to + (KIND == BF16_ROWS ? T::part : T::raw), c, slot, (p.key_heads + p.key_head) * D);
}

// Widens the bytes that this thread has copied, with the scale of this lane's key (of an int8
// cache).
template <int KIND, int D> KR_DEV void widen_copy(unsigned char *to, const unsigned char *raw, float scale) {
	const int lanes = D / 16, rows = 32 / lanes, mine = Tiles<KIND, D>::mine;
	int t = threadIdx.x, lane = t % 32, r = lane / lanes, u = lane % lanes;
#pragma unroll
	for (int i = 0; i < mine / rows; i++) {
		int row = t / 32 * mine + i * rows + r;
		uint4 v = lds16(raw, (i * Tiles<KIND, D>::threads + t) * 16);
		uint32_t in[4] = {v.x, v.y, v.z, v.w}, out[8];
		float s = KIND == I8_ROWS ? __shfl_sync(0xffffffffu, scale, i * rows + r) : 0.f;
#pragma unroll
		for (int k = 0; k < 4; k++) {
			if (KIND == I8_ROWS) widen_i8(in[k], s, out[2 * k], out[2 * k + 1]);
			else widen_e4m3(in[k], out[2 * k], out[2 * k + 1]);
		}
		*(uint4 *)(to + place<2 * D>(row, 2 * u)) = make_uint4(out[0], out[1], out[2], out[3]);
		*(uint4 *)(to + place<2 * D>(row, 2 * u + 1)) = make_uint4(out[4], out[5], out[6], out[7]);
	}
}

// --- attention

// A warp's 16 rows of queries as left operands, or their place in shared memory.
template <int KIND, int D> struct Queries {
	uint32_t a[Tiles<KIND, D>::far ? 1 : D / 16][4];
	uint32_t at;
};

template <int KIND, int D> KR_DEV void fetch_queries(Queries<KIND, D> &q, uint32_t at, const bf16 *from, int q_stride, const Part &p) {
	typedef Tiles<KIND, D> T;
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32 / T::split, g = lane / 4, c = lane % 4, last = p.s.len - 1;
	from += (long long)p.s.row * q_stride + p.head * D;
	q.at = at + warp * 16 * 2 * D;
	if (T::far) {
		for (int i = threadIdx.x % (32 * T::split); i < 16 * (D / 8); i += 32 * T::split) {
			int row = i / (D / 8), unit = i % (D / 8);
			cp_async16(q.at + place<2 * D>(row, unit), from + (long long)min(p.first + warp * 16 + row, last) * q_stride + unit * 8);
		}
		return; // they are loaded with the first tile
	}
	const bf16 *one = from + (long long)min(p.first + warp * 16 + g, last) * q_stride, *two = from + (long long)min(p.first + warp * 16 + g + 8, last) * q_stride;
#pragma unroll
	for (int k = 0; k < (T::far ? 0 : D / 16); k++) {
		q.a[k][0] = *(const uint32_t *)(one + 16 * k + 2 * c), q.a[k][2] = *(const uint32_t *)(one + 16 * k + 8 + 2 * c);
		q.a[k][1] = *(const uint32_t *)(two + 16 * k + 2 * c), q.a[k][3] = *(const uint32_t *)(two + 16 * k + 8 + 2 * c);
	}
}

// The number of this warp among those with the same rows: it has the columns from it * cols on.
template <int SPLIT> KR_DEV int part_of_row() { return SPLIT > 1 ? threadIdx.x / 32 % SPLIT : 0; }

// Scores of 16 rows for a tile's keys: s[n] of keys 8n + 2c, 8n + 2c + 1, rows g and g+8. Two warps that share rows
// add what each has of its columns.
template <int KIND, int D, int KEYS> KR_DEV void scores(float (&s)[KEYS / 8][4], const Queries<KIND, D> &q, uint32_t keys, unsigned char *shared) {
	typedef Tiles<KIND, D> T;
	int lane = threadIdx.x % 32, first = part_of_row<T::split>() * (T::cols / 8);
#pragma unroll
	for (int n = 0; n < KEYS / 8; n++) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.f;
#pragma unroll
	for (int k = 0; k < T::cols / 16; k++) {
		uint32_t a[4];
		if (T::far) {
			ldmatrix_x4(a, q.at + place<2 * D>(lane % 16, first + 2 * k + lane / 16));
		} else {
#pragma unroll
			for (int i = 0; i < 4; i++) a[i] = q.a[T::far ? 0 : k][i];
		}
#pragma unroll
		for (int n = 0; n < KEYS / 16; n++) {
			uint32_t b[4];
			ldmatrix_x4(b, keys + place<2 * D>(16 * n + lane % 8 + lane / 16 * 8, first + 2 * k + lane / 8 % 2));
			mma_bf16(s[2 * n], a, b[0], b[1]);
			mma_bf16(s[2 * n + 1], a, b[2], b[3]);
		}
	}
	if (T::split == 1) return;
	float4 *sums = (float4 *)(shared + T::at_scores);
	int warp = threadIdx.x / 32;
#pragma unroll
	for (int n = 0; n < KEYS / 8; n++) sums[(warp * (KEYS / 8) + n) * 32 + lane] = make_float4(s[n][0], s[n][1], s[n][2], s[n][3]);
	bar_sync(1 + warp / T::split, 32 * T::split);
#pragma unroll
	for (int n = 0; n < KEYS / 8; n++) {
		float4 x = sums[((warp ^ 1) * (KEYS / 8) + n) * 32 + lane];
		s[n][0] += x.x, s[n][1] += x.y, s[n][2] += x.z, s[n][3] += x.w;
	}
}

// A lane's sums of rows g and g+8: weight * value, the largest score, and the sum of weights of
// the lane's own keys.
template <int D> struct State {
	float sum[D / 8][4];
	float most[2], total[2];
};

// Turns scores into weights, and rescales the earlier sums to the new largest score.
template <int D, int KEYS, bool WINDOW> KR_DEV void weigh(State<D> &st, float (&s)[KEYS / 8][4], float scale) {
#pragma unroll
	for (int h = 0; h < 2; h++) {
		float m = st.most[h];
#pragma unroll
		for (int n = 0; n < KEYS / 8; n++) m = fmaxf(m, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
		m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
		m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
		float to = base_of<WINDOW>(m), old = exp2_approx((st.most[h] - to) * scale), base = to * scale, total = st.total[h] * old;
		st.most[h] = m;
#pragma unroll
		for (int n = 0; n < KEYS / 8; n++) {
			s[n][2 * h] = exp2_approx(fmaf(s[n][2 * h], scale, -base));
			s[n][2 * h + 1] = exp2_approx(fmaf(s[n][2 * h + 1], scale, -base));
			total += s[n][2 * h] + s[n][2 * h + 1];
		}
		st.total[h] = total;
#pragma unroll
		for (int n = 0; n < D / 8; n++) st.sum[n][2 * h] *= old, st.sum[n][2 * h + 1] *= old;
	}
}

template <int KIND, int D, int KEYS> KR_DEV void add_values(State<Tiles<KIND, D>::cols> &st, const float (&s)[KEYS / 8][4], uint32_t values) {
	typedef Tiles<KIND, D> T;
	int lane = threadIdx.x % 32, first = part_of_row<T::split>() * (T::cols / 8);
#pragma unroll
	for (int k = 0; k < KEYS / 16; k++) {
		uint32_t a[4] = {pack_bf16(s[2 * k][0], s[2 * k][1]), pack_bf16(s[2 * k][2], s[2 * k][3]),
		                 pack_bf16(s[2 * k + 1][0], s[2 * k + 1][1]), pack_bf16(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
		for (int n = 0; n < T::cols / 16; n++) {
			uint32_t v[4];
			ldmatrix_x4_trans(v, values + place<2 * D>(16 * k + lane % 16, first + 2 * n + lane / 16));
			mma_bf16(st.sum[2 * n], a, v[0], v[1]);
			mma_bf16(st.sum[2 * n + 1], a, v[2], v[3]);
		}
	}
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
		float a = st.sum[n][2 * h] * total, b = st.sum[n][2 * h + 1] * total;
		if (wide) store2((float *)out + at + 8 * n, a, b);
		else store2((bf16 *)out + at + 8 * n, a, b);
	}
}

// out and q [rows, heads * D]. The last tiles come first, because they have the most keys. Grid
// (heads, parts of tiles).
template <int KIND, int D, bool WINDOW> KR_DEV void prefill(unsigned char *shared, void *out, int wide, int out_stride, const bf16 *q, int q_stride, const Cache &c, int key_heads, const int *table, float scale, int block_tokens, int window, const float *sinks) {
	typedef Tiles<KIND, D> T;
	const int KEYS = T::keys;
	uint32_t base = smem_u32(shared);
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32 / T::split, g = lane / 4, col = lane % 4;
	pdl_launch();
	pdl_wait();
	Part p;
	if (!part_of<T::rows, WINDOW>(p, table, key_heads, block_tokens, window)) return;
	int row = p.first + warp * 16 + g;         // row of the sequence; the other is row + 8
	int top = p.s.pos + p.first + warp * 16;   // position of the warp's first row
	bool idle = p.first + warp * 16 >= p.s.len;
	Queries<KIND, D> queries;
	fetch_queries<KIND, D>(queries, base + T::at_queries, q, q_stride, p);
	int from = p.low / KEYS * KEYS, slot = slot_of<T::mine>(p, table, from), next = slot_of<T::mine>(p, table, from + KEYS);
	fetch<KIND, D>(base, 0, p, c, slot);
	cp_async_commit();
	State<T::cols> st = State<T::cols>();
	st.most[0] = st.most[1] = -INFINITY;
	int stage = 0;
#pragma unroll 1
	for (int key = from; key < p.end; key += KEYS) {
		cp_async_wait<0>();
		__syncthreads(); // the tile has arrived, and no warp reads the other one any more
		if (KIND != BF16_ROWS) {
			float scales[2] = {0.f, 0.f};
			if (KIND == I8_ROWS && slot >= 0) {
				const float *from = c.scales + (long long)slot * c.scales_stride + p.key_head;
				scales[0] = from[0], scales[1] = from[p.key_heads];
			}
			widen_copy<KIND, D>(shared, shared + T::at_raw, scales[0]);
			widen_copy<KIND, D>(shared + T::part, shared + T::at_raw + T::raw, scales[1]);
			__syncthreads();
		}
		slot = next, next = slot_of<T::mine>(p, table, key + 2 * KEYS);
		if (key + KEYS < p.end) fetch<KIND, D>(base, stage ^ 1, p, c, slot);
		cp_async_commit();
		uint32_t at = base + (KIND == BF16_ROWS ? stage * T::stage : 0);
		stage ^= 1;
		if (idle || key > top + 15 || (WINDOW && key + KEYS - 1 <= top - window)) continue; // none of the warp's rows sees these keys
		float s[KEYS / 8][4];
		scores<KIND, D, KEYS>(s, queries, at, shared);
		if (key + KEYS - 1 > top || (WINDOW && key <= top + 15 - window)) {
#pragma unroll
			for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
				for (int i = 0; i < 4; i++)
					if (unseen<WINDOW>(key + 8 * n + 2 * col + i % 2, top + g + i / 2 * 8, window)) s[n][i] = -INFINITY;
		}
		weigh<T::cols, KEYS, WINDOW>(st, s, scale);
		add_values<KIND, D, KEYS>(st, s, at + T::part);
	}
	if (WINDOW && sinks) add_sink(st, sinks[p.head], scale);
#pragma unroll
	for (int h = 0; h < 2; h++) {
		int r = row + 8 * h;
		put_row<T::cols>(out, wide, r < p.s.len ? (long long)(p.s.row + r) * out_stride + p.head * D + part_of_row<T::split>() * T::cols : -1, st, h);
	}
}

#define PREFILL_KERNEL(name, kind, d, with_window, window, sinks, ...) \
	KR_KERNEL((Tiles<kind, d>::threads), 1) \
	name(void *out, int wide, int out_stride, const bf16 *q, int q_stride, const char *cache, const float *scales, int stride, \
	     int scales_stride, const int *table, int key_heads, float scale, int block_tokens __VA_ARGS__) { \
		KR_SHARED(unsigned char, shared); \
		Cache c = {cache, scales, kind, stride, scales_stride, d}; \
		prefill<kind, d, with_window>(shared, out, wide, out_stride, q, q_stride, c, key_heads, table, scale, block_tokens, window, sinks); \
	} \
	KR_EXPORT(name)
#define PREFILL(name, kind, d) PREFILL_KERNEL(name, kind, d, false, 0, nullptr)
#define PREFILL_WINDOW(name, kind, d) PREFILL_KERNEL(name, kind, d, true, window, sinks, , int window, const float *sinks)
#define KIND(name, kind) \
	PREFILL(kr_gqa_prefill_##name##_64, kind, 64) PREFILL(kr_gqa_prefill_##name##_128, kind, 128) \
	PREFILL(kr_gqa_prefill_##name##_256, kind, 256) PREFILL(kr_gqa_prefill_##name##_512, kind, 512) \
	PREFILL_WINDOW(kr_gqa_prefill_window_##name##_64, kind, 64) PREFILL_WINDOW(kr_gqa_prefill_window_##name##_128, kind, 128) \
	PREFILL_WINDOW(kr_gqa_prefill_window_##name##_256, kind, 256) PREFILL_WINDOW(kr_gqa_prefill_window_##name##_512, kind, 512)
KIND(bf16, BF16_ROWS)
KIND(e4m3, E4M3_ROWS)
KIND(i8, I8_ROWS)
