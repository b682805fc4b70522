//go:build cuda

#include "cublaslt.h"

#include <dlfcn.h>
#include <stdlib.h>

// Numbers of the manual.
enum {
	COMPUTE_32F = 68,
	R_32F = 0,
	R_16BF = 14,
	OP_T = 1,
	DESC_TRANSA = 3,
	PREF_MAX_WORKSPACE_BYTES = 1,
	ALLOC_FAILED = 3,
};

typedef struct {
	uint64_t data[8];
} algo_t;

typedef struct {
	algo_t algo;
	size_t workspace;
	int state;
	float waves;
	int reserved[4];
} heuristic_t;
_Static_assert(sizeof(heuristic_t) == 96, "cublasLtMatmulHeuristicResult_t");

typedef void *opaque;

struct kr_lt {
	void *library;
	opaque handle;
	int (*create)(opaque *);
	int (*destroy)(opaque);
	size_t (*version)(void);
	int (*desc_create)(opaque *, int compute, int scale);
	int (*desc_set)(opaque, int attribute, const void *, size_t);
	int (*desc_destroy)(opaque);
	int (*layout_create)(opaque *, int type, uint64_t rows, uint64_t cols, int64_t ld);
	int (*layout_destroy)(opaque);
	int (*pref_create)(opaque *);
	int (*pref_set)(opaque, int attribute, const void *, size_t);
	int (*pref_destroy)(opaque);
	int (*heuristic)(opaque, opaque desc, opaque a, opaque b, opaque c, opaque d, opaque pref, int wanted, heuristic_t *, int *got);
	int (*matmul)(opaque, opaque desc, const void *alpha, const void *a, opaque da, const void *b, opaque db, const void *beta,
	              const void *c, opaque dc, void *d, opaque dd, const algo_t *, void *workspace, size_t, void *stream);
};

struct kr_lt_plan {
	opaque desc, w, x, out;
	algo_t algo;
};

int kr_lt_open(const char *name, kr_lt **lt, int *missing, const char **detail) {
	*lt = NULL;
	*missing = 1;
	void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		*detail = dlerror();
		return 0;
	}
	kr_lt *l = calloc(1, sizeof *l);
	if (!l) {
		dlclose(library);
		*missing = 0;
		return ALLOC_FAILED;
	}
	l->library = library;
	const struct {
		const char *name;
		void **at;
	} functions[] = {
		{"cublasLtCreate", (void **)&l->create},
		{"cublasLtDestroy", (void **)&l->destroy},
		{"cublasLtGetVersion", (void **)&l->version},
		{"cublasLtMatmulDescCreate", (void **)&l->desc_create},
		{"cublasLtMatmulDescSetAttribute", (void **)&l->desc_set},
		{"cublasLtMatmulDescDestroy", (void **)&l->desc_destroy},
		{"cublasLtMatrixLayoutCreate", (void **)&l->layout_create},
		{"cublasLtMatrixLayoutDestroy", (void **)&l->layout_destroy},
		{"cublasLtMatmulPreferenceCreate", (void **)&l->pref_create},
		{"cublasLtMatmulPreferenceSetAttribute", (void **)&l->pref_set},
		{"cublasLtMatmulPreferenceDestroy", (void **)&l->pref_destroy},
		{"cublasLtMatmulAlgoGetHeuristic", (void **)&l->heuristic},
		{"cublasLtMatmul", (void **)&l->matmul},
	};
	*missing = 2;
	for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
		*functions[i].at = dlsym(library, functions[i].name);
		if (!*functions[i].at) {
			*detail = functions[i].name;
			dlclose(library);
			free(l);
			return 0;
		}
	}
	*missing = 0;
	int r = l->create(&l->handle);
	if (r) {
		dlclose(library);
		free(l);
		return r;
	}
	*lt = l;
	return 0;
}

void kr_lt_close(kr_lt *lt) {
	lt->destroy(lt->handle);
	dlclose(lt->library);
	free(lt);
}

size_t kr_lt_version(const kr_lt *lt) { return lt->version(); }

void kr_lt_plan_free(kr_lt *lt, kr_lt_plan *p) {
	if (p->out) lt->layout_destroy(p->out);
	if (p->x) lt->layout_destroy(p->x);
	if (p->w) lt->layout_destroy(p->w);
	if (p->desc) lt->desc_destroy(p->desc);
	free(p);
}

// The library thinks in columns: our rows of x [m, k] are its columns of a matrix [k, m],
// and out^T [n, m] = w [n, k] * x^T [k, m], where w in memory is [k, n], to be transposed.
int kr_lt_plan_make(kr_lt *lt, int64_t m, int64_t n, int64_t k, int64_t out_stride, int64_t x_stride, int64_t w_stride, int out_f32,
                    uint64_t workspace, kr_lt_plan **plan, int *algorithms) {
	*plan = NULL;
	*algorithms = 0;
	kr_lt_plan *p = calloc(1, sizeof *p);
	if (!p) return ALLOC_FAILED;
	opaque pref = NULL;
	const int32_t transposed = OP_T;
	heuristic_t best = {0};
	int r = lt->desc_create(&p->desc, COMPUTE_32F, R_32F);
	if (!r) r = lt->desc_set(p->desc, DESC_TRANSA, &transposed, sizeof transposed);
	if (!r) r = lt->layout_create(&p->w, R_16BF, k, n, w_stride);
	if (!r) r = lt->layout_create(&p->x, R_16BF, k, m, x_stride);
	if (!r) r = lt->layout_create(&p->out, out_f32 ? R_32F : R_16BF, n, m, out_stride);
	if (!r) r = lt->pref_create(&pref);
	if (!r) r = lt->pref_set(pref, PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
	if (!r) r = lt->heuristic(lt->handle, p->desc, p->w, p->x, p->out, p->out, pref, 1, &best, algorithms);
	if (!r) r = *algorithms > 0 ? best.state : 0;
	if (pref) lt->pref_destroy(pref);
	p->algo = best.algo;
	if (r || *algorithms < 1) {
		kr_lt_plan_free(lt, p);
		return r;
	}
	*plan = p;
	return 0;
}

int kr_lt_run(kr_lt *lt, const kr_lt_plan *p, void *out, const void *x, const void *w, int add, void *workspace, uint64_t bytes,
              void *stream) {
	const float alpha = 1, beta = add ? 1 : 0;
	return lt->matmul(lt->handle, p->desc, &alpha, w, p->w, x, p->x, &beta, out, p->out, out, p->out, &p->algo, workspace, bytes, stream);
}
