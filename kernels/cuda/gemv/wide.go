package gemv

import (
	"fmt"

	"krater/kernels/cuda/launch"
)

// wideFrom is the number of rows from which activations go through shared memory, for
// 32 rows of weights and up to 32 of activations at a time. The results are the same,
// to the bit.
const wideFrom = 5

// maxEights is how many times 8 rows of activations a kernel of each format takes.
var maxEights = [formats]int{4, 2, 2, 4, 2, 4, 4}

// kWide and kWideGateUp by times 8 rows (1, 2, 4).
var kWide, kWideGateUp = wideKernels()

func wideKernels() (m, g [5][formats]launch.Kernel) {
	for f, most := range maxEights {
		for n := 1; n <= most; n *= 2 {
			m[n][f] = launch.Named(fmt.Sprintf("kr_gemv_wide%d_%s", n, formatNames[f]))
			g[n][f] = launch.Named(fmt.Sprintf("kr_gemv_wide%d_gate_up_%s", n, formatNames[f]))
		}
	}
	return m, g
}

// wideShape is how a kernel cuts its work.
type wideShape struct {
	format format
	eights int // rows of activations of a block, by 8
	config launch.Config
}

func wideShapeOf(card launch.Card, w *launch.Weight, rows, parts int) wideShape {
	s := wideShape{eights: 1}
	s.format, _ = formatOf(w)
	for s.eights < min(maxEights[s.format], eightsOf(rows)) && wideShared(2*s.eights, parts, maxParts) <= card.SharedMax {
		s.eights *= 2
	}
	tiles := (eightsOf(rows) + s.eights - 1) / s.eights
	rowWarps := 1 // of a part; they share its activations, if blocks enough are left
	for rowWarps < 4 && 2*rowWarps*parts <= maxParts && w.Rows()/(64*rowWarps)*tiles >= 2*card.SMs {
		rowWarps *= 2
	}
	blocks := (w.Rows() + 32*rowWarps - 1) / (32 * rowWarps)
	s.config = config(blocks*tiles, 1, parts*rowWarps)
	s.config.Shared = uint32(wideShared(s.eights, parts, parts*rowWarps))
	return s
}

// wideShared is the shared memory of a block: two units of activations for each part,
// then the sums of every warp.
func wideShared(eights, parts, warps int) int { return max(parts*2*8*eights*256, warps*2*eights*512) }

// wideMatrix is matrix for rows in order.
func wideMatrix(l *launch.List, card launch.Card, out launch.Mat, x launch.Ptr, stride int, w *launch.Weight, parts int, o Options) {
	s := wideShapeOf(card, w, out.Rows, parts)
	args := append(make([]launch.Arg, 0, maxArgs),
		launch.P(out.At), wide(out), launch.I32(out.Stride), flag(o.Add), launch.P(x), launch.I32(stride), launch.I32(out.Rows),
		launch.I32(parts))
	l.Add(kWide[s.eights][s.format], s.config, appendMatrix(args, w)...)
}

// wideGateUp writes h [M, F] in order.
func wideGateUp(l *launch.List, card launch.Card, h launch.Ptr, x launch.Mat, w13 *launch.Weight, parts int) {
	s := wideShapeOf(card, w13, x.Rows, parts)
	args := append(make([]launch.Arg, 0, maxArgs), launch.P(h), launch.P(x.At), launch.I32(x.Stride), launch.I32(x.Rows), launch.I32(parts))
	l.Add(kWideGateUp[s.eights][s.format], s.config, appendMatrix(args, w13)...)
}
