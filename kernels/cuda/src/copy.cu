// Copies of rows with gaps between them.
#include "kr.cuh"

// A thread copies one unit, of 16 bytes if wide and else of one. Strides and `units` of a row are in units.
KR_KERNEL(256, 1)
kr_copy_rows(char *to, long long to_stride, const char *from, long long from_stride, int units, int rows, int wide) {
	pdl_launch();
	pdl_wait();
	long long i = (long long)blockIdx.x * 256 + threadIdx.x, row = i / units, unit = i % units;
	if (row >= rows) return;
	if (wide) ((uint4 *)to)[row * to_stride + unit] = ((const uint4 *)from)[row * from_stride + unit];
	else to[row * to_stride + unit] = from[row * from_stride + unit];
}
KR_EXPORT(kr_copy_rows)
