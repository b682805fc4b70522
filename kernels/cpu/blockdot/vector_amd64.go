//go:build amd64 && !purego

package blockdot

import (
	"sync"

	"krater/kernels/cpu/amx"
	"krater/kernels/cpu/level"
	"krater/kernels/tensor"
)

var (
	avx2 = sync.OnceValue(func() *Funcs { return newFuncs(narrow, narrowKernels) })
	// AVX-VNNI has products of its own, for most encodings.
	avxvnni = sync.OnceValue(func() *Funcs {
		return newFuncs(narrow, func(e *tensor.Encoding, k *Kernels) {
			narrowKernels(e, k)
			copy(k.Rows[1:], ofAVXVNNI[e])
			switch {
			case e == tensor.Q4_K:
				k.Panels = &[Rows + 1]func(*Tile){2: foursMinsRows2AVXVNNI, 3: foursMinsRows3AVXVNNI, 4: foursMinsRows4AVXVNNI}
			case e == tensor.Q4_0:
				k.Panels = &[Rows + 1]func(*Tile){2: foursRows2AVXVNNI, 3: foursRows3AVXVNNI, 4: foursRows4AVXVNNI}
			case k.mins:
				k.Panels = &[Rows + 1]func(*Tile){2: panelMinsRows2AVXVNNI, 3: panelMinsRows3AVXVNNI, 4: panelMinsRows4AVXVNNI}
			case k.width > 1:
			case k.subs == 2:
				k.Panels = &[Rows + 1]func(*Tile){2: panelHalvesRows2AVXVNNI, 3: panelHalvesRows3AVXVNNI, 4: panelHalvesRows4AVXVNNI}
			default:
				k.Panels = &[Rows + 1]func(*Tile){2: panelRows2AVXVNNI, 3: panelRows3AVXVNNI, 4: panelRows4AVXVNNI}
			}
		})
	})
	avx512 = sync.OnceValue(func() *Funcs {
		return newFuncs(Funcs{Most: 4, LeastPanel: 4, MostPanel: 8}, func(e *tensor.Encoding, k *Kernels) {
			v := ofAVX512[e]
			copy(k.Rows[1:], v.rows)
			k.Unpack, k.Table = v.unpack, planes(e)
			k.prepare, k.Panels, k.Unit = prepareAVX512, &plainPanels, panelAMX
			_, isGrid := grids[e]
			if isGrid {
				k.prepare = prepareOctetsAVX512
			}
			switch {
			case k.mins:
				k.prepare, k.Panels, k.Unit = prepareMinsAVX512, &minsPanels, panelMinsAMX
			case e == tensor.FP8:
				k.width, k.Panels, k.Unit = digits, &digitsPanels, panelDigitsAMX
			case k.subs == 2: // the tile unit would be slower
				k.prepare, k.Panels, k.Unit = prepareHalvesAVX512, &halvesPanels, nil
				if isGrid {
					k.prepare = preparePairsAVX512
				}
			}
			if amx.Int8() != nil {
				k.Unit = nil
			}
		})
	})
)

// narrow has the numbers of rows of AVX2 and AVX-VNNI.
var narrow = Funcs{Most: 2, LeastPanel: 2, MostPanel: 4}

// narrowKernels enters the tiles of AVX2 for an encoding.
func narrowKernels(e *tensor.Encoding, k *Kernels) {
	v := ofAVX2[e]
	copy(k.Rows[1:], v.rows)
	k.Unpack, k.Table = v.unpack, gathered(e)
	if k.Table != nil || e == tensor.FP8 { // unpacking takes long
		k.Direct = narrow.Most
	}
	k.prepare, k.Panels = prepareAVX2, &[Rows + 1]func(*Tile){2: panelRows2AVX2, 3: panelRows3AVX2, 4: panelRows4AVX2}
	switch {
	case e == tensor.Q4_K:
		k.prepare, k.Panels = prepareMinsAVX2, &[Rows + 1]func(*Tile){2: foursMinsRows2AVX2, 3: foursMinsRows3AVX2, 4: foursMinsRows4AVX2}
	case e == tensor.Q4_0:
		k.Panels = &[Rows + 1]func(*Tile){2: foursRows2AVX2, 3: foursRows3AVX2, 4: foursRows4AVX2}
	case k.mins:
		k.prepare, k.Panels = prepareMinsAVX2, &[Rows + 1]func(*Tile){2: panelMinsRows2AVX2, 3: panelMinsRows3AVX2, 4: panelMinsRows4AVX2}
	case e == tensor.FP8:
		k.width, k.Panels = 4, &[Rows + 1]func(*Tile){2: panelDigitsRows2AVX2, 3: panelDigitsRows3AVX2, 4: panelDigitsRows4AVX2}
	case k.subs == 2:
		k.prepare, k.Panels = prepareHalvesAVX2, &[Rows + 1]func(*Tile){2: panelHalvesRows2AVX2, 3: panelHalvesRows3AVX2, 4: panelHalvesRows4AVX2}
	}
}

// vector chooses the assembly; nil when the level has none.
func vector(l level.Level) *Funcs {
	switch l {
	case level.AVX2:
		return avx2()
	case level.AVXVNNI:
		return avxvnni()
	case level.AVX512:
		return avx512()
	}
	return nil
}

// ofBlocks are the kernels with blocks of an encoding.
type ofBlocks struct {
	rows   []func(*Tile) // from one row on
	unpack func(*Tile)
}

var (
	plainPanels  = [Rows + 1]func(*Tile){4: panelRows4AVX512, 5: panelRows5AVX512, 6: panelRows6AVX512, 7: panelRows7AVX512, 8: panelRows8AVX512}
	minsPanels   = [Rows + 1]func(*Tile){4: panelMinsRows4AVX512, 5: panelMinsRows5AVX512, 6: panelMinsRows6AVX512, 7: panelMinsRows7AVX512, 8: panelMinsRows8AVX512}
	halvesPanels = [Rows + 1]func(*Tile){4: panelHalvesRows4AVX512, 5: panelHalvesRows5AVX512, 6: panelHalvesRows6AVX512, 7: panelHalvesRows7AVX512, 8: panelHalvesRows8AVX512}
	digitsPanels = [Rows + 1]func(*Tile){4: panelDigitsRows4AVX512, 5: panelDigitsRows5AVX512, 6: panelDigitsRows6AVX512, 7: panelDigitsRows7AVX512, 8: panelDigitsRows8AVX512}

	ofAVX2 = map[*tensor.Encoding]ofBlocks{
		tensor.Q4_0:        {[]func(*Tile){q4_0Rows1AVX2, q4_0Rows2AVX2}, q4_0UnpackAVX2},
		tensor.MXFP4:       {[]func(*Tile){mxfp4Rows1AVX2, mxfp4Rows2AVX2}, mxfp4UnpackAVX2},
		tensor.NVFP4:       {[]func(*Tile){nvfp4Rows1AVX2, nvfp4Rows2AVX2}, nvfp4UnpackAVX2},
		tensor.NVFP4Scaled: {[]func(*Tile){nvfp4ScaledRows1AVX2, nvfp4ScaledRows2AVX2}, nvfp4ScaledUnpackAVX2},
		tensor.FP8:         {[]func(*Tile){fp8Rows1AVX2, fp8Rows2AVX2}, fp8UnpackAVX2},
		tensor.Q4_K:        {[]func(*Tile){q4_kRows1AVX2, q4_kRows2AVX2}, q4_kUnpackAVX2},
		tensor.Q5_K:        {[]func(*Tile){q5_kRows1AVX2, q5_kRows2AVX2}, q5_kUnpackAVX2},
		tensor.Q6_K:        {[]func(*Tile){q6_kRows1AVX2, q6_kRows2AVX2}, q6_kUnpackAVX2},
		tensor.IQ4_XS:      {[]func(*Tile){iq4_xsRows1AVX2, iq4_xsRows2AVX2}, iq4_xsUnpackAVX2},
		tensor.IQ2_XXS:     {[]func(*Tile){iq2_xxsRows1AVX2, iq2_xxsRows2AVX2}, iq2_xxsUnpackAVX2},
		tensor.IQ2_XS:      {[]func(*Tile){iq2_xsRows1AVX2, iq2_xsRows2AVX2}, iq2_xsUnpackAVX2},
		tensor.IQ3_XXS:     {[]func(*Tile){iq3_xxsRows1AVX2, iq3_xxsRows2AVX2}, iq3_xxsUnpackAVX2},
		tensor.IQ3_S:       {[]func(*Tile){iq3_sRows1AVX2, iq3_sRows2AVX2}, iq3_sUnpackAVX2},
	}
	ofAVXVNNI = map[*tensor.Encoding][]func(*Tile){
		tensor.Q4_0:        {q4_0Rows1AVXVNNI, q4_0Rows2AVXVNNI},
		tensor.MXFP4:       {mxfp4Rows1AVXVNNI, mxfp4Rows2AVXVNNI},
		tensor.NVFP4:       {nvfp4Rows1AVXVNNI, nvfp4Rows2AVXVNNI},
		tensor.NVFP4Scaled: {nvfp4ScaledRows1AVXVNNI, nvfp4ScaledRows2AVXVNNI},
		tensor.Q4_K:        {q4_kRows1AVXVNNI, q4_kRows2AVXVNNI},
		tensor.Q5_K:        {q5_kRows1AVXVNNI, q5_kRows2AVXVNNI},
		tensor.Q6_K:        {q6_kRows1AVXVNNI, q6_kRows2AVXVNNI},
		tensor.IQ4_XS:      {iq4_xsRows1AVXVNNI, iq4_xsRows2AVXVNNI},
	}
	ofAVX512 = map[*tensor.Encoding]ofBlocks{
		tensor.Q4_0:        {[]func(*Tile){q4_0Rows1AVX512, q4_0Rows2AVX512, q4_0Rows3AVX512, q4_0Rows4AVX512}, q4_0UnpackAVX512},
		tensor.MXFP4:       {[]func(*Tile){mxfp4Rows1AVX512, mxfp4Rows2AVX512, mxfp4Rows3AVX512, mxfp4Rows4AVX512}, mxfp4UnpackAVX512},
		tensor.NVFP4:       {[]func(*Tile){nvfp4Rows1AVX512, nvfp4Rows2AVX512, nvfp4Rows3AVX512, nvfp4Rows4AVX512}, nvfp4UnpackAVX512},
		tensor.NVFP4Scaled: {[]func(*Tile){nvfp4ScaledRows1AVX512, nvfp4ScaledRows2AVX512, nvfp4ScaledRows3AVX512, nvfp4ScaledRows4AVX512}, nvfp4ScaledUnpackAVX512},
		tensor.FP8:         {[]func(*Tile){fp8Rows1AVX512, fp8Rows2AVX512, fp8Rows3AVX512, fp8Rows4AVX512}, fp8UnpackAVX512},
		tensor.Q4_K:        {[]func(*Tile){q4_kRows1AVX512, q4_kRows2AVX512, q4_kRows3AVX512, q4_kRows4AVX512}, q4_kUnpackAVX512},
		tensor.Q5_K:        {[]func(*Tile){q5_kRows1AVX512, q5_kRows2AVX512, q5_kRows3AVX512, q5_kRows4AVX512}, q5_kUnpackAVX512},
		tensor.Q6_K:        {[]func(*Tile){q6_kRows1AVX512, q6_kRows2AVX512, q6_kRows3AVX512, q6_kRows4AVX512}, q6_kUnpackAVX512},
		tensor.IQ4_XS:      {[]func(*Tile){iq4_xsRows1AVX512, iq4_xsRows2AVX512, iq4_xsRows3AVX512, iq4_xsRows4AVX512}, iq4_xsUnpackAVX512},
		tensor.IQ2_XXS:     {[]func(*Tile){iq2_xxsRows1AVX512, iq2_xxsRows2AVX512, iq2_xxsRows3AVX512, iq2_xxsRows4AVX512}, iq2_xxsUnpackAVX512},
		tensor.IQ2_XS:      {[]func(*Tile){iq2_xsRows1AVX512, iq2_xsRows2AVX512, iq2_xsRows3AVX512, iq2_xsRows4AVX512}, iq2_xsUnpackAVX512},
		tensor.IQ3_XXS:     {[]func(*Tile){iq3_xxsRows1AVX512, iq3_xxsRows2AVX512, iq3_xxsRows3AVX512, iq3_xxsRows4AVX512}, iq3_xxsUnpackAVX512},
		tensor.IQ3_S:       {[]func(*Tile){iq3_sRows1AVX512, iq3_sRows2AVX512, iq3_sRows3AVX512, iq3_sRows4AVX512}, iq3_sUnpackAVX512},
	}
)
