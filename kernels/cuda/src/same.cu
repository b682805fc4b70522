// The kernels of kernels/cuda/same: rows to integers, and products of integers with the packed weights
// of experts.
#include "same.cuh"

// --- rows

// Rows of float32 or bf16.
struct Rows {
	const void *x;
	int wide, stride, cols;
	__device__ __forceinline__ float at(long long row, int col) const {
		if (col >= cols) return 0.f;
		return wide ? __ldcg((const float *)x + row * stride + col) : f32(__ldcg((const bf16 *)x + row * stride + col));
	}
};

// The four columns of a lane's word of 128 columns from col on.
KR_DEV void take(float (&v)[4], const Rows &r, long long row, int col) {
	const int l = threadIdx.x % 16, at = col + threadIdx.x % 32 / 16 * 64 + 16 * (l % 4) + 2 * (l / 4);
	v[0] = r.at(row, at), v[1] = r.at(row, at + 8), v[2] = r.at(row, at + 1), v[3] = r.at(row, at + 9);
}
KR_DEV uint32_t largest(const float (&v)[4]) { return max(max(magnitude(v[0]), magnitude(v[1])), max(magnitude(v[2]), magnitude(v[3]))); }
KR_DEV uint32_t most(uint32_t top, int mask) { return max(top, __shfl_xor_sync(0xffffffffu, top, mask)); }
// q: the integers of a row of tiles of 64 columns.
KR_DEV void put(uint32_t *q, int tiles, int col, const float (&v)[4], const Scale &s) {
	const int lane = threadIdx.x % 32;
	if (col + lane / 16 * 64 >= 64 * tiles) return;
	q[col / 4 + lane] = (s.of(v[0]) & 0xff) | (s.of(v[1]) & 0xff) << 8 | (s.of(v[2]) & 0xff) << 16 | (uint32_t)s.of(v[3]) << 24;
}

// A warp's 128 columns of a row, from 128 * part on, as integers and scales of the row's groups.
template <int GROUP> KR_DEV void quantize_part(const float (&v)[4], uint32_t *q, float *scales, int tiles, int groups, int part) {
	const int lane = threadIdx.x % 32;
	uint32_t top = largest(v); // lane 16t+4c+s has step s of tile t
	top = most(most(most(top, 1), 4), 8);
	if (GROUP > 32) top = most(top, 2);
	if (GROUP > 64) top = most(top, 16);
	const Scale s(top);
	put(q, tiles, 128 * part, v, s);
	const int group = (128 * part + lane / 16 * 64 + lane % 4 * 16) / (GROUP ? GROUP : 1); // of the lane's step
	const bool first = GROUP == 32 ? lane % 16 == 0 || lane % 16 == 2 : GROUP == 64 ? lane % 16 == 0 : lane == 0;
	if (first && group < groups) scales[group] = s.scale;
}

// A warp's row with one scale for all columns.
KR_DEV void quantize_row(const Rows &r, long long row, uint32_t *q, float *scale, int tiles) {
	float v[4];
	uint32_t top = 0;
	for (int col = 0; col < r.cols; col += 128) {
		take(v, r, row, col);
		top = max(top, largest(v));
	}
	for (int mask = 1; mask < 32; mask *= 2) top = most(top, mask);
	const Scale s(top);
	for (int col = 0; col < 64 * tiles; col += 128) {
		take(v, r, row, col);
		put(q, tiles, col, v, s);
	}
	if (threadIdx.x % 32 == 0) *scale = s.scale;
}

// A warp takes 128 columns of a row; with GROUP 0 a row. Integers of a row take 64 * tiles bytes.
template <int GROUP> KR_DEV void quantize(const Rows &r, int count, int8_t *q, float *scales, int tiles, int groups) {
	const long long warp = (long long)blockIdx.x * 8 + threadIdx.x / 32;
	const int parts = GROUP == 0 ? 1 : (tiles + 1) / 2, part = (int)(warp % parts);
	const long long row = warp / parts;
	if (row >= count) return;
	uint32_t *to = (uint32_t *)q + row * 16 * tiles;
	if (GROUP == 0) {
		quantize_row(r, row, to, scales + row * groups, tiles);
		return;
	}
	float v[4];
	take(v, r, row, 128 * part);
	quantize_part<GROUP>(v, to, scales + row * groups, tiles, groups, part);
}

KR_KERNEL(256, 1)
kr_same_rows(const void *x, int wide, int stride, int count, int cols, int8_t *q, float *scales, int tiles, int groups, int group) {
	pdl_launch();
	pdl_wait();
	const Rows r = {x, wide, stride, cols};
	switch (group) {
	case 32: quantize<32>(r, count, q, scales, tiles, groups); break;
	case 64: quantize<64>(r, count, q, scales, tiles, groups); break;
	case 128: quantize<128>(r, count, q, scales, tiles, groups); break;
	default: quantize<0>(r, count, q, scales, tiles, groups);
	}
}
KR_EXPORT(kr_same_rows)

// --- products

enum { TO_HIDDEN, TO_BF16, TO_F32 };

// The arguments of a product, in the order of Go's.
struct Job {
	void *out;
	int mode, out_stride; // TO_HIDDEN: stored rows are gate and up joined, and out is their activation as float32
	const uint8_t *q;     // integers of rows of 64 * tile_cols bytes, and
	const float *row_scales;
	Rows x;               // the rows, where a block quantises its own
	int divisor;          // the row of a slot is slot / divisor
	const int4 *tiles;    // kernels/cuda/route.Aligned: expert, first slot, rows
	const int *slots, *count;
	const uint8_t *values; // of expert 0
	const uint32_t *scales;
	int rows, tile_cols, groups; // stored rows; tiles of 64 columns; scales of a row
	long long step, scale_step;  // bytes from one expert to the next
	const float *bias;           // of expert 0: [rows], of joined weights gate's then up's; null: none
	long long bias_step;
	Gate gate;
};
#define JOB_ARGS \
	void *out, int mode, int out_stride, const uint8_t *q, const float *row_scales, const void *x, int wide, int x_stride, int cols, int divisor, const int4 *tiles, const int *slots, const int *count, \
	const uint8_t *values, const uint32_t *scales, int rows, int tile_cols, int groups, long long step, long long scale_step, \
	const float *bias, long long bias_step, float alpha, float limit, float shift, float cubic
#define JOB \
	{ out, mode, out_stride, q, row_scales, {x, wide, x_stride, cols}, divisor, tiles, slots, count, values, scales, rows, tile_cols, groups, step, scale_step, \
	  bias, bias_step, {alpha, limit, shift, cubic} }

// A lane's part of 64 columns of weights: rows g and g+8 of 16.
template <int BITS, int GROUP> struct Weights {
	uint4 w[BITS == 8 ? 2 : 1];
	uint32_t s[GROUP == 32 ? 2 : 1]; // scales of both rows
};

// The number of the first group of a tile of 64 columns.
template <int GROUP> KR_DEV int group_of(int k) { return GROUP == 32 ? 2 * k : GROUP == 64 ? k : GROUP == 128 ? k / 2 : 0; }

// A warp's 16 stored rows of an expert: the fourth part of a band.
template <int BITS, int GROUP> struct Band {
	const uint8_t *w;
	const uint32_t *s;
	__device__ __forceinline__ Band(const Job &j, int expert)
		: w(j.values + expert * j.step + (long long)blockIdx.x * (512 * BITS) * j.tile_cols + (BITS == 3 ? 8 : 16) * threadIdx.x),
		  s((const uint32_t *)((const uint8_t *)j.scales + expert * j.scale_step) + (long long)blockIdx.x * j.groups * 32 + threadIdx.x / 32 * 8 + threadIdx.x % 32 / 4) {}
	__device__ __forceinline__ void load(Weights<BITS, GROUP> &v, int k) const {
		const uint8_t *p = w + (long long)k * (512 * BITS);
		if (BITS == 3) v.w[0] = load3(p, 1024 - 4 * threadIdx.x);
		else v.w[0] = ld_stream(p);
		if (BITS == 8) v.w[BITS == 8] = ld_stream(p + 2048);
		v.s[0] = __ldg(s + 32 * group_of<GROUP>(k));
		if (GROUP == 32) v.s[GROUP == 32] = __ldg(s + 32 * group_of<GROUP>(k) + 32);
	}
};

// Integer sums of groups of up to 128 columns stay below 2^22: added to the bits of 1.5 * 2^23 they are the
// bits of a float, from which that is subtracted exactly. Sums of whole rows are converted.
template <int GROUP> struct Sums {
	enum { NONE = GROUP ? 0x4b400000 : 0 };
	static __device__ __forceinline__ float of(int sum) { return GROUP ? __fadd_rn(__int_as_float(sum), -12582912.f) : __int2float_rn(sum); }
};

// A lane's part of 64 columns of 8 tokens.
template <int GROUP> struct Tokens {
	uint4 x;
	float2 xs[GROUP == 32 ? 2 : 1]; // scales of tokens 2c and 2c+1; GROUP 32: of both groups
};

// Quantises a tile's rows in shared memory: integers at q, `stride` bytes a row, then scales. Lane t has the
// row of token t.
template <int GROUP> KR_DEV void own_rows(const Job &j, const int4 &tile, int mine, unsigned char *q, int stride, float *scales) {
	const int warp = threadIdx.x / 32, parts = (j.tile_cols + 1) / 2;
	auto row = [&](int t) { return (long long)__shfl_sync(0xffffffffu, mine, t); };
	if (GROUP == 0) {
		for (int t = warp; t < tile.z; t += 4) quantize_row(j.x, row(t), (uint32_t *)(q + t * stride), scales + t * j.groups, j.tile_cols);
		return;
	}
	const int AHEAD = 4;
	for (int at = warp; at < tile.z * parts; at += 4 * AHEAD) {
		float v[AHEAD][4];
#pragma unroll
		for (int i = 0; i < AHEAD; i++) {
			const int k = at + 4 * i;
			if (k < tile.z * parts) take(v[i], j.x, row(k / parts), k % parts * 128);
		}
#pragma unroll
		for (int i = 0; i < AHEAD; i++) {
			const int k = at + 4 * i, t = k / parts;
			if (k < tile.z * parts) quantize_part<GROUP>(v[i], (uint32_t *)(q + t * stride), scales + t * j.groups, j.tile_cols, j.groups, k % parts);
		}
	}
}

// The A operand of 32 columns, steps 2*half and 2*half+1: exact integers.
template <int BITS> KR_DEV void integers(uint32_t (&a)[4], const uint4 *w, int half) {
#pragma unroll
	for (int i = 0; i < 2; i++) {
		const int step = 2 * half + i;
		uint32_t lo, hi;
		if (BITS == 4) {
			const uint32_t v = step == 0 ? w[0].x : step == 1 ? w[0].y : step == 2 ? w[0].z : w[0].w;
			// A nibble is value + 8: 0x78 more makes it value + 128.
			lo = ((v & 0x0f0f0f0fu) + 0x78787878u) ^ 0x80808080u;
			hi = ((v >> 4 & 0x0f0f0f0fu) + 0x78787878u) ^ 0x80808080u;
		} else {
			uint32_t p, q; // of columns 2c, 2c+1 and of 2c+8, 2c+9: bytes of rows g and g+8 in turn
			if (BITS == 8) {
				const uint4 &v = w[BITS == 8 ? step / 2 : 0];
				p = (step % 2 ? v.z : v.x) ^ 0x80808080u, q = (step % 2 ? v.w : v.y) ^ 0x80808080u;
			} else {
				const uint4 &v = w[0];
				uint32_t codes = (step == 0 ? v.x : step == 1 ? v.y : v.z) & 0x77777777u;
				if (step == 3) codes = (v.x >> 3 & 0x11111111u) | (v.y >> 2 & 0x22222222u) | (v.z >> 1 & 0x44444444u);
				p = lookup8(INT3_BYTES_LOW, INT3_BYTES_HIGH, codes), q = lookup8(INT3_BYTES_LOW, INT3_BYTES_HIGH, codes >> 16);
			}
			lo = __byte_perm(p, q, 0x6240), hi = __byte_perm(p, q, 0x7351);
		}
		a[2 * i] = lo, a[2 * i + 1] = hi;
	}
}

// Adds the sums of a group of 16 rows and 8 tokens, and begins new ones. scales: of rows g and g+8.
template <int GROUP> KR_DEV void add(float (&d)[4], int (&sum)[4], uint32_t scales, float2 of) {
	const float lo = lo_f32(scales), hi = hi_f32(scales);
#pragma unroll
	for (int n = 0; n < 4; n++) {
		d[n] = __fmaf_rn(Sums<GROUP>::of(sum[n]), __fmul_rn(n < 2 ? lo : hi, n % 2 ? of.y : of.x), d[n]);
		sum[n] = Sums<GROUP>::NONE;
	}
}

// Reports whether a group ends with half a tile.
template <int GROUP> KR_DEV bool ends(int k, int half, int tile_cols) {
	return GROUP == 32 || (half == 1 && (GROUP == 64 || (GROUP == 128 && k % 2) || (GROUP != 64 && k + 1 == tile_cols)));
}

// Stores a lane's results of 16 stored rows and of tokens t and t+1, which have slots; below 0: none.
KR_DEV void store(const Job &j, int expert, int block, const float (&d)[4], int first, int second) {
	const int g = threadIdx.x % 32 / 4;
	const bool hidden = j.mode == TO_HIDDEN;
	const int lo = (hidden ? 8 : 16) * block + g, hi = lo + (hidden ? j.rows / 2 : 8);
	const float *bias = j.bias ? (const float *)((const char *)j.bias + expert * j.bias_step) : 0;
	const float b_lo = bias && lo < j.rows ? bias[lo] : 0.f, b_hi = bias && hi < j.rows ? bias[hi] : 0.f;
	auto put = [&](long long slot, int row, float v) {
		if (j.mode == TO_BF16) ((bf16 *)j.out)[slot * j.out_stride + row] = to_bf16(v);
		else ((float *)j.out)[slot * j.out_stride + row] = v;
	};
#pragma unroll
	for (int n = 0; n < 2; n++) {
		const long long slot = n ? second : first;
		if (slot < 0) continue;
		float a = d[n], b = d[n + 2];
		if (bias) a = __fadd_rn(a, b_lo), b = __fadd_rn(b, b_hi);
		if (hidden) {
			if (lo < j.rows / 2) put(slot, lo, j.gate(a, b));
			continue;
		}
		if (lo < j.rows) put(slot, lo, a);
		if (hi < j.rows) put(slot, hi, b);
	}
}

// A warp multiplies 16 stored rows with a tile of up to 8 tokens. OWN: the block quantises their rows.
template <int BITS, int GROUP, int DEPTH, bool OWN> KR_DEV void product(const Job &j, unsigned char *shared) {
	pdl_launch();
	pdl_wait();
	const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
	// Memory exists for every tile of the grid, so all loads are in flight at once.
	const int4 tile = __ldcg(j.tiles + blockIdx.y);
	const int used = __ldcg(j.count);
	int slot = __ldcg(j.slots + 8 * blockIdx.y + lane % 8);
	if ((int)blockIdx.y >= used) return;
	if (lane % 8 >= tile.z) slot = -1;
	const int block = 4 * blockIdx.x + threadIdx.x / 32;
	const bool idle = 16 * block >= j.rows;
	const Band<BITS, GROUP> band(j, tile.x);
	Weights<BITS, GROUP> ring[DEPTH];
#pragma unroll
	for (int i = 0; i < DEPTH; i++)
		if (i < j.tile_cols && !idle) band.load(ring[i], i);

	// Rows past the last token are that token's; their results are not stored.
	const int stride = 64 * (OWN ? j.tile_cols | 1 : j.tile_cols); // an odd multiple: a warp's loads meet in no bank
	const int own = slot < 0 ? 0 : slot / j.divisor;
	auto row = [&](int t) {
		t = min(t, tile.z - 1);
		return OWN ? (long long)t : (long long)__shfl_sync(0xffffffffu, own, t);
	};
	const float *row_scales = OWN ? (const float *)(shared + tile.z * stride) : j.row_scales;
	const uint8_t *x = (OWN ? shared : j.q) + row(g) * stride + 16 * c;
	const float *xs[2] = {row_scales + row(2 * c) * j.groups, row_scales + row(2 * c + 1) * j.groups};
	auto fetch = [&](Tokens<GROUP> &v, int k) {
		const uint4 *from = (const uint4 *)(x + 64 * k);
		v.x = OWN ? *from : __ldcg(from);
#pragma unroll
		for (int half = 0; half < (GROUP == 32 ? 2 : 1); half++) {
			const float *a = xs[0] + group_of<GROUP>(k) + half, *b = xs[1] + group_of<GROUP>(k) + half;
			v.xs[half] = OWN ? make_float2(*a, *b) : make_float2(__ldcg(a), __ldcg(b));
		}
	};
	Tokens<GROUP> tokens[OWN ? 1 : DEPTH];
	if (OWN) {
		own_rows<GROUP>(j, tile, own, shared, stride, (float *)(shared + tile.z * stride));
		__syncthreads();
	} else {
#pragma unroll
		for (int i = 0; i < DEPTH; i++)
			if (i < j.tile_cols) fetch(tokens[OWN ? 0 : i], i);
	}
	if (idle) return;
	float d[4] = {0.f, 0.f, 0.f, 0.f};
	int sum[4] = {Sums<GROUP>::NONE, Sums<GROUP>::NONE, Sums<GROUP>::NONE, Sums<GROUP>::NONE};
	for (int at = 0; at < j.tile_cols; at += DEPTH) {
#pragma unroll
		for (int i = 0; i < DEPTH; i++) {
			const int k = at + i;
			if (k >= j.tile_cols) break;
			Tokens<GROUP> &t = tokens[OWN ? 0 : i];
			if (OWN) fetch(t, k);
#pragma unroll
			for (int half = 0; half < 2; half++) {
				uint32_t a[4];
				integers<BITS>(a, ring[i].w, half);
				mma_s8(sum, a, half ? t.x.z : t.x.x, half ? t.x.w : t.x.y);
				if (ends<GROUP>(k, half, j.tile_cols)) add<GROUP>(d, sum, ring[i].s[GROUP == 32 ? half : 0], t.xs[GROUP == 32 ? half : 0]);
			}
			if (k + DEPTH >= j.tile_cols) continue;
			band.load(ring[i], k + DEPTH);
			if (!OWN) fetch(t, k + DEPTH);
		}
	}
	const int first = __shfl_sync(0xffffffffu, slot, 2 * c), second = __shfl_sync(0xffffffffu, slot, 2 * c + 1);
	store(j, tile.x, block, d, first, second);
}

// A block multiplies a band of 64 stored rows with a tile of up to 64 tokens, whose rows all warps read from
// shared memory: stages of 64 columns, and the scales of their groups.
template <int BITS, int GROUP> KR_DEV void product_many(const Job &j, unsigned char *shared) {
	enum { TOKENS = 64, N = TOKENS / 8, STAGES = 4, DEPTH = 2, X = 64 * TOKENS, STAGE = X + 8 * TOKENS };
	pdl_launch();
	pdl_wait();
	const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
	// A thread copies half a token's columns, and one of a token's two threads its scales.
	const int token = threadIdx.x / 2, part = threadIdx.x % 2;
	const int4 tile = __ldcg(j.tiles + blockIdx.y);
	const int used = __ldcg(j.count), slot = __ldcg(j.slots + TOKENS * blockIdx.y + token);
	if ((int)blockIdx.y >= used) return;
	int *slots = (int *)(shared + STAGES * STAGE);
	if (part == 0) slots[token] = token < tile.z ? slot : -1;
	const int block = 4 * blockIdx.x + threadIdx.x / 32;
	const bool idle = 16 * block >= j.rows;
	const Band<BITS, GROUP> band(j, tile.x);
	Weights<BITS, GROUP> ring[DEPTH];
#pragma unroll
	for (int i = 0; i < DEPTH; i++)
		if (i < j.tile_cols && !idle) band.load(ring[i], i);

	const long long row = token < tile.z ? slot / j.divisor : 0; // past the last token results are not stored
	const uint8_t *x = j.q + row * 64 * j.tile_cols + 32 * part;
	const float *xs = j.row_scales + row * j.groups;
	const uint32_t base = smem_u32(shared), to = base + 64 * token + 32 * part, scale_to = base + X + 8 * token;
	auto copy = [&](int k) {
		if (k < j.tile_cols) {
			const uint32_t at = k % STAGES * STAGE;
			cp_async16(to + at, x + 64 * k);
			cp_async16(to + at + 16, x + 64 * k + 16);
			if (part == 0) {
				if (GROUP == 32) cp_async_small<8>(scale_to + at, xs + group_of<GROUP>(k));
				else cp_async_small<4>(scale_to + at, xs + group_of<GROUP>(k));
			}
		}
		cp_async_commit();
	};
#pragma unroll
	for (int k = 0; k < STAGES - 1; k++) copy(k);

	float d[N][4];
	int sum[N][4];
#pragma unroll
	for (int i = 0; i < N; i++)
#pragma unroll
		for (int n = 0; n < 4; n++) d[i][n] = 0.f, sum[i][n] = Sums<GROUP>::NONE;
	for (int at = 0; at < j.tile_cols; at += DEPTH) {
#pragma unroll
		for (int r = 0; r < DEPTH; r++) {
			const int k = at + r;
			if (k >= j.tile_cols) break;
			cp_async_wait<STAGES - 2>();
			__syncthreads(); // and every warp has read the stage that is written next
			copy(k + STAGES - 1);
			if (idle) continue;
			const unsigned char *stage = shared + k % STAGES * STAGE;
			uint32_t a[2][4];
			integers<BITS>(a[0], ring[r].w, 0);
			integers<BITS>(a[1], ring[r].w, 1);
#pragma unroll
			for (int i = 0; i < N; i++) {
				if (8 * i >= tile.z) break;
				const uint4 v = *(const uint4 *)(stage + 64 * (8 * i + g) + 16 * c);
				const float *of = (const float *)(stage + X + 8 * (8 * i + 2 * c)); // two of each token
#pragma unroll
				for (int half = 0; half < 2; half++) {
					mma_s8(sum[i], a[half], half ? v.z : v.x, half ? v.w : v.y);
					if (ends<GROUP>(k, half, j.tile_cols)) {
						const int n = GROUP == 32 ? half : 0;
						add<GROUP>(d[i], sum[i], ring[r].s[n], make_float2(of[n], of[2 + n]));
					}
				}
			}
			if (k + DEPTH < j.tile_cols) band.load(ring[r], k + DEPTH);
		}
	}
	if (idle) return;
#pragma unroll
	for (int i = 0; i < N; i++)
		if (8 * i < tile.z) store(j, tile.x, block, d[i], slots[8 * i + 2 * c], slots[8 * i + 2 * c + 1]);
}

#define FORMATS(X) \
	X(int4_g32, 4, 32) X(int4_g64, 4, 64) X(int4_g128, 4, 128) X(int4_ch, 4, 0) \
	X(int8_g32, 8, 32) X(int8_g64, 8, 64) X(int8_g128, 8, 128) X(int8_ch, 8, 0) \
	X(int3_g32, 3, 32) X(int3_g64, 3, 64) X(int3_g128, 3, 128) X(int3_ch, 3, 0)
// Tiles of 8 tokens, whose rows become integers in the block or are so already, and of 64.
#define X(name, bits, group)                                           \
	KR_KERNEL(128, 2) kr_same_##name##_own(JOB_ARGS) {                 \
		KR_SHARED(unsigned char, shared);                              \
		const Job job = JOB;                                           \
		product<bits, group, (bits == 8 ? 5 : 10), true>(job, shared);    \
	}                                                                  \
	KR_EXPORT(kr_same_##name##_own)                                    \
	KR_KERNEL(128, 2) kr_same_##name##_few(JOB_ARGS) {                 \
		const Job job = JOB;                                           \
		product<bits, group, (bits == 8 ? 4 : 6), false>(job, 0);      \
	}                                                                  \
	KR_EXPORT(kr_same_##name##_few)                                    \
	KR_KERNEL(128, 3) kr_same_##name##_many(JOB_ARGS) {                \
		KR_SHARED(unsigned char, shared);                              \
		const Job job = JOB;                                           \
		product_many<bits, group>(job, shared);                        \
	}                                                                  \
	KR_EXPORT(kr_same_##name##_many)
FORMATS(X)
#undef X
