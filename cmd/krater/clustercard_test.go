//go:build cuda

package main

import (
	"testing"

	"krater/kernels/cuda"
)

// TestClusterOnAGPU: a leader on the CPU and a worker on a GPU give the tokens of one process on the CPU.
func TestClusterOnAGPU(t *testing.T) {
	if testing.Short() {
		t.Skip("three programs start: the nightly has it")
	}
	cardFor(t, cuda.Options{}).Close()
	const tokens = 12
	want := alone(t, 1, tokens)
	r := &clusterRig{t: t, workers: make([]*program, 1), options: []string{"--device", "cuda"}}
	r.open("127.0.0.1:0")
	r.leader.err.wait(t, `"device":"cuda"`, r.leader.done)
	r.ask(want, tokens, func() {})
}
