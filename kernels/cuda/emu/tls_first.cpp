// Linked before the kernels, with tls_last.cpp after them: the kernels' __shared__ variables of an
// OS thread lie between the two.
__attribute__((visibility("hidden"))) thread_local char kr_emu_tls_first[64];
