//go:build !cuda

package cards

import (
	"fmt"

	"krater/kernels/cuda"
)

// Measure returns an error in a program built without the tag cuda.
func Measure(Options) (*Points, error) { return nil, fmt.Errorf("%w: %w", ErrNoGPU, cuda.ErrNotBuilt) }
