// Counterparts of functions of kr.cuh that are made of many instructions: a source includes this first
// (emu.mk). Those of kr.cuh are by then *_by_shuffles (emu.h). The emulator's test compares them.
#pragma once

#include "kr.cuh"

#undef warp_sum
#undef warp_max
KR_DEV float warp_sum(float v) {
	kr_emu::meet(0xffffffffu, kr_emu::combine_butterfly<kr_emu::Add, float>, &v, "warp_sum");
	return v;
}
KR_DEV float warp_max(float v) {
	kr_emu::meet(0xffffffffu, kr_emu::combine_butterfly<kr_emu::FloatMax, float>, &v, "warp_max");
	return v;
}
