package bin_test

import (
	_ "krater/kernels/cuda/gemv"
	_ "krater/kernels/cuda/gqa"
	_ "krater/kernels/cuda/moe"
	_ "krater/kernels/cuda/native"
	_ "krater/kernels/cuda/same"
)

// Packages whose kernels' names are not literals: importing them (above) makes launch
// know the names.
var imported = map[string]bool{"gemv": true, "gqa": true, "moe": true, "native": true, "same": true}
