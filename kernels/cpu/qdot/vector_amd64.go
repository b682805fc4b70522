//go:build amd64 && !purego

package qdot

import (
	"krater/kernels/cpu/level"
	"krater/kernels/tensor"
)

var (
	avx2 = Funcs{
		tensor.INT3: {nil, int3Rows1AVX2, int3Rows2AVX2, int3Rows3AVX2, int3Rows4AVX2},
		tensor.INT4: manyFrom(int4ManyAVX2, nil, int4Rows1AVX2, int4Rows2AVX2),
		tensor.INT8: {nil, int8Rows1AVX2, int8Rows2AVX2, int8Rows3AVX2, int8Rows4AVX2},
		tensor.Q8_0: {nil, q8Rows1AVX2, q8Rows2AVX2, q8Rows3AVX2, q8Rows4AVX2},
	}
	avxvnni = Funcs{
		tensor.INT3: {nil, int3Rows1AVXVNNI, int3Rows2AVXVNNI, int3Rows3AVXVNNI, int3Rows4AVXVNNI},
		tensor.INT4: {nil, int4Rows1AVXVNNI, int4Rows2AVXVNNI, int4Rows3AVXVNNI, int4Rows4AVXVNNI},
		tensor.INT8: {nil, int8Rows1AVXVNNI, int8Rows2AVXVNNI, int8Rows3AVXVNNI, int8Rows4AVXVNNI},
		tensor.Q8_0: {nil, q8Rows1AVXVNNI, q8Rows2AVXVNNI, q8Rows3AVXVNNI, q8Rows4AVXVNNI},
	}
	avx512 = Funcs{
		tensor.INT3: {
			nil, int3Rows1AVX512, int3Rows2AVX512, int3Rows3AVX512, int3Rows4AVX512,
			int3Rows5AVX512, int3Rows6AVX512, int3Rows7AVX512, int3Rows8AVX512,
		},
		tensor.INT4: {
			nil, int4Rows1AVX512, int4Rows2AVX512, int4Rows3AVX512, int4Rows4AVX512,
			int4Rows5AVX512, int4Rows6AVX512, int4Rows7AVX512, int4Rows8AVX512,
		},
		tensor.INT8: {
			nil, int8Rows1AVX512, int8Rows2AVX512, int8Rows3AVX512, int8Rows4AVX512,
			int8Rows5AVX512, int8Rows6AVX512, int8Rows7AVX512, int8Rows8AVX512,
		},
		tensor.Q8_0: {
			nil, q8Rows1AVX512, q8Rows2AVX512, q8Rows3AVX512, q8Rows4AVX512,
			q8Rows5AVX512, q8Rows6AVX512, q8Rows7AVX512, q8Rows8AVX512,
		},
	}
)

// vector chooses the assembly; nil when the level has none.
func vector(l level.Level) Funcs {
	switch l {
	case level.AVX2:
		return avx2
	case level.AVXVNNI:
		return avxvnni
	case level.AVX512:
		return avx512
	}
	return nil
}

// manyFrom adds tiles of the rows that few has none for.
func manyFrom(kernel func(*Tile), few ...func(*Tile)) Kernels {
	for rows := len(few); rows <= Rows; rows++ {
		few = append(few, many(kernel, rows))
	}
	return few
}
