//go:build amd64 && !purego

package blockdot

import (
	"sync"

	"krater/kernels/cpu/level"
	"krater/kernels/tensor"
)

var (
	avx2 = sync.OnceValue(func() *Funcs {
		return newFuncs(4, func(e *tensor.Encoding) []func(*Tile) { return rowsAVX2[e] }, func(e *tensor.Encoding, k *Kernels) {
			k.prepare = prepareAVX2
			switch {
			case k.mins:
				k.prepare = prepareMinsAVX2
			case k.subs == 2:
				k.prepare = prepareHalvesAVX2
			}
			k.Table = gathered(e)
		})
	})
	avx512 = sync.OnceValue(func() *Funcs {
		return newFuncs(8, func(e *tensor.Encoding) []func(*Tile) { return rowsAVX512[e] }, func(e *tensor.Encoding, k *Kernels) {
			_, isGrid := grids[e]
			k.prepare = prepareAVX512
			switch {
			case isGrid && k.subs == 2:
				k.prepare = preparePairsAVX512
			case isGrid:
				k.prepare = prepareOctetsAVX512
			case k.mins:
				k.prepare = prepareMinsAVX512
			case k.subs == 2:
				k.prepare = prepareHalvesAVX512
			}
			k.Table = planes(e)
		})
	})
)

// vector chooses the assembly; nil when the level has none.
func vector(l level.Level) *Funcs {
	switch l {
	case level.AVX2:
		return avx2()
	case level.AVX512:
		return avx512()
	}
	return nil
}

var (
	rowsAVX2 = map[*tensor.Encoding][]func(*Tile){
		tensor.Q4_0:    {q4_0Rows1AVX2, q4_0Rows2AVX2, q4_0Rows3AVX2, q4_0Rows4AVX2},
		tensor.MXFP4:   {mxfp4Rows1AVX2, mxfp4Rows2AVX2, mxfp4Rows3AVX2, mxfp4Rows4AVX2},
		tensor.NVFP4:   {nvfp4Rows1AVX2, nvfp4Rows2AVX2, nvfp4Rows3AVX2, nvfp4Rows4AVX2},
		tensor.Q4_K:    {q4_kRows1AVX2, q4_kRows2AVX2, q4_kRows3AVX2, q4_kRows4AVX2},
		tensor.Q5_K:    {q5_kRows1AVX2, q5_kRows2AVX2, q5_kRows3AVX2, q5_kRows4AVX2},
		tensor.Q6_K:    {q6_kRows1AVX2, q6_kRows2AVX2, q6_kRows3AVX2, q6_kRows4AVX2},
		tensor.IQ4_XS:  {iq4_xsRows1AVX2, iq4_xsRows2AVX2, iq4_xsRows3AVX2, iq4_xsRows4AVX2},
		tensor.IQ2_XXS: {iq2_xxsRows1AVX2, iq2_xxsRows2AVX2, iq2_xxsRows3AVX2, iq2_xxsRows4AVX2},
		tensor.IQ2_XS:  {iq2_xsRows1AVX2, iq2_xsRows2AVX2, iq2_xsRows3AVX2, iq2_xsRows4AVX2},
		tensor.IQ3_XXS: {iq3_xxsRows1AVX2, iq3_xxsRows2AVX2, iq3_xxsRows3AVX2, iq3_xxsRows4AVX2},
		tensor.IQ3_S:   {iq3_sRows1AVX2, iq3_sRows2AVX2, iq3_sRows3AVX2, iq3_sRows4AVX2},
	}
	rowsAVX512 = map[*tensor.Encoding][]func(*Tile){
		tensor.Q4_0: {
			q4_0Rows1AVX512, q4_0Rows2AVX512, q4_0Rows3AVX512, q4_0Rows4AVX512,
			q4_0Rows5AVX512, q4_0Rows6AVX512, q4_0Rows7AVX512, q4_0Rows8AVX512,
		},
		tensor.MXFP4: {
			mxfp4Rows1AVX512, mxfp4Rows2AVX512, mxfp4Rows3AVX512, mxfp4Rows4AVX512,
			mxfp4Rows5AVX512, mxfp4Rows6AVX512, mxfp4Rows7AVX512, mxfp4Rows8AVX512,
		},
		tensor.NVFP4: {
			nvfp4Rows1AVX512, nvfp4Rows2AVX512, nvfp4Rows3AVX512, nvfp4Rows4AVX512,
			nvfp4Rows5AVX512, nvfp4Rows6AVX512, nvfp4Rows7AVX512, nvfp4Rows8AVX512,
		},
		tensor.Q4_K: {
			q4_kRows1AVX512, q4_kRows2AVX512, q4_kRows3AVX512, q4_kRows4AVX512,
			q4_kRows5AVX512, q4_kRows6AVX512, q4_kRows7AVX512, q4_kRows8AVX512,
		},
		tensor.Q5_K: {
			q5_kRows1AVX512, q5_kRows2AVX512, q5_kRows3AVX512, q5_kRows4AVX512,
			q5_kRows5AVX512, q5_kRows6AVX512, q5_kRows7AVX512, q5_kRows8AVX512,
		},
		tensor.Q6_K: {
			q6_kRows1AVX512, q6_kRows2AVX512, q6_kRows3AVX512, q6_kRows4AVX512,
			q6_kRows5AVX512, q6_kRows6AVX512, q6_kRows7AVX512, q6_kRows8AVX512,
		},
		tensor.IQ4_XS: {
			iq4_xsRows1AVX512, iq4_xsRows2AVX512, iq4_xsRows3AVX512, iq4_xsRows4AVX512,
			iq4_xsRows5AVX512, iq4_xsRows6AVX512, iq4_xsRows7AVX512, iq4_xsRows8AVX512,
		},
		tensor.IQ2_XXS: {
			iq2_xxsRows1AVX512, iq2_xxsRows2AVX512, iq2_xxsRows3AVX512, iq2_xxsRows4AVX512,
			iq2_xxsRows5AVX512, iq2_xxsRows6AVX512, iq2_xxsRows7AVX512, iq2_xxsRows8AVX512,
		},
		tensor.IQ2_XS: {
			iq2_xsRows1AVX512, iq2_xsRows2AVX512, iq2_xsRows3AVX512, iq2_xsRows4AVX512,
			iq2_xsRows5AVX512, iq2_xsRows6AVX512, iq2_xsRows7AVX512, iq2_xsRows8AVX512,
		},
		tensor.IQ3_XXS: {
			iq3_xxsRows1AVX512, iq3_xxsRows2AVX512, iq3_xxsRows3AVX512, iq3_xxsRows4AVX512,
			iq3_xxsRows5AVX512, iq3_xxsRows6AVX512, iq3_xxsRows7AVX512, iq3_xxsRows8AVX512,
		},
		tensor.IQ3_S: {
			iq3_sRows1AVX512, iq3_sRows2AVX512, iq3_sRows3AVX512, iq3_sRows4AVX512,
			iq3_sRows5AVX512, iq3_sRows6AVX512, iq3_sRows7AVX512, iq3_sRows8AVX512,
		},
	}
)
