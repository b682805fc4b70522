// Races: found where they are, and only there. Only the build with EMU_RACE looks.
#include "selftest.h"

#if KR_EMU_RACE
static int run(const char *kernel, int fix) {
	Array<int> out(64);
	MUST(launch(kernel, {{2, 1, 1}, {kernel[2] == 'w' ? 32u : 64u, 1, 1}, 1024}, nullptr, out, fix));
	return cuCtxSynchronize();
}
static int bulk(int fix) {
	Array<int> in(64), out(64);
	MUST(launch("r_bulk", {{1, 1, 1}, {64, 1, 1}, 1024}, nullptr, in, out, fix));
	return cuCtxSynchronize();
}
static int pdl(int mode, int middle = -1) { // middle: r_middle with that late, -1: none
	Array<int> weights(std::vector<int>(64, 1)), x(64), out(64), count(1);
	Array<int> y(64);
	MUST(launch("r_fill", {{1, 1, 1}, {64, 1, 1}, 0}, nullptr, x));
	LaunchAttribute at{6, 0, 1, {}};
	LaunchConfig c{{1, 1, 1}, {64, 1, 1}, 0, nullptr, &at, 1};
	uint64_t py = y.at;
	void *more[] = {&py, &middle};
	if (middle >= 0) MUST(cuLaunchKernelEx(&c, function("r_middle"), more, nullptr));
	uint64_t w = weights.at, px = x.at, o = out.at, n = count.at;
	void *args[] = {&w, &px, &o, &n, &mode};
	MUST(cuLaunchKernelEx(&c, function("r_pdl"), args, nullptr));
	return cuCtxSynchronize();
}
static Add right({"no race", "", nullptr, [] {
	for (const char *k : {"r_block", "r_warp", "r_again", "r_bytes"}) CHECK(run(k, 1) == 0);
	CHECK(bulk(1) == 0);
	CHECK(pdl(0) == 0 && pdl(4) == 0 && pdl(1, 1) == 0);
}});
static Add r1({"r_block", "", "race: writes of shared memory byte 128 that thread (31,0,0) read", [] { CHECK(run("r_block", 0) == 719); }});
static Add r2({"r_block", "KR_EMU_ORDER=reverse", "with no barrier between: race.cu:8", [] { CHECK(run("r_block", 0) == 719); }});
static Add r3({"r_warp", "", "a __shared__ variable", [] { CHECK(run("r_warp", 0) == 719); }});
static Add r4({"r_again", "", "race: reads of shared memory byte 252 that thread (63,0,0) wrote", [] { CHECK(run("r_again", 0) == 719); }});
static Add r5({"r_bytes", "", "race: writes of shared memory byte 5 that thread", [] { CHECK(run("r_bytes", 0) == 719); }});
static Add r6({"r_bulk", "", "race: bulk_copy writes", [] { CHECK(bulk(0) == 719); }});
static Add r7({"r_pdl", "", "before pdl_wait, which a kernel that may still run has written: race.cu", [] { CHECK(pdl(1) == 719); }});
static Add r10({"r_pdl over r_middle", "", "before pdl_wait, which a kernel that may still run has written", [] { CHECK(pdl(1, 0) == 719); }});
static Add r8({"r_pdl", "", "race: writes", [] { CHECK(pdl(2) == 719); }});
static Add r9({"r_pdl", "", "race: an atomic operation on", [] { CHECK(pdl(3) == 719); }});
#endif
