//go:build amd64 && !purego

package convert

import "krater/kernels/cpu/level"

func vector(level.Level) *Funcs { return nil }
