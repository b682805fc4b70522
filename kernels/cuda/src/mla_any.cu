// The projections of latent attention of generated rows (mla_decode.cu) for heads of any size: nope values of a key and v of a
// value beside the latent and rotated ones. Sums are float32, in the order of the columns.
#include "absorb.cuh"

enum { ANY_ROWS = 8, IN_THREADS = RANK / 4, OUT_THREADS = 256, OUT_VALUES = 64 };

// qa [decode rows, heads, WIDTH], laid out as query_at defines, from q [rows, heads * (nope + ROPE)]. A thread has four latent
// columns of a head, for ANY_ROWS rows. Grid (heads, rows / ANY_ROWS).
KR_KERNEL(IN_THREADS, 4)
kr_mla_absorb_any(uint32_t *qa, const bf16 *q, int q_stride, const bf16 *kvb, int kvb_stride, const int *table, int heads, int half, int nope, int v) {
	pdl_launch();
	pdl_wait();
	KR_SHARED(float, x); // [ANY_ROWS][nope]
	int tid = threadIdx.x, head = blockIdx.x, prompts = table[HEAD_PREFILL], rows = table[HEAD_DECODE], first = blockIdx.y * ANY_ROWS;
	const int *records = table + SPAN_HEAD + prompts * SPAN_RECORD;
	int there = min((int)ANY_ROWS, rows - first);
	const bf16 *from = q + head * (nope + ROPE);
	for (int i = tid; i < ANY_ROWS * nope; i += IN_THREADS) {
		int r = i / nope;
		x[i] = r < there ? f32(from[(long long)records[(first + r) * SPAN_RECORD] * q_stride + i % nope]) : 0.f;
	}
	__syncthreads();
	const bf16 *w = kvb + (long long)head * (nope + v) * kvb_stride + 4 * tid;
	float sum[ANY_ROWS][4] = {};
#pragma unroll 4
	for (int n = 0; n < nope; n++, w += kvb_stride) {
		uint2 p = *(const uint2 *)w;
		float a = lo_f32(p.x), b = hi_f32(p.x), c = lo_f32(p.y), d = hi_f32(p.y);
#pragma unroll
		for (int r = 0; r < ANY_ROWS; r++) {
			float y = x[r * nope + n];
			sum[r][0] = fmaf(y, a, sum[r][0]), sum[r][1] = fmaf(y, b, sum[r][1]), sum[r][2] = fmaf(y, c, sum[r][2]), sum[r][3] = fmaf(y, d, sum[r][3]);
		}
	}
	long long pairs = (long long)((heads + HEADS - 1) / HEADS) * QUERY_PAIRS;
	qa += first * pairs;
	int lo = query_at(head, 4 * tid, half), hi = query_at(head, 4 * tid + 2, half);
#pragma unroll
	for (int r = 0; r < ANY_ROWS; r++) {
		if (r >= there) break;
		qa[r * pairs + lo] = pack_query(sum[r][0], sum[r][1], half), qa[r * pairs + hi] = pack_query(sum[r][2], sum[r][3], half);
	}
	for (int i = tid; i < there * (ROPE / 2); i += IN_THREADS) {
		int r = i / (ROPE / 2), col = i % (ROPE / 2) * 2;
		const bf16 *p = from + (long long)records[(first + r) * SPAN_RECORD] * q_stride + nope + col;
		qa[r * pairs + query_at(head, RANK + col, half)] = pack_query(f32(p[0]), f32(p[1]), half);
	}
}
KR_EXPORT(kr_mla_absorb_any)

// out [rows, heads * v] from latents [decode rows, heads, RANK] (kr_mla_join). A block has OUT_VALUES of a head's values, one
// at a time with each warp, for ANY_ROWS rows. Grid (heads, rows / ANY_ROWS, v / OUT_VALUES).
KR_KERNEL(OUT_THREADS, 2)
kr_mla_out_any(void *out, int wide, int out_stride, const bf16 *latents, const bf16 *kvb, int kvb_stride, const int *table, int heads, int nope, int v) {
	__shared__ __align__(16) bf16 x[ANY_ROWS][RANK];
	pdl_launch();
	pdl_wait();
	int tid = threadIdx.x, lane = tid % 32, head = blockIdx.x, prompts = table[HEAD_PREFILL], rows = table[HEAD_DECODE], first = blockIdx.y * ANY_ROWS;
	int there = min((int)ANY_ROWS, rows - first), last = min(v, (int)(blockIdx.z + 1) * OUT_VALUES);
	for (int i = tid; i < ANY_ROWS * RANK / 8; i += OUT_THREADS) {
		int r = i / (RANK / 8), unit = i % (RANK / 8);
		((uint4 *)x[r])[unit] = r < there ? ((const uint4 *)(latents + ((long long)(first + r) * heads + head) * RANK))[unit] : make_uint4(0, 0, 0, 0);
	}
	__syncthreads();
	for (int j = blockIdx.z * OUT_VALUES + tid / 32; j < last; j += OUT_THREADS / 32) {
		const uint4 *w = (const uint4 *)(kvb + ((long long)head * (nope + v) + nope + j) * kvb_stride) + lane;
		float sum[ANY_ROWS] = {};
#pragma unroll
		for (int i = 0; i < RANK / 256; i++) {
			uint4 a = w[32 * i];
			uint32_t one[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
			for (int r = 0; r < ANY_ROWS; r++) {
				uint4 b = ((const uint4 *)x[r])[lane + 32 * i];
				uint32_t two[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
				for (int k = 0; k < 4; k++) sum[r] = fmaf(hi_f32(one[k]), hi_f32(two[k]), fmaf(lo_f32(one[k]), lo_f32(two[k]), sum[r]));
			}
		}
#pragma unroll
		for (int r = 0; r < ANY_ROWS; r++) {
			float y = warp_sum(sum[r]);
			if (lane == 0 && r < there) put(out, wide, (long long)table[SPAN_HEAD + (prompts + first + r) * SPAN_RECORD] * out_stride + head * v + j, y);
		}
	}
}
KR_EXPORT(kr_mla_out_any)
