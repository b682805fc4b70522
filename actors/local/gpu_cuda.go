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
	n, err := driver.Count()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoGPU, err)
	}
	if o.Index >= n {
		return nil, fmt.Errorf("GPU %d: the machine has %d; to split one, name it twice with a part of its memory for each, such as --device cuda:0,cuda:0 --vram 8GiB,8GiB", o.Index, n)
	}
	d, err := cuda.Open(o)
	if err != nil {
		return nil, err
	}
	return d, nil
}
