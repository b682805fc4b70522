//go:build !cuda

package cards

import "krater/kernels/cuda"

// Run returns an error in a program built without the tag cuda.
func Run(Options) (*Report, error) { return nil, cuda.ErrNotBuilt }
