// Detection of races on shared memory, in the build of `make cuda-emu-race` (KR_EMU_RACE). There
// the compiler calls race.cpp at every access of a kernel, and the functions below say what orders
// accesses. In the usual build they do nothing.
//
// Two accesses to a byte, at least one a write, by different threads, must have a barrier
// between them: of the block, a named one, an mbarrier, or within a warp __syncwarp.
// Shuffles, votes and matrix instructions order no memory.
//
// Warps have clocks and know how far others have come (vector clocks). Lanes of a warp are
// distinguished only by whether the warp has synchronised since. Whatever one lane learns, all
// lanes of its warp know: some races are missed, but none is invented.
//
// For global memory there is only one check: what a kernel launched with PDL accesses before
// pdl_wait. Before the wait it must write nothing, and read only complete data: data written before
// the latest launch without PDL, and data written before its predecessor if that one called
// pdl_launch only after its own wait.
#pragma once
#include <string.h>

#include "fiber.h"

namespace kr_emu {
#if KR_EMU_RACE

void race_begin(Worker &w);                         // a block starts
void race_block(Worker &w);                         // __syncthreads opens
void race_warp(Thread *t);                          // __syncwarp
void race_release(Thread *t, Clocks &c);            // t arrives
void race_acquire(Thread *t, const Clocks &c);      // t goes on
void race_shared(Thread *t, uint32_t at, unsigned n, bool write, const char *what); // by an instruction

void race_global(const void *p, unsigned n, bool write, const char *what);           // by an instruction
void race_launch(Launch &l);  // a launch begins, in its stream's thread
void race_ended(const Launch &l);
void race_complete();         // all work so far is done before what comes
bool race_waited();           // this thread knows that its predecessors are complete

#else
static inline void race_begin(Worker &) {}
static inline void race_block(Worker &) {}
static inline void race_warp(Thread *) {}
static inline void race_release(Thread *, Clocks &) {}
static inline void race_acquire(Thread *, const Clocks &) {}
static inline void race_shared(Thread *, uint32_t, unsigned, bool, const char *) {}
static inline void race_global(const void *, unsigned, bool, const char *) {}
static inline void race_launch(Launch &) {}
static inline void race_ended(const Launch &) {}
static inline void race_complete() {}
static inline bool race_waited() { return true; }
#endif
} // namespace kr_emu
