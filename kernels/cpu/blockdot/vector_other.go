//go:build !amd64 || purego

package blockdot

import "krater/kernels/cpu/level"

// vector chooses the assembly; there is none here.
func vector(level.Level) *Funcs { return nil }
