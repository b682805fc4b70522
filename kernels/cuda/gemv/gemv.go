// Package gemv launches the products of 1 to 64 rows, which read each weight once at the speed of
// memory. The operators are a matrix, a SwiGLU network and a mixture of experts, for BF16
// activations. Weights are BF16 rows, or packed with any group size.
//
// The bits of a row's result depend on its own values, on shapes and on the GPU. They do not
// depend on the other rows or their number.
package gemv

import (
	"fmt"

	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// MaxRows is the most rows of activations; for more rows, kernels with tiles of tokens are
// faster.
const MaxRows = 64

// format numbers the formats of a matrix, as in gemv.cuh.
type format int

const (
	plainBF16 format = iota
	int4x32
	int4x64
	int4x128 // or one scale for all columns
	int8x32
	int8x64
	int8x128
	everywhere // the number of formats that every product has; those that follow have mixtures only
)

const (
	int3x64 format = everywhere + iota
	int3x128
	formats
)

var formatNames = [formats]string{"bf16", "int4_g32", "int4_g64", "int4_g128", "int8_g32", "int8_g64", "int8_g128", "int3_g64", "int3_g128"}

var formatIndex = map[tensor.Format]format{
	tensor.INT4.By(32): int4x32, tensor.INT4.By(64): int4x64, tensor.INT4.By(128): int4x128, tensor.INT4.By(0): int4x128,
	tensor.INT8.By(32): int8x32, tensor.INT8.By(64): int8x64, tensor.INT8.By(128): int8x128, tensor.INT8.By(0): int8x128,
	tensor.INT3.By(64): int3x64, tensor.INT3.By(128): int3x128, tensor.INT3.By(0): int3x128, // of up to 128 columns
}

// byFormat are the kernels of a name, one for each of the first n formats.
func byFormat(prefix string, n format) (k [formats]launch.Kernel) {
	for i, name := range formatNames[:n] {
		k[i] = launch.Named(prefix + name)
	}
	return k
}

// kernels has the kernels of a name by format: without biases, and with them.
type kernels struct{ plain, biased [formats]launch.Kernel }

func withBiases(prefix string, n format) kernels {
	return kernels{byFormat(prefix, n), byFormat(prefix+"biased_", n)}
}

func (k *kernels) of(f format, biased bool) launch.Kernel {
	if biased {
		return k.biased[f]
	}
	return k.plain[f]
}

var (
	kMatrix = withBiases("kr_gemv_", everywhere)
	kHidden = byFormat("kr_gemv_hidden_", everywhere)
	kGateUp = withBiases("kr_gemv_gate_up_", formats) // biased: or with an activation of their own, without a shared network
)

// formatOf returns the format of w; ok is false if no kernel here takes it.
func formatOf(w *launch.Weight) (f format, ok bool) {
	if w.A.Zero() {
		return plainBF16, w.F.DType == tensor.BF16 && aligned(w.F)
	}
	f, ok = formatIndex[w.A.Scaling()]
	return f, ok && w.A.Check() == nil && w.A.Values%16 == 0 && w.A.Scales%16 == 0
}

// aligned reports whether rows of m can be read 16 bytes at a time.
func aligned(m launch.Mat) bool { return m.At%16 == 0 && (m.Stride%8 == 0 || m.Rows <= 1) }

// Can reports whether MatMul takes the product of x [M, K] and w [N, K]: BF16 rows
// aligned to 16 bytes, at most MaxRows, K a multiple of 64, and a format of weights
// that is not F32 or INT3.
func Can(x launch.Mat, w *launch.Weight) bool {
	f, ok := formatOf(w)
	return ok && f < everywhere && !w.A.Joined && canRead(x, w)
}

func canRead(x launch.Mat, w *launch.Weight) bool {
	return x.DType == tensor.BF16 && x.Rows <= MaxRows && aligned(x) && x.Cols == w.Cols() && w.Cols()%tensor.TileA == 0
}

// Options change the use of a result.
type Options struct {
	Add bool // out += it
}

// MatMul computes out [M, N] = x [M, K] * transposed w [N, K], plus w's bias. out is F32 or BF16.
func MatMul(l *launch.List, gpu launch.GPU, out, x launch.Mat, w launch.Weight, o Options) {
	const op = "gemv MatMul"
	f, _ := formatOf(&w)
	if !Can(x, &w) {
		refuse(op, "x %v, w [%d, %d] %s", x, w.Rows(), w.Cols(), formatNames[f])
	}
	checkOut(op, out, x.Rows, w.Rows())
	parts := partsFor(gpu, w.Rows(), w.Cols())
	switch {
	case x.Rows == 0:
	case x.Rows >= wideFrom:
		wideMatrix(l, gpu, out, x.At, x.Stride, &w, parts, o)
	default:
		matrix(l, kMatrix.of(f, w.Bias != 0), out, x.At, x.Stride, &w, parts, o)
	}
}

// matrix launches a product whose rows are split into parts.
func matrix(l *launch.List, k launch.Kernel, out launch.Mat, x launch.Ptr, stride int, w *launch.Weight, parts int, o Options) {
	args := append(make([]launch.Arg, 0, maxArgs),
		launch.P(out.At), wide(out), launch.I32(out.Stride), flag(o.Add), launch.P(x), launch.I32(stride), launch.I32(out.Rows))
	args = appendMatrix(args, w)
	c := config(blocksOf(w.Rows())*eightsOf(out.Rows), 1, parts)
	if f, _ := formatOf(w); f != plainBF16 && k != kHidden[f] && unitsOf(w.Cols()) <= 2*parts {
		c.Shared += uint32(parts * min(out.Rows, TileRows) * partBytes)
	}
	l.Add(k, c, args...)
}

// A network is gate and up joined [2F, H], and down [H, F].
type Network struct{ W13, W2 launch.Weight }

// Zero reports whether n is absent.
func (n *Network) Zero() bool { return n.W13.A.Zero() && n.W13.F.Zero() }

// Width returns F.
func (n *Network) Width() int { return n.W2.Cols() }

// alone reports whether there are kernels for the network's formats outside of a mixture.
func (n *Network) alone() bool {
	f, _ := formatOf(&n.W13)
	f2, _ := formatOf(&n.W2)
	return f < everywhere && f2 < everywhere
}

// can reports whether the kernels take the network, alone or in a mixture.
func (n *Network) can(x launch.Mat) bool {
	f, ok13 := formatOf(&n.W13)
	_, ok2 := formatOf(&n.W2)
	return ok13 && ok2 && canRead(x, &n.W13) && (f == plainBF16 || n.W13.A.Joined) && !n.W2.A.Joined &&
		n.W13.Rows() == 2*n.Width() && n.Width()%tensor.TileA == 0 && n.W2.Rows() == x.Cols
}

// CanFFN reports whether FFN takes the network w13 [2F, H] (joined, or BF16 rows:
// gate's, then up's), w2 [H, F] on x [M, H]: as Can, and F a multiple of 64.
func CanFFN(x launch.Mat, w13, w2 launch.Weight) bool {
	n := Network{w13, w2}
	return n.can(x) && n.alone()
}

// FFNScratch returns the size of h in bytes.
func FFNScratch(rows, width int) int { return up16(2 * rows * width) }

// FFN computes out [M, H] = down(silu(gate x) * up x), F32 or BF16. h has FFNScratch(M, F) bytes,
// aligned to 16.
func FFN(l *launch.List, gpu launch.GPU, out launch.Mat, h launch.Ptr, x launch.Mat, w13, w2 launch.Weight, o Options) {
	const op = "gemv FFN"
	n := Network{w13, w2}
	if !CanFFN(x, w13, w2) {
		refuse(op, "x %v, w13 [%d, %d], w2 [%d, %d]", x, w13.Rows(), w13.Cols(), w2.Rows(), w2.Cols())
	}
	checkOut(op, out, x.Rows, w2.Rows())
	if x.Rows == 0 {
		return
	}
	n.run(l, gpu, out, h, x, partsFor(gpu, w13.Rows(), w13.Cols()), partsFor(gpu, w2.Rows(), w2.Cols()), o)
}

// run launches both halves.
func (n *Network) run(l *launch.List, gpu launch.GPU, out launch.Mat, h launch.Ptr, x launch.Mat, parts, downParts int, o Options) {
	p, ok := n.plan(gpu, x.Rows, parts)
	if x.Rows >= wideFrom || !ok {
		wideGateUp(l, gpu, h, x, &n.W13, parts)
		wideMatrix(l, gpu, out, h, n.Width(), &n.W2, downParts, o)
		return
	}
	gateUp(l, p, x, nil, work{}, 0, n, h)
	n.down(l, out, h, downParts, o)
}

// plan returns the plan of the first half for few rows; ok is false if no block of the GPU has
// room for a row.
func (n *Network) plan(gpu launch.GPU, rows, parts int) (p plan, ok bool) {
	for tokens := min(rows, TileRows); tokens > 0 && !ok; tokens-- {
		p, ok = planFor(gpu, parts, parts, tokens, stagedBytes(n.W2.Rows()))
	}
	return p, ok
}

// down launches the second half. The hidden values are permuted for w2.
func (n *Network) down(l *launch.List, out launch.Mat, h launch.Ptr, parts int, o Options) {
	f, _ := formatOf(&n.W2)
	matrix(l, kHidden[f], out, h, n.Width(), &n.W2, parts, o)
}

// partsFor returns the number of parts into which the rows of a matrix are split: the fewest that
// give every multiprocessor 16 warps.
func partsFor(gpu launch.GPU, rows, cols int) int {
	return partsOf(rows, cols, 16*gpu.SMs)
}

// partsOf returns the fewest parts, a power of two, that give that many warps.
func partsOf(rows, cols, warps int) int {
	n := 1
	for n < maxParts && 2*n <= unitsOf(cols) && blocksOf(rows)*n < warps {
		n *= 2
	}
	return n
}

const (
	maxParts = 8  // warps of a block, 256 threads
	maxArgs  = 72 // for a kernel here
	// partBytes is a token's part of two units in shared memory: PART_BYTES of src/gemv.cu.
	partBytes = 528
)

// unitsOf returns the number of units of 128 columns, blocksOf the number of blocks of 16 rows,
// and eightsOf the number of tiles of 8 tokens.
func unitsOf(cols int) int  { return (cols + 127) / 128 }
func blocksOf(rows int) int { return (rows + 15) / 16 }
func eightsOf(rows int) int { return (rows + 7) / 8 }
func up16(n int) int        { return (n + 15) &^ 15 }

// config returns a grid of blocks with that many warps, each of which writes a part of 512 bytes
// to shared memory.
func config(x, y, warps int) launch.Config {
	return launch.Config{Grid: launch.Dim{X: uint32(x), Y: uint32(y)}, Block: launch.Dim{X: uint32(32 * warps)},
		Shared: uint32(512 * warps), PDL: true}
}

// appendMatrix appends the arguments MATRIX_ARGS of w; an absent w is nil.
func appendMatrix(args []launch.Arg, w *launch.Weight) []launch.Arg {
	switch {
	case w == nil:
		return append(args, launch.P(0), launch.P(0), launch.I32(0), launch.I32(0), launch.I32(0), launch.I32(0), launch.P(0))
	case w.A.Zero():
		return append(args, launch.P(w.F.At), launch.P(0), launch.I32(w.F.Rows), launch.I32(w.F.Cols/tensor.TileA),
			launch.I32(0), launch.I32(w.F.Stride), launch.P(w.Bias))
	}
	return append(args, launch.P(w.A.Values), launch.P(w.A.Scales), launch.I32(w.A.Rows), launch.I32(w.A.PaddedCols()/tensor.TileA),
		launch.I32(w.A.Groups()), launch.I32(0), launch.P(w.Bias))
}

func wide(m launch.Mat) launch.Arg { return flag(m.DType == tensor.F32) }

func flag(v bool) launch.Arg {
	if v {
		return launch.I32(1)
	}
	return launch.I32(0)
}

func checkOut(op string, out launch.Mat, rows, cols int) {
	if out.DType != tensor.F32 && out.DType != tensor.BF16 || out.Rows != rows || out.Cols != cols {
		refuse(op, "out %v, want F32 or BF16 [%d, %d]", out, rows, cols)
	}
}

func refuse(op, format string, args ...any) {
	panic(&device.ShapeError{Op: op, Why: fmt.Sprintf(format, args...)})
}
