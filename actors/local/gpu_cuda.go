//go:build cuda

package local

import (
	"fmt"

	"krater/kernels/cuda"
	"krater/kernels/cuda/driver"
)

// Usable returns nil if a GPU can be used, and otherwise an error that says what is missing: the
// driver or a GPU.
func Usable() error { return driver.Available() }

// OpenGPU opens a GPU.
func OpenGPU(o cuda.Options) (GPU, error) {
	if err := Usable(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoGPU, err)
	}
	d, err := cuda.Open(o)
	if err != nil {
		return nil, err
	}
	return d, nil
}
