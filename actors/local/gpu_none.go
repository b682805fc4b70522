//go:build !cuda

package local

import (
	"fmt"

	"krater/kernels/cuda"
)

// Usable returns an error: this program was built without CUDA.
func Usable() error { return cuda.ErrNotBuilt }

// OpenGPU returns an error: this program was built without CUDA.
func OpenGPU(cuda.Options) (GPU, error) {
	return nil, fmt.Errorf("%w: %w", ErrNoGPU, cuda.ErrNotBuilt)
}
