// Index keys of 128 values as operands of products.
#pragma once
#include "mla.cuh"
#include "rows.cuh"

enum { INDEX_DIM = 128, STEPS = INDEX_DIM / 16 };

// The first of two columns that lane 4g+c has in half r of product `step`. A lane reads 16 bytes of a key at a
// time, which serve two products (bf16) or four (e4m3).
template <int KIND> KR_DEV int index_column(int step, int c, int r) {
	return KIND == E4M3_ROWS ? 16 * (c + step / 4 * 4) + step % 4 * 4 + 2 * r : 8 * (c + step / 2 * 4) + step % 2 * 4 + 2 * r;
}

// This lane's part of a key, as right operands of all products.
template <int KIND> KR_DEV void fetch_key(uint32_t (&key)[2 * STEPS], const char *from, int c) {
	const int units = KIND == E4M3_ROWS ? 2 : 4;
	uint4 v[units];
#pragma unroll
	for (int j = 0; j < units; j++) v[j] = *(const uint4 *)(from + 16 * (c + 4 * j));
#pragma unroll
	for (int j = 0; j < units; j++) {
		uint32_t in[4] = {v[j].x, v[j].y, v[j].z, v[j].w};
#pragma unroll
		for (int i = 0; i < 4; i++) {
			if (KIND == E4M3_ROWS) widen_e4m3(in[i], key[8 * j + 2 * i], key[8 * j + 2 * i + 1]);
			else key[4 * j + i] = in[i];
		}
	}
}
