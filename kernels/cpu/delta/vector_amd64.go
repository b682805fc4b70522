//go:build amd64 && !purego

package delta

import "krater/kernels/cpu/level"

var (
	avx2   = Funcs{Known: knownAVX2, Step: stepAVX2, StepNext: stepNextAVX2, Conv: convAVX2}
	avx512 = Funcs{Known: knownAVX512, Step: stepAVX512, StepNext: stepNextAVX512, Conv: convAVX512}
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
