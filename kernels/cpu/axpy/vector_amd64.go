//go:build amd64 && !purego

package axpy

import "krater/kernels/cpu/level"

var (
	avx2 = Funcs{
		F32:  [Rows + 1]func(*Tile){nil, f32Rows1AVX2, f32Rows2AVX2, f32Rows3AVX2, f32Rows4AVX2},
		BF16: [Rows + 1]func(*Tile){nil, bf16Rows1AVX2, bf16Rows2AVX2, bf16Rows3AVX2, bf16Rows4AVX2},
		Add:  addAVX2, Scale: scaleAVX2,
	}
	avx512 = Funcs{
		F32:  [Rows + 1]func(*Tile){nil, f32Rows1AVX512, f32Rows2AVX512, f32Rows3AVX512, f32Rows4AVX512},
		BF16: [Rows + 1]func(*Tile){nil, bf16Rows1AVX512, bf16Rows2AVX512, bf16Rows3AVX512, bf16Rows4AVX512},
		Add:  addAVX512, Scale: scaleAVX512,
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
