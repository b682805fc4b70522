// What gorgonia.org/cu lacks, and what must be one call for speed. Results are CUresult
// values.
#pragma once
#include <cuda.h>

// One prepared kernel launch. params and what it points to are C memory of the list that
// holds the op.
typedef struct {
	CUfunction fn;
	unsigned grid[3], block[3];
	unsigned smem; // dynamic shared memory, bytes
	unsigned pdl;  // 1: may start before the previous kernel has ended (LaunchConfig.PDL)
	void **params; // one pointer a kernel parameter
} kr_op;

// Launches ops[0..n) in order; *done counts those that were accepted.
CUresult kr_launch_list(const kr_op *ops, size_t n, CUstream stream, size_t *done);

// 0: a driver is loaded and cuInit succeeded. 1: no libcuda.so.1. Else *result is
// cuInit's answer.
int kr_available(CUresult *result);

// Does nothing: measures what a call from Go costs.
void kr_nothing(void);
