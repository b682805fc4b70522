package moe

import (
	"fmt"

	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/route"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// mode says what is done with the sums, as the kernels number it.
type mode int

const (
	toHidden mode = iota
	toBF16
	toF32
	addF32
)

// Options change Experts.
type Options struct {
	// Factors [T*K] F32 multiply the rows of y before they are rounded; 0: they do not.
	Factors launch.Ptr
	// Variant replaces the variant that For returns, for comparisons.
	Variant Variant
}

// CanExperts reports whether Experts takes the bank on x [T, H]: packed, gate and up
// joined, H and F multiples of 64, everything aligned to 16 bytes; with biases or another
// activation than SiLU, scales of groups.
func CanExperts(x launch.Mat, b *launch.Bank) bool {
	return canNetwork(x, &b.W13.A, &b.W2.A) && (simple(b) || !b.Apart() && grouped(&b.W13.A) && grouped(&b.W2.A)) &&
		b.Step%16 == 0 && b.Step2%16 == 0 && b.ScaleStep%4 == 0 && b.ScaleStep2%4 == 0
}

// simple reports whether a bank needs no kernels with biases: it has SiLU, or an activation apart.
func simple(b *launch.Bank) bool { return b.Extra.Zero() || b.Apart() && b.B13 == 0 && b.B2 == 0 }

// grouped reports whether weights are rounded with the scales of groups. With one scale for all
// columns the sum is scaled.
func grouped(w *launch.Tiles) bool {
	f, _ := formatOf(w)
	return formatList[f].Group != 0
}

func canNetwork(x launch.Mat, w13, w2 *launch.Tiles) bool {
	return readable(x) && fits(w13) && fits(w2) && w13.Joined && !w2.Joined &&
		x.Cols == w13.Cols && w13.Rows == 2*w2.Cols && w2.Rows == x.Cols
}

// HiddenBytes returns the size of the hidden values of that many rows of a network.
func HiddenBytes(rows, width int) int { return (2*rows*width + 15) &^ 15 }

// Experts computes a row of y [T*K, H], BF16 or F32, for every assignment t*K+rank whose expert
// is in the bank: down(silu(gate x[t]) * up x[t]), or with the bank's biases and activation. Other
// rows are unchanged. a has x's assignments in tiles of ForBank(...).Tokens() (of o.Variant's, if
// that is set); h is HiddenBytes(T*K, F) of scratch, aligned to 16, and HiddenBytes(T*K, 3*F) with an
// activation apart.
func Experts(l *launch.List, gpu launch.GPU, y launch.Mat, h launch.Ptr, x launch.Mat, b launch.Bank, a route.Aligned, o Options) {
	const op = "moe Experts"
	slots := a.Assignments
	v := o.Variant
	if v == Auto {
		v = ForBank(gpu, slots, &b)
	}
	switch {
	case !CanExperts(x, &b):
		refuse(op, "x %v, experts [%d, %d] and [%d, %d]", x, b.W13.Rows(), b.W13.Cols(), b.W2.Rows(), b.W2.Cols())
	case !v.runs(gpu) || a.Tile != v.Tokens() || v == A64 && !simple(&b):
		refuse(op, "tiles of %d assignments for kernel %v", a.Tile, v)
	case o.Factors != 0 && !simple(&b):
		refuse(op, "factors of rows with biases or another activation")
	case slots != x.Rows*a.TopK || a.Experts != b.Experts || a.Map != b.Map:
		refuse(op, "%d assignments of %d of %d experts by map %#x for x %v", slots, a.TopK, a.Experts, uint64(a.Map), x)
	}
	checkOut(op, y, slots, x.Cols)
	if slots == 0 {
		return
	}
	width := b.W2.Cols()
	work := job{aligned: &a, tiles: a.MaxTiles()}
	hidden := launch.Mat{At: h, DType: tensor.BF16, Rows: slots, Cols: width, Stride: width}
	if !simple(&b) {
		work.extra = &b.Extra
	}
	work.bias = b.B13
	if b.Apart() {
		both := launch.Mat{At: h + launch.Ptr(HiddenBytes(slots, width)), DType: tensor.BF16, Rows: slots, Cols: 2 * width, Stride: 2 * width}
		work.add(l, v, both, toBF16, 0, x, a.TopK, &b.W13.A, b.Step, b.ScaleStep)
		elem.ActivateJoined(l, hidden, both, &b.Extra)
	} else {
		work.add(l, v, hidden, toHidden, 0, x, a.TopK, &b.W13.A, b.Step, b.ScaleStep)
	}
	work.bias = b.B2
	work.add(l, v, y, modeOf(y, false), o.Factors, hidden, 1, &b.W2.A, b.Step2, b.ScaleStep2)
}

// CanDense reports whether Dense takes w [N, K] on x [M, K]: K a multiple of 64, N of 8.
func CanDense(out, x launch.Mat, w *launch.Tiles) bool {
	return readable(x) && writable(out) && fits(w) && x.Cols == w.Cols
}

// Epilogue says what Dense does with the product.
type Epilogue uint8

const (
	Store  Epilogue = iota // out [M, N], BF16 or F32
	Add                    // out [M, N] F32 += the product
	SwiGLU                 // w is joined: out [M, N/2] BF16 = silu(gate) * up
)

// Dense computes out = x [M, K] * transposed w [N, K].
func Dense(l *launch.List, gpu launch.GPU, out, x launch.Mat, w launch.Tiles, e Epilogue) {
	DenseBy(l, gpu, Auto, out, x, w, e)
}

// DenseBy is Dense with a given kernel, for comparisons.
func DenseBy(l *launch.List, gpu launch.GPU, v Variant, out, x launch.Mat, w launch.Tiles, e Epilogue) {
	const op = "moe Dense"
	if v == Auto {
		v = denseFor(gpu, x.Rows, w.Rows)
	}
	cols, m := w.Rows, toHidden
	switch {
	case !CanDense(out, x, &w) || !v.runs(gpu):
		refuse(op, "out %v, x %v, w [%d, %d], kernel %v", out, x, w.Rows, w.Cols, v)
	case w.Joined != (e == SwiGLU):
		refuse(op, "epilogue %d of a matrix that is joined: %v", e, w.Joined)
	case e == Add && out.DType != tensor.F32 || e == SwiGLU && out.DType != tensor.BF16:
		refuse(op, "epilogue %d to %v", e, out)
	case e == SwiGLU:
		cols /= 2
	default:
		m = modeOf(out, e == Add)
	}
	checkOut(op, out, x.Rows, cols)
	if x.Rows == 0 {
		return
	}
	n := v.Tokens()
	work := job{rows: x.Rows, tiles: (x.Rows + n - 1) / n}
	work.add(l, v, out, m, 0, x, 1, &w, 0, 0)
}

// CanFFN reports whether FFN takes the network on x [M, H].
func CanFFN(x launch.Mat, w13, w2 *launch.Tiles) bool { return canNetwork(x, w13, w2) }

// FFN computes out [M, H] = down(silu(gate x) * up x), or with add (out F32) out += it. h is
// HiddenBytes(M, F) of scratch, aligned to 16.
func FFN(l *launch.List, gpu launch.GPU, out launch.Mat, h launch.Ptr, x launch.Mat, w13, w2 launch.Tiles, add bool) {
	if !CanFFN(x, &w13, &w2) {
		refuse("moe FFN", "x %v, w13 [%d, %d], w2 [%d, %d]", x, w13.Rows, w13.Cols, w2.Rows, w2.Cols)
	}
	hidden := launch.Mat{At: h, DType: tensor.BF16, Rows: x.Rows, Cols: w2.Cols, Stride: w2.Cols}
	e := Store
	if add {
		e = Add
	}
	Dense(l, gpu, hidden, x, w13, SwiGLU)
	Dense(l, gpu, out, hidden, w2, e)
}

// denseFor returns the variant for m rows of activations and n of weights: as for one expert, but
// smaller if a multiprocessor would have no work.
func denseFor(gpu launch.GPU, m, n int) Variant {
	v := choose(gpu, m)
	for smaller[v] != Auto {
		s := &shapes[v]
		if ((m+s.tokens-1)/s.tokens)*((n+s.rows-1)/s.rows) >= gpu.SMs {
			break
		}
		v = smaller[v]
	}
	return v
}

var smaller = [variants]Variant{A64: A32, H128x4: H128, H128: H64, H64: H32}

// job is the tokens of a launch: sorted assignments, or all rows.
type job struct {
	aligned *route.Aligned
	rows    int // used without aligned
	tiles   int
	extra   *launch.Extra // nil: SiLU without biases
	bias    launch.Ptr    // of this product; 0: none
}

// add launches one product. divisor: output row / divisor is the row of x.
func (j *job) add(l *launch.List, v Variant, out launch.Mat, m mode, factors launch.Ptr, x launch.Mat, divisor int,
	w *launch.Tiles, step, scaleStep int64) {
	s := &shapes[v]
	var tiles, slots, count launch.Ptr
	if j.aligned != nil {
		tiles, slots, count = j.aligned.Tiles, j.aligned.Slots, j.aligned.Count
	}
	f, _ := formatOf(w)
	config := launch.Config{
		Grid:   launch.Dim{X: uint32((w.Rows + s.rows - 1) / s.rows), Y: uint32(j.tiles)},
		Block:  launch.Dim{X: uint32(s.threads)},
		Shared: uint32(s.shared(f)),
		PDL:    true,
	}
	args := [23]launch.Arg{
		launch.P(out.At), launch.I32(int(m)), launch.I32(out.Stride), launch.P(factors),
		launch.P(x.At), launch.I32(x.Stride), launch.I32(divisor),
		launch.P(tiles), launch.P(slots), launch.P(count), launch.I32(j.rows),
		launch.P(w.Values), launch.P(w.Scales), launch.I32(w.Rows), launch.I32(w.PaddedCols() / tensor.TileA), launch.I32(w.Groups()),
		launch.I64(step), launch.I64(scaleStep),
	}
	if j.extra == nil {
		l.Add(kernels[v][f], config, args[:18]...)
		return
	}
	act := j.extra.Act()
	copy(args[18:], []launch.Arg{launch.P(j.bias), launch.I64(j.extra.BiasStep), act[0], act[1], act[2]})
	l.Add(biased[v][f], config, args[:]...)
}

func modeOf(out launch.Mat, add bool) mode {
	switch {
	case add:
		return addF32
	case out.DType == tensor.F32:
		return toF32
	}
	return toBF16
}

func checkOut(op string, out launch.Mat, rows, cols int) {
	if !writable(out) || out.Rows != rows || out.Cols != cols {
		refuse(op, "out %v, want F32 or aligned BF16 [%d, %d]", out, rows, cols)
	}
}

func refuse(op, format string, args ...any) {
	panic(&device.ShapeError{Op: op, Why: fmt.Sprintf(format, args...)})
}
