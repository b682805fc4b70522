// Four residual streams that are mixed (sinkhorn.cuh) become the input of a block in two launches:
//
//   products: the streams grow by the output of the block before, and are multiplied with the trained matrix, in slices of the columns
//   input:    the weights, the weighted sum of the streams, and its norm
//
// A row's bits depend on the row and the sizes alone.
#include "sinkhorn.cuh"

enum { STREAMS = 4, SLICE = 64, VALUES = STREAMS * SLICE, ROWS = 32, THREADS = 256, WARPS = THREADS / 32, EACH = 3, MOST = EACH * WARPS, COLS_MOST = 8192 };

// part [slices, rows, outs + 1]: of a slice of each stream the products with w [outs, STREAMS * cols] and the sum of squares. x [rows, STREAMS * cols] are the
// streams. With y [rows, cols] stream k becomes before the sum of the streams j by the numbers STREAMS + STREAMS * j + k of by, plus y times number k. Grid: x
// slices, y rows by ROWS.
KR_KERNEL(THREADS, 2)
kr_mix_products(float *part, float *x, int x_stride, const void *y, int y_half, int y_stride, const float *by, int by_stride, const float *w, int w_stride, int rows,
                int cols, int outs) {
	__shared__ __align__(16) float values[ROWS][VALUES];
	int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, first = blockIdx.y * ROWS, n = min((int)ROWS, rows - first), at = blockIdx.x * SLICE;
	float4 weight[EACH][2];
#pragma unroll
	for (int i = 0; i < EACH; i++)
#pragma unroll
		for (int h = 0; h < 2; h++) {
			int e = 4 * lane + 128 * h, out = min(warp * EACH + i, outs - 1); // weights are no kernel's results
			weight[i][h] = *(const float4 *)(w + (long long)out * w_stride + (long long)(e / SLICE) * cols + at + e % SLICE);
		}
	pdl_launch();
	pdl_wait();
	const int quads = SLICE / 4;
	for (int r = tid / quads; r < n; r += THREADS / quads) {
		int c = tid % quads * 4;
		float *row = x + (long long)(first + r) * x_stride + at + c;
		float4 old[STREAMS];
#pragma unroll
		for (int j = 0; j < STREAMS; j++) old[j] = *(const float4 *)(row + (long long)j * cols);
		if (y) {
			float v[4], grown[STREAMS][4];
			long long place = (long long)(first + r) * y_stride + at + c;
			for (int i = 0; i < 4; i++) v[i] = y_half ? load((const bf16 *)y + place + i) : load((const float *)y + place + i);
			const float *mix = by + (long long)(first + r) * by_stride;
#pragma unroll
			for (int k = 0; k < STREAMS; k++) {
				float w = mix[k];
				for (int i = 0; i < 4; i++) grown[k][i] = w * v[i];
#pragma unroll
				for (int j = 0; j < STREAMS; j++) {
					w = mix[STREAMS + STREAMS * j + k];
					grown[k][0] = fmaf(w, old[j].x, grown[k][0]), grown[k][1] = fmaf(w, old[j].y, grown[k][1]);
					grown[k][2] = fmaf(w, old[j].z, grown[k][2]), grown[k][3] = fmaf(w, old[j].w, grown[k][3]);
				}
			}
#pragma unroll
			for (int k = 0; k < STREAMS; k++) {
				old[k] = make_float4(grown[k][0], grown[k][1], grown[k][2], grown[k][3]);
				*(float4 *)(row + (long long)k * cols) = old[k];
			}
		}
#pragma unroll
		for (int j = 0; j < STREAMS; j++) *(float4 *)(values[r] + SLICE * j + c) = old[j];
	}
	__syncthreads();
	part += ((long long)blockIdx.x * rows + first) * (outs + 1);
	int mine = lane / 8, out = mine < EACH ? warp * EACH + mine : outs; // the sum that this lane ends with
	bool writes = lane % 8 == 0 && (mine < EACH ? out < outs : warp == 0);
#pragma unroll 2
	for (int r = 0; r < n; r++) {
		float4 v[2] = {*(const float4 *)(values[r] + 4 * lane), *(const float4 *)(values[r] + 128 + 4 * lane)};
		float sum[EACH + 1] = {};
#pragma unroll
		for (int h = 0; h < 2; h++) {
#pragma unroll
			for (int i = 0; i < EACH; i++) {
				sum[i] = fmaf(v[h].x, weight[i][h].x, sum[i]), sum[i] = fmaf(v[h].y, weight[i][h].y, sum[i]);
				sum[i] = fmaf(v[h].z, weight[i][h].z, sum[i]), sum[i] = fmaf(v[h].w, weight[i][h].w, sum[i]);
			}
			sum[EACH] = fmaf(v[h].x, v[h].x, sum[EACH]), sum[EACH] = fmaf(v[h].y, v[h].y, sum[EACH]);
			sum[EACH] = fmaf(v[h].z, v[h].z, sum[EACH]), sum[EACH] = fmaf(v[h].w, v[h].w, sum[EACH]);
		}
		// Lanes share the four sums over the warp: each keeps half of its values twice.
		bool upper = lane & 16, odd = lane & 8;
		float a = (upper ? sum[2] : sum[0]) + __shfl_xor_sync(0xffffffffu, upper ? sum[0] : sum[2], 16);
		float b = (upper ? sum[3] : sum[1]) + __shfl_xor_sync(0xffffffffu, upper ? sum[1] : sum[3], 16);
		float all = (odd ? b : a) + __shfl_xor_sync(0xffffffffu, odd ? a : b, 8);
#pragma unroll
		for (int d = 4; d > 0; d /= 2) all += __shfl_xor_sync(0xffffffffu, all, d);
		if (writes) part[(long long)r * (outs + 1) + out] = all;
	}
}
KR_EXPORT(kr_mix_products)

// weights [rows, outs] and out [rows, cols] = RMSNorm of the weighted sum of the streams, by w. Grid: rows.
KR_KERNEL(THREADS, 1)
kr_mix_input(void *out, int half, int out_stride, float *weights, int weights_stride, const float *part, int slices, const float *x, int x_stride, const float *base,
             const float *scale, const void *w, int w_half, int rows, int cols, int outs, int iterations, float eps, float mix_eps, float norm_eps) {
	__shared__ float sums[WARPS][MOST + 1], products[MOST + 1], parts[32];
	pdl_launch();
	pdl_wait();
	int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, row = blockIdx.x;
	if (lane <= outs) {
		float sum = 0.f;
#pragma unroll 8
		for (int s = warp; s < slices; s += WARPS) sum += part[((long long)s * rows + row) * (outs + 1) + lane];
		sums[warp][lane] = sum;
	}
	__syncthreads();
	if (warp == 0) {
		if (lane <= outs) {
			float sum = 0.f;
#pragma unroll
			for (int i = 0; i < WARPS; i++) sum += sums[i][lane];
			products[lane] = sum;
		}
		__syncwarp();
		Mix m = {products, STREAMS, outs, iterations, mix_eps, base, scale, rms_scale(products[outs], STREAMS * cols, norm_eps)};
		if (lane == 0 && outs > STREAMS) mix_few<STREAMS>(m);
		float v = 0.f;
		if (lane < min(outs, 2 * STREAMS)) v = sigmoid(m.z(lane));
		__syncwarp();
		if (lane < STREAMS) products[lane] = v + mix_eps;
		else if (lane < min(outs, 2 * STREAMS)) products[lane] = 2.f * v;
		__syncwarp();
		if (lane < outs) weights[(long long)row * weights_stride + lane] = products[lane];
	}
	__syncthreads();
	const float *from = x + (long long)row * x_stride;
	float4 sum[COLS_MOST / 4 / THREADS];
	float squares = 0.f;
#pragma unroll
	for (int i = 0; i < COLS_MOST / 4 / THREADS; i++) {
		int c = 4 * (i * THREADS + tid);
		sum[i] = make_float4(0.f, 0.f, 0.f, 0.f);
		if (c >= cols) continue;
#pragma unroll
		for (int j = 0; j < STREAMS; j++) {
			float4 v = *(const float4 *)(from + (long long)j * cols + c);
			float by = products[j];
			sum[i].x = fmaf(by, v.x, sum[i].x), sum[i].y = fmaf(by, v.y, sum[i].y), sum[i].z = fmaf(by, v.z, sum[i].z), sum[i].w = fmaf(by, v.w, sum[i].w);
		}
		squares = fmaf(sum[i].x, sum[i].x, squares), squares = fmaf(sum[i].y, sum[i].y, squares);
		squares = fmaf(sum[i].z, sum[i].z, squares), squares = fmaf(sum[i].w, sum[i].w, squares);
	}
	float by = rms_scale(block_sum(squares, THREADS, parts), cols, eps);
	char *to = row_of(out, row, out_stride, half);
#pragma unroll
	for (int i = 0; i < COLS_MOST / 4 / THREADS; i++) {
		int c = 4 * (i * THREADS + tid);
		if (c >= cols) continue;
		float v[4] = {sum[i].x, sum[i].y, sum[i].z, sum[i].w};
		for (int j = 0; j < 4; j++) v[j] *= by * (w_half ? load((const bf16 *)w + c + j) : load((const float *)w + c + j));
		if (half) store2((bf16 *)to + c, v[0], v[1]), store2((bf16 *)to + c + 2, v[2], v[3]);
		else *(float4 *)((float *)to + c) = make_float4(v[0], v[1], v[2], v[3]);
	}
}
KR_EXPORT(kr_mix_input)
