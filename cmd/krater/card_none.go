//go:build !cuda

package main

import (
	"fmt"

	"krater/kernels/cuda"
)

// usable says that this program was built without CUDA.
func usable() error { return cuda.ErrNotBuilt }

// openCard says that this program was built without CUDA.
func openCard(cuda.Options) (card, error) {
	return nil, fmt.Errorf("%w: %w", errNoCard, cuda.ErrNotBuilt)
}
