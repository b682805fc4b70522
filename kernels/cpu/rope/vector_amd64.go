//go:build amd64 && !purego

package rope

import "krater/kernels/cpu/level"

func vector(level.Level) *Funcs { return nil }
