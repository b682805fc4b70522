// Package gemm launches the products of many rows of bfloat16 with dense weights of
// bfloat16. There are two builds: mma.sync for every GPU, wgmma for Hopper.
package gemm

import (
	"fmt"
	"math"

	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// mode says what is done with the sums, as the kernels number it.
type mode int

const (
	toBF16 mode = iota
	toF32
	addF32
)

// Options change a product.
type Options struct {
	// Accumulate computes out += x * transposed w; out is F32.
	Accumulate bool
	// Batch is a number of products of equal shape; the given matrices belong to the first. 0:
	// one. The steps are the elements from one product's matrix to the next one's.
	Batch                 int
	OutStep, XStep, WStep int64
	// Scratch has Scratch(...) bytes for the parts of K, aligned to 16; 0: K is not cut.
	Scratch launch.Ptr
	// Plan replaces the plan that Choose returns, for comparisons. A plan with parts needs
	// parts*M*N*4 bytes of scratch.
	Plan Plan
}

var kSum = launch.Named("kr_gemm_sum")

// Can reports whether BF16 takes the shapes and addresses: x [M, K] and w [N, K] of BF16,
// out [M, N] of BF16 or F32; N and K multiples of 8, rows aligned to 16 bytes (of an F32
// out, to 8).
func Can(out, x, w launch.Mat) bool {
	return readable(x) && readable(w) && writable(out) && x.Cols == w.Cols && x.Cols%8 == 0 && w.Rows%8 == 0 &&
		x.Cols > 0 && w.Rows > 0
}

// readable reports whether rows of BF16 can be copied 16 bytes at a time.
func readable(m launch.Mat) bool {
	return m.DType == tensor.BF16 && m.At%16 == 0 && (m.Stride%8 == 0 || m.Rows <= 1)
}

func writable(m launch.Mat) bool {
	if m.DType == tensor.F32 {
		return m.At%8 == 0 && (m.Stride%2 == 0 || m.Rows <= 1)
	}
	return readable(m)
}

// Scratch returns the number of bytes that BF16 can use to cut K for one product of this size: 0
// if it would not cut it.
func Scratch(gpu launch.GPU, m, n, k int) int {
	z := Sizes{M: m, N: n, K: k}
	p := Choose(gpu, z)
	if p.Parts <= 1 {
		return 0
	}
	return z.scratch(p.Parts)
}

// BF16 computes out [M, N] = x [M, K] * transposed w [N, K]. A row of out has the same bits for
// every M under one plan. All kernels of a build sum in the same order, 16 columns at a time, so
// without Scratch the plan does not change the bits either.
func BF16(l *launch.List, gpu launch.GPU, out, x, w launch.Mat, o Options) {
	const op = "gemm BF16"
	p := o.Plan
	if p.Variant == Auto {
		p = Choose(gpu, Sizes{M: x.Rows, N: w.Rows, K: w.Cols, Batch: o.Batch, Whole: o.Scratch == 0})
	}
	switch {
	case !Can(out, x, w) || out.Rows != x.Rows || out.Cols != w.Rows || !p.Variant.runs(gpu):
		refuse(op, "out %v, x %v, w %v, kernel %v", out, x, w, p)
	case o.Accumulate && out.DType != tensor.F32:
		refuse(op, "accumulates into %v", out)
	case o.Batch > 1 && !o.aligned(out.DType):
		refuse(op, "steps %d, %d, %d of a batch", o.OutStep, o.XStep, o.WStep)
	case p.Parts > 1 && (o.Batch > 1 || o.Scratch == 0 || o.Scratch%16 != 0):
		refuse(op, "%v of K, a batch of %d, scratch at %#x", p, o.Batch, uint64(o.Scratch))
	}
	if x.Rows == 0 {
		return
	}
	j := job{out: out, mode: modeOf(out, o.Accumulate), x: x, w: w, batch: max(1, o.Batch), outStep: o.OutStep, xStep: o.XStep, wStep: o.WStep}
	if p.Parts <= 1 {
		j.add(l, gpu, p.Variant)
		return
	}
	length, parts := part(x.Cols, p.Parts)
	last := j
	j.out = launch.Mat{At: o.Scratch, DType: tensor.F32, Rows: x.Rows, Cols: w.Rows, Stride: w.Rows}
	j.mode, j.part, j.batch = toF32, length, parts
	j.outStep, j.xStep, j.wStep = int64(x.Rows)*int64(w.Rows), int64(length), int64(length)
	j.add(l, gpu, p.Variant)
	last.sum(l, o.Scratch, parts)
}

// aligned reports whether every product of a batch is as well aligned as the first.
func (o *Options) aligned(out tensor.DType) bool {
	step := int64(8)
	if out == tensor.F32 {
		step = 2
	}
	return o.OutStep%step == 0 && o.XStep%8 == 0 && o.WStep%8 == 0
}

// CanSwiGLU reports whether SwiGLU takes the matrices: as Can for each, gate and up of
// equal strides.
func CanSwiGLU(out, x, gate, up launch.Mat) bool {
	return Can(out, x, gate) && Can(out, x, up) && gate.Rows == up.Rows && (gate.Stride == up.Stride || gate.Rows == 1)
}

// SwiGLU computes out [M, F] = silu(x * transposed gate) * (x * transposed up), gate and up [F,
// K] BF16, in one pass: the sums are not rounded before they are multiplied. It ignores all of o
// except Plan.
func SwiGLU(l *launch.List, gpu launch.GPU, out, x, gate, up launch.Mat, o Options) {
	const op = "gemm SwiGLU"
	p := o.Plan
	if p.Variant == Auto {
		p = Choose(gpu, Sizes{M: x.Rows, N: gate.Rows, K: gate.Cols, SwiGLU: true})
	}
	if !CanSwiGLU(out, x, gate, up) || out.Rows != x.Rows || out.Cols != gate.Rows || !p.Variant.runs(gpu) ||
		p.Parts > 1 || o.Batch > 1 || o.Accumulate {
		refuse(op, "out %v, x %v, gate %v, up %v, %v, batch %d, accumulate %v", out, x, gate, up, p, o.Batch, o.Accumulate)
	}
	if x.Rows == 0 {
		return
	}
	j := job{out: out, mode: modeOf(out, false), x: x, w: gate, up: up, batch: 1}
	j.add(l, gpu, p.Variant)
}

// job is one launch of a kernel.
type job struct {
	out                   launch.Mat
	mode                  mode
	x, w, up              launch.Mat // up absent: no SwiGLU
	part                  int
	batch                 int
	outStep, xStep, wStep int64
}

func (j *job) add(l *launch.List, gpu launch.GPU, v Variant) {
	s := &shapes[v]
	k, threads, cols := s.kernel, s.threads, s.cols
	if !j.up.Zero() {
		k, threads, cols = s.both, s.swiglu, s.cols/2
	}
	tileRows, tileCols := ceil(j.x.Rows, s.rows), ceil(j.w.Rows, cols)
	tiles := tileRows * tileCols * j.batch
	l.Add(k, launch.Config{
		Grid:   launch.Dim{X: uint32(s.grid(gpu, tiles))},
		Block:  launch.Dim{X: uint32(threads)},
		Shared: uint32(s.shared),
		PDL:    true,
	},
		launch.P(j.out.At), launch.I32(int(j.mode)), launch.I32(j.out.Stride), launch.P(j.x.At), launch.I32(j.x.Stride),
		launch.P(j.w.At), launch.P(j.up.At), launch.I32(j.w.Stride), launch.I32(j.x.Rows), launch.I32(j.w.Rows), launch.I32(j.w.Cols),
		launch.I32(j.part), launch.I32(tileRows), launch.I32(tileCols), launch.I32(tiles),
		launch.I64(j.outStep), launch.I64(j.xStep), launch.I64(j.wStep))
}

// grid returns the number of blocks for that many tiles. A block of wgmma computes one tile after
// the other.
func (s *shape) grid(gpu launch.GPU, tiles int) int {
	if tiles > math.MaxInt32 {
		refuse("gemm", "%d tiles", tiles)
	}
	if s.hopper {
		return min(tiles, max(1, gpu.SMs)*s.blocks)
	}
	return tiles
}

// sum launches the second kernel of a product in parts.
func (j *job) sum(l *launch.List, parts launch.Ptr, count int) {
	m, n := j.x.Rows, j.w.Rows
	l.Add(kSum, launch.Config{Grid: launch.Dim{X: uint32(ceil(m*n, 4*256))}, Block: launch.Dim{X: 256}, PDL: true},
		launch.P(j.out.At), launch.I32(int(j.mode)), launch.I32(j.out.Stride), launch.P(parts), launch.I32(count), launch.I32(m), launch.I32(n))
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

func refuse(op, format string, args ...any) {
	panic(&device.ShapeError{Op: op, Why: fmt.Sprintf(format, args...)})
}
