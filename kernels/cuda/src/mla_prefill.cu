// Latent attention of prompts, expanded: the latents of all keys are gathered, kv_b makes keys
// and values from them (a matrix product, elsewhere), and flash attention reads these. If there
// are more keys than fit, all this is done for a piece of them at a time, and a row's sums so far
// are kept in memory in between.
//
// Keys are read in tiles at absolute positions of their sequence, so the order of a row's sums
// does not depend on how its prompt was cut.
#include "mla.cuh"

// --- gather

// Eight values of a cache row, from column 8 * unit on, as bf16.
KR_DEV uint4 eight(const Cache &c, long long slot, int unit) {
	if (c.kind == BF16_ROWS) return ((const uint4 *)(c.rows + slot * c.stride * 2))[unit];
	uint32_t r[4];
	if (c.kind == F32_ROWS) {
		const float4 *p = (const float4 *)(c.rows + slot * c.stride * 4) + 2 * unit;
		float4 a = p[0], b = p[1];
		r[0] = pack_bf16(a.x, a.y), r[1] = pack_bf16(a.z, a.w), r[2] = pack_bf16(b.x, b.y), r[3] = pack_bf16(b.z, b.w);
	} else {
		uint2 v = ((const uint2 *)(c.rows + slot * c.stride))[unit];
		if (c.kind == E4M3_ROWS) {
			widen_e4m3(v.x, r[0], r[1]);
			widen_e4m3(v.y, r[2], r[3]);
		} else {
			const float *s = c.scales + slot * c.scales_stride;
			widen_i8(v.x, s[8 * unit / c.group], r[0], r[1]);
			widen_i8(v.y, s[(8 * unit + 4) / c.group], r[2], r[3]);
		}
	}
	return make_uint4(r[0], r[1], r[2], r[3]);
}

// Gathers keys from.. of all prompts' keys (kernels/cuda/spans): latents [keys, RANK] and ropes
// [keys, ROPE] as bf16, zeros where a sequence is padded. One warp per key.
KR_KERNEL(256, 4)
kr_mla_gather(bf16 *latents, bf16 *ropes, const char *cache, const float *scales, int kind, int stride, int scales_stride, int group,
              const int *table, int from, int block_tokens) {
	pdl_launch();
	pdl_wait();
	int lane = threadIdx.x % 32, prompts = table[HEAD_PREFILL];
	int key = blockIdx.x * 8 + threadIdx.x / 32, global = from + key, found = -1;
	for (int at = 0; at < prompts && found < 0; at += 32) {
		bool mine = false;
		if (at + lane < prompts) {
			Span s = span_at(table, at + lane);
			int keys = (s.pos + s.len + KEY_ALIGN - 1) / KEY_ALIGN * KEY_ALIGN;
			mine = global >= s.five && global < s.five + keys;
		}
		unsigned hit = __ballot_sync(0xffffffffu, mine);
		if (hit) found = at + __ffs(hit) - 1;
	}
	if (found < 0) return;
	Span s = span_at(table, found);
	int position = global - s.five;
	bool real = position < s.pos + s.len;
	Cache c = {cache, scales, kind, stride, scales_stride, group};
	long long slot = real ? span_slot(table, s, position, block_tokens) : 0;
	for (int i = lane; i < WIDTH / 8; i += 32) {
		uint4 v = real ? eight(c, slot, i) : make_uint4(0, 0, 0, 0);
		if (i < RANK / 8) ((uint4 *)(latents + (long long)key * RANK))[i] = v;
		else ((uint4 *)(ropes + (long long)key * ROPE))[i - RANK / 8] = v;
	}
}
KR_EXPORT(kr_mla_gather)

// --- attention

enum {
	THREADS = 256,
	// a stage: the nope part of keys and values [KEY_TILE][128], the shared rope part [KEY_TILE][64]
	AT_V = KEY_TILE * NOPE * 2, AT_ROPE = AT_V + KEY_TILE * VDIM * 2, STAGE = AT_ROPE + KEY_TILE * ROPE * 2,
	KEPT = 68, // floats a thread keeps between pieces of the keys
};

// Data that the blocks of a launch share. Rows of expanded have EXPANDED columns per head.
struct Piece {
	const bf16 *expanded, *ropes;
	int heads;
};

// Starts the copy of a tile of keys, from row `row` of the piece on.
KR_DEV void fetch_keys(uint32_t dst, const Piece &p, int head, int row) {
	int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
	const bf16 *src = p.expanded + ((long long)(row + warp) * p.heads + head) * EXPANDED + lane * 8;
	uint32_t part = lane < 16 ? 0 : AT_V;
#pragma unroll
	for (int j = 0; j < KEY_TILE / 8; j++)
		cp_async16(dst + part + unit_at(warp + 8 * j, lane % 16, NOPE * 2), src + (long long)j * 8 * p.heads * EXPANDED);
#pragma unroll
	for (int j = 0; j < 2; j++) {
		int r = tid / 8 + 32 * j;
		cp_async16(dst + AT_ROPE + unit_at(r, tid % 8, ROPE * 2), p.ropes + (long long)(row + r) * ROPE + tid % 8 * 8);
	}
}

// A warp's 16 rows of queries as left operands, a head's QK columns.
KR_DEV void fetch_queries(uint32_t (&q)[QK / 16][4], const bf16 *one, const bf16 *two) {
	int c = threadIdx.x % 4;
#pragma unroll
	for (int k = 0; k < QK / 16; k++) {
		q[k][0] = *(const uint32_t *)(one + 16 * k + 2 * c), q[k][2] = *(const uint32_t *)(one + 16 * k + 8 + 2 * c);
		q[k][1] = *(const uint32_t *)(two + 16 * k + 2 * c), q[k][3] = *(const uint32_t *)(two + 16 * k + 8 + 2 * c);
	}
}

// Scores of 16 rows for 64 keys: s[n] of keys 8n + 2c, 8n + 2c + 1, rows g and g+8.
KR_DEV void scores(float (&s)[8][4], const uint32_t (&q)[QK / 16][4], uint32_t stage) {
	int lane = threadIdx.x % 32;
#pragma unroll
	for (int n = 0; n < 8; n++) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.f;
#pragma unroll
	for (int k = 0; k < QK / 16; k++) {
#pragma unroll
		for (int n = 0; n < 4; n++) {
			uint32_t b[4], row = 16 * n + lane % 8 + lane / 16 * 8, half = lane / 8 % 2;
			if (k < NOPE / 16) ldmatrix_x4(b, stage + unit_at(row, 2 * k + half, NOPE * 2));
			else ldmatrix_x4(b, stage + AT_ROPE + unit_at(row, 2 * (k - NOPE / 16) + half, ROPE * 2));
			mma_bf16(s[2 * n], q[k], b[0], b[1]);
			mma_bf16(s[2 * n + 1], q[k], b[2], b[3]);
		}
	}
}

// A lane's sums of rows g and g+8: weight * value, the largest score, and the sum of weights of
// the lane's own keys.
struct State {
	float sum[VDIM / 8][4];
	float most[2], total[2];
};

// Turns scores into weights, and rescales the earlier sums to the new largest score.
KR_DEV void weigh(State &st, float (&s)[8][4], float scale) {
#pragma unroll
	for (int h = 0; h < 2; h++) {
		float m = st.most[h];
#pragma unroll
		for (int n = 0; n < 8; n++) m = fmaxf(m, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
		m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
		m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
		float old = exp2_approx((st.most[h] - m) * scale), base = m * scale, total = st.total[h] * old;
		st.most[h] = m;
#pragma unroll
		for (int n = 0; n < 8; n++) {
			s[n][2 * h] = exp2_approx(fmaf(s[n][2 * h], scale, -base));
			s[n][2 * h + 1] = exp2_approx(fmaf(s[n][2 * h + 1], scale, -base));
			total += s[n][2 * h] + s[n][2 * h + 1];
		}
		st.total[h] = total;
#pragma unroll
		for (int n = 0; n < VDIM / 8; n++) st.sum[n][2 * h] *= old, st.sum[n][2 * h + 1] *= old;
	}
}

KR_DEV void add_values(State &st, const float (&s)[8][4], uint32_t stage) {
	int lane = threadIdx.x % 32;
#pragma unroll
	for (int k = 0; k < KEY_TILE / 16; k++) {
		uint32_t a[4] = {pack_bf16(s[2 * k][0], s[2 * k][1]), pack_bf16(s[2 * k][2], s[2 * k][3]),
		                 pack_bf16(s[2 * k + 1][0], s[2 * k + 1][1]), pack_bf16(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
		for (int n = 0; n < VDIM / 16; n++) {
			uint32_t v[4];
			ldmatrix_x4_trans(v, stage + AT_V + unit_at(16 * k + lane % 16, 2 * n + lane / 16, VDIM * 2));
			mma_bf16(st.sum[2 * n], a, v[0], v[1]);
			mma_bf16(st.sum[2 * n + 1], a, v[2], v[3]);
		}
	}
}

// Between two pieces of the keys a thread's state is KEPT floats, THREADS apart.
KR_DEV void keep(float *to, const State &st) {
#pragma unroll
	for (int n = 0; n < VDIM / 8; n++)
#pragma unroll
		for (int i = 0; i < 4; i++) to[(4 * n + i) * THREADS] = st.sum[n][i];
#pragma unroll
	for (int h = 0; h < 2; h++) to[(64 + h) * THREADS] = st.most[h], to[(66 + h) * THREADS] = st.total[h];
}
KR_DEV void recall(State &st, const float *from) {
#pragma unroll
	for (int n = 0; n < VDIM / 8; n++)
#pragma unroll
		for (int i = 0; i < 4; i++) st.sum[n][i] = from[(4 * n + i) * THREADS];
#pragma unroll
	for (int h = 0; h < 2; h++) st.most[h] = from[(64 + h) * THREADS], st.total[h] = from[(66 + h) * THREADS];
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
		float a = st.sum[n][2 * h] * total, b = st.sum[n][2 * h + 1] * total;
		if (wide) store2((float *)out + at + 8 * n, a, b);
		else store2((bf16 *)out + at + 8 * n, a, b);
	}
}

// out [rows, heads * VDIM], q [rows, heads * QK]. expanded [keys, heads * EXPANDED] and ropes
// [keys, ROPE] are keys from..from+keys-1 of all prompts' keys. A block has ROW_TILE rows of a
// head. The last tiles come first, because they have the most keys. Grid (heads, tiles).
KR_KERNEL(THREADS, 1)
kr_mla_prefill(void *out, int wide, int out_stride, const bf16 *q, int q_stride, const bf16 *expanded, const bf16 *ropes, int from, int keys,
               float *kept, const int *table, float scale) {
	KR_SHARED(unsigned char, shared);
	uint32_t base = smem_u32(shared);
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4, head = blockIdx.x;
	pdl_launch();
	pdl_wait();
	Piece p = {expanded, ropes, (int)gridDim.x};
	int tile = table[HEAD_TILES] - 1 - (int)blockIdx.y;
	int found = tile < 0 ? -1 : span_of_item(table, 0, table[HEAD_PREFILL], tile);
	if (found < 0) return;
	Span s = span_at(table, found);
	int first = (tile - s.start) * ROW_TILE, end = s.pos + min(s.len, first + ROW_TILE); // the number of keys that this tile of rows needs
	int lo = max(0, from - s.five), hi = min(end, from + keys - s.five);
	if (lo >= hi) return;
	int row = first + warp * 16 + g; // row of the sequence; the other is row + 8
	int top = s.pos + first + warp * 16; // position of the warp's first row
	bool idle = first + warp * 16 >= s.len;
	fetch_keys(base, p, head, s.five + lo - from);
	cp_async_commit();
	uint32_t queries[QK / 16][4];
	const bf16 *one = q + (long long)(s.row + min(row, s.len - 1)) * q_stride + head * QK;
	const bf16 *two = q + (long long)(s.row + min(row + 8, s.len - 1)) * q_stride + head * QK;
	fetch_queries(queries, one, two);
	State st = State();
	st.most[0] = st.most[1] = -INFINITY;
	kept += ((long long)tile * gridDim.x + head) * KEPT * THREADS + threadIdx.x;
	if (lo > 0) recall(st, kept);
	int stage = 0;
	for (int key = lo; key < hi; key += KEY_TILE, stage ^= 1) {
		cp_async_wait<0>();
		__syncthreads(); // the tile has arrived, and no warp reads the other one any more
		if (key + KEY_TILE < hi) fetch_keys(base + (stage ^ 1) * STAGE, p, head, s.five + key + KEY_TILE - from);
		cp_async_commit();
		if (idle || key > top + 15) continue; // none of the warp's rows sees these keys
		uint32_t at = base + stage * STAGE;
		float v[8][4];
		scores(v, queries, at);
		if (key + KEY_TILE - 1 > top) {
#pragma unroll
			for (int n = 0; n < 8; n++)
#pragma unroll
				for (int i = 0; i < 4; i++)
					if (key + 8 * n + 2 * c + i % 2 > top + g + i / 2 * 8) v[n][i] = -INFINITY;
		}
		weigh(st, v, scale);
		add_values(st, v, at);
	}
	if (hi < end) {
		keep(kept, st);
		return;
	}
#pragma unroll
	for (int h = 0; h < 2; h++) {
		int r = row + 8 * h;
		put_row(out, wide, r < s.len ? (long long)(s.row + r) * out_stride + head * VDIM : -1, st, h);
	}
}
KR_EXPORT(kr_mla_prefill)
