// The sm_90a instructions: wgmma, mbarriers, bulk copies, fences, PDL.
#include <string.h>

#include "selftest.h"

static float f32(uint16_t b) {
	uint32_t u = (uint32_t)b << 16;
	float f;
	memcpy(&f, &u, 4);
	return f;
}
static std::vector<uint16_t> small(int n, int seed) {
	std::vector<uint16_t> v;
	for (int i = 0; i < n; i++) {
		float f = (float)((i * 37 + seed * 11 + i / 7) % 16 - 8);
		uint32_t u;
		memcpy(&u, &f, 4);
		v.push_back((uint16_t)(u >> 16));
	}
	return v;
}
static int big(const char *name, const Dims &d) { return cuFuncSetAttribute(function(name), 8, (int)d.shared); }

// The bits of an integer up to 8, as f16.
static uint16_t half(float f) {
	uint32_t u;
	memcpy(&u, &f, 4);
	return f == 0 ? 0 : (uint16_t)((u >> 16 & 0x8000) | ((u >> 23 & 0xff) - 112) << 10 | (u >> 13 & 0x3ff));
}

static void products(int n, bool f16) {
	char name[32];
	snprintf(name, sizeof name, f16 ? "h_f16_%d" : "h_products_%d", n);
	std::vector<uint16_t> ha = small(64 * 64, 1), hb = small(n * 64, 2), ht = small(64 * n, 5);
	std::vector<uint16_t> in[3] = {ha, hb, ht};
	for (auto &v : in)
		for (auto &x : v) x = f16 ? half(f32(x)) : x;
	Array<uint16_t> a(in[0]), b(in[1]), t(in[2]);
	std::vector<Array<float>> out;
	for (int i = 0; i < 4; i++) out.emplace_back((size_t)64 * n);
	Dims d{{1, 1, 1}, {128, 1, 1}, (unsigned)(64 * 128 + n * 128 + (n + 63) / 64 * 8192)};
	MUST(big(name, d));
	MUST(launch(name, d, nullptr, a, b, t, out[0], out[1], out[2], out[3]));
	for (int v = 0; v < 4; v += f16 ? 3 : 1) {
		std::vector<float> got = out[v].get();
		int wrong = 0;
		for (int m = 0; m < 64; m++)
			for (int j = 0; j < n; j++) {
				float s = 0;
				for (int k = 0; k < 64; k++) s += f32(ha[m * 64 + k]) * f32(v < 2 ? hb[j * 64 + k] : ht[k * n + j]);
				wrong += got[m * n + j] != s;
			}
		if (wrong) fprintf(stderr, "%s, way %d: %d wrong\n", name, v, wrong);
		CHECK(wrong == 0);
	}
}
static void wgmma() {
	for (int n : {8, 64, 96, 256}) products(n, false);
	for (int n : {64, 256}) products(n, true);
}

static void wgmma_s8() {
	std::vector<uint16_t> ha, hb;
	for (uint32_t i = 0; i < 64 * 64; i++) ha.push_back((uint16_t)(i * 2654435761u >> 16));
	for (uint32_t i = 0; i < 32 * 64; i++) hb.push_back((uint16_t)(i * 2246822519u >> 16));
	Array<uint16_t> a(ha), b(hb);
	Array<int> ss(64 * 32), rs(64 * 32);
	MUST(launch("h_s8", {{1, 1, 1}, {128, 1, 1}, 12288}, nullptr, a, b, ss, rs));
	const signed char *pa = reinterpret_cast<signed char *>(ha.data()), *pb = reinterpret_cast<signed char *>(hb.data());
	std::vector<int> v = ss.get(), w = rs.get();
	for (int m = 0; m < 64; m++)
		for (int n = 0; n < 32; n++) {
			int s = 0;
			for (int k = 0; k < 128; k++) s += pa[m * 128 + k] * pb[n * 128 + k];
			CHECK(v[m * 32 + n] == s && w[m * 32 + n] == s);
		}
}

static void ring(const char *name) {
	std::vector<int> in;
	for (int i = 0; i < 7 * 256; i++) in.push_back(i * 31);
	Array<int> a(in), out(7 * 256);
	MUST(launch(name, {{1, 1, 1}, {96, 1, 1}, 2048 + 32}, nullptr, a, out, 7));
	std::vector<int> v = out.get();
	for (int i = 0; i < 7 * 256; i++) CHECK(v[i] == in[i / 256 * 256 + 255 - i % 256]);
}
static void bulk() { ring("h_bulk"); }
static void copies_arrive() { ring("h_cpbar"); }

static int fenced(int fence) {
	Array<uint16_t> a(small(4096, 1));
	Array<float> out(512);
	MUST(launch("h_fence", {{1, 1, 1}, {128, 1, 1}, 8192}, nullptr, a, out, fence));
	return cuCtxSynchronize();
}
static void fences() { CHECK(fenced(1) == 0 && fenced(2) == 0); }
static int wrong(int mode) {
	Array<uint16_t> a(small(4096, 1));
	MUST(launch("h_bad", {{1, 1, 1}, {128, 1, 1}, 8192}, nullptr, a, mode));
	return cuCtxSynchronize();
}

static int pdl(bool wait) {
	Array<int> p(1);
	LaunchAttribute at{6, 0, 1, {}};
	LaunchConfig c{{2, 1, 1}, {32, 1, 1}, 0, nullptr, &at, 1};
	uint64_t arg = wait ? p.at : 0;
	void *args[] = {&arg};
	MUST(cuLaunchKernelEx(&c, function("t_pdl"), args, nullptr));
	return cuCtxSynchronize();
}

#define EVERY(f)                                                                                        \
	static Add f##_1({#f, "", nullptr, f}), f##_2({#f, "KR_EMU_ORDER=reverse", nullptr, f}),               \
		f##_3({#f, "KR_EMU_ORDER=random:5 KR_EMU_ASYNC=early", nullptr, f});
EVERY(wgmma)
EVERY(wgmma_s8)
EVERY(bulk)
EVERY(copies_arrive)
EVERY(fences)
static Add hopper_only({"h_ of compute_80", "KR_EMU_CC=80", nullptr, [] {
	void *m;
	CUfunction_t f;
	MUST(cuModuleLoadData(&m, "any"));
	CHECK(cuModuleGetFunction(&f, m, "h_bulk") == 500);
	MUST(cuModuleGetFunction(&f, m, "t_sum"));
}});
static Add bad1({"no fence_async", "", "and did not fence_async", [] { CHECK(fenced(0) == 719); }});
static Add bad2({"no wgmma_fence", "", "without a wgmma_fence", [] { CHECK(wrong(0) == 719); }});
static Add bad3({"no wgmma_wait", "", "ended with a wgmma in flight", [] { CHECK(wrong(1) == 719); }});
static Add bad4({"lanes disagree", "", "has another shape or descriptor", [] { CHECK(wrong(2) == 719); }});
static Add bad5({"tile", "", "does not begin at a multiple of 1024", [] { CHECK(wrong(3) == 719); }});
static Add bad6({"a warp less", "", "warp 3 has issued 0 wgmma, warp 0 of the same warpgroup 1", [] { CHECK(wrong(4) == 719); }});
static Add pdl1({"pdl", "", nullptr, [] { CHECK(pdl(true) == 0); }});
static Add pdl2({"no pdl_wait", "", "no thread of this block called pdl_wait", [] { CHECK(pdl(false) == 719); }});
