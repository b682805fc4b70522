// Products of very few rows that save a launch: two matrices with the same rows, and a matrix with rows that gated DeltaNet's norm
// makes. Blocks copy or make the rows in shared memory. Sums run in the order of gemv.cu, and so have the same bits.
#include "gemv_flow.cuh"
#include "rowgate.cuh"

enum { STAGED_THREADS = 256, STAGED_WARPS = STAGED_THREADS / 32 };

// out [m, rows] = rows * transposed w, or added to it; m up to 8. Group `group` of the row blocks of w, each of which `parts` warps have. rows(to)
// puts the rows in shared memory, staged_stride apart and permuted for packed weights, behind the wait. memory: results of the warps, then rows.
template <int FORMAT, class Rows>
KR_DEV void staged_product(void *out, int wide, int out_stride, int add, int m, const Matrix &w, int group, int parts, uint8_t *memory, Rows rows) {
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4, part = warp % parts, block = group * (STAGED_WARPS / parts) + warp / parts;
	bool works = 16 * block < w.rows;
	float4 *results = (float4 *)memory;
	uint8_t *staged = memory + STAGED_WARPS * 512;
	float sum[4] = {0, 0, 0, 0}, before[4] = {0, 0, 0, 0};
	auto each = [&](auto f) { // calls f(i, where) for the results of this lane
#pragma unroll
		for (int i = 0; i < 4; i++) {
			int token = 2 * c + i % 2, row = 16 * block + g + i / 2 * 8;
			if (token < m && row < w.rows) f(i, (long long)token * out_stride + row);
		}
	};
	const Range units = works ? Range(w, part, parts) : Range(0, 0);
	product_of<FORMAT, true, true>(sum, w, works ? block : 0, false, units, [&] {
		rows(staged);
		__syncthreads();
		if (add && part == 0) each([&](int i, long long at) { before[i] = got(out, wide, at); });
		return Token{(const bf16 *)(staged + g * staged_stride(w.tiles)), g < m};
	});
	if (parts > 1) {
		results[threadIdx.x] = make_float4(sum[0], sum[1], sum[2], sum[3]);
		__syncthreads();
	}
	if (part > 0) return;
#pragma unroll 1
	for (int i = 1; i < parts; i++) {
		float4 v = results[threadIdx.x + 32 * i];
		sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w;
	}
	each([&](int i, long long at) { give(out, wide, 0, at, add ? before[i] + sum[i] : sum[i]); });
}

// out [m, rows of w and of s] = x times each of them. The blocks of s come first. The next launch may start only behind this one's wait, so
// that it may read what was written before this one without waiting.
template <int FORMAT>
KR_DEV void pair(void *out, int wide, int out_stride, const bf16 *x, int x_stride, int m, const Matrix &w, int parts, const Matrix &s, int s_parts, uint8_t *memory) {
	int per = STAGED_WARPS / s_parts * 16, groups = (s.rows + per - 1) / per, group = blockIdx.x;
	auto row = [&](int r) { return x + (long long)r * x_stride; };
	auto wait = [&] {
		pdl_wait();
		pdl_launch();
	};
	if (group < groups) {
		char *to = (char *)out + (long long)w.rows * (wide ? 4 : 2);
		staged_product<PLAIN_BF16>(to, wide, out_stride, 0, m, s, group, s_parts, memory, [&](uint8_t *staged) {
			wait();
			stage<false>(staged, m, s.tiles, row);
		});
	} else {
		staged_product<FORMAT>(out, wide, out_stride, 0, m, w, group - groups, parts, memory, [&](uint8_t *staged) {
			wait();
			stage<true>(staged, m, w.tiles, row);
		});
	}
}
#define PAIR_KERNEL(name, FORMAT)                                                                                                             \
	KR_KERNEL(STAGED_THREADS, 2)                                                                                                                 \
	name(void *out, int wide, int out_stride, const bf16 *x, int x_stride, int m, int parts, int s_parts, MATRIX_ARGS(w), MATRIX_ARGS(s)) {        \
		KR_SHARED(uint8_t, memory);                                                                                                                 \
		const Matrix w = MATRIX(w), s = MATRIX(s);                                                                                                   \
		pair<FORMAT>(out, wide, out_stride, x, x_stride, m, w, parts, s, s_parts, memory);                                                            \
	}                                                                                                                                               \
	KR_EXPORT(name)
PAIR_KERNEL(kr_gemv_pair_int4_g128, INT4_G128)
PAIR_KERNEL(kr_gemv_pair_int8_g128, INT8_G128)

// The rows that kr_gated_norm makes: RMSNorm of each head of o [m, heads * dim] times silu of its gate in x.
struct GateColumns { int at, step; }; // those of the heads of a group follow each other, and groups are step apart
struct GatedRows {
	const bf16 *o, *x;
	int o_stride, x_stride, m;
	const void *w; // [1, dim]
	int half, heads, group, dim; // half: w is bf16. dim: up to 128
	GateColumns z;
	float eps;
};

template <bool PERMUTE> KR_DEV void gated_rows(uint8_t *to, int stride, const GatedRows &n) {
	const int EACH = 4, BATCH = 4; // values of a lane, and heads in flight
	int lane = threadIdx.x % 32, items = n.m * n.heads;
	float weight[EACH];
#pragma unroll
	for (int j = 0; j < EACH; j++) weight[j] = got(n.w, !n.half, min(lane + 32 * j, n.dim - 1));
	pdl_launch();
	pdl_wait();
	for (int first = threadIdx.x / 32; first < items; first += BATCH * STAGED_WARPS) {
		bf16 v[BATCH][EACH], z[BATCH][EACH];
#pragma unroll
		for (int b = 0; b < BATCH; b++) {
			int item = min(first + b * STAGED_WARPS, items - 1), r = item / n.heads, h = item % n.heads;
			const bf16 *o = n.o + (long long)r * n.o_stride + h * n.dim;
			const bf16 *gate = n.x + (long long)r * n.x_stride + n.z.at + h / n.group * n.z.step + h % n.group * n.dim;
#pragma unroll
			for (int j = 0; j < EACH; j++) {
				int i = min(lane + 32 * j, n.dim - 1); // values past the last one are not used
				v[b][j] = o[i], z[b][j] = gate[i];
			}
		}
#pragma unroll
		for (int b = 0; b < BATCH; b++) {
			int item = first + b * STAGED_WARPS, r = item / n.heads, h = item % n.heads;
			if (item >= items) break;
			float sum = 0.f;
#pragma unroll
			for (int j = 0; j < EACH; j++)
				if (lane + 32 * j < n.dim) sum = fmaf(f32(v[b][j]), f32(v[b][j]), sum);
			float scale = rms_scale(warp_sum(sum), n.dim, n.eps);
#pragma unroll
			for (int j = 0; j < EACH; j++) {
				int k = h * n.dim + lane + 32 * j;
				float gate = f32(z[b][j]), y = f32(v[b][j]) * scale * weight[j];
				y *= gate / (1.f + expf(-gate));
				if (lane + 32 * j < n.dim) store((bf16 *)(to + r * stride) + (PERMUTE ? permuted(k) : k), y);
			}
		}
	}
}

// out [m, rows] += those rows times w.
#define GATED_KERNEL(name, FORMAT)                                                                                                            \
	KR_KERNEL(STAGED_THREADS, 2)                                                                                                                 \
	name(void *out, int wide, int out_stride, const bf16 *o, int o_stride, const bf16 *x, int x_stride, int m, const void *norm, int norm_half,     \
	     int heads, int group, int dim, GateColumns z, float eps, int parts, MATRIX_ARGS(w)) {                                                       \
		KR_SHARED(uint8_t, memory);                                                                                                                 \
		const Matrix w = MATRIX(w);                                                                                                                  \
		const GatedRows n = {o, x, o_stride, x_stride, m, norm, norm_half, heads, group, dim, z, eps};                                               \
		staged_product<FORMAT>(out, wide, out_stride, 1, m, w, blockIdx.x, parts, memory,                                                             \
		                       [&](uint8_t *staged) { gated_rows<FORMAT != PLAIN_BF16>(staged, staged_stride(w.tiles), n); });                        \
	}                                                                                                                                               \
	KR_EXPORT(name)
GATED_KERNEL(kr_gemv_gated_bf16, PLAIN_BF16)
GATED_KERNEL(kr_gemv_gated_int4_g128, INT4_G128)
GATED_KERNEL(kr_gemv_gated_int8_g128, INT8_G128)
