// Package rt runs lists of launches on a GPU. It opens the GPU, loads the kernels, allocates its
// memory, and has streams that turn repeated lists into graphs.
//
// Streams wait for each other by events, which are reused, and copy from pinned memory in place.
// A step that copies experts while it runs has several of both in every layer, so a chain of
// waits, copies and launches is sent in one call.
//
// One thread makes all driver calls for a GPU (driver.Owner). A GPU's methods are safe for
// concurrent use; a stream belongs to one goroutine at a time.
//
// The package is built only with the tag cuda.
package rt
