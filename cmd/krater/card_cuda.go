//go:build cuda

package main

import (
	"fmt"

	"krater/kernels/cuda"
	"krater/kernels/cuda/driver"
)

// openCard opens a GPU.
func openCard(o cuda.Options) (card, error) {
	if err := driver.Available(); err != nil {
		return nil, fmt.Errorf("%w: %w", errNoCard, err)
	}
	d, err := cuda.Open(o)
	if err != nil {
		return nil, err
	}
	return d, nil
}
