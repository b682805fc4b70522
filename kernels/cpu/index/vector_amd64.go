//go:build amd64 && !purego

package index

import "krater/kernels/cpu/level"

var (
	avx2   = Funcs{turnF32: turnF32AVX2, turnBF16: turnBF16AVX2, Score: scoreAVX2, rank: rankAVX2, count: countAVX2, mark: markAVX2}
	avx512 = Funcs{turnF32: turnF32AVX512, turnBF16: turnBF16AVX512, Score: scoreAVX512, rank: rankAVX512, count: countAVX512, mark: markAVX512}
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
