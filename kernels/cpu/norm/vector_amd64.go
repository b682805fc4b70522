//go:build amd64 && !purego

package norm

import "krater/kernels/cpu/level"

func vector(level.Level) *Funcs { return nil }
