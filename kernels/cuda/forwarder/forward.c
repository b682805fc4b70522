// A stand-in for libcuda that loads the real one at start-up, if there is one.
//
// Each driver function is a jump through kr_cu_table (made from names.txt by
// kernels/cuda/cuda.mk). The constructor below fills the table by dlopen and dlsym, so a
// binary has no load-time need of libcuda.so.1 and starts on any machine. A name the
// installed driver does not have answers CUDA_ERROR_NOT_INITIALIZED.
#include <dlfcn.h>
#include <string.h>

static const char *const names[] = {
#include "names.inc"
};
enum { N = sizeof names / sizeof *names };

extern int kr_cu_missing(void); // returns 3, CUDA_ERROR_NOT_INITIALIZED
void *kr_cu_table[N];
int kr_cu_loaded;     // 1: libcuda.so.1 was found
int kr_cu_status = 3; // what the real cuInit answered

static int (*real_init)(unsigned);

// gorgonia.org/cu ends the process when cuInit fails: keep the answer aside and say yes.
static int init_kept_aside(unsigned flags) {
	kr_cu_status = real_init ? real_init(flags) : 3;
	return 0;
}

__attribute__((constructor)) static void fill(void) {
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	kr_cu_loaded = lib != 0;
	for (int i = 0; i < N; i++) {
		void *f = lib ? dlsym(lib, names[i]) : 0;
		if (!strcmp(names[i], "cuInit")) {
			real_init = (int (*)(unsigned))f;
			f = (void *)init_kept_aside;
		}
		kr_cu_table[i] = f ? f : (void *)kr_cu_missing;
	}
}
