// The kernels of the build that the card of KR_EMU_CC runs.
#pragma once
#include <deque>

#include "core.h"

namespace kr_emu {

std::deque<Kernel> &kernels();
Kernel *kernel(const char *name); // null: there is none
// Readies a thread of the emulator's own: signals that are not faults are blocked.
void stream_thread();

} // namespace kr_emu
