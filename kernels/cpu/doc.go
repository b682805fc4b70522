// Package cpu is the device that computes on the host's own memory: AVX-512, AVX2 or portable Go,
// chosen once (package level). Buffers are plain host memory, so weight files are used where they
// are mapped.
//
// An operator is complete when its call returns; it uses the device's Team where the work is worth
// waking other cores. Every operator is batch invariant: the bits of a row depend on that row, the
// weights and the level, never on the other rows, the number of threads, the chunk of a prompt or
// the other sequences. Threads divide rows of weights, rows of activations, heads and sequences,
// never the dimension that is summed over, but for keys: these are summed in stretches with fixed
// bounds.
//
// A device may have nodes: processors with local memory. Its threads are then bound to their nodes'
// processors. A stream runs on all of them, or on those of one node for work whose weights are in
// that node's memory.
//
// An operator allocates nothing once its stream's scratch has grown to the largest shape seen.
// Scratch is bounded: see the constants next to each operator. Device.Scratch returns the number of
// bytes held.
package cpu
