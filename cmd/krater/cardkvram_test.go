//go:build cuda

package main

import (
	"testing"

	"krater/kernels/cuda"
)

// TestEvictedBlocksAreKeptOnCard: by way of pinned memory, in the order of the GPU's streams.
func TestEvictedBlocksAreKeptOnCard(t *testing.T) {
	cardFor(t, cuda.Options{}).Close()
	size := "40KiB"
	if testing.Short() { // of fewer layers
		size = "23KiB"
	}
	evictedAreKept(t, lessTiny(t), "--device", "cuda", "--kv-dtype", "fp8", "--kv-cache", size)
}
