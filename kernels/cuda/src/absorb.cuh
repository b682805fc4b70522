// Projects the queries of generated rows into the latent space: qa = q_nope * w_kc, followed by
// q_rope, which is rotated here or was rotated before.
#pragma once
#include "kvstore.cuh"
#include "mla.cuh"

enum { ABSORB_COLS = 128, ABSORB_MOST = 64, ABSORB_THREADS = 256, ABSORB_UNITS = ROPE / 8 * ABSORB_COLS / RANK };

// The angles for the position of every row. No kernel writes this memory.
struct Angles {
	const int *positions;
	const float *table; // [rows, ROPE]
	int stride, rows;
	bool interleaved;
};

// Queries are read 16 bytes at a time: of every 32 columns, lane 4g+c has columns 8c..8c+7, for
// two products. So slot i of product k is the row of w_kc that this function returns. Eight rows
// that ldmatrix loads at once are two neighbours each in four groups of eight; unfold separates
// them.
KR_DEV int absorb_row(int k, int i) { return k / 2 * 32 + k % 2 * 4 + i % 8 / 2 * 8 + i / 8 * 2 + i % 2; }
KR_DEV uint32_t unfold(uint32_t row, uint32_t unit) { return row * 2 * ABSORB_COLS + ((unit ^ ((row & 1) << 2 | (row >> 3 & 3))) << 4); }

// The values of rows g and g+8 of 16 in this lane's columns.
struct RowPair {
	uint4 x[NOPE / 32], y[NOPE / 32];
	__device__ __forceinline__ void fetch_from(const bf16 *one, const bf16 *two) {
#pragma unroll
		for (int i = 0; i < NOPE / 32; i++) x[i] = *(const uint4 *)(one + 32 * i), y[i] = *(const uint4 *)(two + 32 * i);
	}
};

// Limits v to the range of f16. NaN stays.
KR_DEV float clamp_f16(float v) { return v > 65504.f ? 65504.f : v < -65504.f ? -65504.f : v; }

// Two latent queries in the type that attention reads: bf16, or f16 (half) for keys of e4m3.
KR_DEV uint32_t pack_query(float lo, float hi, int half) {
	return half ? pack_f16(clamp_f16(lo), clamp_f16(hi)) : pack_bf16(lo, hi);
}

// A thread's part of q_rope: a unit of 16 bytes of a row, or with TURN two units that are rotated
// together.
template <bool TURN> struct RopePart {
	int at, row; // its number among the generated rows, and its row of the batch; below 0: this thread has no part
	int one, two;
	bool turns;
	uint4 a, b;
	float angles[16];

	// Covers rows first..last-1, in block `block` of a head.
	__device__ __forceinline__ RopePart(int block, int first, int last, const int *records, const Angles &t) {
		const int EACH = TURN ? 1 : ABSORB_UNITS;
		at = first + threadIdx.x / EACH, row = at < last ? records[at * SPAN_RECORD] : -1;
		one = two = block * EACH + threadIdx.x % EACH, turns = false;
		if (!TURN) return;
		if (t.interleaved) one *= 2, two = one + 1;
		else two += ROPE / 16;
		int position = row < 0 ? -1 : t.positions[row];
		turns = position >= 0 && position < t.rows;
		if (turns) fetch_angles(angles, t.table + (long long)position * t.stride, block);
	}
	// q: the head's.
	__device__ __forceinline__ void fetch_from(const bf16 *q, int stride) {
		if (row < 0) return;
		const uint4 *rope = (const uint4 *)(q + (long long)row * stride + NOPE);
		a = rope[one];
		if (TURN) b = rope[two];
	}
	// qa: the row's.
	__device__ __forceinline__ void store_to(uint32_t *qa, int head, int half, bool interleaved) {
		if (row < 0) return;
		if (TURN && turns) {
			Chunk<8> x = {a, a}, y = {b, b};
			float v[8], w[8];
			widen(v, x, true), widen(w, y, true);
			rotate(v, w, angles, interleaved);
			put(&a, 0, v, true), put(&b, 0, w, true);
		}
		store_unit(qa, head, half, one, a);
		if (TURN) store_unit(qa, head, half, two, b);
	}
	static __device__ __forceinline__ void store_unit(uint32_t *qa, int head, int half, int unit, const uint4 &v) {
		uint32_t in[4] = {v.x, v.y, v.z, v.w};
		qa += query_at(head, RANK + unit * 8, half);
#pragma unroll
		for (int i = 0; i < 4; i++) qa[query_pair(i)] = pack_query(lo_f32(in[i]), hi_f32(in[i]), half);
	}
};
static_assert(RANK / ABSORB_COLS == ROPE / 16 && ABSORB_MOST * ABSORB_UNITS <= ABSORB_THREADS, "a block has a unit of turning");

// Computes qa [decode rows, heads, WIDTH], laid out as query_at defines, from q [rows, heads *
// QK]. A block has ABSORB_THREADS threads. It computes ABSORB_COLS latent columns of a head (its
// number is `block`) for `each` rows (a multiple of 16, at most ABSORB_MOST), chosen by
// blockIdx.z. A warp computes 16 of the columns and copies a part of q_rope. The grid has no more
// blocks than needed, because they take up the room of attention's blocks, which may already
// fetch keys. shared: NOPE * ABSORB_COLS * 2 bytes.
template <bool TURN>
KR_DEV void absorb(unsigned char *shared, uint32_t *qa, const bf16 *q, int q_stride, const bf16 *kvb, int kvb_stride, const int *table, int block,
                   int head, int heads, int half, int each, const Angles &angles) {
	uint32_t base = smem_u32(shared);
	int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, g = lane / 4, c = lane % 4;
	pdl_launch();
	// No earlier kernel writes the weights or the table.
	const bf16 *w = kvb + (long long)head * EXPANDED * kvb_stride + block * ABSORB_COLS;
#pragma unroll
	for (int i = 0; i < NOPE * ABSORB_COLS / 8 / ABSORB_THREADS; i++) {
		int row = i * 16 + tid / 16, unit = tid % 16;
		cp_async16(base + unfold(row, unit), w + (long long)row * kvb_stride + unit * 8);
	}
	cp_async_commit();
	int prompts = table[HEAD_PREFILL], rows = table[HEAD_DECODE], first = blockIdx.z * each;
	const int *records = table + SPAN_HEAD + prompts * SPAN_RECORD;
	int last = min(first + each, rows);
	RopePart<TURN> part(block, first, last, records, angles);
	long long one = records[min(first + g, rows - 1) * SPAN_RECORD], two = records[min(first + g + 8, rows - 1) * SPAN_RECORD];
	int pairs = (heads + HEADS - 1) / HEADS * QUERY_PAIRS;
	q += head * QK;
	const bf16 *mine = q + 8 * c;
	// The place of this lane's first eight columns of a row, and the distance to its other
	// columns.
	const int to = query_at(head, block * ABSORB_COLS + warp * 16, half) + query_pair(c), further = half ? 256 : 4;
	cp_async_wait<0>();
	__syncthreads();
	uint32_t b[NOPE / 16][4];
#pragma unroll
	for (int k = 0; k < NOPE / 16; k++) ldmatrix_x4_trans(b[k], base + unfold(absorb_row(k, lane % 16), warp * 2 + lane / 16));
	pdl_wait();
	RowPair a;
	if (first < last) a.fetch_from(mine + one * q_stride, mine + two * q_stride);
	part.fetch_from(q, q_stride);
	for (int at = first; at < last; at += 16) {
		int i = at + g, j = at + g + 8;
		one = records[min(i + 16, rows - 1) * SPAN_RECORD], two = records[min(j + 16, rows - 1) * SPAN_RECORD];
		float d[2][4] = {};
#pragma unroll
		for (int k = 0; k < NOPE / 32; k++) {
			uint32_t lo[4] = {a.x[k].x, a.y[k].x, a.x[k].y, a.y[k].y}, hi[4] = {a.x[k].z, a.y[k].z, a.x[k].w, a.y[k].w};
#pragma unroll
			for (int n = 0; n < 2; n++) mma_bf16(d[n], lo, b[2 * k][2 * n], b[2 * k][2 * n + 1]), mma_bf16(d[n], hi, b[2 * k + 1][2 * n], b[2 * k + 1][2 * n + 1]);
		}
		if (at + 16 < last) a.fetch_from(mine + one * q_stride, mine + two * q_stride);
#pragma unroll
		for (int n = 0; n < 2; n++) {
			if (i < rows) qa[(long long)i * pairs + to + n * further] = pack_query(d[n][0], d[n][1], half);
			if (j < rows) qa[(long long)j * pairs + to + n * further] = pack_query(d[n][2], d[n][3], half);
		}
	}
	part.store_to(qa + (long long)part.at * pairs, head, half, angles.interleaved);
}
