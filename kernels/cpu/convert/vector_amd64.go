//go:build amd64 && !purego

package convert

import "krater/kernels/cpu/level"

var (
	avx2 = Funcs{
		Pack: packAVX2, Unpack: unpackAVX2, Widen: widenAVX2, WidenPack: widenPackAVX2, Narrow: narrowAVX2,
	}
	avx512 = Funcs{
		Pack: packAVX512, Unpack: unpackAVX512, Widen: widenAVX512, WidenPack: widenPackAVX512, Narrow: narrowAVX512,
	}
)

// vector chooses the assembly; nil when the level has none.
func vector(l level.Level) *Funcs {
	switch l {
	case level.AVX2:
		return &avx2
	case level.AVX512:
		return &avx512
	}
	return nil
}
