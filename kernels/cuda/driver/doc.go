// Package driver is the part of the CUDA driver API that gorgonia.org/cu v0.9.6 does not wrap.
// It has registered and mapped host memory, function attributes, stream capture, graphs, stream memory
// operations, and the one thread that drives a GPU. It uses gorgonia's types for everything else:
// contexts, modules, memory, streams, events. Package rt makes the launches.
//
// All calls except Owner.Do, those on errors and those on host memory need the context to be
// current on their thread: make them inside Owner.Do.
//
// The binary links to no CUDA library: ../forwarder stands in for libcuda and loads the machine's
// own at start-up, so a program with this package starts on every machine. Without the build tag
// cuda only Available and ErrNoDriver exist.
package driver

import "errors"

// ErrNoDriver means that this machine has no CUDA driver library, or that the binary was built
// without the tag cuda.
var ErrNoDriver = errors.New("no CUDA driver on this machine")
