//go:build amd64 && !purego

package rope

import "krater/kernels/cpu/level"

var (
	avx2 = Funcs{
		Pairs: pairsAVX2, Halves: halvesAVX2,
	}
	avx512 = Funcs{
		Pairs: pairsAVX512, Halves: halvesAVX512,
	}
)

// vector chooses the assembly; nil when the level has none.
func vector(l level.Level) *Funcs {
	switch l.Floats() {
	case level.AVX2:
		return &avx2
	case level.AVX512:
		return &avx512
	}
	return nil
}
