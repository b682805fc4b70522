//go:build amd64 && !purego

package norm

import "krater/kernels/cpu/level"

var (
	avx2 = Funcs{
		SumSquares: sumSquaresAVX2, AddSumSquares: addSumSquaresAVX2, MulF32: mulF32AVX2, MulBF16: mulBF16AVX2,
	}
	avx512 = Funcs{
		SumSquares: sumSquaresAVX512, AddSumSquares: addSumSquaresAVX512, MulF32: mulF32AVX512, MulBF16: mulBF16AVX512,
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
