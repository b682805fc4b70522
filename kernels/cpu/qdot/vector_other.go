//go:build !amd64 || purego

package qdot

import "krater/kernels/cpu/level"

// vector: this build has no assembly.
func vector(level.Level) Funcs { return nil }
