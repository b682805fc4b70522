// An index over blocks of tokens (kernels/device.BlockIndex).
#pragma once
#include "rows.cuh"

// The sizes of an index. An entry is a block whose score counts.
struct BlockIndex {
	int heads, dim, block, chosen, local, block_tokens;
	// How many entries the row at position pos may choose among, and how many it chooses. If there are no more, it chooses all positions.
	__device__ __forceinline__ int sees(int pos) const { return local > 0 ? pos / block + 1 - local : (pos + 1) / block; }
	__device__ __forceinline__ int top() const { return chosen - local; }
};

// The larger of two scores; if one is not a number, neither is the result.
KR_DEV float best_of(float a, float b) { return b > a || b != b ? b : a; }

// Rises with a block's score. What is not a number is the least there can be.
KR_DEV uint32_t block_rank(float v) { return score_rank(v == v ? v : -INFINITY); }
