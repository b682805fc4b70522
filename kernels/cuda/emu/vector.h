// CUDA's vector types and their make_ functions, with CUDA's alignment.
#pragma once

#define KR_VEC(t, name, a2, a4)                                                                       \
	struct name##1 { t x; };                                                                           \
	struct alignas(a2) name##2 { t x, y; };                                                            \
	struct name##3 { t x, y, z; };                                                                     \
	struct alignas(a4) name##4 { t x, y, z, w; };                                                      \
	static inline name##1 make_##name##1(t x) { return {x}; }                                          \
	static inline name##2 make_##name##2(t x, t y) { return {x, y}; }                                  \
	static inline name##3 make_##name##3(t x, t y, t z) { return {x, y, z}; }                          \
	static inline name##4 make_##name##4(t x, t y, t z, t w) { return {x, y, z, w}; }

KR_VEC(signed char, char, 2, 4)
KR_VEC(unsigned char, uchar, 2, 4)
KR_VEC(short, short, 4, 8)
KR_VEC(unsigned short, ushort, 4, 8)
KR_VEC(int, int, 8, 16)
KR_VEC(unsigned, uint, 8, 16)
KR_VEC(float, float, 8, 16)
KR_VEC(long long, longlong, 16, 16)
KR_VEC(unsigned long long, ulonglong, 16, 16)
KR_VEC(double, double, 16, 16)
#undef KR_VEC

struct dim3 {
	unsigned x, y, z;
	constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
