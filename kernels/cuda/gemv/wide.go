package gemv

import (
	"strconv"

	"krater/kernels/cuda/launch"
)

// wideFrom is the number of rows from which activations go through shared memory, for 16 to 48
// rows of weights and up to 32 of activations at a time. The results have the same bits.
const wideFrom = 5

// maxEights is the most groups of 8 rows of activations that a kernel of each format takes.
var maxEights = [everywhere]int{4, 2, 2, 4, 2, 4, 4}

// fitted are the formats with kernels of 32 rows of activations for 16 and 48 rows of weights,
// too.
var fitted = [everywhere]bool{plainBF16: true, int4x128: true, int8x128: true}

// wideKernel is a kernel, by row blocks of weights and by groups of 8 rows of activations.
type wideKernel struct {
	rowBlocks, eights int
	format            format
	biased            bool
}

// kWide and kWideGateUp are the kernels by shape.
var kWide, kWideGateUp = wideKernels()

func wideKernels() (m, g map[wideKernel]launch.Kernel) {
	m, g = map[wideKernel]launch.Kernel{}, map[wideKernel]launch.Kernel{}
	add := func(k wideKernel, width string) {
		m[k] = launch.Named("kr_gemv_wide" + width + "_" + formatNames[k.format])
		g[k] = launch.Named("kr_gemv_wide" + width + "_gate_up_" + formatNames[k.format])
		k.biased = true
		m[k] = launch.Named("kr_gemv_wide" + width + "_biased_" + formatNames[k.format])
	}
	for f, most := range maxEights {
		for n := 1; n <= most; n *= 2 {
			add(wideKernel{2, n, format(f), false}, strconv.Itoa(n))
		}
		if fitted[f] {
			add(wideKernel{1, 4, format(f), false}, "4x1")
			add(wideKernel{3, 4, format(f), false}, "4x3")
		}
	}
	return m, g
}

// wideShape says how a kernel divides its work.
type wideShape struct {
	wideKernel
	config launch.Config
}

func wideShapeOf(gpu launch.GPU, w *launch.Weight, rows, parts int) wideShape {
	s := wideShape{wideKernel: wideKernel{rowBlocks: 2, eights: 1}}
	s.format, _ = formatOf(w)
	s.biased = w.Bias != 0
	for s.eights < min(maxEights[s.format], eightsOf(rows)) && wideShared(2, 2*s.eights, parts, maxParts) <= gpu.SharedMax {
		s.eights *= 2
	}
	tiles := (eightsOf(rows) + s.eights - 1) / s.eights
	rowWarps := 1 // warps of a part; they share its activations, if enough blocks remain
	for rowWarps < 4 && 2*rowWarps*parts <= maxParts && w.Rows()/(64*rowWarps)*tiles >= 2*gpu.SMs {
		rowWarps *= 2
	}
	blocks := func(rowBlocks int) int {
		return (w.Rows() + 16*rowBlocks*rowWarps - 1) / (16 * rowBlocks * rowWarps) * tiles
	}
	if s.eights == 4 && fitted[s.format] { // one block per multiprocessor
		switch {
		case blocks(1) <= gpu.SMs:
			s.rowBlocks = 1
		case blocks(2) > gpu.SMs && blocks(3) <= gpu.SMs: // avoids a second round for a few blocks
			s.rowBlocks = 3
		}
	}
	s.config = config(blocks(s.rowBlocks), 1, parts*rowWarps)
	s.config.Shared = uint32(wideShared(s.rowBlocks, s.eights, parts, parts*rowWarps))
	return s
}

// wideShared returns the shared memory of a block: two units of activations per part, then the
// sums of every warp.
func wideShared(rowBlocks, eights, parts, warps int) int {
	return max(parts*2*8*eights*256, warps*rowBlocks*eights*512)
}

// wideMatrix is matrix for rows in order.
func wideMatrix(l *launch.List, gpu launch.GPU, out launch.Mat, x launch.Ptr, stride int, w *launch.Weight, parts int, o Options) {
	s := wideShapeOf(gpu, w, out.Rows, parts)
	args := append(make([]launch.Arg, 0, maxArgs),
		launch.P(out.At), wide(out), launch.I32(out.Stride), flag(o.Add), launch.P(x), launch.I32(stride), launch.I32(out.Rows),
		launch.I32(parts))
	l.Add(kWide[s.wideKernel], s.config, appendMatrix(args, w)...)
}

// wideGateUp writes h [M, F] in order.
func wideGateUp(l *launch.List, gpu launch.GPU, h launch.Ptr, x launch.Mat, w13 *launch.Weight, parts int) {
	s := wideShapeOf(gpu, w13, x.Rows, parts)
	args := append(make([]launch.Arg, 0, maxArgs), launch.P(h), launch.P(x.At), launch.I32(x.Stride), launch.I32(x.Rows), launch.I32(parts))
	l.Add(kWideGateUp[s.wideKernel], s.config, appendMatrix(args, w13)...)
}
