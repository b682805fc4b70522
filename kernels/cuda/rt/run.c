//go:build cuda

#include "run.h"

static CUresult run_kernel(const kr_run_op *o, const kr_run_arg *args, CUstream stream) {
	CUlaunchAttribute attr = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION};
	attr.value.programmaticStreamSerializationAllowed = 1;
	// A 4-byte argument is read from the low half of its 8 bytes.
	void *params[KR_MAX_ARGS];
	for (int i = 0; i < o->count; i++) params[i] = (void *)&args[o->first + i].bits;
	CUlaunchConfig c = {
		.gridDimX = o->grid[0], .gridDimY = o->grid[1], .gridDimZ = o->grid[2],
		.blockDimX = o->block[0], .blockDimY = o->block[1], .blockDimZ = o->block[2],
		.sharedMemBytes = o->smem, .hStream = stream, .attrs = &attr, .numAttrs = o->pdl ? 1 : 0,
	};
	return cuLaunchKernelEx(&c, o->fn, params, 0);
}

CUresult kr_run(const kr_run_op *ops, int64_t n, const kr_run_arg *args, CUstream stream, int64_t *done) {
	for (int64_t i = 0; i < n; i++) {
		const kr_run_op *o = ops + i;
		CUresult r;
		switch (o->kind) {
		case 0: r = run_kernel(o, args, stream); break;
		case 1: r = cuMemsetD8Async(o->dst, (unsigned char)o->value, o->bytes, stream); break;
		case 2: r = cuMemcpyDtoDAsync(o->dst, o->src, o->bytes, stream); break;
		default: r = CUDA_ERROR_INVALID_VALUE;
		}
		if (r != CUDA_SUCCESS) return r;
		++*done;
	}
	return CUDA_SUCCESS;
}
