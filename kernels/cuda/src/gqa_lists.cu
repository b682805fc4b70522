// Grouped-query attention over lists of positions: gqa_decode.cu with a table of spans for each list (listspans.cu). A key head reads the table
// of its list. With `out` every row is one item, and the kernel writes the row itself; otherwise sums go to part and marks, and are joined
// as those of other generated rows.
//
// The functions of gqa_decode.cu are used here. Its kernels are compiled with that file alone: here they are templates that nobody instantiates.
#include "kr.cuh"
#pragma push_macro("KR_KERNEL")
#pragma push_macro("KR_EXPORT")
#undef KR_KERNEL
#undef KR_EXPORT
#define KR_KERNEL(threads, blocks) template <int UNUSED> KR_DEV void
#define KR_EXPORT(name)
#include "gqa_decode.cu"
#pragma pop_macro("KR_EXPORT")
#pragma pop_macro("KR_KERNEL")

// Grid (parts of the groups of query heads, shares of the items). step: the words between two tables.
#define LISTS(name, kind, d, n, blocks)                                                                                              \
	KR_KERNEL(THREADS, blocks)                                                                                                       \
	name(float *part, float *marks, int items, int groups, const bf16 *q, int q_stride, const char *cache, const float *scales,      \
	     int stride, int scales_stride, const int *table, int heads, int key_heads, float scale, int lists, int step, void *out,     \
	     int wide, int out_stride) {                                                                                                  \
		KR_SHARED(unsigned char, shared);                                                                                              \
		int parts = (heads / key_heads + 8 * n - 1) / (8 * n), list = (int)blockIdx.x / parts * lists / key_heads;                     \
		Cache c = {cache, scales, kind, stride, scales_stride, d};                                                                    \
		Job j = {table + (long long)list * step, 1, 0, 0, key_heads, items, 0};                                                        \
		attend<kind, d, n, true>(shared, part, marks, groups != 0, q, q_stride, c, j, heads, scale, Result{out, wide, out_stride, 0}); \
	}                                                                                                                                \
	KR_EXPORT(name)
LISTS(kr_gqa_lists8_bf16_128, BF16_ROWS, 128, 1, 3)
LISTS(kr_gqa_lists8_bf16_256, BF16_ROWS, 256, 1, 2)
LISTS(kr_gqa_lists8_e4m3_128, E4M3_ROWS, 128, 1, LATE_JOINS ? 4 : 3)
LISTS(kr_gqa_lists8_e4m3_256, E4M3_ROWS, 256, 1, 2)
LISTS(kr_gqa_lists8_i8_128, I8_ROWS, 128, 1, 3)
LISTS(kr_gqa_lists8_i8_256, I8_ROWS, 256, 1, 2)
LISTS(kr_gqa_lists16_bf16_128, BF16_ROWS, 128, 2, 2)
LISTS(kr_gqa_lists16_bf16_256, BF16_ROWS, 256, 2, 2)
LISTS(kr_gqa_lists16_e4m3_128, E4M3_ROWS, 128, 2, 2)
LISTS(kr_gqa_lists16_e4m3_256, E4M3_ROWS, 256, 2, 2)
LISTS(kr_gqa_lists16_i8_128, I8_ROWS, 128, 2, 2)
LISTS(kr_gqa_lists16_i8_256, I8_ROWS, 256, 2, 2)
