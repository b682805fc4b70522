// Products of few tokens with blocks of files: a tile of up to 8 tokens of one expert, whose weights
// are read once at the speed of memory. A block goes over parts of 32 rows, whose columns its 8 warps
// divide, and loads of the next part begin before this one is summed. A lane's rows of a band are rows
// of two operands A (m16n8k16), tokens are the N side. The warps' sums are added in order, so a
// token's bits do not depend on the others, on their number or on the number of blocks. Weights
// are not rounded: integers are multiplied, and sums of a group are scaled.
//
// A part is two bands: with TO_HIDDEN one of gate and one of up, of the same features.
#include "native.cuh"

enum { WARPS = 8, TOKENS = 8 };

template <class T> struct Step {
	typename T::Raw raw;
	uint4 x; // 8 columns of a token
};

// Adds the product of a group's 32 columns to d: rows 4q and 4q+1, 4q+2 and 4q+3, by tokens 2c and 2c+1.
template <class T> KR_DEV void add(float (&d)[2][4], const Step<T> &r, const typename T::Head &head, int c, int group, const uint32_t *table) {
	const uint4 none = make_uint4(0, 0, 0, 0), x[2] = {T::HALVES && c > 1 ? none : r.x, c > 1 ? r.x : none};
	float sum[4] = {0.f, 0.f, 0.f, 0.f}; // of the tokens' columns
	if (T::MINS) {
		const uint32_t one = 0x3f803f80, ones[4] = {one, one, one, one};
		mma_bf16(sum, ones, r.x.x, r.x.y);
		mma_bf16(sum, ones, r.x.z, r.x.w);
	}
#pragma unroll
	for (int m = 0; m < 2; m++) {
		uint32_t lo[4], hi[4];
		T::ints(lo, r.raw, 2 * m, c, table);
		T::ints(hi, r.raw, 2 * m + 1, c, table);
		const uint32_t a[2][4] = {{lo[0], hi[0], lo[1], hi[1]}, {lo[2], hi[2], lo[3], hi[3]}};
		float s[2][2], least[2] = {0.f, 0.f}; // scales of both halves of the columns
#pragma unroll
		for (int i = 0; i < 2; i++) {
			float own;
			T::scale(own, least[i], r.raw, head, 2 * m + i, c, group);
			const float other = T::HALVES ? __shfl_xor_sync(0xffffffffu, own, 2) : own;
			s[0][i] = c > 1 ? other : own, s[1][i] = c > 1 ? own : other;
		}
#pragma unroll
		for (int half = 0; half < 1 + T::HALVES; half++) {
			float p[4] = {0.f, 0.f, 0.f, 0.f};
			mma_bf16(p, a[0], x[half].x, x[half].y);
			mma_bf16(p, a[1], x[half].z, x[half].w);
#pragma unroll
			for (int i = 0; i < 4; i++) d[m][i] = fmaf(s[half][i / 2], p[i], d[m][i]);
		}
		if (T::MINS) {
#pragma unroll
			for (int i = 0; i < 4; i++) d[m][i] = fmaf(-least[i / 2], sum[i % 2], d[m][i]);
		}
	}
}

// Adds the warps' sums of a part and stores its rows. The next part's sums lie elsewhere, so that one
// barrier is enough.
KR_DEV void finish(const Job &j, const Tile &t, int part, const float (&d)[2][4], float2 *sums) {
	const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
	const bool hidden = j.mode == TO_HIDDEN;
#pragma unroll
	for (int m = 0; m < 2; m++) {
		float2 *p = sums + (warp * 32 + 4 * g + 2 * m) * 4 + c;
		p[0] = make_float2(d[m][0], d[m][1]), p[4] = make_float2(d[m][2], d[m][3]);
	}
	__syncthreads();
	const float *all = reinterpret_cast<const float *>(sums);
	auto sum = [&](int row, int token) {
		float v = all[row * TOKENS + token];
		for (int w = 1; w < WARPS; w++) v += all[(w * 32 + row) * TOKENS + token];
		return v;
	};
	const int token = threadIdx.x / (hidden ? 16 : 32), r = threadIdx.x % (hidden ? 16 : 32), row = part * (hidden ? 16 : 32) + r;
	if (token >= t.count || token >= TOKENS || row >= (hidden ? j.rows / 2 : j.rows)) return;
	float value = sum(r, token);
	const float *bias = j.bias ? j.bias_of(t.expert) : 0;
	if (bias) value += bias[row];
	if (hidden) {
		float up = sum(16 + r, token);
		if (bias) up += bias[j.rows / 2 + row];
		value = j.act(value, up);
	}
	j.put(slot_of(j, t, token), row, value);
}

template <class T> KR_DEV void few(const Job &j, unsigned char *shared) {
	uint32_t *table = reinterpret_cast<uint32_t *>(shared);
	float2 *sums = reinterpret_cast<float2 *>(table + T::TABLE); // of two parts in turn: [warp][32 rows][4 pairs of tokens]
	fill<T>(table);
	pdl_wait();
	pdl_launch();
	const Tile t = tile_of(j);
	if (t.count < 1) return;
	if (T::TABLE > 0) __syncthreads();
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, q = g % 4, bands = j.bands();
	const bool hidden = j.mode == TO_HIDDEN;
	const int parts = hidden ? bands / 2 : (bands + 1) / 2;
	const bf16 *x = j.x + (long long)(slot_of(j, t, min(g, t.count - 1)) / j.divisor) * j.x_stride + 8 * c;
	const bool on = g < t.count;
	const int from = j.groups * warp / WARPS, to = j.groups * (warp + 1) / WARPS;

	enum { DEPTH = T::HEAD ? 3 : 4 }; // more would not fit the registers
	Step<T> ring[DEPTH];
	auto load = [&](Step<T> &r, int part, int group) {
		if (part >= parts || group >= to) return;
		const int band = hidden ? part + g / 4 * (bands / 2) : min(2 * part + g / 4, bands - 1);
		T::load(r.raw, j.values_of<T>(t.expert, band), j.small_of<T>(t.expert, band), group, q, c);
		r.x = make_uint4(0, 0, 0, 0);
		if (on) r.x = *reinterpret_cast<const uint4 *>(x + 32 * group);
	};
#pragma unroll
	for (int i = 0; i < DEPTH; i++) load(ring[i], blockIdx.x, from + i);
	typename T::Head head;
	for (int part = blockIdx.x, odd = 0; part < parts; part += gridDim.x, odd ^= 1) {
		float d[2][4] = {{0.f, 0.f, 0.f, 0.f}, {0.f, 0.f, 0.f, 0.f}};
		for (int group = from; group < to; group += DEPTH) {
#pragma unroll
			for (int i = 0; i < DEPTH; i++) {
				const int k = group + i;
				if (k >= to) break;
				if (T::HEAD && (k == from || k % T::GROUPS == 0)) T::open(head, ring[i].raw);
				add<T>(d, ring[i], head, c, k, table);
				const bool last = k + DEPTH >= to;
				load(ring[i], last ? part + (int)gridDim.x : part, last ? from + i : k + DEPTH);
			}
		}
		finish(j, t, part, d, sums + odd * (WARPS * 32 * 4));
	}
}

#define X(name, T)                                     \
	KR_KERNEL(256, 2) kr_native_##name##_few(JOB_ARGS) { \
		KR_SHARED(unsigned char, shared);              \
		const Job job = JOB;                           \
		few<T>(job, shared);                           \
	}                                                  \
	KR_EXPORT(kr_native_##name##_few)
ALL_ENCODINGS(X)
#undef X
