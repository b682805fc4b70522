// The part of grouped-query attention between its projections and its products: norm of every
// head of queries and keys, rotation, and the store of the row in the cache. Each of them is
// optional.
#include "kvstore.cuh"

enum { THREADS = 256 };

// RMSNorm over each head of x [rows, heads * dim] in place, for every size and type. A warp has
// every warps'th head of a row.
KR_KERNEL(THREADS, 1)
kr_head_norm(void *x, int stride, const void *w, int heads, int dim, float eps, int flags) {
	pdl_launch();
	pdl_wait();
	bool half = flags & BF16_0, w_half = flags & BF16_1;
	char *row = row_of(x, blockIdx.x, stride, half);
	int lane = threadIdx.x % 32;
	for (int h = threadIdx.x / 32; h < heads; h += blockDim.x / 32) {
		float sum = 0.f, v[1], t[1];
		for (int i = lane; i < dim; i += 32) {
			get(v, row, h * dim + i, half);
			sum = fmaf(v[0], v[0], sum);
		}
		float scale = rms_scale(warp_sum(sum), dim, eps);
		for (int i = lane; i < dim; i += 32) {
			get(v, row, h * dim + i, half);
			get(t, w, i, w_half);
			v[0] = v[0] * scale * t[0];
			put(row, h * dim + i, v, half);
		}
	}
}
KR_EXPORT(kr_head_norm)

// A lane's values that are the same for every head: its two chunks, and their norm weights and
// angles.
struct Lane {
	int one, two;        // chunks of a head
	Chunk<8> norm[2][2]; // the numbers of heads of queries and of keys
	float angles[16];
	bool norms, turns, norm_half, interleaved;
	// Where a part of each head is rotated, a pair is in the first chunks of two lanes, this far
	// apart. 0: it is in one lane.
	int apart;
	int dim;
	float eps;
};

// A head of a row.
struct Head {
	char *row;
	int at;                // the lane's first chunk
	bool half;             // the row's type
	bool query, value;     // neither: it is a key
	bool there;            // false: neither read nor written
};

// Norms and rotates two chunks of a head in place. All dim / 16 lanes of the head call it. a and
// b are then the values that a load returns.
KR_DEV void head_unit(float (&a)[8], float (&b)[8], const Lane &l, const Head &h) {
	Chunk<8> x, y;
	x.a = x.b = y.a = y.b = make_uint4(0, 0, 0, 0);
	int one = h.at + l.one, two = h.at + l.two;
	if (h.there) {
		fetch(x, h.row, one, h.half);
		fetch(y, h.row, two, h.half);
	}
	widen(a, x, h.half);
	widen(b, y, h.half);
	if (l.norms) {
		float sum = 0.f;
#pragma unroll
		for (int j = 0; j < 8; j++) sum = fmaf(a[j], a[j], sum);
#pragma unroll
		for (int j = 0; j < 8; j++) sum = fmaf(b[j], b[j], sum);
		for (int d = l.dim / 32; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
		if (!h.value) {
			float scale = rms_scale(sum, l.dim, l.eps), u[8], v[8];
			widen(u, h.query ? l.norm[0][0] : l.norm[1][0], l.norm_half);
			widen(v, h.query ? l.norm[0][1] : l.norm[1][1], l.norm_half);
#pragma unroll
			for (int j = 0; j < 8; j++) a[j] = a[j] * scale * u[j], b[j] = b[j] * scale * v[j];
			round_to(a, h.half);
			round_to(b, h.half);
		}
	}
	float other[8];
	if (l.apart) {
#pragma unroll
		for (int j = 0; j < 8; j++) other[j] = __shfl_xor_sync(0xffffffffu, a[j], l.apart);
	}
	if (h.value || !(l.norms || l.turns)) return;
	if (l.turns && l.apart) {
#pragma unroll
		for (int j = 0; j < 8; j++) {
			float turned = other[j] * l.angles[2 * j + 1];
			a[j] = fmaf(a[j], l.angles[2 * j], l.one & l.apart ? turned : -turned);
		}
	} else if (l.turns) {
		rotate(a, b, l.angles, l.interleaved);
	}
	if (h.there) {
		put(h.row, one, a, h.half);
		put(h.row, two, b, h.half);
		round_to(a, h.half);
		round_to(b, h.half);
	}
}

// Every head has dim / 16 lanes (dim is 16, 32, 64, 128 or 256). Of each head the first `turned`
// values are rotated: all, or a power of two up to half. The heads of a row come in order: keys,
// values, queries. cache 0: nothing is stored. Flags: q, kv, norms; CACHE_VEC;
// INTERLEAVED; TURNS. Grid (rows, parts of a row's heads). A cache of I8 needs all keys and
// values of a row in the first part.
enum { TURNS = 512 };
KR_KERNEL(THREADS, 3)
kr_head_store(void *cache, float *scales, int kind, int cache_stride, int scales_stride, int group, int cache_rows, void *q, int q_stride, void *kv,
              int kv_stride, const void *q_norm, const void *k_norm, float eps, const int *positions, const int *slots, const float *table,
              int table_stride, int rows, int heads, int key_heads, int dim, int turned, int *marks, int layer, int flags) {
	pdl_launch();
	int row = blockIdx.x, position = flags & TURNS ? positions[row] : -1, slot = cache ? slots[row] : -1; // no kernel writes them
	if (slot >= cache_rows) slot = -1;
	Store c = {(char *)cache, scales, kind, cache_stride, scales_stride, group, (flags & CACHE_VEC) != 0, marks ? marks + row : 0, layer};
	bool q_half = flags & BF16_0, kv_half = flags & BF16_1;
	char *q_row = row_of(q, row, q_stride, q_half), *kv_row = row_of(kv, row, kv_stride, kv_half);
	int lanes = dim / 16, lane = threadIdx.x % lanes, each = blockDim.x / lanes, all = 2 * key_heads + heads;
	Lane l = {};
	l.norms = q_norm || k_norm, l.norm_half = flags & BF16_2, l.interleaved = flags & INTERLEAVED, l.dim = dim, l.eps = eps;
	l.turns = position >= 0 && position < rows;
	const Turn t = {1, dim, 0, dim, l.interleaved};
	unit_chunks<8>(l.one, l.two, t, 0, lane);
	if (turned < dim) {
		l.apart = turned / 16;
		l.turns = l.turns && lane < 2 * l.apart;
	}
	if (q_norm) fetch(l.norm[0][0], q_norm, l.one, l.norm_half), fetch(l.norm[0][1], q_norm, l.two, l.norm_half);
	if (k_norm) fetch(l.norm[1][0], k_norm, l.one, l.norm_half), fetch(l.norm[1][1], k_norm, l.two, l.norm_half);
	if (l.turns) fetch_angles(l.angles, table + (long long)position * table_stride, l.apart ? lane % l.apart : lane);
	pdl_wait();
	for (int first = blockIdx.y * each; first < all; first += gridDim.y * each) {
		int i = first + threadIdx.x / lanes;
		bool query = i >= 2 * key_heads;
		Head h = {query ? q_row : kv_row, (query ? i - 2 * key_heads : i) * dim / 8, query ? q_half : kv_half, query, i >= key_heads && !query, i < all};
		float a[8], b[8];
		head_unit(a, b, l, h);
		if (!h.there || query || slot < 0 || kind == I8_ROWS) continue;
		note(c, unbounded(a) || unbounded(b));
		keep(c, slot_row(c, slot), h.at + l.one, a);
		keep(c, slot_row(c, slot), h.at + l.two, b);
	}
	if (kind != I8_ROWS || blockIdx.y > 0) return;
	__syncthreads(); // the row is complete
	if (slot >= 0) keep_groups(c, slot, kv_row, kv_half, 2 * key_heads * dim);
}
KR_EXPORT(kr_head_store)
