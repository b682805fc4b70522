// Linked before the kernels, tls_last.cpp behind them: between the two lie the kernels'
// __shared__ variables of an OS thread.
__attribute__((visibility("hidden"))) thread_local char kr_emu_tls_first[64];
