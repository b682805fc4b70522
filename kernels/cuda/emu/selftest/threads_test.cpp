// Threads, warps, barriers, asynchronous copies, fragments; and what must be refused.
#include <math.h>
#include <string.h>

#include "selftest.h"

static std::vector<int> numbers(int n) {
	std::vector<int> v;
	for (int i = 0; i < n; i++) v.push_back((i * 7919 + 13) % 1000);
	return v;
}

static void index() {
	Array<int> out(2 * 3 * 2 * 96);
	MUST(launch("t_index", {{2, 3, 2}, {8, 4, 3}, 0}, nullptr, out));
	std::vector<int> v = out.get();
	for (int i = 0; i < (int)v.size(); i++) CHECK(v[i] == i / 96 * 10000 + i % 96);
}

static void warp() {
	std::vector<int> in = numbers(256);
	Array<int> a(in), out(256 * 8);
	MUST(launch("t_warp", {{1, 1, 1}, {256, 1, 1}, 0}, nullptr, a, out));
	std::vector<int> v = out.get();
	for (int i = 0; i < 256; i++) {
		int l = i % 32, w = i - l, any = 0;
		unsigned ballot = 0;
		for (int j = 0; j < 32; j++) ballot |= (unsigned)(in[w + j] & 1) << j, any |= in[w + j] == 77;
		CHECK(v[8 * i] == in[w + (l ^ 5)]);
		CHECK(v[8 * i + 1] == in[l < 3 ? i : i - 3]);
		CHECK(v[8 * i + 2] == in[l % 8 < 6 ? i + 2 : i]);
		CHECK(v[8 * i + 3] == in[w + 7]);
		CHECK(v[8 * i + 4] == (int)ballot);
		CHECK(v[8 * i + 5] == in[w + (l ^ (l < 16 ? 1 : 2))]);
		CHECK(v[8 * i + 6] == any * 2 + 1);
		CHECK(v[8 * i + 7] == in[i ^ 1]);
	}
}

static void reduced() {
	std::vector<float> in;
	for (int i = 0; i < 256; i++) in.push_back((i < 32 ? 0.f : (float)((i * 7919 + 13) % 1000 - 300)) * (i % 3 ? 0.37f : -1e3f));
	in[40] = NAN, in[70] = INFINITY, in[100] = INFINITY, in[101] = -INFINITY;
	Array<float> a(in);
	Array<int> out(256 * 4);
	MUST(launch("t_reduced", {{1, 1, 1}, {256, 1, 1}, 0}, nullptr, a, out));
	std::vector<int> v = out.get();
	for (int i = 0; i < 256 * 4; i += 4) {
		CHECK(v[i] == v[i + 1]);
		CHECK(v[i + 2] == v[i + 3] || (v[i + 2] | v[i + 3]) == INT32_MIN); // fmaxf may choose either zero
	}
}

static void reduce() {
	std::vector<int> in;
	for (int x : numbers(64)) in.push_back((int)(x * 4000037ll - 2000000000));
	Array<int> a(in), out(64 * 8);
	MUST(launch("t_reduce", {{1, 1, 1}, {64, 1, 1}, 0}, nullptr, a, out));
	std::vector<int> v = out.get();
	for (int i = 0; i < 64; i++) {
		unsigned add = 0, most = 0, least = ~0u, either = 0, both = ~0u;
		int high = INT32_MIN, low = INT32_MAX;
		for (int j = i / 32 * 32; j < i / 32 * 32 + 32; j++) {
			if ((j % 32 % 3 != 0) != (i % 32 % 3 != 0)) continue;
			unsigned u = (unsigned)in[j];
			add += u, either |= u, both &= u;
			most = u > most ? u : most, least = u < least ? u : least;
			high = in[j] > high ? in[j] : high, low = in[j] < low ? in[j] : low;
		}
		int want[8] = {(int)add, high, low, (int)most, (int)least, (int)either, (int)both, (int)add};
		for (int k = 0; k < 8; k++) CHECK(v[8 * i + k] == want[k]);
	}
}

static void sum() {
	std::vector<int> in = numbers(100000);
	int want = 0;
	for (int x : in) want += x;
	Array<int> a(in), sums(37), total(1);
	Array<unsigned> count(std::vector<unsigned>(1, 0));
	MUST(launch("t_sum", {{37, 1, 1}, {256, 1, 1}, 1024}, nullptr, a, (int)in.size(), sums, count, total));
	CHECK(total.get()[0] == want);
}

static void votes() {
	Array<int> out(96);
	MUST(launch("t_votes", {{1, 1, 1}, {128, 1, 1}, 0}, nullptr, out));
	for (int x : out.get()) CHECK(x == 40 * 4 + 2 + 0);
}

static void named() {
	Array<int> out(5 * 64);
	MUST(launch("t_named", {{1, 1, 1}, {128, 1, 1}, 256}, nullptr, out, 5));
	std::vector<int> v = out.get();
	for (int i = 0; i < 320; i++) CHECK(v[i] == i / 64 * 100 + 63 - i % 64);
}

static void cp_async() {
	std::vector<int> in = numbers(9 * 64);
	Array<int> a(in), out(11 * 64);
	MUST(launch("t_cpasync", {{1, 1, 1}, {64, 1, 1}, 768}, nullptr, a, out, 11, 9));
	std::vector<int> v = out.get();
	for (int i = 0; i < 11 * 64; i++) CHECK(v[i] == (i < 9 * 64 ? in[i / 64 * 64 + 63 - i % 64] : 0));
}

static float f32(uint16_t b) {
	uint32_t u = (uint32_t)b << 16;
	float f;
	memcpy(&f, &u, 4);
	return f;
}
static std::vector<uint16_t> small(int n, int seed) { // integers in -8..7 as bf16: sums are exact
	std::vector<uint16_t> v;
	for (int i = 0; i < n; i++) {
		float f = (float)((i * 37 + seed * 11 + i / 7) % 16 - 8);
		uint32_t u;
		memcpy(&u, &f, 4);
		v.push_back((uint16_t)(u >> 16));
	}
	return v;
}

static void mma() {
	std::vector<uint16_t> ha = small(256, 1), hb = small(128, 2), ht = small(128, 3);
	Array<uint16_t> a(ha), b(hb), t(ht);
	Array<float> c(128), ct(128);
	MUST(launch("t_mma", {{1, 1, 1}, {32, 1, 1}, 1024}, nullptr, a, b, t, c, ct));
	std::vector<float> vc = c.get(), vt = ct.get();
	for (int m = 0; m < 16; m++)
		for (int n = 0; n < 8; n++) {
			float s = 0, u = 1;
			for (int k = 0; k < 16; k++) s += f32(ha[m * 16 + k]) * f32(hb[n * 16 + k]), u += f32(ha[m * 16 + k]) * f32(ht[k * 8 + n]);
			CHECK(vc[m * 8 + n] == s);
			CHECK(vt[m * 8 + n] == u);
		}
}

static void mma_s8() {
	std::vector<uint32_t> ha, hb;
	for (uint32_t i = 0; i < 128; i++) ha.push_back(i * 2654435761u);
	for (uint32_t i = 0; i < 64; i++) hb.push_back(i * 40503u * 65537u + 99u);
	Array<uint32_t> a(ha), b(hb);
	Array<int> c(128);
	MUST(launch("t_mma_s8", {{1, 1, 1}, {32, 1, 1}, 0}, nullptr, a, b, c));
	const signed char *pa = reinterpret_cast<signed char *>(ha.data()), *pb = reinterpret_cast<signed char *>(hb.data());
	std::vector<int> v = c.get();
	for (int m = 0; m < 16; m++)
		for (int n = 0; n < 8; n++) {
			int s = 0;
			for (int k = 0; k < 32; k++) s += pa[m * 32 + k] * pb[n * 32 + k];
			CHECK(v[m * 8 + n] == s);
		}
}

static uint32_t round_bf16(double d) { // through long double arithmetic on the neighbours
	float f = (float)d;
	uint32_t u;
	memcpy(&u, &f, 4);
	uint32_t low = u & 0xffff0000u, best = low;
	double err = INFINITY;
	for (int i = -1; i <= 2; i++) {
		uint32_t c = low + (uint32_t)i * 0x10000u;
		double e = fabs((double)f32((uint16_t)(c >> 16)) - d);
		if (e < err || (e == err && !(c >> 16 & 1))) err = e, best = c;
	}
	return best >> 16;
}
static void bf16_pairs() {
	int n = 4000;
	std::vector<float> a;
	std::vector<uint32_t> b;
	uint32_t s = 1;
	auto rnd = [&] { return s = s * 1664525u + 1013904223u; };
	auto half = [&] { return (0x3c00u + (rnd() >> 8) % 0x0900) | (rnd() & 0x8000); }; // moderate exponents
	for (int i = 0; i < 2 * n; i++) a.push_back((float)((int)rnd()) * 1e-5f);
	for (int i = 0; i < 3 * n; i++) b.push_back(half() | half() << 16);
	Array<float> da(a);
	Array<uint32_t> db(b), out(2 * n);
	MUST(launch("t_bf16", {{1, 1, 1}, {32, 1, 1}, 0}, nullptr, da, db, out, n));
	std::vector<uint32_t> v = out.get();
	for (int i = 0; i < n; i++) {
		CHECK(v[2 * i] == (round_bf16(a[2 * i]) | round_bf16(a[2 * i + 1]) << 16));
		for (int h = 0; h < 2; h++) {
			auto part = [&](int k) { return (double)f32((uint16_t)(b[3 * i + k] >> (16 * h))); };
			CHECK((v[2 * i + 1] >> (16 * h) & 0xffff) == round_bf16(part(0) * part(1) + part(2)));
		}
	}
}

static float e4m3(int v) {
	int e = v >> 3 & 15, m = v & 7;
	float a = e ? ldexpf((float)(8 + m), e - 10) : ldexpf((float)m, -9);
	return v & 0x80 ? -a : a;
}
static void f16() {
	std::vector<unsigned char> ha, hb; // every e4m3 but NaN, times powers of two: products are exact
	for (int i = 0; i < 256; i++) ha.push_back((unsigned char)((i & 0x7f) == 0x7f ? 0 : i));
	for (int i = 0; i < 128; i++) hb.push_back((unsigned char)(i % 16 == i / 16 + i % 3 * 5 ? 0x38 : 0));
	std::vector<float> x = {1, -2, 65504, 65519, 65520, -1e9f, ldexpf(1, -24), ldexpf(1, -25), 1 + ldexpf(1, -11), 1 + ldexpf(3, -11), ldexpf(-3, -25), ldexpf(1023.5f, -24)};
	const uint32_t want[] = {0xc0003c00, 0x7bff7bff, 0xfc007c00, 0x00000001, 0x3c023c00, 0x04008002};
	std::vector<uint32_t> wa(64), wb(32);
	memcpy(wa.data(), ha.data(), 256), memcpy(wb.data(), hb.data(), 128);
	Array<uint32_t> a(wa), b(wb), packed(6);
	Array<float> c(128), dx(x);
	MUST(launch("t_f16", {{1, 1, 1}, {32, 1, 1}, 0}, nullptr, a, b, c, dx, packed, 6));
	std::vector<float> v = c.get();
	for (int m = 0; m < 16; m++)
		for (int n = 0; n < 8; n++) {
			float s = 0;
			for (int k = 0; k < 16; k++) s += e4m3(ha[(size_t)(m * 16 + k)]) * e4m3(hb[(size_t)(n * 16 + k)]);
			CHECK(v[(size_t)(m * 8 + n)] == s);
		}
	std::vector<uint32_t> p = packed.get();
	for (size_t i = 0; i < 6; i++) CHECK(p[i] == want[i]);
}

static void static_poison() {
	Array<int> out(64);
	for (int i = 0; i < 3; i++) {
		MUST(launch("t_static", {{1, 1, 1}, {64, 1, 1}, 0}, nullptr, out, 1));
		for (int x : out.get()) CHECK(x == -1);
	}
}

static void speed() {
	Array<float> p(1 << 20), out(256);
	MUST(launch("t_one", {{4096, 1, 1}, {256, 1, 1}, 0}, nullptr, p, 1 << 20));
	MUST(cuCtxSynchronize());
	double t = now();
	MUST(launch("t_one", {{4096, 1, 1}, {256, 1, 1}, 0}, nullptr, p, 1 << 20));
	MUST(cuCtxSynchronize());
	double one = now() - t;
	t = now();
	MUST(launch("t_speed", {{1, 1, 1}, {256, 1, 1}, 0}, nullptr, out, 5000));
	MUST(cuCtxSynchronize());
	double two = now() - t;
	t = now();
	for (int i = 0; i < 1000; i++) MUST(launch("t_empty", {{1, 1, 1}, {32, 1, 1}, 0}, nullptr, 1));
	MUST(cuCtxSynchronize());
	printf("a thread %.1f ns; a warp's (5 shuffles + 2 mma) %.2f us; a launch %.1f us\n", one * 1e9 / (1 << 20), two * 1e6 / (8 * 5000), (now() - t) * 1e3);
	fflush(stdout);
}

#define EVERY(f)                                                                                        \
	static Add f##_1({#f, "", nullptr, f}), f##_2({#f, "KR_EMU_ORDER=reverse KR_EMU_LAZY=1", nullptr, f}),  \
		f##_3({#f, "KR_EMU_ORDER=random:3 KR_EMU_ASYNC=early KR_EMU_CC=80", nullptr, f});
EVERY(index)
EVERY(warp)
EVERY(reduced)
EVERY(reduce)
EVERY(sum)
EVERY(votes)
EVERY(named)
EVERY(cp_async)
EVERY(mma)
EVERY(mma_s8)
EVERY(bf16_pairs)
EVERY(f16)
EVERY(static_poison)
static Add speed_1({"speed", "KR_EMU_THREADS=1", nullptr, speed, true});

// --- refused

template <typename... A> static void refused(int code, const char *kernel, const Dims &d, const A &...args) {
	MUST(launch(kernel, d, nullptr, args...));
	CHECK(cuCtxSynchronize() == code);
	uint64_t p;
	CHECK(cuMemAlloc_v2(&p, 4) == code); // it stays
	MUST(cuDevicePrimaryCtxReset_v2(0));  // until the context goes
	Array<int> out(96);
	MUST(launch("t_votes", {{1, 1, 1}, {128, 1, 1}, 0}, nullptr, out));
	CHECK(out.get()[0] == 162);
}
static Add bad1({"bad_deadlock", "", "block (0,0,0), thread (0,0,0): deadlock: 64 threads wait, 0 have ended: thread (0,0,0) in bar_sync [3], thread (32,0,0) in __syncthreads",
                 [] { refused(719, "bad_deadlock", {{1, 1, 1}, {64, 1, 1}, 0}, Array<int>(1)); }});
static Add bad2({"bad_lane", "", "kernel bad_lane, block (0,0,0)", [] { refused(719, "bad_lane", {{1, 1, 1}, {64, 1, 1}, 0}, Array<int>(64)); }});
static Add bad3({"bad_parted", "", "a warp that has parted", [] { refused(719, "bad_parted", {{1, 1, 1}, {64, 1, 1}, 0}, Array<int>(64)); }});
static Add bad4({"bad_end", "KR_EMU_ALIGN=16", "0 bytes behind the end of an allocation of 400 bytes", [] { refused(700, "bad_end", {{1, 1, 1}, {64, 1, 1}, 0}, Array<int>(100), Array<int>(1), 100); }});
static Add bad5({"bad_align", "", "misaligned", [] { refused(716, "bad_align", {{1, 1, 1}, {64, 1, 1}, 0}, Array<float>(8), Array<float>(1), 1); }});
static Add bad6({"bad_shared", "", "behind the end of dynamic shared memory (1024 bytes)", [] { refused(700, "bad_shared", {{1, 1, 1}, {64, 1, 1}, 1024}, Array<int>(64), 256); }});
static Add bad7({"bad_shared slack", "", "behind the end of dynamic shared memory (1000 bytes)", [] { refused(700, "bad_shared", {{1, 1, 1}, {64, 1, 1}, 1000}, Array<int>(64), 190); }});
static Add bad8({"host pointer", "", "argument 0 is", [] {
	static int mine[64];
	refused(700, "t_votes", {{1, 1, 1}, {128, 1, 1}, 0}, (uint64_t)(uintptr_t)mine);
}});
static Add bad9({"bad_early", "", nullptr, [] {
	Array<int> in(numbers(64)), out(64);
	MUST(launch("bad_early", {{1, 1, 1}, {64, 1, 1}, 256}, nullptr, in, out));
	for (int x : out.get()) CHECK(x == -1);
}});
#if !KR_EMU_RACE // there it is found for what it is
static Add bad10({"bad_race", "", nullptr, [] {
	Array<int> out(64);
	MUST(launch("bad_race", {{1, 1, 1}, {64, 1, 1}, 256}, nullptr, out));
	CHECK(out.get()[0] == -1);
}});
static Add bad11({"bad_race", "KR_EMU_ORDER=reverse", nullptr, [] {
	Array<int> out(64);
	MUST(launch("bad_race", {{1, 1, 1}, {64, 1, 1}, 256}, nullptr, out));
	CHECK(out.get()[0] == 63 && out.get()[63] == -1);
}});
#endif
