// Small helpers that several sources of the library need.
#pragma once
#include <stdarg.h>
#include <stdint.h>
#include <time.h>

namespace kr_emu {

inline uint64_t random(uint64_t &s) { // splitmix64
	uint64_t z = s += 0x9e3779b97f4a7c15ull;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

inline int64_t clock64() { // nanoseconds
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

// Prints a message with kernel, block and thread and marks the launch as failed.
__attribute__((format(printf, 2, 3))) void report(int code, const char *format, ...);
void vreport(int code, const char *format, va_list v);

} // namespace kr_emu
