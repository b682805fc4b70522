// A mixture of experts for few tokens as one kernel: both halves, with INT4 experts in groups of 128,
// or INT3 in groups of 64 or 128.
//
// Blocks take runs of work from one list: some bands (64 stored rows) of gate and up of every
// tile, then of down of every tile. Weights are read without a pause from the first band to the
// last, also between the halves, because copies do not wait for activations:
//
//   warp 18     counts the runs of gate and up that are done
//   warp 17     takes runs and copies their weights into a ring of shared memory (bulk copies)
//   warp 16     copies the activations of a run; hidden values as soon as all runs are counted
//   warps 0-15  multiply. A part of the columns of a band is a stage of the ring, or one of several pieces of a part.
//               Warp 4i+r has 16 rows, r, of every fourth stage, i.
//
// A block waits only for earlier runs, and those are in blocks that run. So any number of blocks of
// the grid may run at a time. Sums run in the order of gemv_moe.cu.
#include "gemv.cuh"

#ifdef KR_HOPPER
enum {
	TEAMS = 4,                                   // of 4 warps: 16 rows each
	MULTIPLIERS = 4 * TEAMS, WARPS = MULTIPLIERS + 4, // the last has nothing to do
	MOST_UNITS = 4,                              // of a stage
	ORDERS = 4,                                  // runs that are known ahead
};

// A run, in shared memory.
struct Order {
	int half; // 0: gate and up, 1: down, 2: no work is left
	int tile, expert, count;
	int from, to, unused[2]; // bands
	int slots[8];
};

// One half of the mixture: a matrix of every expert, cut into parts, and these into pieces of `units` units.
struct Half {
	Matrix first; // the first expert's
	long long step, scale_step; // from one expert's to the next, in bytes
	int parts, pairs, pieces, units, bands, run, runs; // pieces: of a part, 2 at most and only with CUT; run: bands of a run; runs: of a tile; pairs: as in gemv_flow.cuh
};
#define HALF_ARGS(h) int h##_parts, int h##_pairs, int h##_pieces, int h##_units, int h##_bands, int h##_run, int h##_runs, long long h##_step, long long h##_scale_step, MATRIX_ARGS(h)
#define HALF(h) \
	{ MATRIX(h), h##_step, h##_scale_step, h##_parts, h##_pairs, h##_pieces, h##_units, h##_bands, h##_run, h##_runs }

// The layout of shared memory, for weights of a format.
template <int BITS, int GROUP> struct Room {
	typedef Packed<BITS, GROUP, true> Format;
	enum {
		UNIT = 1024 * BITS, SCALE_UNIT = 128 * Format::SCALES, // bytes of a unit of a band
		VALUES = MOST_UNITS * UNIT, STAGE = VALUES + MOST_UNITS * SCALE_UNIT, // bytes of a stage
	};
	uint8_t *memory;
	int stages, row; // row: bytes of a row of activations
	enum { FULL = 0, EMPTY = 128, ORDERED = 256, TAKEN = 288, STORED = 320, ROWS_FULL = 352, ROWS_EMPTY = 360, ZERO = 368, LIST = 384, SUMS = LIST + ORDERS * 64, TOTALS = SUMS + 2 * MULTIPLIERS * 512, FIXED = TOTALS + MULTIPLIERS * MOST_UNITS * Format::SCALES * 32 };
	KR_MEMBER uint32_t at(int offset) const { return smem_u32(memory) + offset; }
	KR_MEMBER uint32_t full(int i) const { return at(FULL + 8 * i); }
	KR_MEMBER uint32_t empty(int i) const { return at(EMPTY + 8 * i); }
	KR_MEMBER uint32_t ordered(int k) const { return at(ORDERED + 8 * (k % ORDERS)); }
	KR_MEMBER uint32_t taken(int k) const { return at(TAKEN + 8 * (k % ORDERS)); }
	KR_MEMBER uint32_t stored(int k) const { return at(STORED + 8 * (k % ORDERS)); }
	KR_MEMBER Order &order(int k) const { return ((Order *)(memory + LIST))[k % ORDERS]; }
	KR_MEMBER uint8_t *stage(int i) const { return memory + FIXED + i * STAGE; }
	KR_MEMBER int rows() const { return FIXED + stages * STAGE; }
	KR_MEMBER void begin(int parts) const { // parts: of gate and up
		if (threadIdx.x == 0) {
			for (int i = 0; i < stages; i++) mbar_init(full(i), 1), mbar_init(empty(i), 4);
			for (int i = 0; i < ORDERS; i++) mbar_init(ordered(i), 1), mbar_init(taken(i), MULTIPLIERS + 2), mbar_init(stored(i), MULTIPLIERS / parts);
			mbar_init(at(ROWS_FULL), 32), mbar_init(at(ROWS_EMPTY), MULTIPLIERS);
			*(uint4 *)(memory + ZERO) = make_uint4(0, 0, 0, 0);
			mbar_init_fence();
		}
		__syncthreads();
	}
};

// The fourth word of a tile is 0 at first. Its low half counts the tile's runs of gate and up that
// are done. The high half of the first tile's counts the runs that blocks have taken.
struct Tiles {
	int4 *list;
	const int *slots; // [tiles][size]
	int size;
	const int *count;
	KR_MEMBER int take() const { return atomicAdd((unsigned *)&list[0].w, 1u << 16) >> 16; }
	KR_MEMBER bool done(int tile, int runs) const { return (int)(ld_acquire_sys((const uint32_t *)&list[tile].w) & 0xffff) >= runs; }
	KR_MEMBER void note(int tile) const { atomic_inc_acq_rel((unsigned *)&list[tile].w, ~0u); }
};

// As bulk_copy, of bytes that the L2 cache may evict first: weights are read once.
KR_DEV void bulk_copy_once(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar) {
#ifdef KR_EMU
	bulk_copy(dst, src, bytes, bar);
#else
	uint64_t policy;
	asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
	             ::"r"(dst), "l"(src), "r"(bytes), "r"(bar), "l"(policy) : "memory");
#endif
}

// Takes runs and copies their weights, with one warp.
template <bool CUT, class Room> KR_DEV void copy_weights(const Room &room, const Tiles &tiles, const Half &one, const Half &two) {
	int lane = threadIdx.x % 32, at = 0, round = 1, next = 0;
	int n = __ldcg(tiles.count), first = n * one.runs, all = first + n * two.runs;
	if (lane == 0) next = tiles.take();
	for (int k = 0;; k++) {
		int i = __shfl_sync(0xffffffffu, next, 0);
		Order o = {2};
		int slot = -1;
		if (i < all) {
			o.half = i >= first;
			const Half h = o.half ? two : one;
			int j = o.half ? i - first : i, runs = h.runs;
			o.tile = j / runs, o.from = j % runs * h.run, o.to = min(h.bands, o.from + h.run);
			int4 t = __ldcg(tiles.list + o.tile);
			if (lane < tiles.size) slot = __ldcg(tiles.slots + o.tile * tiles.size + lane); // below 0 from t.z on
			o.expert = t.x, o.count = t.z;
			if (lane == 0) next = tiles.take(); // for the next run
		}
		mbar_wait(room.taken(k), k / ORDERS % 2 ^ 1);
		Order &to = room.order(k);
		if (lane < 8) to.slots[lane] = slot;
		if (lane == 0) to.half = o.half, to.tile = o.tile, to.expert = o.expert, to.count = o.count, to.from = o.from, to.to = o.to;
		__syncwarp();
		if (lane == 0) mbar_arrive(room.ordered(k));
		if (o.half == 2) return;
		if (lane == 0) {
			const Half h = o.half ? two : one;
			int bytes = h.units * Room::UNIT, scale_bytes = h.units * Room::SCALE_UNIT;
			const int all = h.parts * (CUT ? h.pieces : 1); // stages of a band
			const uint8_t *values = h.first.values + o.expert * h.step + (long long)o.from * all * bytes;
			const uint8_t *scales = (const uint8_t *)h.first.scales + o.expert * h.scale_step + (long long)o.from * all * scale_bytes;
			for (int left = (o.to - o.from) * all, s = 0; left > 0; left--, s++) {
				mbar_wait(room.empty(at), round);
				uint32_t bar = room.full(at), stage = smem_u32(room.stage(at));
				mbar_expect(bar, bytes + scale_bytes);
				// In memory both pieces of a part lie together, in the ring the first ones of four parts and then the others.
				int ahead = CUT && h.pieces == 2 ? ((s & 3) << 1 | (s >> 2 & 1)) - (s & 7) : 0;
				bulk_copy_once(stage, values + ahead * bytes, bytes, bar);
				bulk_copy(stage + Room::VALUES, scales + ahead * scale_bytes, scale_bytes, bar);
				values += bytes, scales += scale_bytes;
				if (++at == room.stages) at = 0, round ^= 1;
			}
		}
		__syncwarp();
	}
}

// Copies the activations of runs, with one warp. A row of x is a token's, a row of h an
// assignment's.
template <class Room> KR_DEV void copy_rows(const Room &room, const Tiles &tiles, const bf16 *x, int x_stride, const bf16 *h, int over, const Half &one, const Half &two) {
	int lane = threadIdx.x % 32;
	for (int k = 0;; k++) {
		mbar_wait(room.ordered(k), k / ORDERS % 2);
		const Order &o = room.order(k);
		int down = o.half, count = o.count;
		if (down == 2) return;
		int mine = o.slots[lane % 8], columns = 64 * (down ? two : one).first.tiles;
		mbar_wait(room.at(Room::ROWS_EMPTY), k % 2 ^ 1);
		if (down) {
			if (lane == 0)
				while (!tiles.done(o.tile, one.runs)) {}
			__syncwarp();
		}
		for (int r = 0; r < count; r++) {
			int slot = __shfl_sync(0xffffffffu, mine, r);
			const bf16 *row = down ? h + (long long)slot * columns : x + (long long)((slot * over) >> 16) * x_stride;
			for (int u = lane; u < columns / 8; u += 32) cp_async16(room.at(room.rows()) + r * room.row + 16 * u, row + 8 * u);
		}
		mbar_arrive_cp_async(room.at(Room::ROWS_FULL));
		__syncwarp();
		if (lane == 0) mbar_arrive(room.taken(k));
	}
}

// The activations of a piece as right operands, in registers, and the sum of each group, in shared
// memory.
template <class Room> struct Operands {
	typedef typename Room::Format Format;
	uint32_t b[MOST_UNITS][16];
	float2 *totals; // of this lane's tokens, [groups][4]
	KR_MEMBER void load(const Room &room, int piece, int units, int count) {
		int lane = threadIdx.x % 32;
		bool on = lane % 8 < count;
		uint32_t at = on ? room.at(room.rows()) + lane % 8 * room.row + piece * units * 256 + lane / 8 * 16 : room.at(Room::ZERO);
#pragma unroll
		for (int u = 0; u < MOST_UNITS; u++) {
			if (u >= units) break;
			float sum[4] = {0, 0, 0, 0};
#pragma unroll
			for (int i = 0; i < 4; i++) {
				uint32_t t[4];
				const uint32_t ones[4] = {ONES, ONES, ONES, ONES};
				ldmatrix_x4(t, at + (on ? u * 256 + i * 64 : 0));
				mma_bf16(sum, ones, t[0], t[1]);
				mma_bf16(sum, ones, t[2], t[3]);
#pragma unroll
				for (int j = 0; j < 4; j++) b[u][4 * i + j] = t[j];
				const int groups = (i + 1) * Format::SCALES; // in quarters
				if (groups % 4 != 0) continue;
				if (lane < 4) totals[4 * (u * Format::SCALES + groups / 4 - 1)] = make_float2(sum[0], sum[1]);
				sum[0] = sum[1] = sum[2] = sum[3] = 0;
			}
		}
		__syncwarp();
	}
	// sum += the product with 16 rows, r, of a stage.
	KR_MEMBER void multiply(float (&sum)[4], const uint8_t *stage, int r, int units) const {
		int lane = threadIdx.x % 32, thread = r * 32 + lane;
		const uint32_t *scales = (const uint32_t *)(stage + Room::VALUES) + r * 8 + lane / 4;
#pragma unroll
		for (int u = 0; u < MOST_UNITS; u++) {
			if (u >= units) break;
			typename Format::Load v;
#pragma unroll
			for (int t = 0; t < 2; t++) {
				const uint8_t *tile = stage + u * Room::UNIT + t * (Room::UNIT / 2);
				if constexpr (Room::UNIT == 4096) {
					v.q[t] = *(const uint4 *)(tile + 16 * thread);
				} else {
					uint2 two = *(const uint2 *)(tile + 8 * thread);
					v.q[t] = make_uint4(two.x, two.y, *(const uint32_t *)(tile + 1024 + 4 * thread), 0);
				}
			}
			const int STEPS = 8 / Format::SCALES; // of a group
			float d[4] = {0, 0, 0, 0};
#pragma unroll
			for (int i = 0; i < 8; i++) {
				uint32_t a[4];
				Format::unpack(a, v, i);
				mma_bf16(d, a, b[u][2 * i], b[u][2 * i + 1]);
				if ((i + 1) % STEPS != 0) continue;
				const int group = u * Format::SCALES + i / STEPS;
				const float2 total = totals[4 * group];
				const float e[4] = {total.x, total.y, total.x, total.y};
				Format::scale(sum, d, e, scales[32 * group]);
				d[0] = d[1] = d[2] = d[3] = 0;
			}
		}
	}
};

// Adds the parts of 16 rows; the warp of part 0 gets the result. buffer: 0 and 1 in turn.
template <class Room> KR_DEV void join_parts(float (&sum)[4], const Room &room, int parts, int pairs, int part, int buffer) {
	if (parts == 1) return;
	int warp = threadIdx.x / 32, team = warp / 4, r = warp % 4;
	float4 *to = (float4 *)(room.memory + Room::SUMS) + (buffer * MULTIPLIERS + warp) * 32 + threadIdx.x % 32;
	if (part > 0) *to = make_float4(sum[0], sum[1], sum[2], sum[3]);
	bar_sync(1 + (team - part) * 2 + r, 32 * parts);
	if (part > 0) return;
	auto add = [&](float4 v) { sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w; };
	add(to[4 * 32]);
	if (parts == 2) return;
	float4 v = to[8 * 32], w = to[12 * 32];
	if (pairs) {
		add(make_float4(v.x + w.x, v.y + w.y, v.z + w.z, v.w + w.w));
	} else {
		add(v);
		add(w);
	}
}

// Multiplies, with one of the first 16 warps.
template <bool CUT, class Room> KR_DEV void multiply_runs(const Room &room, const Tiles &tiles, float *y, bf16 *hidden, const Half &one, const Half &two, const Activation &act) {
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, team = warp / 4, r = warp % 4, g = lane / 4, c = lane % 4;
	int at = team, round = 0, buffer = 0, before = 0;
	Operands<Room> x;
	x.totals = (float2 *)(room.memory + Room::TOTALS) + warp * (4 * MOST_UNITS * Room::Format::SCALES) + c;
	for (int k = 0;; k++) {
		mbar_wait(room.ordered(k), k / ORDERS % 2);
		const Order &o = room.order(k);
		int down = o.half, count = o.count, from = o.from, to = o.to;
		if (down == 2) return;
		int slots[2] = {o.slots[2 * c], o.slots[2 * c + 1]}; // below 0: no such token
		const int parts = down ? two.parts : one.parts, pieces = !CUT ? 1 : down ? two.pieces : one.pieces, units = down ? two.units : one.units, pairs = down ? two.pairs : one.pairs;
		if (down != before) bar_sync(15, 32 * MULTIPLIERS); // the buffers of sums get other readers
		before = down;
		const int part = team & (parts - 1), step = TEAMS / parts, first = team / parts; // parts is 1, 2 or 4
		mbar_wait(room.at(Room::ROWS_FULL), k % 2);
		if (!CUT) x.load(room, part, units, count);
		if (!CUT && lane == 0) mbar_arrive(room.at(Room::ROWS_EMPTY));
		if (lane == 0) mbar_arrive(room.taken(k));
		for (int band = from + first; band < to; band += step) {
			float sum[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll 1
			for (int piece = 0; piece < pieces; piece++) {
				if (CUT) x.load(room, part * pieces + piece, units, count);
				mbar_wait(room.full(at), round);
				x.multiply(sum, room.stage(at), r, units);
				__syncwarp();
				if (lane == 0) mbar_arrive(room.empty(at));
				if ((at += TEAMS) >= room.stages) at -= room.stages, round ^= 1;
			}
			join_parts(sum, room, parts, pairs, part, buffer);
			buffer ^= 1;
			if (part > 0) continue;
			int block = 4 * band + r;
			if (down) {
#pragma unroll
				for (int i = 0; i < 4; i++)
					if (slots[i % 2] >= 0) y[(long long)slots[i % 2] * two.first.rows + 16 * block + g + i / 2 * 8] = sum[i];
				continue;
			}
#pragma unroll
			for (int i = 0; i < 2; i++)
				if (slots[i] >= 0) store(hidden + (long long)slots[i] * (one.first.rows / 2) + 8 * block + g, act(sum[i], sum[2 + i]));
		}
		__syncwarp();
		if (CUT && lane == 0) mbar_arrive(room.at(Room::ROWS_EMPTY));
		if (!down && part == 0 && lane == 0) mbar_arrive(room.stored(k));
	}
}

// Counts runs whose hidden values are stored, with one thread: so no warp that multiplies waits
// until others see them.
template <class Room> KR_DEV void count_runs(const Room &room, const Tiles &tiles) {
	for (int k = 0;; k++) {
		mbar_wait(room.ordered(k), k / ORDERS % 2);
		const Order &o = room.order(k);
		if (o.half == 2) return;
		if (o.half == 0) {
			int tile = o.tile;
			mbar_wait(room.stored(k), k / ORDERS % 2);
			tiles.note(tile);
		}
		mbar_arrive(room.taken(k));
	}
}

// y [m * top_k, columns of x] = expert(x) of every sorted assignment (kernels/cuda/route.Aligned,
// tiles of up to size, at most 8). h [m * top_k, width] is room for hidden values. over: 2^16 / top_k, rounded up.
#define RING_KERNEL(name, BITS, GROUP, CUT)                                                                                                \
	KR_KERNEL(32 * WARPS, 1)                                                                                                           \
	name(float *y, bf16 *h, const bf16 *x, int x_stride, int4 *tiles, const int *slots, const int *count, int size, int over, int stages, int row, \
	     HALF_ARGS(w), HALF_ARGS(v), float alpha, float limit, float up_shift) {                                                           \
		KR_SHARED(uint8_t, memory);                                                                                                    \
		const Room<BITS, GROUP> room = {memory, stages, row};                                                                          \
		const Half one = HALF(w), two = HALF(v);                                                                                       \
		const Tiles list = {tiles, slots, size, count};                                                                                \
		room.begin(w_parts);                                                                                                           \
		pdl_launch();                                                                                                                  \
		pdl_wait();                                                                                                                    \
		int warp = threadIdx.x / 32;                                                                                                   \
		if (warp < MULTIPLIERS) {                                                                                                      \
			reg_grow<112>();                                                                                                           \
			multiply_runs<CUT>(room, list, y, h, one, two, Activation{alpha, limit, up_shift});                                             \
		} else {                                                                                                                       \
			reg_shrink<32>();                                                                                                          \
			if (warp == MULTIPLIERS) copy_rows(room, list, x, x_stride, h, over, one, two);                                            \
			else if (warp == MULTIPLIERS + 1) copy_weights<CUT>(room, list, one, two);                                                     \
			else if (threadIdx.x == 32 * (MULTIPLIERS + 2)) count_runs(room, list);                                                    \
		}                                                                                                                              \
	}                                                                                                                                  \
	KR_EXPORT(name)
RING_KERNEL(kr_gemv_ring_int4_g128_h, 4, 128, false)
RING_KERNEL(kr_gemv_ring_int3_g64_h, 3, 64, false)
RING_KERNEL(kr_gemv_ring_int3_g128_h, 3, 128, false)
RING_KERNEL(kr_gemv_ring_cut_int4_g128_h, 4, 128, true)
RING_KERNEL(kr_gemv_ring_cut_int3_g64_h, 3, 64, true)
RING_KERNEL(kr_gemv_ring_cut_int3_g128_h, 3, 128, true)
#endif
