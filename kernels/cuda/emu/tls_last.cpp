// See tls_first.cpp.
__attribute__((visibility("hidden"))) thread_local char kr_emu_tls_last[64];
