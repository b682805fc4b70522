// Attention over the newest tokens and compressed entries on tensor cores: heads of 512, bf16 queries and rows of bf16. A block has 64 heads of a row
// of the batch and goes through tiles of 32 of what the row sees, which is key and value for all heads. A generated row is shared by several
// blocks, each with a slice of 128, whose sums kr_compressed_join adds in order. A row of a prompt has one block.
#include "rows.cuh"

enum {
	DIM = 512, HEADS = 64, KEYS = 32, THREADS = 256, SLICE = 128, STEPS = DIM / 16, HALF = DIM / 2, TILES = HALF / 8,
	ROW_BYTES = 2 * DIM, UNITS = ROW_BYTES / 16, PITCH = KEYS + 4, JOIN_THREADS = DIM / 4
};

#define LOG2E 1.44269504f

// A row of the batch and what it sees: tokens, then entries.
struct Seen {
	const char *near, *entries;
	int near_stride, stride; // bytes
	const int *near_table, *table, *chosen; // chosen: of the row; 0: all
	Span n, s;
	int first, tokens, all, complete, ratio, block_tokens;

	__device__ __forceinline__ bool find(int &row, int decode, int i) {
		int same;
		return locate(n, row, near_table, decode, i) && locate(s, same, table, decode, i);
	}
	__device__ __forceinline__ void count(int row, int window, int most) {
		int pos = n.pos + row - n.row;
		first = max(0, pos - window + 1), tokens = pos + 1 - first, complete = ratio ? (pos + 1) / ratio : 0;
		all = tokens + (chosen ? min(most, complete) : complete);
	}
	// The cache's row that is number i of them; 0: none.
	__device__ __forceinline__ const char *row_of(int i) const {
		if (i < tokens) return near + span_slot(near_table, n, first + i, block_tokens) * near_stride;
		int e = chosen ? chosen[i - tokens] : i - tokens;
		return e < 0 || e >= complete ? 0 : entries + entry_slot(table, s, e, ratio, block_tokens) * stride;
	}
};

// The address of 16 bytes of a row in shared memory: neighbouring rows have their units in another order.
KR_DEV uint32_t unit_at(uint32_t base, int row, int unit) { return base + row * ROW_BYTES + ((unit ^ (row & 7)) << 4); }

// Attention of the rows of prompts, or of generated rows (parts: their slices' sums [rows][splits][heads][DIM], and behind all of them tops and totals
// [rows][splits][heads][2]). q, out [rows, heads * DIM]. scale includes log2(e). Grid (splits, rows, heads / HEADS).
KR_KERNEL(THREADS, 1)
kr_compressed_mma(void *out, int out_wide, int out_stride, float *parts, const bf16 *q, int q_stride, const char *near, int near_stride, const char *entries, int stride,
                  const int *near_table, const int *table, int decode, int heads, int window, int ratio, float scale, int block_tokens, const int *chosen,
                  int chosen_stride, int most, const float *sinks) {
	__shared__ const char *rows[3][KEYS]; // of a tile, the one before it and the next
	pdl_launch();
	pdl_wait();
	KR_SHARED(unsigned char, shared);
	float *scores = (float *)(shared + (HEADS + 2 * KEYS) * ROW_BYTES); // [HEADS][PITCH]
	uint32_t queries = smem_u32(shared), keys = queries + HEADS * ROW_BYTES;
	int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, group = warp % 4, half = warp / 4, g = lane / 4, c = lane % 4, row;
	int head = blockIdx.z * HEADS, there = min((int)HEADS, heads - head);
	Seen x = {near, entries, 2 * near_stride, 2 * stride, near_table, table, 0};
	x.ratio = ratio, x.block_tokens = block_tokens;
	if (!x.find(row, decode, blockIdx.y)) return;
	if (chosen) x.chosen = chosen + (long long)row * chosen_stride;
	x.count(row, window, most);
	int from = decode ? blockIdx.x * SLICE : 0, end = decode ? min(x.all, from + SLICE) : x.all, tiles = (end - from + KEYS - 1) / KEYS;
	if (from >= end) return;
	const bf16 *mine = q + (long long)row * q_stride + head * DIM;
	for (int i = tid; i < HEADS * UNITS; i += THREADS) {
		int h = i / UNITS, u = i % UNITS;
		cp_async16(unit_at(queries, h, u), mine + min(h, there - 1) * DIM + 8 * u, h < there);
	}
	auto point = [&](int t) {
		if (tid < KEYS) rows[t % 3][tid] = from + t * KEYS + tid < end ? x.row_of(from + t * KEYS + tid) : 0;
	};
	auto fetch = [&](int t) {
		for (int i = tid; i < KEYS * UNITS; i += THREADS) {
			const char *at = rows[t % 3][i / UNITS];
			cp_async16(unit_at(keys + t % 2 * KEYS * ROW_BYTES, i / UNITS, i % UNITS), at ? at + 16 * (i % UNITS) : near, at != 0);
		}
		cp_async_commit();
	};
	point(0);
	__syncthreads();
	fetch(0);
	float acc[TILES][4] = {}, top[2] = {-INFINITY, -INFINITY}, total[2] = {};
#pragma unroll 1
	for (int t = 0; t < tiles; t++) {
		if (t + 1 < tiles) point(t + 1);
		cp_async_wait<0>();
		__syncthreads(); // tile t is here, and no warp still reads the one before it
		if (t + 1 < tiles) fetch(t + 1);
		uint32_t tile = keys + t % 2 * KEYS * ROW_BYTES;
		float s[2][4] = {};
#pragma unroll 4
		for (int k = 0; k < STEPS; k++) {
			uint32_t a[4], b[4];
			int m = lane / 8;
			ldmatrix_x4(a, unit_at(queries, group * 16 + m % 2 * 8 + lane % 8, 2 * k + m / 2));
			ldmatrix_x4(b, unit_at(tile, half * 16 + m / 2 * 8 + lane % 8, 2 * k + m % 2));
			mma_bf16(s[0], a, b[0], b[1]);
			mma_bf16(s[1], a, b[2], b[3]);
		}
#pragma unroll
		for (int n = 0; n < 2; n++) {
			float *to = scores + (group * 16 + g) * PITCH + half * 16 + n * 8 + 2 * c;
			*(float2 *)to = make_float2(s[n][0], s[n][1]);
			*(float2 *)(to + 8 * PITCH) = make_float2(s[n][2], s[n][3]);
		}
		__syncthreads();
		uint32_t p[2][4];
		float old[2];
#pragma unroll
		for (int r = 0; r < 2; r++) {
			float v[8], most = -INFINITY, sum = 0.f;
#pragma unroll
			for (int n = 0; n < 4; n++) {
				float2 w = *(const float2 *)(scores + (group * 16 + g + 8 * r) * PITCH + 8 * n + 2 * c);
				v[2 * n] = rows[t % 3][8 * n + 2 * c] ? w.x * scale : -INFINITY, v[2 * n + 1] = rows[t % 3][8 * n + 2 * c + 1] ? w.y * scale : -INFINITY;
				most = fmaxf(most, fmaxf(v[2 * n], v[2 * n + 1]));
			}
			for (int d = 1; d < 4; d *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, d));
			float next = fmaxf(top[r], most);
			old[r] = next == -INFINITY ? 1.f : exp2f(top[r] - next);
#pragma unroll
			for (int i = 0; i < 8; i++) {
				v[i] = v[i] == -INFINITY ? 0.f : exp2f(v[i] - next);
				sum += v[i];
			}
			for (int d = 1; d < 4; d *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
			total[r] = total[r] * old[r] + sum, top[r] = next;
#pragma unroll
			for (int n = 0; n < 4; n++) p[n / 2][n % 2 * 2 + r] = pack_bf16(v[2 * n], v[2 * n + 1]);
		}
#pragma unroll
		for (int n = 0; n < TILES; n++) acc[n][0] *= old[0], acc[n][1] *= old[0], acc[n][2] *= old[1], acc[n][3] *= old[1];
#pragma unroll
		for (int n = 0; n < TILES; n += 2) {
#pragma unroll
			for (int k = 0; k < 2; k++) {
				uint32_t b[4];
				int m = lane / 8;
				ldmatrix_x4_trans(b, unit_at(tile, k * 16 + m % 2 * 8 + lane % 8, half * (HALF / 8) + n + m / 2));
				mma_bf16(acc[n], p[k], b[0], b[1]);
				mma_bf16(acc[n + 1], p[k], b[2], b[3]);
			}
		}
	}
#pragma unroll
	for (int r = 0; r < 2; r++) {
		int h = group * 16 + g + 8 * r;
		if (h >= there) continue;
		if (decode) {
			long long part = ((long long)blockIdx.y * gridDim.x + blockIdx.x) * heads + head + h;
			float *to = parts + part * DIM + half * HALF + 2 * c;
#pragma unroll
			for (int n = 0; n < TILES; n++) *(float2 *)(to + 8 * n) = make_float2(acc[n][2 * r], acc[n][2 * r + 1]);
			float *ends = parts + (long long)gridDim.y * gridDim.x * heads * DIM + 2 * part;
			if (half == 0 && c == 0) ends[0] = top[r], ends[1] = total[r];
			continue;
		}
		float sink = sinks[head + h] * LOG2E, next = fmaxf(top[r], sink), by = exp2f(top[r] - next);
		by /= total[r] * by + exp2f(sink - next);
		long long to = (long long)row * out_stride + (head + h) * DIM + half * HALF + 2 * c;
#pragma unroll
		for (int n = 0; n < TILES; n++) {
			put(out, out_wide, to + 8 * n, acc[n][2 * r] * by);
			put(out, out_wide, to + 8 * n + 1, acc[n][2 * r + 1] * by);
		}
	}
}
KR_EXPORT(kr_compressed_mma)

// out [rows, heads * DIM] from the slices of generated rows. Grid (heads, rows).
KR_KERNEL(JOIN_THREADS, 1)
kr_compressed_join(void *out, int out_wide, int out_stride, const float *parts, int splits, const int *near_table, int window, int ratio, int chosen, int most,
                   const float *sinks) {
	pdl_launch();
	pdl_wait();
	int head = blockIdx.x, heads = gridDim.x, i = blockIdx.y, row;
	Seen x = {};
	if (!locate(x.n, row, near_table, 1, i)) return;
	x.ratio = ratio;
	x.count(row, window, most);
	if (chosen) x.all = x.tokens + min(most, x.complete);
	int slices = min(splits, (x.all + SLICE - 1) / SLICE);
	const float *ends = parts + (long long)gridDim.y * splits * heads * DIM;
	float top = sinks[head] * LOG2E;
	for (int s = 0; s < slices; s++) top = fmaxf(top, ends[2 * (((long long)i * splits + s) * heads + head)]);
	float total = exp2f(sinks[head] * LOG2E - top), sum[4] = {};
	for (int s = 0; s < slices; s++) {
		long long part = ((long long)i * splits + s) * heads + head;
		float by = exp2f(ends[2 * part] - top);
		float4 v = *(const float4 *)(parts + part * DIM + 4 * threadIdx.x);
		total = fmaf(ends[2 * part + 1], by, total);
		sum[0] = fmaf(v.x, by, sum[0]), sum[1] = fmaf(v.y, by, sum[1]), sum[2] = fmaf(v.z, by, sum[2]), sum[3] = fmaf(v.w, by, sum[3]);
	}
	long long to = (long long)row * out_stride + head * DIM + 4 * threadIdx.x;
	for (int j = 0; j < 4; j++) put(out, out_wide, to + j, sum[j] / total);
}
KR_EXPORT(kr_compressed_join)
