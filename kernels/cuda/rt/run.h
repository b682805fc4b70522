// Carries out a list of launches in one call from Go. Results are CUresult values.
#pragma once
#include <cuda.h>
#include <stdint.h>

// One op, without pointers into Go memory: arguments are kr_arg first .. first+count.
typedef struct {
	int32_t kind; // 0 kernel, 1 fill, 2 copy
	int32_t pdl;
	CUfunction fn;
	uint32_t grid[3], block[3];
	uint32_t smem;
	int32_t first, count;
	int32_t value; // of a fill
	uint64_t dst, src, bytes;
} kr_run_op;

// launch.Arg as Go lays it out: the value, little endian, and its size.
typedef struct {
	uint64_t bits;
	uint8_t size;
} kr_run_arg;

enum { KR_MAX_ARGS = 64 };

// Queues ops[0..n) in order; *done counts those that were accepted.
CUresult kr_run(const kr_run_op *ops, int64_t n, const kr_run_arg *args, CUstream stream, int64_t *done);
