//go:build amd64 && !purego

package exp

import "krater/kernels/cpu/level"

func vector(level.Level) *Funcs { return nil }
