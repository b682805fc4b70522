// Latent attention over chosen positions for heads without rotated values (GLM-5.3), absorbed, for rows of prompts and generated ones:
//
//   absorb: queries in the latent space, by head (kr_latent_absorb)
//   attend: a block has a row, 64 heads and all or some of the positions that the row has chosen
//   join:   the sums of several blocks of a row
//   expand: values of the latents, by head (kr_latent_expand)
//
// Queries and latents of row i of those of a launch are bf16 [rows, heads, RANK]; latents take the place of queries. A row's bits depend on
// its own choice only.
#include "mla.cuh"
#include "rows.cuh"

enum { GROUP = 64, LATENT_THREADS = 256, LATENT_BYTES = 2 * RANK, TILE = KEY_TILE, TILE_BYTES = TILE * LATENT_BYTES };

// Row i of a launch in the batch, and its span. decode: row i of the generated ones, else row first + i of the batch, if it is a prompt's.
KR_DEV bool launch_row(Span &s, int &row, const int *table, int decode, int first, int i) {
	row = first + i;
	if (!decode) return find_row(s, table, 0, row);
	if (first + i >= table[HEAD_DECODE]) return false;
	s = span_at(table, table[HEAD_PREFILL] + first + i);
	row = s.row;
	return true;
}

// --- products of each head

enum { BLOCK = 64, PROJECT_THREADS = 128, PROJECT_BYTES = BLOCK * 128 };

// Copies 64 rows of 64 columns to shared memory, 128 bytes each; rows[r] < 0: zeros.
KR_DEV void copy_block(unsigned char *to, const bf16 *from, const int *rows, long long stride) {
#pragma unroll
	for (int i = 0; i < BLOCK * 8 / PROJECT_THREADS; i++) {
		int r = i * (PROJECT_THREADS / 8) + threadIdx.x / 8, unit = threadIdx.x % 8, row = rows ? rows[r] : r;
		cp_async16(smem_u32(to) + unit_at(r, unit, 128), row >= 0 ? from + row * stride + 8 * unit : from, row >= 0);
	}
}

// sums [64 rows, 16 columns of this warp] += a [64, 64] * b. TRANS: b is [64 columns, 64], else [64, 64 columns].
template <bool TRANS> KR_DEV void multiply_block(float (&sums)[4][2][4], const unsigned char *a, const unsigned char *b) {
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
	for (int k = 0; k < BLOCK / 16; k++) {
		uint32_t y[4];
		if (TRANS) ldmatrix_x4(y, smem_u32(b) + unit_at(16 * warp + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2, 128));
		else ldmatrix_x4_trans(y, smem_u32(b) + unit_at(16 * k + lane % 16, 2 * warp + lane / 16, 128));
#pragma unroll
		for (int m = 0; m < 4; m++) {
			uint32_t x[4];
			ldmatrix_x4(x, smem_u32(a) + unit_at(16 * m + lane % 16, 2 * k + lane / 16, 128));
			mma_bf16(sums[m][0], x, y[0], y[1]), mma_bf16(sums[m][1], x, y[2], y[3]);
		}
	}
}

// A block computes 64 columns of a head for 64 rows of the launch: a times b, k columns of 64 each. places: of a's rows, below 0: none.
template <bool TRANS> KR_DEV void project(float (&sums)[4][2][4], unsigned char *shared, const bf16 *a, const int *places, long long a_stride, const bf16 *b, int b_stride, int k) {
	auto fetch = [&](int i) {
		unsigned char *to = shared + i % 2 * 2 * PROJECT_BYTES;
		copy_block(to, a + BLOCK * i, places, a_stride);
		copy_block(to + PROJECT_BYTES, b + (long long)BLOCK * i * (TRANS ? 1 : b_stride), nullptr, b_stride);
		cp_async_commit();
	};
	fetch(0);
	for (int i = 0; i < k; i++) {
		if (i + 1 < k) fetch(i + 1);
		else cp_async_commit();
		cp_async_wait<1>();
		__syncthreads();
		multiply_block<TRANS>(sums, shared + i % 2 * 2 * PROJECT_BYTES, shared + i % 2 * 2 * PROJECT_BYTES + PROJECT_BYTES);
		__syncthreads();
	}
}

// The rows of the batch of a block's 64 rows of the launch, below 0: none. All threads call it.
KR_DEV void find_places(int (&places)[BLOCK], const int *table, int decode, int first, int count, int at) {
	for (int r = threadIdx.x / 32; r < BLOCK; r += PROJECT_THREADS / 32) {
		Span s;
		int row = -1;
		if (at + r >= count || !launch_row(s, row, table, decode, first, at + r)) row = -1;
		if (threadIdx.x % 32 == 0) places[r] = row;
	}
	__syncthreads();
}

// queries [count, heads, RANK] from q [rows, heads * nope] and the key rows of kv_b. nope: a multiple of 64. Grid (RANK / 64, heads, count / 64).
KR_KERNEL(PROJECT_THREADS, 4)
kr_latent_absorb(bf16 *queries, const bf16 *q, int q_stride, const bf16 *kvb, int kvb_stride, const int *table, int decode, int first, int count, int nope, int v) {
	__shared__ int places[BLOCK];
	KR_SHARED(unsigned char, shared);
	pdl_launch();
	pdl_wait();
	int head = blockIdx.y, at = blockIdx.z * BLOCK, lane = threadIdx.x % 32;
	find_places(places, table, decode, first, count, at);
	float sums[4][2][4] = {};
	project<false>(sums, shared, q + head * nope, places, q_stride, kvb + (long long)head * (nope + v) * kvb_stride + blockIdx.x * BLOCK, kvb_stride, nope / BLOCK);
	bf16 *to = queries + ((long long)at * gridDim.y + head) * RANK + blockIdx.x * BLOCK + threadIdx.x / 32 * 16 + lane % 4 * 2;
#pragma unroll
	for (int i = 0; i < 16; i++) { // tiles of 16 rows, halves of these, tiles of 8 columns
		int r = 16 * (i / 4) + i / 2 % 2 * 8 + lane / 4;
		const float *from = sums[i / 4][i % 2] + i / 2 % 2 * 2;
		if (at + r < count) store2(to + (long long)r * gridDim.y * RANK + i % 2 * 8, from[0], from[1]);
	}
}
KR_EXPORT(kr_latent_absorb)

// out [rows, heads * v] from latents [count, heads, RANK] and the value rows of kv_b. v: a multiple of 64. Grid (v / 64, heads, count / 64).
KR_KERNEL(PROJECT_THREADS, 4)
kr_latent_expand(void *out, int wide, int out_stride, const bf16 *latents, const bf16 *kvb, int kvb_stride, const int *table, int decode, int first, int count, int nope, int v) {
	__shared__ int places[BLOCK], own[BLOCK];
	KR_SHARED(unsigned char, shared);
	pdl_launch();
	pdl_wait();
	int head = blockIdx.y, at = blockIdx.z * BLOCK, lane = threadIdx.x % 32;
	find_places(places, table, decode, first, count, at);
	for (int r = threadIdx.x; r < BLOCK; r += PROJECT_THREADS) own[r] = places[r] < 0 ? -1 : r;
	__syncthreads();
	float sums[4][2][4] = {};
	project<true>(sums, shared, latents + ((long long)at * gridDim.y + head) * RANK, own, (long long)gridDim.y * RANK,
	              kvb + ((long long)head * (nope + v) + nope + blockIdx.x * BLOCK) * kvb_stride, kvb_stride, RANK / BLOCK);
	int column = head * v + blockIdx.x * BLOCK + threadIdx.x / 32 * 16 + lane % 4 * 2;
#pragma unroll
	for (int i = 0; i < 16; i++) {
		int row = places[16 * (i / 4) + i / 2 % 2 * 8 + lane / 4];
		const float *from = sums[i / 4][i % 2] + i / 2 % 2 * 2;
		if (row < 0) continue;
		put(out, wide, (long long)row * out_stride + column + i % 2 * 8, from[0]);
		put(out, wide, (long long)row * out_stride + column + i % 2 * 8 + 1, from[1]);
	}
}
KR_EXPORT(kr_latent_expand)

// --- attention

struct LatentRoom {
	unsigned char queries[GROUP * LATENT_BYTES];
	unsigned char tiles[2 * TILE_BYTES]; // two of bf16; or one, and two as they are stored behind it
	unsigned char weights[GROUP * 2 * TILE];
	float most[2][GROUP], total[2][GROUP]; // by halves of a tile's keys
};

// Starts the copy of a tile of keys, from position number `at` of the choice on. Behind the n-th are zeros. A warp copies eight keys.
template <int KIND> KR_DEV void fetch_keys(unsigned char *to, const char *cache, long long stride, const int *table, const Span &s, const int *chosen, int at, int n, int block_tokens) {
	const int row = KIND == E4M3_ROWS ? (int)RANK : (int)LATENT_BYTES;
	int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 8, slot = -1;
	if (lane < 8 && at + first + lane < n) {
		int p = chosen[at + first + lane];
		if (p >= 0 && p < s.pos + s.len) slot = (int)span_slot(table, s, p, block_tokens);
	}
#pragma unroll
	for (int r = 0; r < 8; r++) {
		int mine = __shfl_sync(0xffffffffu, slot, r);
		const char *from = cache + (mine < 0 ? 0 : mine * stride);
#pragma unroll
		for (int i = 0; i < row / 512; i++) {
			int unit = 32 * i + lane;
			cp_async16(smem_u32(to) + (KIND == E4M3_ROWS ? (first + r) * row + 16 * unit : unit_at(first + r, unit, row)), from + 16 * unit, mine >= 0);
		}
	}
}

// Makes the tile of bf16 of one of e4m3.
KR_DEV void widen_keys(unsigned char *tile, const unsigned char *raw) {
#pragma unroll 4
	for (int i = threadIdx.x; i < TILE * RANK / 16; i += LATENT_THREADS) {
		int row = i / (RANK / 16), unit = i % (RANK / 16);
		uint4 v = lds16(raw, 16 * i);
		uint32_t in[4] = {v.x, v.y, v.z, v.w}, out[8];
#pragma unroll
		for (int j = 0; j < 4; j++) widen_e4m3(in[j], out[2 * j], out[2 * j + 1]);
		*(uint4 *)(tile + unit_at(row, 2 * unit, LATENT_BYTES)) = make_uint4(out[0], out[1], out[2], out[3]);
		*(uint4 *)(tile + unit_at(row, 2 * unit + 1, LATENT_BYTES)) = make_uint4(out[4], out[5], out[6], out[7]);
	}
}

// A warp's sums: 16 heads by 256 of the columns; lane 4g+c has heads g and g+8. most and total are over the keys of its half of each tile.
struct Sums { float sum[32][4], most[2], total[2]; };

// Weights of a tile's keys from position number `at` on, of 16 heads by 32 keys.
KR_DEV void weigh_keys(Sums &st, LatentRoom *room, const unsigned char *tile, int at, int n, float scale) {
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, m = warp % 4, half = warp / 4, g = lane / 4, c = lane % 4;
	float s[4][4] = {};
#pragma unroll 4
	for (int k = 0; k < RANK / 16; k++) {
		uint32_t a[4], b[4];
		ldmatrix_x4(a, smem_u32(room->queries) + unit_at(16 * m + lane % 16, 2 * k + lane / 16, LATENT_BYTES));
#pragma unroll
		for (int j = 0; j < 2; j++) {
			ldmatrix_x4(b, smem_u32(tile) + unit_at(32 * half + 16 * j + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2, LATENT_BYTES));
			mma_bf16(s[2 * j], a, b[0], b[1]), mma_bf16(s[2 * j + 1], a, b[2], b[3]);
		}
	}
#pragma unroll
	for (int h = 0; h < 2; h++) {
		float top = -INFINITY;
#pragma unroll
		for (int i = 0; i < 8; i++) {
			float &v = s[i / 2][2 * h + i % 2];
			v = at + 32 * half + 8 * (i / 2) + 2 * c + i % 2 < n ? v * scale : -INFINITY;
			top = fmaxf(top, v);
		}
		top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
		top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
		if (c == 0) room->most[half][16 * m + g + 8 * h] = top;
	}
	__syncthreads();
#pragma unroll
	for (int h = 0; h < 2; h++) {
		int row = 16 * m + g + 8 * h;
		float top = fmaxf(st.most[h], fmaxf(room->most[0][row], room->most[1][row])), old = exp2_approx(st.most[h] - top);
		st.most[h] = top, st.total[h] *= old;
#pragma unroll
		for (int i = 0; i < 32; i++) st.sum[i][2 * h] *= old, st.sum[i][2 * h + 1] *= old;
#pragma unroll
		for (int j = 0; j < 4; j++) {
			float lo = exp2_approx(s[j][2 * h] - top), hi = exp2_approx(s[j][2 * h + 1] - top);
			st.total[h] += lo + hi;
			*(uint32_t *)(room->weights + unit_at(row, 4 * half + j, 2 * TILE) + 4 * c) = pack_bf16(lo, hi);
		}
	}
}

// sum += weights [16 heads, 64 keys] * latents [64, 256 columns of this warp].
KR_DEV void add_keys(Sums &st, const LatentRoom *room, const unsigned char *tile) {
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, m = warp % 4, half = warp / 4;
#pragma unroll
	for (int k = 0; k < TILE / 16; k++) {
		uint32_t a[4], b[4];
		ldmatrix_x4(a, smem_u32(room->weights) + unit_at(16 * m + lane % 16, 2 * k + lane / 16, 2 * TILE));
#pragma unroll
		for (int j = 0; j < 16; j++) {
			ldmatrix_x4_trans(b, smem_u32(tile) + unit_at(16 * k + lane % 16, 32 * half + 2 * j + lane / 16, LATENT_BYTES));
			mma_bf16(st.sum[2 * j], a, b[0], b[1]), mma_bf16(st.sum[2 * j + 1], a, b[2], b[3]);
		}
	}
}

// How many positions a row has chosen of the ctx that it sees: those before the first -1.
KR_DEV int chosen_of(const int *chosen, int ctx, int width) {
	int n = min(ctx, width);
	while (n > 0 && chosen[n - 1] < 0) n--;
	return n;
}

// With one share the latents of a launch's rows take the place of their queries; else part [rows, shares, heads, RANK] and marks [rows, shares, heads, 2], the largest
// score and the sum of weights (0: nothing is there), are of the share's `each` positions, a multiple of 64. scale includes log2(e). Grid (shares, heads / 64,
// rows).
template <int KIND>
KR_DEV void latent_attend(LatentRoom *room, bf16 *queries, float *part, float *marks, const char *cache, int stride, const int *chosen, int chosen_stride, int width,
                          const int *table, int decode, int first, int heads, int each, float scale, int block_tokens) {
	pdl_launch();
	pdl_wait();
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, m = warp % 4, half = warp / 4, g = lane / 4, c = lane % 4, group = blockIdx.y * GROUP;
	Span s;
	int row;
	if (!launch_row(s, row, table, decode, first, blockIdx.z)) return;
	chosen += (long long)row * chosen_stride;
	int n = chosen_of(chosen, s.pos + row - s.row + 1, width), at = blockIdx.x * each, end = min(n, at + each);
	long long place = ((long long)blockIdx.z * gridDim.x + blockIdx.x) * heads + group;
	if (at >= end) {
		if (gridDim.x > 1)
			for (int h = threadIdx.x; h < min((int)GROUP, heads - group); h += LATENT_THREADS) store2(marks + 2 * (place + h), -INFINITY, 0.f);
		return;
	}
	queries += ((long long)blockIdx.z * heads + group) * RANK;
	const long long row_bytes = (long long)stride * (KIND == E4M3_ROWS ? 1 : 2);
	unsigned char *raw = room->tiles + (KIND == E4M3_ROWS ? TILE_BYTES : 0);
	const int raw_bytes = KIND == E4M3_ROWS ? TILE_BYTES / 2 : (int)TILE_BYTES;
	for (int i = threadIdx.x; i < GROUP * RANK / 8; i += LATENT_THREADS) {
		int h = i / (RANK / 8), unit = i % (RANK / 8);
		cp_async16(smem_u32(room->queries) + unit_at(h, unit, LATENT_BYTES), queries + (group + h < heads ? h * RANK + 8 * unit : 0), group + h < heads);
	}
	fetch_keys<KIND>(raw, cache, row_bytes, table, s, chosen, at, end, block_tokens);
	cp_async_commit();
	Sums st = {};
	st.most[0] = st.most[1] = -INFINITY;
	for (int stage = 0; at < end; at += TILE, stage ^= 1) {
		if (at + TILE < end) fetch_keys<KIND>(raw + (1 - stage) * raw_bytes, cache, row_bytes, table, s, chosen, at + TILE, end, block_tokens);
		cp_async_commit();
		cp_async_wait<1>();
		__syncthreads(); // the tile has arrived, and no warp still reads the one before
		const unsigned char *tile = raw + stage * raw_bytes;
		if (KIND == E4M3_ROWS) {
			widen_keys(room->tiles, tile);
			tile = room->tiles;
			__syncthreads();
		}
		weigh_keys(st, room, tile, at, end, scale);
		__syncthreads();
		add_keys(st, room, tile);
		__syncthreads();
	}
#pragma unroll
	for (int h = 0; h < 2; h++) {
		st.total[h] += __shfl_xor_sync(0xffffffffu, st.total[h], 1);
		st.total[h] += __shfl_xor_sync(0xffffffffu, st.total[h], 2);
		if (c == 0) room->total[half][16 * m + g + 8 * h] = st.total[h];
	}
	__syncthreads();
#pragma unroll
	for (int h = 0; h < 2; h++) {
		int head = 16 * m + g + 8 * h;
		float total = room->total[0][head] + room->total[1][head];
		if (group + head >= heads) continue;
		if (gridDim.x > 1 && half == 0 && c == 0) store2(marks + 2 * (place + head), st.most[h], total);
		float by = gridDim.x > 1 ? 1.f : 1.f / total;
#pragma unroll
		for (int i = 0; i < 32; i++) {
			int column = 256 * half + 8 * i + 2 * c;
			if (gridDim.x > 1) store2(part + (place + head) * RANK + column, st.sum[i][2 * h], st.sum[i][2 * h + 1]);
			else store2(queries + (long long)head * RANK + column, st.sum[i][2 * h] * by, st.sum[i][2 * h + 1] * by);
		}
	}
}

#define LATENT(name, kind)                                                                                                              \
	KR_KERNEL(LATENT_THREADS, 1)                                                                                                          \
	name(bf16 *queries, float *part, float *marks, const char *cache, int stride, const int *chosen, int chosen_stride, int width,       \
	     const int *table, int decode, int first, int heads, int each, float scale, int block_tokens) {                                  \
		KR_SHARED(LatentRoom, room);                                                                                                        \
		latent_attend<kind>(room, queries, part, marks, cache, stride, chosen, chosen_stride, width, table, decode, first, heads, each, scale, \
		                    block_tokens);                                                                                                  \
	}                                                                                                                                     \
	KR_EXPORT(name)
LATENT(kr_latent_attend_bf16, BF16_ROWS)
LATENT(kr_latent_attend_e4m3, E4M3_ROWS)

enum { JOIN_THREADS = RANK / 4 };

// latents [rows, heads, RANK] from the sums of `shares` blocks each, in their order. Grid (heads, rows).
KR_KERNEL(JOIN_THREADS, 8)
kr_latent_join(bf16 *latents, const float *part, const float *marks, int shares) {
	pdl_launch();
	pdl_wait();
	int heads = gridDim.x;
	long long at = (long long)blockIdx.y * shares * heads + blockIdx.x;
	float most = -INFINITY, total = 0.f;
	float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
	for (int i = 0; i < shares; i++) most = fmaxf(most, marks[2 * (at + (long long)i * heads)]);
	for (int i = 0; i < shares; i++) {
		float2 mark = load2(marks + 2 * (at + (long long)i * heads));
		if (mark.y == 0.f) continue;
		float by = exp2_approx(mark.x - most);
		float4 v = ((const float4 *)(part + (at + (long long)i * heads) * RANK))[threadIdx.x];
		total = fmaf(by, mark.y, total);
		sum.x = fmaf(by, v.x, sum.x), sum.y = fmaf(by, v.y, sum.y), sum.z = fmaf(by, v.z, sum.z), sum.w = fmaf(by, v.w, sum.w);
	}
	bf16 *to = latents + ((long long)blockIdx.y * heads + blockIdx.x) * RANK + 4 * threadIdx.x;
	float by = 1.f / total;
	store2(to, sum.x * by, sum.y * by), store2(to + 2, sum.z * by, sum.w * by);
}
KR_EXPORT(kr_latent_join)
