// Package native launches the products of experts whose weights are blocks of a file, as the file has
// them: the encodings of tensor.SharedEncodings. Their layout is that of a CPU's bands
// (tensor.Encoding.Shared), so experts are copied from host memory to a GPU byte for byte.
//
// Plain takes every shape and type of activations. Experts takes activations of bfloat16 and assignments
// sorted into tiles of one expert. Weights are exact, except in tiles of ManyTokens, which round each
// weight to bfloat16 once. Sums are float32. With the same kernel, a row's result depends on that
// row and the weights only.
package native

import (
	"fmt"

	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/route"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// kernels are the kernels of an encoding.
type kernels struct {
	plain, few, many launch.Kernel
	table            int // bytes of its table in shared memory
}

// list has the kernels of every encoding. The numbers below are the words of its table.
var list = func() map[*tensor.Encoding]kernels {
	m := map[*tensor.Encoding]kernels{}
	for name, words := range map[string]int{
		"q8_0": 0, "q4_0": 0, "fp8": 0, "mxfp4": 0, "nvfp4": 0, "nvfp4_scaled": 0, "q4_k": 0, "q5_k": 0, "q6_k": 0, "iq4_xs": 0,
		"iq2_xxs": 512, "iq2_xs": 1024, "iq3_xxs": 256, "iq3_s": 512,
	} {
		kernel := func(kind string) launch.Kernel { return launch.Named("kr_native_" + name + "_" + kind) }
		m[tensor.EncodingOf(name)] = kernels{kernel("plain"), kernel("few"), kernel("many"), 4 * words}
	}
	return m
}()

// Takes reports whether the package has kernels for a matrix.
func Takes(w *launch.Tiles) bool {
	if w.Zero() {
		return false
	}
	_, ok := list[w.Encoding]
	return ok
}

// The largest numbers of tokens of a tile.
const (
	FewTokens  = 8
	ManyTokens = 128
)

// Tile returns the size of tiles for a number of assignments: FewTokens if experts have no more than
// that on average.
func Tile(assignments, experts int) int {
	if assignments <= FewTokens*experts {
		return FewTokens
	}
	return ManyTokens
}

// Can reports whether Experts takes the bank on x [T, H]: activations of BF16, everything aligned.
func Can(x launch.Mat, b *launch.Bank) bool {
	return x.DType == tensor.BF16 && x.At%16 == 0 && (x.Stride%8 == 0 || x.Rows <= 1) && check(x, b) == ""
}

// check names what is wrong with a bank for rows x; "" if nothing is.
func check(x launch.Mat, b *launch.Bank) string {
	w13, w2 := &b.W13.A, &b.W2.A
	switch {
	case !Takes(w13) || !Takes(w2):
		return fmt.Sprintf("experts %s and %s are not blocks of a file", w13.Layout, w2.Layout)
	case w13.Check() != nil || w2.Check() != nil || w13.Rows != 2*w2.Cols || w2.Rows != w13.Cols || x.Cols != w13.Cols || w2.Cols%32 != 0 || w13.Cols%32 != 0:
		return fmt.Sprintf("experts %s and %s for x %v", w13.Layout, w2.Layout, x)
	case (w13.Values|w13.Scales|w2.Values|w2.Scales)%16 != 0 || (b.Step|b.ScaleStep|b.Step2|b.ScaleStep2)%16 != 0:
		return "experts that are not aligned to 16 bytes"
	case b.Experts < 1:
		return "no experts"
	}
	return ""
}

// HiddenBytes returns the size of the hidden values of that many rows of a network, of type dt.
func HiddenBytes(rows, width int, dt tensor.DType) int { return (rows*width*dt.Size() + 15) &^ 15 }

// mode says what is done with sums, as the kernels number it.
type mode int

const (
	toHidden mode = iota
	toBF16
	toF32
)

func modeOf(op string, out launch.Mat) mode {
	switch out.DType {
	case tensor.BF16:
		return toBF16
	case tensor.F32:
		return toF32
	}
	refuse(op, "results of type %s", out.DType)
	return 0
}

// Experts computes a row of y [T*K, H], BF16 or F32, for every assignment t*K+rank whose expert
// is in the bank: down(act(gate x[t], up x[t])), with the bank's biases and activation. Other rows
// are unchanged. a has x's assignments in tiles of FewTokens or ManyTokens; h is
// HiddenBytes(T*K, F, BF16) of scratch, aligned to 16, and HiddenBytes(T*K, 3*F, BF16) with an activation apart.
func Experts(l *launch.List, gpu launch.GPU, y launch.Mat, h launch.Ptr, x launch.Mat, b launch.Bank, a route.Aligned) {
	const op = "native Experts"
	if why := check(x, &b); why != "" || !Can(x, &b) {
		refuse(op, "%s x %v", why, x)
	}
	if a.Tile != FewTokens && a.Tile != ManyTokens || a.Assignments != x.Rows*a.TopK || a.Experts != b.Experts || a.Map != b.Map {
		refuse(op, "%d assignments of %d experts in tiles of %d for x %v", a.Assignments, a.Experts, a.Tile, x)
	}
	if y.Rows != a.Assignments || y.Cols != x.Cols {
		refuse(op, "y %v, x %v, %d assignments", y, x, a.Assignments)
	}
	m := modeOf(op, y)
	if a.Assignments == 0 {
		return
	}
	width := b.W2.Cols()
	j := job{gpu: gpu, tiles: &a, extra: &b.Extra}
	hidden := launch.Mat{At: h, DType: tensor.BF16, Rows: a.Assignments, Cols: width, Stride: width}
	if b.Apart() {
		both := launch.Mat{At: h + launch.Ptr(HiddenBytes(a.Assignments, width, tensor.BF16)), DType: tensor.BF16, Rows: a.Assignments, Cols: 2 * width, Stride: 2 * width}
		j.grouped(l, both, toBF16, x, a.TopK, &b.W13.A, b.Step, b.ScaleStep, b.B13)
		elem.Activate(l, hidden, both.ColRange(0, width), both.ColRange(width, 2*width), &b.Extra)
	} else {
		j.grouped(l, hidden, toHidden, x, a.TopK, &b.W13.A, b.Step, b.ScaleStep, b.B13)
	}
	j.grouped(l, y, m, hidden, 1, &b.W2.A, b.Step2, b.ScaleStep2, b.B2)
}

// job has the arguments that both products of a mixture share.
type job struct {
	gpu   launch.GPU
	tiles *route.Aligned // nil: plain
	extra *launch.Extra
}

// args are JOB_ARGS.
func (j *job) args(out launch.Mat, m mode, x launch.Mat, divisor int, w *launch.Tiles, step, smallStep int64, bias launch.Ptr) []launch.Arg {
	var tiles, slots, count launch.Ptr
	if j.tiles != nil {
		tiles, slots, count = j.tiles.Tiles, j.tiles.Slots, j.tiles.Count
	}
	act := j.extra.Act()
	return append(make([]launch.Arg, 0, maxArgs), launch.P(out.At), launch.I32(int(m)), launch.I32(out.Stride), launch.P(x.At), launch.I32(x.Stride), launch.I32(divisor),
		launch.P(tiles), launch.P(slots), launch.P(count), launch.P(w.Values), launch.P(w.Scales), launch.I32(w.Rows), launch.I32(w.Cols/32),
		launch.I64(step), launch.I64(smallStep), launch.P(bias), launch.I64(j.extra.BiasStep), act[0], act[1], act[2])
}

const maxArgs = 25

// The shared memory of a block, beside the table.
const (
	fewShared  = 2 * 8 * 32 * FewTokens * 4                  // sums of 8 warps, of two parts
	manyShared = 2*128*128 + 3*ManyTokens*128 + 4*ManyTokens // two stages of weights, three of activations, slots
)

// fewBlocks is about the number of blocks of the kernel for few tokens on each multiprocessor. Two run at
// a time. A block with several parts loads one while it sums another.
const fewBlocks = 8

// grouped launches one product of sorted assignments; x has row slot/divisor of a slot.
func (j *job) grouped(l *launch.List, out launch.Mat, m mode, x launch.Mat, divisor int, w *launch.Tiles, step, smallStep int64, bias launch.Ptr) {
	k, tiles := list[w.Encoding], j.tiles.MaxTiles()
	kernel, shared, blocks := k.few, fewShared, (w.Rows+31)/32
	if j.tiles.Tile == ManyTokens {
		kernel, shared, blocks = k.many, manyShared, (w.Rows+127)/128
	} else if parts := blocks * tiles / max(1, fewBlocks*j.gpu.SMs); parts > 1 { // parts of one block
		blocks = (blocks + parts - 1) / parts
	}
	l.Add(kernel, launch.Config{
		Grid:   launch.Dim{X: uint32(blocks), Y: uint32(tiles)},
		Block:  launch.Dim{X: 256},
		Shared: uint32(shared + k.table),
		PDL:    true,
	}, j.args(out, m, x, divisor, w, step, smallStep, bias)...)
}

// Plain runs every row of x [T, H], BF16 or F32, through its K experts. Row t*K+k of y [T*K, H] is
// the output of expert ids[t, k] (I32 [T, K]), or zeros if there is no such expert. Rows of experts
// that bank.Map leaves out are unchanged. h is HiddenBytes(T*K, F, x.DType) of scratch, and
// HiddenBytes(T*K, 3*F, x.DType) with an activation apart.
func Plain(l *launch.List, y launch.Mat, h launch.Ptr, x launch.Mat, b launch.Bank, ids launch.Mat) {
	const op = "native Plain"
	slots := ids.Rows * ids.Cols
	switch why := check(x, &b); {
	case why != "":
		refuse(op, "%s", why)
	case ids.DType != tensor.I32 || ids.Rows != x.Rows || !ids.Dense() || ids.Cols < 1 || y.Rows != slots || y.Cols != x.Cols:
		refuse(op, "ids %v, x %v, y %v", ids, x, y)
	case x.DType != tensor.BF16 && x.DType != tensor.F32:
		refuse(op, "activations of type %s", x.DType)
	}
	m := modeOf(op, y)
	if slots == 0 {
		return
	}
	width, wide := b.W2.Cols(), 0
	if x.DType == tensor.F32 {
		wide = 1
	}
	j := job{extra: &b.Extra}
	hidden := launch.Mat{At: h, DType: x.DType, Rows: slots, Cols: width, Stride: width}
	one := func(out launch.Mat, m mode, x launch.Mat, divisor int, w *launch.Tiles, step, smallStep int64, bias launch.Ptr) {
		k := list[w.Encoding]
		l.Add(k.plain, launch.Config{Grid: launch.Dim{X: uint32((slots*out.Cols + 7) / 8)}, Block: launch.Dim{X: 256}, Shared: uint32(k.table), PDL: true},
			append(j.args(out, m, x, divisor, w, step, smallStep, bias),
				launch.I32(wide), launch.I32(slots), launch.P(ids.At), launch.I32(b.Experts), launch.P(b.Map))...)
	}
	if b.Apart() {
		both := launch.Mat{At: h + launch.Ptr(HiddenBytes(slots, width, x.DType)), DType: x.DType, Rows: slots, Cols: 2 * width, Stride: 2 * width}
		one(both, modeOf(op, x), x, ids.Cols, &b.W13.A, b.Step, b.ScaleStep, b.B13)
		elem.Activate(l, hidden, both.ColRange(0, width), both.ColRange(width, 2*width), &b.Extra)
	} else {
		one(hidden, toHidden, x, ids.Cols, &b.W13.A, b.Step, b.ScaleStep, b.B13)
	}
	one(y, m, hidden, 1, &b.W2.A, b.Step2, b.ScaleStep2, b.B2)
}

func refuse(op, format string, args ...any) {
	panic(&device.ShapeError{Op: op, Why: fmt.Sprintf(format, args...)})
}
