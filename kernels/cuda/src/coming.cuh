// What the launch before is still copying (link.cu): a word for each slot of experts, 0 if there is nothing to wait
// for. It is COMING at first, and 0 when each of the blocks that copy has arrived.
#pragma once
#include "kr.cuh"

enum { COMING = 1 };

KR_DEV void arrive(unsigned *word, unsigned blocks) { atomic_inc_acq_rel(word, blocks); }

// The whole block calls it. What was copied is there for all of its threads.
KR_DEV void wait_for(const unsigned *word) {
	if (threadIdx.x == 0)
		while (ld_acquire_sys(word) != 0) {}
	__syncthreads();
}

// A launch of which one block waits for the one before need not have all wait. The emulator has no two launches at a time, and
// wants to see that every block waits.
KR_DEV void another_waits() {
#ifdef KR_EMU
	pdl_wait();
#endif
}
