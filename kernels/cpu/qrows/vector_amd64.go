//go:build amd64 && !purego

package qrows

import "krater/kernels/cpu/level"

var (
	avx2   = Funcs{Quantize: quantizeAVX2, SiluQuantize: siluQuantizeAVX2}
	avx512 = Funcs{Quantize: quantizeAVX512, SiluQuantize: siluQuantizeAVX512}
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
