// Grouped-query attention of generated rows: flash decoding. A block has a key head, a share of the items of all rows
// (kernels/cuda/spans), and 8 or 16 query heads of the key head's group. The query heads are the columns of its
// products; keys, and columns of values, are the rows. So each key and value is read once for all query heads.
//
//   decode: sums of every item, or of every group of FOLD items
//   join:   joins the items of a row, or join_groups its groups
//
// Each of the four warps has 16 keys of every tile and its own ring of them in shared memory, so warps wait for one
// another only at the end of an item. An item is cut by its row's own length, and sums are joined in one order: a
// row's bits do not depend on the batch. Windows have kernels of their own (WINDOW): items are of the keys that the row
// sees, and a short window is one item. Then there is nothing to join, and the kernel writes the row itself.
//
// The table of spans was copied before the step's first kernel, so it is read without waiting for earlier kernels. The
// same holds for cache rows of positions before a row's own.
#include "gqa_join.cuh"

struct Job {
	const int *table;
	int tokens, shift; // the number per block, and its logarithm or -1
	int key_head, key_heads;
	int items; // the number that have room
	int window; // the number of keys that a row sees; 0 without WINDOW: all
};

// Describes a step in shared memory: its tile's keys at.. of an item whose keys end before to, the batch's row, and
// the item's number in the row * 2, + 1 for the last item. at is a multiple of KEY_TILE, plus the number of the tile's
// first keys that the row does not see.
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
	if (f.item < f.end && (j.window <= 0 || key >= first_seen(f.s, j.window)) && key < f.to) {
		int i = j.shift >= 0 ? key >> j.shift : key / j.tokens;
		f.block = j.table[f.s.first + i];
		f.offset = key - i * j.tokens;
	} else {
		f.offset = -1;
	}
}

KR_DEV void begin_item(Feed &f, const Job &j) {
	unsigned i = f.item - f.s.start, n = f.s.count, tiles = f.s.five;
	int base = first_seen(f.s, j.window) & -KEY_TILE;
	f.at = base + i * tiles / n * KEY_TILE;
	f.to = min(base + (int)((i + 1) * tiles / n) * KEY_TILE, f.s.pos + f.s.len);
}

// The first item, from item i on, that begins a group. All lanes of a warp get the same.
KR_DEV int group_from(const Job &j, int i) {
	Span s;
	if (row_of_item(s, j.table, i, j.window) < 0) return i;
	return s.start + min((i - s.start + FOLD - 1) / FOLD * FOLD, s.count);
}

// This block's share of the items. The share has whole groups if the block joins them.
KR_DEV Feed feed_at(const Job &j, int share, int shares, bool groups) {
	Feed f = {};
	int all = j.window > 0 ? items_before(j.table, j.table[HEAD_PREFILL], j.table[HEAD_DECODE], j.window) : j.table[HEAD_ITEMS];
	int items = min(all, j.items);
	int size = (items + shares - 1) / shares;
	f.item = min(share * size, items), f.end = min(f.item + size, items);
	if (groups) f.item = group_from(j, f.item), f.end = group_from(j, f.end);
	f.end = min(f.end, items);
	if (f.item >= f.end) {
		f.end = f.item;
		return f;
	}
	f.row = row_of_item(f.s, j.table, f.item, j.window);
	begin_item(f, j);
	look_up(f, j);
	return f;
}

// Advances to the next tile.
KR_DEV void advance(Feed &f, const Job &j) {
	f.at += KEY_TILE;
	if (f.at >= f.to) {
		if (++f.item >= f.end) return;
		if (f.item == f.s.start + f.s.count) {
			f.s = row_at(j.table, j.table[HEAD_PREFILL], ++f.row, j.window);
			if (j.window > 0) f.s.start = f.item;
		}
		begin_item(f, j);
	}
	look_up(f, j);
}

// Starts the copy of a step's keys (or values), from column `first` of their slots on.
template <int KIND, int D> KR_DEV void copy(uint32_t to, const Cache &c, int slot, int first) {
	const int row = Ring<KIND, D, 1>::row, units = row / 16, lanes = units < 32 ? units : 32, rows = 32 / lanes;
	int lane = threadIdx.x % 32, r = lane / lanes, u = lane % lanes;
	const char *from = c.rows + (long long)first * Element<KIND>::size + u * 16;
#pragma unroll 2
	for (int i = 0; i < STEP; i += rows) {
		int at = __shfl_sync(0xffffffffu, slot, i + r);
		const char *key = from + (long long)max(at, 0) * c.stride * Element<KIND>::size;
#pragma unroll
		for (int k = 0; k < units; k += lanes) cp_async16_once(to + place<row>(i + r, u + k), key + k * 16, at >= 0);
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
			*(int4 *)(stage + 2 * R::unit + R::scales) = make_int4(j.window > 0 ? max(f.at, first_seen(f.s, j.window)) : f.at, f.to, f.s.row, 2 * number + (number + 1 == f.s.count));
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

// --- attention

// Writes part and marks of every item. With groups it writes those of every group of FOLD items in the place of the
// group's first item. Grid (parts of the groups of query heads, shares of the items). scale includes log2(e).
template <int KIND, int D, int N, bool WINDOW> KR_DEV void attend(unsigned char *shared, float *part, float *marks, bool groups, const bf16 *q, int q_stride, const Cache &c, Job j, int heads, float scale, const Result &out) {
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
#ifdef KR_HOPPER
	if (R::late) {
		if (threadIdx.x == 0) {
			mbar_init(smem_u32(shared) + R::at_bars, THREADS), mbar_init(smem_u32(shared) + R::at_bars + 8, THREADS);
			mbar_init_fence();
		}
		__syncthreads();
	}
#endif
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
	int left = -1, joined = 0; // late: the number of the item that is still to be joined, as in Step; how many have been, modulo 2
	// Adds the sums of an item, with that number, to its group's, or writes them.
	auto give = [&](Joined<D, N> &x, int item, int number) {
		int place = groups ? number / 2 % FOLD : 0, head = first + head_of<N>();
		if (place > 0) add_group(x, kept, shared);
		if (groups && place < FOLD - 1 && number % 2 == 0) keep_item(kept, shared, x);
		else if (head >= group) return;
		else if (WINDOW && out.rows) finish(out, x, row, j.key_head * group + head);
		else put(part, marks, x, (long long)(item - place) * heads + j.key_head * group + head);
	};
	auto join_late = [&] {
#ifdef KR_HOPPER
		if (!R::late || left < 0) return;
		Joined<D, N> x;
		float f[WARPS];
		mbar_wait(smem_u32(shared) + R::at_bars, joined);
		read_warps<KIND, D, N>(x, f, shared, 0);
		mbar_arrive(smem_u32(shared) + R::at_bars + 8);
		joined ^= 1;
		give(x, item - 1, left);
		left = -1;
#endif
	};
#pragma unroll 1
	for (int stage = 0;; stage = stage + 1 == R::steps ? 0 : stage + 1) {
		unsigned char *at = ring + stage * R::step;
		cp_async_wait<2 * R::steps - 1>();
		__syncwarp(); // the keys have arrived
		join_late();
		int4 now = *(const int4 *)(at + 2 * R::unit + R::scales);
		if (row != now.z) {
			row = now.z;
			fetch_queries(queries, shared, q + (long long)row * q_stride + j.key_head * group * D, first, group);
		}
		int low = now.x, tile = WINDOW ? low & -KEY_TILE : low, key = tile + warp * STEP;
		bool some = key < now.y && (!WINDOW || key + STEP > low);
		float s[N][4];
		if (some) {
			scores<KIND, D, N>(s, queries, shared, at);
			const float *scales = (const float *)(at + 2 * R::unit);
			key += g;
			auto sees = [&](int key) { return WINDOW ? (unsigned)(key - low) < (unsigned)(now.y - low) : key < now.y; };
			float one = scale, two = scale;
			if (KIND == I8_ROWS) one *= scales[g], two *= scales[g + 8];
#pragma unroll
			for (int n = 0; n < N; n++)
#pragma unroll
				for (int i = 0; i < 4; i++) s[n][i] = sees(key + i / 2 * 8) ? s[n][i] * (i < 2 ? one : two) : -INFINITY;
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
		if (tile + KEY_TILE < now.y) continue;
#ifdef KR_HOPPER
		if (R::late) {
			mbar_wait(smem_u32(shared) + R::at_bars + 8, joined ^ 1); // the sums before have been read
			store_warp<KIND, D, N>(st, shared, 0);
			mbar_arrive(smem_u32(shared) + R::at_bars);
			left = now.w;
			if (++item == end) {
				join_late();
				return;
			}
			begin(st);
			continue;
		}
#endif
		Joined<D, N> x;
		join_warps<KIND, D, N>(x, st, shared);
		give(x, item, now.w);
		if (++item == end) return;
		begin(st);
	}
}

#define DECODE_KERNEL(name, kind, d, n, blocks, with_window, window, result, ...)                                                   \
	KR_KERNEL(THREADS, blocks)                                                                                                       \
	name(float *part, float *marks, int items, int groups, const bf16 *q, int q_stride, const char *cache, const float *scales,      \
	     int stride, int scales_stride, const int *table, int heads, int key_heads, float scale, int block_tokens __VA_ARGS__) {     \
		KR_SHARED(unsigned char, shared);                                                                                              \
		Cache c = {cache, scales, kind, stride, scales_stride, d};                                                                    \
		Job j = {table, block_tokens, __popc(block_tokens) == 1 ? 31 - __clz(block_tokens) : -1, 0, key_heads, items, window};          \
		attend<kind, d, n, with_window>(shared, part, marks, groups != 0, q, q_stride, c, j, heads, scale, result);                    \
	}                                                                                                                                \
	KR_EXPORT(name)
#define DECODE(name, kind, d, n, blocks) DECODE_KERNEL(name, kind, d, n, blocks, false, 0, Result())
#define DECODE_WINDOW(name, kind, d, n, blocks) \
	DECODE_KERNEL(name, kind, d, n, blocks, true, window, (Result{out, wide, out_stride, sinks}), , int window, void *out, int wide, int out_stride, const float *sinks)
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
DECODE(kr_gqa_decode8_bf16_512, BF16_ROWS, 512, 1, 1)
DECODE(kr_gqa_decode8_e4m3_512, E4M3_ROWS, 512, 1, 2)
DECODE(kr_gqa_decode8_i8_512, I8_ROWS, 512, 1, 2)
DECODE_WINDOW(kr_gqa_decode8_window_bf16_64, BF16_ROWS, 64, 1, 4)
DECODE_WINDOW(kr_gqa_decode8_window_bf16_128, BF16_ROWS, 128, 1, 3)
DECODE_WINDOW(kr_gqa_decode8_window_bf16_256, BF16_ROWS, 256, 1, 2)
DECODE_WINDOW(kr_gqa_decode8_window_e4m3_64, E4M3_ROWS, 64, 1, 4)
DECODE_WINDOW(kr_gqa_decode8_window_e4m3_128, E4M3_ROWS, 128, 1, LATE_JOINS ? 4 : 3) // sums of a group's items are in registers without late joins
DECODE_WINDOW(kr_gqa_decode8_window_e4m3_256, E4M3_ROWS, 256, 1, 2)
DECODE_WINDOW(kr_gqa_decode8_window_i8_64, I8_ROWS, 64, 1, 4)
DECODE_WINDOW(kr_gqa_decode8_window_i8_128, I8_ROWS, 128, 1, 3)
DECODE_WINDOW(kr_gqa_decode8_window_i8_256, I8_ROWS, 256, 1, 2)
DECODE_WINDOW(kr_gqa_decode16_window_bf16_64, BF16_ROWS, 64, 2, 3)
DECODE_WINDOW(kr_gqa_decode16_window_bf16_128, BF16_ROWS, 128, 2, 2)
DECODE_WINDOW(kr_gqa_decode16_window_bf16_256, BF16_ROWS, 256, 2, 2)
DECODE_WINDOW(kr_gqa_decode16_window_e4m3_64, E4M3_ROWS, 64, 2, 3)
DECODE_WINDOW(kr_gqa_decode16_window_e4m3_128, E4M3_ROWS, 128, 2, 2)
DECODE_WINDOW(kr_gqa_decode16_window_e4m3_256, E4M3_ROWS, 256, 2, 2)
DECODE_WINDOW(kr_gqa_decode16_window_i8_64, I8_ROWS, 64, 2, 3)
DECODE_WINDOW(kr_gqa_decode16_window_i8_128, I8_ROWS, 128, 2, 2)
DECODE_WINDOW(kr_gqa_decode16_window_i8_256, I8_ROWS, 256, 2, 2)

#define JOIN(d)                                                                                                                   \
	KR_KERNEL(THREADS, 6)                                                                                                            \
	kr_gqa_join_##d(void *out, int wide, int out_stride, const float *part, const float *marks, int items, const int *table,        \
	                int window, const float *sinks) {                                                                                \
		join<d>(Result{out, wide, out_stride, sinks}, part, marks, items, table, window);                                               \
	}                                                                                                                                \
	KR_EXPORT(kr_gqa_join_##d)                                                                                                       \
	KR_KERNEL(THREADS, 4)                                                                                                            \
	kr_gqa_join_groups_##d(void *out, int wide, int out_stride, const float *part, const float *marks, int items, const int *table, \
	                       int heads, int window, const float *sinks) {                                                              \
		join_groups<d>(Result{out, wide, out_stride, sinks}, part, marks, items, table, heads, window);                                 \
	}                                                                                                                                \
	KR_EXPORT(kr_gqa_join_groups_##d)
JOIN(64)
JOIN(128)
JOIN(256)
JOIN(512)
