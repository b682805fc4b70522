// A layer's cache of keys and values: one row per slot, of float32, bf16, e4m3 or int8 with
// scales (kernels/device.KV).
#pragma once
#include "spans.cuh"

// How its elements are stored (kernels/cuda/mla, cacheKind).
enum Kind { F32_ROWS, BF16_ROWS, E4M3_ROWS, I8_ROWS };

struct Cache {
	const char *rows;
	const float *scales;       // for I8_ROWS: one float per group of columns
	int kind;
	int stride, scales_stride; // elements from row to row
	int group;
};

KR_DEV float cache_value(const Cache &c, long long slot, int col) {
	long long at = slot * c.stride + col;
	switch (c.kind) {
	case F32_ROWS: return ((const float *)c.rows)[at];
	case BF16_ROWS: return f32(((const bf16 *)c.rows)[at]);
	case E4M3_ROWS: return from_e4m3(((const e4m3 *)c.rows)[at]);
	}
	return (float)((const signed char *)c.rows)[at] * c.scales[slot * c.scales_stride + col / c.group];
}

// Element i of an array of float32 (wide) or bf16.
KR_DEV float get(const void *p, int wide, long long i) { return wide ? load((const float *)p + i) : load((const bf16 *)p + i); }
KR_DEV void put(void *p, int wide, long long i, float v) {
	if (wide) store((float *)p + i, v);
	else store((bf16 *)p + i, v);
}
