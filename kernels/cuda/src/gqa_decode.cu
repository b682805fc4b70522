// Grouped-query attention of generated rows: flash decoding. A block has a key head, a share of the items of all rows
// (kernels/cuda/spans), and 8 or 16 query heads of the key head's group. The query heads are the columns of its
// products; keys, and columns of values, are the rows. So each key and value is read once for all query heads.
//
//   decode: sums of every item, or of every group of FOLD items
//   join:   joins the items of a row
//
// Each of the four warps has 16 keys of every tile and its own ring of them in shared memory, so warps wait for one
// another only at the end of an item. An item is cut by its row's own length, and sums are joined in one order: a
// row's bits do not depend on the batch.
//
// The table of spans was copied before the step's first kernel, so it is read without waiting for earlier kernels. The
// same holds for cache rows of positions before a row's own.
#include "gqa.cuh"

enum { THREADS = 128, WARPS = 4, STEP = KEY_TILE / WARPS }; // a warp's keys in a tile

// N: eights of query heads.
template <int KIND, int D, int N> struct Ring {
	static const int row = D * Element<KIND>::size;
	static const int unit = STEP * row;                                // of a step: keys or values
	static const int most = 4096 / unit < 4 ? 4096 / unit : 4, steps = most < 1 ? 1 : most; // in shared memory or in flight
	static const int scales = KIND == I8_ROWS ? STEP * 2 * 4 : 0;      // of a step: keys and values
	static const int step = 2 * unit + scales + 16;                    // the same, and a Step
	static const int warp = steps * step;
	static const bool far = D * N > 256;                               // queries, and the sums of a group's items, stay in shared memory
	static const int heads = 8 * N, chunk = far ? 32 : D < 128 / N ? D : 128 / N; // columns of sums that warps join at a time
	static const int gap = chunk + 4;                                  // floats between heads, so that stores hit no bank twice
	static const int at_sums = WARPS * warp;                           // [WARPS][heads][gap] float
	static const int at_marks = at_sums + WARPS * heads * gap * 4;     // [WARPS][heads] float2
	static const int at_queries = at_marks + WARPS * heads * 8;        // far: [D / 16][N][32] uint2
	static const int at_kept = at_queries + (far ? D / 16 * N * 256 : 0); // far: [D / cols][THREADS] float4
	static const int cols = 64 / N;                                    // columns that threads have in one pass when warps are joined
	static const int bytes = at_kept + (far ? D / cols * THREADS * 16 : 0);
};
static_assert(STEP == 16, "a step is the depth of a product");

struct Job {
	const int *table;
	int tokens, shift; // the number per block, and its logarithm or -1
	int key_head, key_heads;
	int items; // the number that have room
};

// Describes a step in shared memory: its tile's keys at.. of an item whose keys end before to, the batch's row, and
// the item's number in the row * 2, + 1 for the last item.
struct Step { int at, to, row, number; };

// What a warp fetches next: its 16 keys of the tile at `at` of an item.
struct Feed {
	Span s;
	int row, item, end, at, to; // item == end: nothing is left; row: its number among the generated rows
	int block, offset;          // the place of the step's key lane % 16; offset < 0: past the end
	int slot;                   // of the step whose keys were fetched last
};

KR_DEV void look_up(Feed &f, const Job &j) {
	int key = f.at + threadIdx.x / 32 * STEP + threadIdx.x % STEP;
	if (f.item < f.end && key < f.to) {
		int i = j.shift >= 0 ? key >> j.shift : key / j.tokens;
		f.block = j.table[f.s.first + i];
		f.offset = key - i * j.tokens;
	} else {
		f.offset = -1;
	}
}

KR_DEV void begin_item(Feed &f) {
	unsigned i = f.item - f.s.start, n = f.s.count, tiles = f.s.five;
	f.at = i * tiles / n * KEY_TILE;
	f.to = min((int)((i + 1) * tiles / n) * KEY_TILE, f.s.pos + f.s.len);
}

// The first item, from item i on, that begins a group. All lanes of a warp get the same.
KR_DEV int group_from(const Job &j, int i) {
	int prompts = j.table[HEAD_PREFILL], found = span_of_item(j.table, prompts, prompts + j.table[HEAD_DECODE], i);
	if (found < 0) return i;
	Span s = span_at(j.table, found);
	return s.start + min((i - s.start + FOLD - 1) / FOLD * FOLD, s.count);
}

// This block's share of the items. The share has whole groups if the block joins them.
KR_DEV Feed feed_at(const Job &j, int share, int shares, bool groups) {
	Feed f = {};
	int prompts = j.table[HEAD_PREFILL], rows = j.table[HEAD_DECODE], items = min(j.table[HEAD_ITEMS], j.items);
	int size = (items + shares - 1) / shares;
	f.item = min(share * size, items), f.end = min(f.item + size, items);
	if (groups) f.item = group_from(j, f.item), f.end = group_from(j, f.end);
	f.end = min(f.end, items);
	if (f.item >= f.end) {
		f.end = f.item;
		return f;
	}
	f.row = span_of_item(j.table, prompts, prompts + rows, f.item) - prompts;
	f.s = span_at(j.table, prompts + f.row);
	begin_item(f);
	look_up(f, j);
	return f;
}

// Advances to the next tile.
KR_DEV void advance(Feed &f, const Job &j) {
	f.at += KEY_TILE;
	if (f.at >= f.to) {
		if (++f.item >= f.end) return;
		if (f.item == f.s.start + f.s.count) f.s = span_at(j.table, j.table[HEAD_PREFILL] + ++f.row);
		begin_item(f);
	}
	look_up(f, j);
}

// Starts the copy of a step's keys (or values), from column `first` of their slots on.
template <int KIND, int D> KR_DEV void copy(uint32_t to, const Cache &c, int slot, int first) {
	const int row = Ring<KIND, D, 1>::row, lanes = row / 16, rows = 32 / lanes;
	int lane = threadIdx.x % 32, r = lane / lanes, u = lane % lanes;
	const char *from = c.rows + (long long)first * Element<KIND>::size + u * 16;
#pragma unroll 2
	for (int i = 0; i < STEP; i += rows) {
		int at = __shfl_sync(0xffffffffu, slot, i + r);
		cp_async16_once(to + place<row>(i + r, u), from + (long long)max(at, 0) * c.stride * Element<KIND>::size, at >= 0);
	}
}

template <int KIND, int D> KR_DEV void fetch_keys(unsigned char *stage, Feed &f, const Cache &c, const Job &j) {
	typedef Ring<KIND, D, 1> R;
	if (f.item < f.end) {
		int lane = threadIdx.x % 32;
		f.slot = f.offset >= 0 ? f.block * j.tokens + f.offset : -1;
		copy<KIND, D>(smem_u32(stage), c, f.slot, j.key_head * D);
		if (KIND == I8_ROWS) {
			int head = j.key_head + (lane < STEP ? 0 : j.key_heads);
			cp_async_small<4>(smem_u32(stage) + 2 * R::unit + lane * 4, c.scales + (long long)max(f.slot, 0) * c.scales_stride + head, f.slot >= 0);
		}
		if (lane == 0) {
			int number = f.item - f.s.start;
			*(int4 *)(stage + 2 * R::unit + R::scales) = make_int4(f.at, f.to, f.s.row, 2 * number + (number + 1 == f.s.count));
		}
	}
	cp_async_commit();
}

// Starts the copy of the same step's values, then advances to the next step.
template <int KIND, int D> KR_DEV void fetch_values(unsigned char *stage, Feed &f, const Cache &c, const Job &j) {
	if (f.item < f.end) {
		copy<KIND, D>(smem_u32(stage) + Ring<KIND, D, 1>::unit, c, f.slot, (j.key_heads + j.key_head) * D);
		advance(f, j);
	}
	cp_async_commit();
}

// --- queries

// Queries of the heads as right operands. A product's columns are neighbours in a lane, because keys are read 16 bytes
// at a time. Of bf16 keys, lane 4g+c has columns 8c..8c+7 of every 32, for two products; of 8-bit keys columns
// 16c..16c+15 of every 64, for four.
template <int KIND, int D, int N> struct Queries {
	uint2 b[Ring<KIND, D, N>::far ? 1 : D / 16][N];
};

// The columns of a lane for product i, from a head's queries; 0: there is no such head.
template <int KIND> KR_DEV uint2 query(const bf16 *head, int i) {
	int c = threadIdx.x % 4, at = KIND == BF16_ROWS ? i / 2 * 32 + 8 * c + i % 2 * 4 : i / 4 * 64 + 16 * c + i % 4 * 4;
	uint2 x = head ? *(const uint2 *)(head + at) : make_uint2(0, 0);
	if (KIND == E4M3_ROWS) x = make_uint2(pack_f16(lo_f32(x.x), hi_f32(x.x)), pack_f16(lo_f32(x.y), hi_f32(x.y)));
	return x;
}

// Loads a row's queries of heads first.. of a group of `heads`; the group's queries begin at from. All threads call
// it.
template <int KIND, int D, int N> KR_DEV void fetch_queries(Queries<KIND, D, N> &q, unsigned char *shared, const bf16 *from, int first, int heads) {
	const bool far = Ring<KIND, D, N>::far;
	int lane = threadIdx.x % 32;
	if (far) __syncthreads(); // no thread still needs the row before
#pragma unroll
	for (int n = 0; n < N; n++) {
		int head = first + 8 * n + lane / 4;
		const bf16 *mine = head < heads ? from + head * D : 0;
		if (far) {
			for (int i = threadIdx.x / 32; i < D / 16; i += WARPS) ((uint2 *)(shared + Ring<KIND, D, N>::at_queries))[(i * N + n) * 32 + lane] = query<KIND>(mine, i);
		} else {
#pragma unroll
			for (int i = 0; i < (far ? 0 : D / 16); i++) q.b[i][n] = query<KIND>(mine, i);
		}
	}
	if (far) __syncthreads();
}

// --- a step

// A warp's sums for its keys of an item. They are of weight * value: lane 4g+c has heads 8n + 2c and 8n + 2c + 1, for
// columns 16t + g and 16t + 8 + g (of 8-bit values 16t + 2g and 16t + 2g + 1). It also has the largest score of these
// heads and the sum of weights of the lane's own keys.
template <int D, int N> struct State {
	float sum[D / 16][N][4];
	float most[N][2], total[N][2];
};

template <int D, int N> KR_DEV void begin(State<D, N> &st) {
	st = State<D, N>();
#pragma unroll
	for (int n = 0; n < N; n++) st.most[n][0] = st.most[n][1] = -INFINITY;
}

// Scores of the heads for the step's 16 keys: s[n] of keys g, g, g+8, g+8 for heads 8n + 2c, 8n + 2c + 1 in turn.
template <int KIND, int D, int N> KR_DEV void scores(float (&s)[N][4], const Queries<KIND, D, N> &q, const unsigned char *shared, const unsigned char *keys) {
	const int row = Ring<KIND, D, N>::row, each = KIND == BF16_ROWS ? 2 : 4; // products per 16 bytes of a lane
	const bool far = Ring<KIND, D, N>::far;
	int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
	float sum[2][N][4] = {}; // of even and of odd products
	const uint2 *kept = (const uint2 *)(shared + Ring<KIND, D, N>::at_queries) + lane;
#pragma unroll
	for (int i = 0; i < D / 16 / each; i++) {
		uint4 v = lds16(keys, place<row>(g, 4 * i + c)), w = lds16(keys, place<row>(g + 8, 4 * i + c));
		uint32_t one[4] = {v.x, v.y, v.z, v.w}, two[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
		for (int j = 0; j < each; j++) {
			uint32_t a[4];
			if (KIND == BF16_ROWS) {
				a[0] = one[2 * j % 4], a[1] = two[2 * j % 4], a[2] = one[(2 * j + 1) % 4], a[3] = two[(2 * j + 1) % 4];
			} else {
				widen<KIND>(one[j], a[0], a[2]);
				widen<KIND>(two[j], a[1], a[3]);
			}
#pragma unroll
			for (int n = 0; n < N; n++) {
				uint2 b = far ? kept[((i * each + j) * N + n) * 32] : q.b[far ? 0 : i * each + j][n];
				multiply<KIND>(sum[j % 2][n], a, b.x, b.y);
			}
		}
	}
#pragma unroll
	for (int n = 0; n < N; n++)
#pragma unroll
		for (int i = 0; i < 4; i++) s[n][i] = sum[0][n][i] + sum[1][n][i];
}

// Turns scores into weights: powers of two relative to the largest score. Rescales the earlier sums to the new largest
// score.
template <int D, int N> KR_DEV void weigh(State<D, N> &st, float (&s)[N][4]) {
	float old[N][2];
	bool same = true;
#pragma unroll
	for (int n = 0; n < N; n++) {
#pragma unroll
		for (int i = 0; i < 2; i++) {
			float m = fmaxf(s[n][i], s[n][i + 2]);
#pragma unroll
			for (int d = 4; d < 32; d *= 2) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, d));
			m = fmaxf(m, st.most[n][i]);
			old[n][i] = exp2_approx(st.most[n][i] - m);
			same = same && old[n][i] == 1.f;
			st.most[n][i] = m;
			s[n][i] = exp2_approx(s[n][i] - m), s[n][i + 2] = exp2_approx(s[n][i + 2] - m);
			st.total[n][i] = fmaf(st.total[n][i], old[n][i], s[n][i] + s[n][i + 2]);
		}
	}
	if (!__any_sync(0xffffffffu, !same)) return; // in most steps nothing would change
#pragma unroll
	for (int t = 0; t < D / 16; t++)
#pragma unroll
		for (int n = 0; n < N; n++)
#pragma unroll
			for (int i = 0; i < 4; i++) st.sum[t][n][i] *= old[n][i % 2];
}

// sum += values * weights. A lane has weights of keys g and g+8 for two heads, and fetches those of keys 2c, 2c+1,
// 2c+8, 2c+9 for head g. 8-bit values are read in pairs, as one number, and separated afterwards.
template <int KIND, int D, int N> KR_DEV void add_values(State<D, N> &st, const float (&w)[N][4], uint32_t values) {
	const int row = Ring<KIND, D, N>::row;
	int lane = threadIdx.x % 32, g = lane / 4, from = lane % 4 * 8 + g / 2;
	uint32_t b[N][2];
#pragma unroll
	for (int n = 0; n < N; n++)
#pragma unroll
		for (int i = 0; i < 2; i++) {
			uint32_t mine = pack<KIND>(w[n][2 * i], w[n][2 * i + 1]);
			uint32_t x = __shfl_sync(0xffffffffu, mine, from), y = __shfl_sync(0xffffffffu, mine, from + 4);
			b[n][i] = __byte_perm(x, y, g % 2 ? 0x7632 : 0x5410);
		}
#pragma unroll
	for (int t = 0; t < row / 32; t++) {
		uint32_t v[4];
		ldmatrix_x4_trans(v, values + place<row>(lane % 16, 2 * t + lane / 16));
		if (KIND == BF16_ROWS) {
			uint32_t a[4] = {v[0], v[2], v[1], v[3]};
#pragma unroll
			for (int n = 0; n < N; n++) multiply<KIND>(st.sum[t][n], a, b[n][0], b[n][1]);
		} else {
#pragma unroll
			for (int i = 0; i < 2; i++) {
				uint32_t a[4]; // even columns, odd ones
				widen<KIND>(__byte_perm(v[2 * i], 0, 0x3120), a[0], a[1]);
				widen<KIND>(__byte_perm(v[2 * i + 1], 0, 0x3120), a[2], a[3]);
#pragma unroll
				for (int n = 0; n < N; n++) multiply<KIND>(st.sum[(2 * t + i) % (D / 16)][n], a, b[n][0], b[n][1]);
			}
		}
	}
}

// --- the end of an item

// A thread's sums when warps are joined: of one head (head_of), a float4 of every `cols` columns (quad_of).
template <int D, int N> struct Joined {
	float4 sum[D * N / 64];
	float most, total;
};
template <int N> KR_DEV int head_of() { return threadIdx.x / (16 / N); }
template <int N> KR_DEV int quad_of() { return threadIdx.x % (16 / N); }

// Joins the sums of all warps. All threads call it.
template <int KIND, int D, int N> KR_DEV void join_warps(Joined<D, N> &out, const State<D, N> &st, unsigned char *shared) {
	typedef Ring<KIND, D, N> R;
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4, head = head_of<N>();
	float2 *marks = (float2 *)(shared + R::at_marks);
	float *sums = (float *)(shared + R::at_sums);
	float total[N][2];
#pragma unroll
	for (int n = 0; n < N; n++)
#pragma unroll
		for (int i = 0; i < 2; i++) {
			total[n][i] = st.total[n][i];
#pragma unroll
			for (int d = 4; d < 32; d *= 2) total[n][i] += __shfl_xor_sync(0xffffffffu, total[n][i], d);
		}
	float f[WARPS];
#pragma unroll
	for (int k = 0; k < D / R::chunk; k++) {
		__syncthreads(); // the previous result has been read
#pragma unroll
		for (int n = 0; n < N; n++) {
			if (k == 0 && g == 0) {
#pragma unroll
				for (int i = 0; i < 2; i++) marks[warp * R::heads + 8 * n + 2 * c + i] = make_float2(st.most[n][i], total[n][i]);
			}
			float *to = sums + (warp * R::heads + 8 * n + 2 * c) * R::gap;
#pragma unroll
			for (int t = 0; t < R::chunk / 16; t++) {
				const float(&x)[4] = st.sum[k * (R::chunk / 16) + t][n];
				if (KIND == BF16_ROWS) {
					to[16 * t + g] = x[0], to[R::gap + 16 * t + g] = x[1];
					to[16 * t + 8 + g] = x[2], to[R::gap + 16 * t + 8 + g] = x[3];
				} else {
					store2(to + 16 * t + 2 * g, x[0], x[2]);
					store2(to + R::gap + 16 * t + 2 * g, x[1], x[3]);
				}
			}
		}
		__syncthreads();
		if (k == 0) {
			float2 m[WARPS];
			out.most = -INFINITY;
#pragma unroll
			for (int w = 0; w < WARPS; w++) m[w] = marks[w * R::heads + head], out.most = fmaxf(out.most, m[w].x);
#pragma unroll
			for (int w = 0; w < WARPS; w++) f[w] = exp2_approx(m[w].x - out.most);
			out.total = fmaf(f[0], m[0].y, f[1] * m[1].y) + fmaf(f[2], m[2].y, f[3] * m[3].y);
		}
		const float4 *from = (const float4 *)(sums + head * R::gap) + quad_of<N>();
		const int next = R::heads * R::gap / 4; // warp
#pragma unroll
		for (int i = 0; i < R::chunk / R::cols; i++, from += R::cols / 4) {
			float4 x = from[0], y = from[next], z = from[2 * next], u = from[3 * next];
			out.sum[k * (R::chunk / R::cols) + i] =
			    make_float4(fmaf(f[0], x.x, f[1] * y.x) + fmaf(f[2], z.x, f[3] * u.x), fmaf(f[0], x.y, f[1] * y.y) + fmaf(f[2], z.y, f[3] * u.y),
			                fmaf(f[0], x.z, f[1] * y.z) + fmaf(f[2], z.z, f[3] * u.z), fmaf(f[0], x.w, f[1] * y.w) + fmaf(f[2], z.w, f[3] * u.w));
		}
	}
}

// A block's sums for a group's items so far, in registers or in shared memory.
template <int KIND, int D, int N> struct Group {
	float4 sum[Ring<KIND, D, N>::far ? 1 : D * N / 64];
	float most, total;
};

template <int KIND, int D, int N> KR_DEV float4 &group_sum(Group<KIND, D, N> &g, unsigned char *shared, int i) {
	if (Ring<KIND, D, N>::far) return ((float4 *)(shared + Ring<KIND, D, N>::at_kept))[i * THREADS + threadIdx.x];
	return g.sum[Ring<KIND, D, N>::far ? 0 : i];
}

template <int KIND, int D, int N> KR_DEV void keep_item(Group<KIND, D, N> &g, unsigned char *shared, const Joined<D, N> &x) {
	g.most = x.most, g.total = x.total;
#pragma unroll
	for (int i = 0; i < D * N / 64; i++) group_sum(g, shared, i) = x.sum[i];
}

// Adds x to the group's sums, and returns them in x.
template <int KIND, int D, int N> KR_DEV void add_group(Joined<D, N> &x, Group<KIND, D, N> &g, unsigned char *shared) {
	float2 f = fold_factors(g.most, x.most);
	x.most = g.most, x.total = fold(g.total, x.total, f);
#pragma unroll
	for (int i = 0; i < D * N / 64; i++) {
		float4 a = group_sum(g, shared, i);
		fold(a, x.sum[i], f);
		x.sum[i] = a;
	}
}

// part [items, heads, D] and marks [items, heads, 2]; at is item * heads + head of the thread.
template <int D, int N> KR_DEV void put(float *part, float *marks, const Joined<D, N> &x, long long at) {
#pragma unroll
	for (int i = 0; i < D * N / 64; i++) ((float4 *)(part + at * D + i * (64 / N)))[quad_of<N>()] = x.sum[i];
	if (quad_of<N>() == 0) store2(marks + 2 * at, x.most, x.total);
}

// --- attention

// Writes part and marks of every item. With groups it writes those of every group of FOLD items in the place of the
// group's first item. Grid (parts of the groups of query heads, shares of the items). scale includes log2(e).
template <int KIND, int D, int N> KR_DEV void attend(unsigned char *shared, float *part, float *marks, bool groups, const bf16 *q, int q_stride, const Cache &c, Job j, int heads, float scale) {
	typedef Ring<KIND, D, N> R;
	pdl_launch();
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, group = heads / j.key_heads, blocks = (group + R::heads - 1) / R::heads;
	int first = (int)blockIdx.x % blocks * R::heads; // of the heads in the group
	j.key_head = blockIdx.x / blocks;
	Feed f = feed_at(j, blockIdx.y, gridDim.y, groups);
	int item = f.item, end = f.end;
	if (item >= end) {
		pdl_wait();
		return;
	}
	unsigned char *ring = shared + warp * R::warp;
	bool waited = false;
#pragma unroll 1
	for (int i = 0; i < R::steps; i++) {
		if (!waited && f.item < f.end && f.at + KEY_TILE > f.s.pos) pdl_wait(), waited = true; // this step stores some of the keys
		fetch_keys<KIND, D>(ring + i * R::step, f, c, j);
		fetch_values<KIND, D>(ring + i * R::step, f, c, j);
	}
	if (!waited) pdl_wait();
	Queries<KIND, D, N> queries;
	int row = -1;
	State<D, N> st;
	Group<KIND, D, N> kept = Group<KIND, D, N>();
	begin(st);
#pragma unroll 1
	for (int stage = 0;; stage = stage + 1 == R::steps ? 0 : stage + 1) {
		unsigned char *at = ring + stage * R::step;
		cp_async_wait<2 * R::steps - 1>();
		__syncwarp(); // the keys have arrived
		int4 now = *(const int4 *)(at + 2 * R::unit + R::scales);
		if (row != now.z) {
			row = now.z;
			fetch_queries(queries, shared, q + (long long)row * q_stride + j.key_head * group * D, first, group);
		}
		int key = now.x + warp * STEP;
		bool some = key < now.y;
		float s[N][4];
		if (some) {
			scores<KIND, D, N>(s, queries, shared, at);
			const float *scales = (const float *)(at + 2 * R::unit);
			key += g;
			float one = scale, two = scale;
			if (KIND == I8_ROWS) one *= scales[g], two *= scales[g + 8];
#pragma unroll
			for (int n = 0; n < N; n++)
#pragma unroll
				for (int i = 0; i < 4; i++) s[n][i] = key + i / 2 * 8 < now.y ? s[n][i] * (i < 2 ? one : two) : -INFINITY;
			weigh(st, s);
			if (KIND == I8_ROWS) { // the weights of integers include the scale
				one = scales[16 + g], two = scales[24 + g];
#pragma unroll
				for (int n = 0; n < N; n++)
#pragma unroll
					for (int i = 0; i < 4; i++) s[n][i] *= i < 2 ? one : two;
			}
		}
		__syncwarp(); // no warp reads the keys any more
		fetch_keys<KIND, D>(at, f, c, j);
		cp_async_wait<2 * R::steps - 1>();
		__syncwarp(); // the values have arrived
		if (some) add_values<KIND, D, N>(st, s, smem_u32(at) + R::unit);
		__syncwarp();
		fetch_values<KIND, D>(at, f, c, j);
		if (now.x + KEY_TILE < now.y) continue;
		Joined<D, N> x;
		join_warps<KIND, D, N>(x, st, shared);
		int place = groups ? now.w / 2 % FOLD : 0, head = first + head_of<N>();
		if (place > 0) add_group(x, kept, shared);
		if (groups && place < FOLD - 1 && now.w % 2 == 0) keep_item(kept, shared, x);
		else if (head < group) put(part, marks, x, (long long)(item - place) * heads + j.key_head * group + head);
		if (++item == end) return;
		begin(st);
	}
}

#define DECODE(name, kind, d, n, blocks)                                                                                           \
	KR_KERNEL(THREADS, blocks)                                                                                                       \
	name(float *part, float *marks, int items, int groups, const bf16 *q, int q_stride, const char *cache, const float *scales,      \
	     int stride, int scales_stride, const int *table, int heads, int key_heads, float scale, int block_tokens) {                \
		KR_SHARED(unsigned char, shared);                                                                                              \
		Cache c = {cache, scales, kind, stride, scales_stride, d};                                                                    \
		Job j = {table, block_tokens, __popc(block_tokens) == 1 ? 31 - __clz(block_tokens) : -1, 0, key_heads, items};                  \
		attend<kind, d, n>(shared, part, marks, groups != 0, q, q_stride, c, j, heads, scale);                                         \
	}                                                                                                                                \
	KR_EXPORT(name)
DECODE(kr_gqa_decode8_bf16_64, BF16_ROWS, 64, 1, 4)
DECODE(kr_gqa_decode8_bf16_128, BF16_ROWS, 128, 1, 3)
DECODE(kr_gqa_decode8_bf16_256, BF16_ROWS, 256, 1, 2)
DECODE(kr_gqa_decode8_e4m3_64, E4M3_ROWS, 64, 1, 4)
DECODE(kr_gqa_decode8_e4m3_128, E4M3_ROWS, 128, 1, 4)
DECODE(kr_gqa_decode8_e4m3_256, E4M3_ROWS, 256, 1, 2)
DECODE(kr_gqa_decode8_i8_64, I8_ROWS, 64, 1, 4)
DECODE(kr_gqa_decode8_i8_128, I8_ROWS, 128, 1, 3)
DECODE(kr_gqa_decode8_i8_256, I8_ROWS, 256, 1, 2)
DECODE(kr_gqa_decode16_bf16_64, BF16_ROWS, 64, 2, 3)
DECODE(kr_gqa_decode16_bf16_128, BF16_ROWS, 128, 2, 2)
DECODE(kr_gqa_decode16_bf16_256, BF16_ROWS, 256, 2, 2)
DECODE(kr_gqa_decode16_e4m3_64, E4M3_ROWS, 64, 2, 3)
DECODE(kr_gqa_decode16_e4m3_128, E4M3_ROWS, 128, 2, 2)
DECODE(kr_gqa_decode16_e4m3_256, E4M3_ROWS, 256, 2, 2)
DECODE(kr_gqa_decode16_i8_64, I8_ROWS, 64, 2, 3)
DECODE(kr_gqa_decode16_i8_128, I8_ROWS, 128, 2, 2)
DECODE(kr_gqa_decode16_i8_256, I8_ROWS, 256, 2, 2)

// --- join

// out [rows, heads * D] from part and marks. One block per head of a row; a line of D / 4 threads has every LINES'th
// group of items. Grid (heads, rows).
template <int D> KR_DEV void join(void *out, int wide, int out_stride, const float *part, const float *marks, int items_max, int groups, const int *table) {
	const int QUADS = D / 4, LINES = THREADS / QUADS;
	__shared__ __align__(16) float4 sums[THREADS];
	__shared__ float2 ends[LINES];
	int heads = gridDim.x, head = blockIdx.x, row = blockIdx.y, quad = threadIdx.x % QUADS, line = threadIdx.x / QUADS;
	pdl_launch();
	int prompts = table[HEAD_PREFILL], rows = table[HEAD_DECODE];
	Span s = span_at(table, prompts + min(row, max(rows - 1, 0)));
	int count = s.start + s.count > items_max ? 0 : s.count; // a row without room is NaN
	pdl_wait();
	if (row >= rows) return;
	float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
	float most = -INFINITY, total = 0.f;
	for (int g = line; g * FOLD < count; g += LINES) {
		int n = groups ? 1 : min((int)FOLD, count - g * FOLD);
		long long at = (long long)(s.start + g * FOLD) * heads + head;
		float4 x[FOLD];
		float2 m[FOLD];
#pragma unroll
		for (int i = 0; i < FOLD; i++) {
			if (i >= n) continue;
			m[i] = ((const float2 *)marks)[at + (long long)i * heads];
			x[i] = ((const float4 *)part)[(at + (long long)i * heads) * QUADS + quad];
		}
#pragma unroll
		for (int i = 1; i < FOLD; i++) {
			if (i >= n) continue;
			float2 f = fold_factors(m[0].x, m[i].x);
			m[0].y = fold(m[0].y, m[i].y, f);
			fold(x[0], x[i], f);
		}
		float2 f = fold_factors(most, m[0].x);
		total = fold(total, m[0].y, f);
		fold(sum, x[0], f);
	}
	sums[threadIdx.x] = sum;
	if (quad == 0) ends[line] = make_float2(most, total);
	__syncthreads();
	if (line > 0) return;
	for (int i = 1; i < LINES; i++) most = fmaxf(most, ends[i].x);
	float4 all = make_float4(0.f, 0.f, 0.f, 0.f);
	total = 0.f;
#pragma unroll
	for (int i = 0; i < LINES; i++) {
		float w = exp2_approx(ends[i].x - most);
		float4 x = sums[i * QUADS + quad];
		total = fmaf(w, ends[i].y, total);
		all.x = fmaf(w, x.x, all.x), all.y = fmaf(w, x.y, all.y), all.z = fmaf(w, x.z, all.z), all.w = fmaf(w, x.w, all.w);
	}
	float scale = 1.f / total;
	long long at = (long long)s.row * out_stride + head * D + 4 * quad;
	if (wide) {
		*(float4 *)((float *)out + at) = make_float4(all.x * scale, all.y * scale, all.z * scale, all.w * scale);
	} else {
		*(uint2 *)((bf16 *)out + at) = make_uint2(pack_bf16(all.x * scale, all.y * scale), pack_bf16(all.z * scale, all.w * scale));
	}
}

#define JOIN(name, d)                                                                                                             \
	KR_KERNEL(THREADS, 6)                                                                                                            \
	name(void *out, int wide, int out_stride, const float *part, const float *marks, int items, int groups, const int *table) {     \
		join<d>(out, wide, out_stride, part, marks, items, groups, table);                                                              \
	}                                                                                                                                \
	KR_EXPORT(name)
JOIN(kr_gqa_join_64, 64)
JOIN(kr_gqa_join_128, 128)
JOIN(kr_gqa_join_256, 256)
