// Package rt carries out lists of launches on a GPU. It opens the GPU, loads the kernels,
// keeps its memory, and has streams that turn repeated lists into graphs.
//
// Streams wait for each other by events, which are used again, and copy from memory that
// is pinned as it lies: a step whose experts are copied beside it has several of both in
// every layer, so a chain of waits, copies and launches leaves in one trip.
//
// All driver calls for a GPU are made by one thread (driver.Owner). A GPU's methods
// may be called by anybody; a stream belongs to one goroutine at a time.
//
// Built only with the tag cuda.
package rt
