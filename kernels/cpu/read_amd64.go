//go:build !purego

package cpu

import "krater/kernels/cpu/level"

// read loads every byte of b, a multiple of 256.
func read(b []byte) {
	if len(b) == 0 {
		return
	}
	if level.Best() >= level.AVX2 {
		readAVX2(&b[0], len(b))
		return
	}
	readPure(b)
}
