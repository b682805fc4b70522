// The two products that make several residual streams the input of a block, for few rows of bfloat16, each in one
// launch with what is done to its result.
#include "elem.cuh"

enum { LOW_THREADS = 256, LOW_WARPS = LOW_THREADS / 32, AHEAD = 4 };

KR_DEV float sigmoid(float v) { return 1.f / (1.f + expf(-v)); }

KR_DEV void add_product(float &sum, const uint4 &a, const uint4 &b) {
	sum = fmaf(lo_f32(a.x), lo_f32(b.x), sum), sum = fmaf(hi_f32(a.x), hi_f32(b.x), sum);
	sum = fmaf(lo_f32(a.y), lo_f32(b.y), sum), sum = fmaf(hi_f32(a.y), hi_f32(b.y), sum);
	sum = fmaf(lo_f32(a.z), lo_f32(b.z), sum), sum = fmaf(hi_f32(a.z), hi_f32(b.z), sum);
	sum = fmaf(lo_f32(a.w), lo_f32(b.w), sum), sum = fmaf(hi_f32(a.w), hi_f32(b.w), sum);
}

// out [M, rank + more] = x [M, 8 * units] times transposed w [rank + more, 8 * units]; then the first rank columns are low_out * silu(low_in
// * v), the others more_out * sigmoid(more_in * v). Grid: x rows of w.
template <int M>
KR_DEV void mix_low(bf16 *out, int out_stride, const bf16 *x, int x_stride, const bf16 *w, int w_stride, int units, int rank, float low_in, float low_out,
                    float more_in, float more_out) {
	__shared__ float parts[LOW_WARPS][M];
	const int row = blockIdx.x;
	const uint4 *weight = (const uint4 *)(w + (long long)row * w_stride);
	float sum[M];
#pragma unroll
	for (int m = 0; m < M; m++) sum[m] = 0.f;
	uint4 a[AHEAD];
	auto fetch = [&](int from) {
#pragma unroll
		for (int j = 0; j < AHEAD; j++)
			if (from + j * LOW_THREADS < units) a[j] = ld_stream(weight + from + j * LOW_THREADS);
	};
	fetch(threadIdx.x);
	pdl_launch();
	pdl_wait(); // no kernel writes the weights
	for (int from = threadIdx.x; from < units; from += AHEAD * LOW_THREADS) {
		if (from != threadIdx.x) fetch(from);
#pragma unroll
		for (int j = 0; j < AHEAD; j++) {
			if (from + j * LOW_THREADS >= units) break;
#pragma unroll
			for (int m = 0; m < M; m++) add_product(sum[m], a[j], *((const uint4 *)(x + (long long)m * x_stride) + from + j * LOW_THREADS));
		}
	}
#pragma unroll
	for (int m = 0; m < M; m++) {
		sum[m] = warp_sum(sum[m]);
		if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32][m] = sum[m];
	}
	__syncthreads();
	if (threadIdx.x >= M) return;
	float v = 0.f;
	for (int i = 0; i < LOW_WARPS; i++) v += parts[i][threadIdx.x];
	if (row < rank) v *= low_in, v *= low_out * sigmoid(v);
	else v = more_out * sigmoid(more_in * v);
	store(out + (long long)threadIdx.x * out_stride + row, v);
}

#define MIX_LOW(M)                                                                                                                              \
	KR_KERNEL(LOW_THREADS, 2)                                                                                                                    \
	kr_mix_low_##M(bf16 *out, int out_stride, const bf16 *x, int x_stride, const bf16 *w, int w_stride, int units, int rank, float low_in,         \
	               float low_out, float more_in, float more_out) {                                                                                \
		mix_low<M>(out, out_stride, x, x_stride, w, w_stride, units, rank, low_in, low_out, more_in, more_out);                                    \
	}                                                                                                                                           \
	KR_EXPORT(kr_mix_low_##M)
MIX_LOW(1)
MIX_LOW(2)
MIX_LOW(4)

enum { IN_THREADS = 256, IN_WARPS = IN_THREADS / 32, STREAMS = 4 };

// out [M, cols]: the sum over the streams s of by * sigmoid(in * v) * x [M, streams * cols], v = low [M, 8 * units] times transposed
// w [streams * cols, 8 * units]. A warp has a column of out. Grid: x columns by IN_WARPS.
template <int M>
KR_DEV void mix_in(bf16 *out, int out_stride, const bf16 *x, int x_stride, const bf16 *low, int low_stride, const bf16 *w, int w_stride, int units,
                   int streams, int cols, float in, float by) {
	int lane = threadIdx.x % 32, column = blockIdx.x * IN_WARPS + threadIdx.x / 32;
	if (column >= cols) return;
	float out_sum = 0.f; // of row lane / STREAMS, in its first lane
	bool waits = true;
	for (int first = 0; first < streams; first += STREAMS) {
		float sum[M][STREAMS];
#pragma unroll
		for (int m = 0; m < M; m++)
#pragma unroll
			for (int s = 0; s < STREAMS; s++) sum[m][s] = 0.f;
		for (int i = lane; i - lane < units; i += 64) {
			uint4 a[STREAMS][2];
#pragma unroll
			for (int s = 0; s < STREAMS; s++)
#pragma unroll
				for (int j = 0; j < 2; j++)
					if (first + s < streams && i + 32 * j < units) a[s][j] = ld_stream((const uint4 *)(w + ((long long)(first + s) * cols + column) * w_stride) + i + 32 * j);
			if (waits) { // no kernel writes the weights
				pdl_launch();
				pdl_wait();
				waits = false;
			}
#pragma unroll
			for (int j = 0; j < 2; j++) {
				if (i + 32 * j >= units) break;
#pragma unroll
				for (int m = 0; m < M; m++) {
					uint4 b = *((const uint4 *)(low + (long long)m * low_stride) + i + 32 * j);
#pragma unroll
					for (int s = 0; s < STREAMS; s++)
						if (first + s < streams) add_product(sum[m][s], a[s][j], b);
				}
			}
		}
		float mine = 0.f; // lane 4m + s: of row m and stream s
#pragma unroll
		for (int m = 0; m < M; m++)
#pragma unroll
			for (int s = 0; s < STREAMS; s++) {
				float v = warp_sum(sum[m][s]);
				if (lane == m * STREAMS + s) mine = v;
			}
		int m = lane / STREAMS, s = first + lane % STREAMS;
		mine = m < M && s < streams ? by * sigmoid(in * mine) * load(x + (long long)m * x_stride + (long long)s * cols + column) : 0.f;
		mine += __shfl_xor_sync(0xffffffffu, mine, 1);
		out_sum += mine + __shfl_xor_sync(0xffffffffu, mine, 2);
	}
	if (lane % STREAMS == 0 && lane / STREAMS < M) store(out + (long long)(lane / STREAMS) * out_stride + column, out_sum);
}

#define MIX_IN(M)                                                                                                                               \
	KR_KERNEL(IN_THREADS, 2)                                                                                                                     \
	kr_mix_in_##M(bf16 *out, int out_stride, const bf16 *x, int x_stride, const bf16 *low, int low_stride, const bf16 *w, int w_stride, int units, \
	              int streams, int cols, float in, float by) {                                                                                    \
		mix_in<M>(out, out_stride, x, x_stride, low, low_stride, w, w_stride, units, streams, cols, in, by);                                        \
	}                                                                                                                                           \
	KR_EXPORT(kr_mix_in_##M)
MIX_IN(1)
MIX_IN(2)
MIX_IN(4)
