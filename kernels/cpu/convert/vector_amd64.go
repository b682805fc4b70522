//go:build amd64 && !purego

package convert

import (
	"krater/kernels/cpu/level"
	"krater/kernels/tensor"
)

var (
	avx2 = Funcs{
		Pack: packAVX2, Unpack: unpackAVX2, Widen: widenAVX2, WidenPack: widenPackAVX2, Narrow: narrowAVX2,
		WidenF8: widenF8AVX2, NarrowF8: narrowF8AVX2, WidenI8: widenI8AVX2, QuantI8: quantI8AVX2,
		Columns: map[*tensor.Encoding]Columns{tensor.INT4: columns4AVX2, tensor.INT8: columns8AVX2},
	}
	avx512 = Funcs{
		Pack: packAVX512, Unpack: unpackAVX512, Widen: widenAVX512, WidenPack: widenPackAVX512, Narrow: narrowAVX512,
		WidenF8: widenF8AVX512, NarrowF8: narrowF8AVX512, WidenI8: widenI8AVX512, QuantI8: quantI8AVX512,
		Columns: map[*tensor.Encoding]Columns{tensor.INT4: columns4AVX512, tensor.INT8: columns8AVX512},
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
