//go:build amd64 && !purego

package exp

import "krater/kernels/cpu/level"

var (
	avx2 = Funcs{
		Max: maxOfAVX2, ExpSum: expSumAVX2, Sigmoid: sigmoidAVX2, SiluMul: siluMulAVX2, SwiGLU: swiGLUAVX2,
		Cubic: cubicAVX2, Softcap: softcapAVX2,
	}
	avx512 = Funcs{
		Max: maxOfAVX512, ExpSum: expSumAVX512, Sigmoid: sigmoidAVX512, SiluMul: siluMulAVX512, SwiGLU: swiGLUAVX512,
		Cubic: cubicAVX512, Softcap: softcapAVX512,
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
