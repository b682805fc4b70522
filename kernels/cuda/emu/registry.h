// The kernels of the build for KR_EMU_CC.
#pragma once
#include <deque>

#include "core.h"

namespace kr_emu {

std::deque<Kernel> &kernels();
Kernel *kernel(const char *name); // null: there is none
// Prepares a thread of the emulator: it blocks signals other than faults.
void stream_thread();

} // namespace kr_emu
