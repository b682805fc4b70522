// The few functions of cuBLASLt that one matrix product needs, declared here as its manual
// gives them, and found with dlsym. Results are cublasStatus_t values, 0 for success.
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef struct kr_lt kr_lt;           // an open library and its handle
typedef struct kr_lt_plan kr_lt_plan; // descriptors and the chosen algorithm of a shape

// Opens the library of a name. *missing: 1 there is none, 2 it lacks a function (*detail
// says which or why), 0 it is there and the result is cublasLtCreate's.
int kr_lt_open(const char *name, kr_lt **lt, int *missing, const char **detail);
void kr_lt_close(kr_lt *lt);
size_t kr_lt_version(const kr_lt *lt);

// A plan for out [m, n] = x [m, k] * transposed w [n, k], row-major with the given strides
// (elements), x and w bfloat16, out float32 or bfloat16. *algorithms: how many the
// heuristic offered; the first is taken.
int kr_lt_plan_make(kr_lt *lt, int64_t m, int64_t n, int64_t k, int64_t out_stride, int64_t x_stride, int64_t w_stride, int out_f32,
                    uint64_t workspace, kr_lt_plan **plan, int *algorithms);
void kr_lt_plan_free(kr_lt *lt, kr_lt_plan *plan);

// Queues the product. add: out += it.
int kr_lt_run(kr_lt *lt, const kr_lt_plan *plan, void *out, const void *x, const void *w, int add, void *workspace, uint64_t bytes,
              void *stream);
