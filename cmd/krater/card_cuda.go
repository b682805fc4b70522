//go:build cuda

package main

import (
	"fmt"

	"krater/kernels/cuda"
	"krater/kernels/cuda/driver"
)

// usable says what is missing for a GPU to be used: the driver, or a card. It is nil where
// nothing is.
func usable() error { return driver.Available() }

// openCard opens a GPU.
func openCard(o cuda.Options) (card, error) {
	if err := usable(); err != nil {
		return nil, fmt.Errorf("%w: %w", errNoCard, err)
	}
	d, err := cuda.Open(o)
	if err != nil {
		return nil, err
	}
	return d, nil
}
