// Copies blocks of the KV cache to the host's memory and back.
#include "spans.cuh"

// A matrix of blocks of the cache, and the host's memory for blocks, as device addresses.
struct BlockPart {
	unsigned long long cache, host, bytes; // bytes: the size of a block
};

template <typename T> KR_DEV void copy_block(char *dst, const char *src, int bytes) {
	const int unroll = 4; // reads in flight: host memory is slow to answer
	int n = bytes / (int)sizeof(T), step = blockDim.x;
	for (int i = threadIdx.x; i < n; i += unroll * step) {
		T v[unroll];
		for (int j = 0; j < unroll; j++)
			if (i + j * step < n) v[j] = ((const T *)src)[i + j * step];
		for (int j = 0; j < unroll; j++)
			if (i + j * step < n) ((T *)dst)[i + j * step] = v[j];
	}
}

// Copies block list[move][0] of one side to block list[move][1] of the other, for every part.
// table has the parts, then the list. Grid: x moves, y parts.
KR_KERNEL(256, 1)
kr_move_blocks(const void *table, int save) {
	pdl_launch();
	pdl_wait();
	const BlockPart p = ((const BlockPart *)table)[blockIdx.y];
	const int *list = (const int *)((const BlockPart *)table + gridDim.y) + 2 * blockIdx.x;
	char *cache = (char *)p.cache + (save ? list[0] : list[1]) * p.bytes;
	char *host = (char *)p.host + (save ? list[1] : list[0]) * p.bytes;
	char *dst = save ? host : cache, *src = save ? cache : host;
	unsigned long long all = (unsigned long long)dst | (unsigned long long)src | p.bytes;
	if (all % 16 == 0) copy_block<uint4>(dst, src, (int)p.bytes);
	else if (all % 4 == 0) copy_block<unsigned>(dst, src, (int)p.bytes);
	else copy_block<unsigned char>(dst, src, (int)p.bytes);
}
KR_EXPORT(kr_move_blocks)

// Copies the blocks of prompt i from far, in the host's memory, to near, one behind the other, and makes at `to` a table of
// that prompt alone whose blocks are these. Grid: x blocks of the prompt.
KR_KERNEL(256, 1)
kr_stage_blocks(int *to, const int *table, int i, char *near, const char *far, int bytes) {
	pdl_launch();
	pdl_wait();
	const Span s = span_at(table, i);
	const int own = SPAN_HEAD + SPAN_RECORD, b = blockIdx.x;
	if (threadIdx.x == 0) {
		to[own + 1 + b] = b;
		if (b == 0) {
			for (int j = 0; j < SPAN_HEAD; j++) to[j] = 0;
			to[HEAD_PREFILL] = 1, to[HEAD_TILES] = s.count, to[HEAD_KEYS] = (s.pos + s.len + KEY_ALIGN - 1) / KEY_ALIGN * KEY_ALIGN;
			int *r = to + SPAN_HEAD;
			r[0] = s.row, r[1] = s.len, r[2] = s.pos, r[3] = own + 1, r[4] = s.blocks, r[5] = 0, r[6] = 0, r[7] = s.count;
			to[own] = table[s.first - 1];
		}
	}
	const char *src = far + (long long)table[s.first + b] * bytes;
	char *dst = near + (long long)b * bytes;
	unsigned long long all = (unsigned long long)dst | (unsigned long long)src | (unsigned long long)bytes;
	if (all % 16 == 0) copy_block<uint4>(dst, src, bytes);
	else if (all % 4 == 0) copy_block<unsigned>(dst, src, bytes);
	else copy_block<unsigned char>(dst, src, bytes);
}
KR_EXPORT(kr_stage_blocks)

// Copies the rows that a table of generated rows with blocks of one token names from far, in the host's memory, to near, where row j
// of record i is row i * width + j, and unless `keep` makes the table name these. Of a row of `stride` bytes it copies
// `bytes` from each of two places; two < 0: from one. Grid (rows of the table / 8, records), a warp a row.
KR_KERNEL(256, 1)
kr_near_rows(int *table, char *near, const char *far, int width, int stride, int bytes, int one, int two, int keep) {
	pdl_launch();
	pdl_wait();
	int lane = threadIdx.x % 32, i = blockIdx.y, j = blockIdx.x * 8 + threadIdx.x / 32;
	if (i >= table[HEAD_DECODE]) return;
	const Span s = span_at(table, i);
	if (j >= s.blocks) return;
	const char *src = far + (long long)table[s.first + j] * stride;
	char *dst = near + ((long long)i * width + j) * stride;
	__syncwarp();
	if (lane == 0 && !keep) table[s.first + j] = i * width + j;
	for (int at = one, n = 0; n < 2 && at >= 0; at = two, n++) {
		unsigned long long all = (unsigned long long)(dst + at) | (unsigned long long)(src + at) | (unsigned long long)bytes;
		if (all % 16 == 0)
			for (int k = lane; k < bytes / 16; k += 32) ((uint4 *)(dst + at))[k] = ((const uint4 *)(src + at))[k];
		else
			for (int k = lane; k < bytes; k += 32) dst[at + k] = src[at + k];
	}
}
KR_EXPORT(kr_near_rows)
