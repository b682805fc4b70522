// Package same launches experts whose results have the bits of a processor's: it does not matter where an
// expert is computed. The arithmetic is that of ExpertsQ (kernels/device/quant.go, kernels/cpu): rows are
// quantised to 8 bits by groups, the middle rows too. Weights are the packed integers INT3, INT4 and INT8
// (kernels/tensor/integergpu.go), of every shape and group size.
//
// The bits of a row depend on that row and the weights only, so the size of a tile does not matter
// either.
package same

import (
	"fmt"

	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/route"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// The sizes of tiles: products of few rows wait for weights, those of many use them again.
const (
	FewTokens  = 8
	ManyTokens = 64
)

// OwnRows is the most rows that every block of a product quantises for itself: launches that do so would
// take longer.
const OwnRows = 4

// Tile returns the size of tiles for a number of assignments.
func Tile(assignments, experts int) int {
	if assignments <= FewTokens*experts {
		return FewTokens
	}
	return ManyTokens
}

var (
	kRows    = launch.Named("kr_same_rows")
	products = func() map[tensor.Format][sizes]launch.Kernel {
		m := map[tensor.Format][sizes]launch.Kernel{}
		for _, e := range []*tensor.Encoding{tensor.INT3, tensor.INT4, tensor.INT8} {
			for _, group := range []int{32, 64, 128, 0} {
				name := fmt.Sprintf("kr_same_%s_g%d", e.Name(), group)
				if group == 0 {
					name = fmt.Sprintf("kr_same_%s_ch", e.Name())
				}
				m[e.By(group)] = [sizes]launch.Kernel{
					own: launch.Named(name + "_own"), few: launch.Named(name + "_few"), many: launch.Named(name + "_many"),
				}
			}
		}
		return m
	}()
)

// The kernels of a format: of tiles of FewTokens, whose rows blocks quantise for themselves or not, and of
// ManyTokens.
const (
	own = iota
	few
	many
	sizes
)

// Check says why no kernel has a processor's arithmetic for experts of a format; nil if one has.
func Check(f tensor.Format) error {
	switch {
	case f.Zero():
		return fmt.Errorf("experts as in the file are multiplied as floats, whose sums depend on the width of a processor's vectors; the integers int3, int4 and int8 have one arithmetic")
	case f.Encoding != tensor.INT3 && f.Encoding != tensor.INT4 && f.Encoding != tensor.INT8:
		return fmt.Errorf("there are no kernels with a processor's arithmetic for %s, but for int3, int4 and int8", f.Encoding.Name())
	}
	return nil
}

func has(w *launch.Tiles) bool {
	_, ok := products[w.Scaling()]
	return ok
}

// ScratchBytes returns the scratch memory of Experts for a number of rows, each of topK experts of a
// hidden size and a width.
func ScratchBytes(rows, topK, hidden, width int) int {
	return rowsOf(0, rows, hidden).size() + rowsOf(0, rows*topK, width).size() + up(4*rows*topK*width)
}

// rows are quantised rows: Q I8 [rows, 64*tiles] and Scales F32 [rows, groups]. Where every block makes them for
// itself of x, there is only room for them.
type rows struct {
	x         launch.Mat
	q, scales launch.Ptr
	count     int
	tiles     int
}

// rowsOf lays out rows of cols columns, for groups of any size.
func rowsOf(at launch.Ptr, count, cols int) rows {
	tiles := (cols + tensor.TileA - 1) / tensor.TileA
	return rows{q: at, scales: at + launch.Ptr(up(count*tensor.TileA*tiles)), count: count, tiles: tiles}
}

// size is the memory of the rows, with scales of groups of 32.
func (r rows) size() int { return up(r.count*tensor.TileA*r.tiles) + up(4*r.count*2*r.tiles) }

func up(n int) int { return (n + 255) &^ 255 }

// quantize appends the launch that makes r of x, for weights w.
func (r rows) quantize(l *launch.List, w *launch.Tiles) {
	warps := r.count // of a row if a scale serves all columns, else of 128 columns
	if w.Scaling().Group > 0 {
		warps *= (r.tiles + 1) / 2
	}
	l.Add(kRows, launch.Config{Grid: launch.Dim{X: uint32((warps + 7) / 8)}, Block: launch.Dim{X: 256}, PDL: true},
		launch.P(r.x.At), wide(r.x), launch.I32(r.x.Stride), launch.I32(r.count), launch.I32(r.x.Cols), launch.P(r.q), launch.P(r.scales),
		launch.I32(r.tiles), launch.I32(w.Groups()), launch.I32(w.Scaling().Group))
}

// wide tells the kernels the type of rows.
func wide(x launch.Mat) launch.Arg {
	if x.DType == tensor.F32 {
		return launch.I32(1)
	}
	return launch.I32(0)
}

// mode says what is done with the sums, as the kernels number it.
type mode int

const (
	toHidden mode = iota
	toBF16
	toF32
)

// Experts computes a row of y [T*K, H], BF16 or F32, for every assignment t*K+rank whose expert is in
// the bank: down(quantised act(gate x[t], up x[t])), of quantised rows of x [T, H], BF16 or F32. Other
// rows are unchanged. a has x's assignments in tiles of FewTokens or ManyTokens; memory is ScratchBytes,
// aligned to 256.
func Experts(l *launch.List, y launch.Mat, memory launch.Ptr, x launch.Mat, b launch.Bank, a route.Aligned) {
	const op = "Experts of a processor's arithmetic"
	w13, w2 := &b.W13.A, &b.W2.A
	switch {
	case w13.Zero() || w2.Zero():
		refuse(op, "experts that are not packed")
	case !has(w13) || !has(w2):
		refuse(op, "experts %s and %s", w13.Layout, w2.Layout)
	case w13.Check() != nil || w2.Check() != nil || !w13.Joined || w2.Joined || w13.Rows != 2*w2.Cols || w2.Rows != w13.Cols || x.Cols != w13.Cols:
		refuse(op, "x %v, experts %s and %s", x, w13.Layout, w2.Layout)
	case (w13.Values|w2.Values)%16 != 0 || (b.Step|b.Step2)%16 != 0 || (w13.Scales|w2.Scales)%4 != 0 || (b.ScaleStep|b.ScaleStep2)%4 != 0:
		refuse(op, "experts that are not aligned to 16 bytes")
	case x.DType != tensor.BF16 && x.DType != tensor.F32 || y.DType != tensor.BF16 && y.DType != tensor.F32:
		refuse(op, "y %v of x %v", y, x)
	case a.Tile != FewTokens && a.Tile != ManyTokens || a.Assignments != x.Rows*a.TopK || a.Experts != b.Experts || a.Map != b.Map:
		refuse(op, "%d assignments of %d experts in tiles of %d for x %v", a.Assignments, a.Experts, a.Tile, x)
	case y.Rows != a.Assignments || y.Cols != x.Cols:
		refuse(op, "y %v, x %v, %d assignments", y, x, a.Assignments)
	}
	if a.Assignments == 0 {
		return
	}
	in := rowsOf(memory, x.Rows, x.Cols)
	in.x = x
	middle := rowsOf(in.q+launch.Ptr(in.size()), a.Assignments, w2.Cols)
	h := launch.Mat{At: middle.q + launch.Ptr(middle.size()), DType: tensor.F32, Rows: a.Assignments, Cols: w2.Cols, Stride: w2.Cols}
	middle.x = h
	j := job{&a, &b.Extra, few, min(FewTokens, a.Assignments)}
	switch {
	case a.Tile == ManyTokens:
		j.size = many
	case x.Rows <= OwnRows && ownShared(j.rows, w13) <= ownMost && ownShared(j.rows, w2) <= ownMost:
		j.size = own
	}
	if j.size != own {
		in.quantize(l, w13)
	}
	j.product(l, h, toHidden, in, a.TopK, w13, b.Step, b.ScaleStep, b.B13)
	if j.size != own {
		middle.quantize(l, w2)
	}
	m := toBF16
	if y.DType == tensor.F32 {
		m = toF32
	}
	j.product(l, y, m, middle, 1, w2, b.Step2, b.ScaleStep2, b.B2)
}

// job has the arguments that both products share.
type job struct {
	tiles *route.Aligned
	extra *launch.Extra
	size  int // of tiles
	rows  int // the most of a tile with own
}

// manyShared is the shared memory of a block of ManyTokens: four stages of 64 columns, with two scales of each, and
// slots.
const manyShared = 4*ManyTokens*(tensor.TileA+8) + 4*ManyTokens

// ownMost is the most shared memory of a block that quantises its own rows.
const ownMost = 64 << 10

// ownShared is the shared memory of a block that quantises its own rows: an odd number of tiles a row, and
// scales.
func ownShared(rows int, w *launch.Tiles) int {
	return rows * (tensor.TileA*(w.PaddedCols()/tensor.TileA|1) + 4*w.Groups())
}

// product appends one product; x has row slot/divisor of a slot.
func (j *job) product(l *launch.List, out launch.Mat, m mode, x rows, divisor int, w *launch.Tiles, step, scaleStep int64, bias launch.Ptr) {
	shared := 0
	switch j.size {
	case own:
		shared = ownShared(j.rows, w)
	case many:
		shared = manyShared
	}
	act := j.extra.Act()
	args := [...]launch.Arg{
		launch.P(out.At), launch.I32(int(m)), launch.I32(out.Stride), launch.P(x.q), launch.P(x.scales),
		launch.P(x.x.At), wide(x.x), launch.I32(x.x.Stride), launch.I32(x.x.Cols), launch.I32(divisor),
		launch.P(j.tiles.Tiles), launch.P(j.tiles.Slots), launch.P(j.tiles.Count),
		launch.P(w.Values), launch.P(w.Scales), launch.I32(w.Rows), launch.I32(w.PaddedCols() / tensor.TileA), launch.I32(w.Groups()),
		launch.I64(step), launch.I64(scaleStep), launch.P(bias), launch.I64(j.extra.BiasStep), act[0], act[1], act[2], launch.F32(j.extra.Cubic),
	}
	l.Add(products[w.Scaling()][j.size], launch.Config{
		Grid:  launch.Dim{X: uint32(w.Bands()), Y: uint32(j.tiles.MaxTiles())},
		Block: launch.Dim{X: 128}, Shared: uint32(shared), PDL: true,
	}, args[:]...)
}

func refuse(op, format string, args ...any) {
	panic(&device.ShapeError{Op: op, Why: fmt.Sprintf(format, args...)})
}
