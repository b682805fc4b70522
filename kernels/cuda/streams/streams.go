// Package streams launches the operators between several residual streams and the blocks of a layer, and those
// of tables of n-grams.
package streams

import (
	"fmt"

	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// The kernels of src/streams.cu.
var (
	kSigmoid  = launch.Named("kr_sigmoid")
	kCollapse = launch.Named("kr_collapse")
	kSpread   = launch.Named("kr_spread")
	kNorms    = launch.Named("kr_stream_norms")
	kGates    = launch.Named("kr_stream_gates")
)

func refuse(op, format string, args ...any) {
	panic(&device.ShapeError{Op: op, Why: fmt.Sprintf(format, args...)})
}

// floats panics unless m is F32 or BF16 [rows, cols].
func floats(op, name string, m launch.Mat, rows, cols int) {
	if m.Zero() || m.DType != tensor.F32 && m.DType != tensor.BF16 || m.Rows != rows || m.Cols != cols || m.Stride < cols {
		refuse(op, "%s is %v, need F32 or BF16 [%d, %d]", name, m, rows, cols)
	}
}

// count returns the number of streams of h values in the rows of m.
func count(op string, m launch.Mat, h int) int {
	if h < 1 || m.Cols%h != 0 {
		refuse(op, "%v has no streams of %d", m, h)
	}
	return m.Cols / h
}

// flagVec is that of src/elem.cuh, as are the flags of operands.
const flagVec = 1

// flags has a bit for each operand that is BF16, and flagVec with vec.
func flags(vec bool, operands ...launch.Mat) launch.Arg {
	f := 0
	if vec {
		f = flagVec
	}
	for i, m := range operands {
		if m.DType == tensor.BF16 {
			f |= 2 << i
		}
	}
	return launch.I32(f)
}

// pieces returns a launch with a thread for each chunk of cols elements: x rows, y pieces of a row.
func pieces(op string, rows, cols int, vec bool) launch.Config {
	if vec {
		cols /= 8
	}
	threads := min(256, (cols+31)&^31)
	n := (cols + threads - 1) / threads
	if n > 65535 {
		refuse(op, "rows of %d elements", cols)
	}
	return launch.Config{Grid: launch.Dim{X: uint32(rows), Y: uint32(n)}, Block: launch.Dim{X: uint32(threads)}, PDL: true}
}

func curve(p device.Sigmoid) [3]launch.Arg {
	silu := 0
	if p.Silu {
		silu = 1
	}
	return [3]launch.Arg{launch.I32(silu), launch.F32(p.In), launch.F32(p.Out)}
}

// Sigmoid computes x = p.Out * f(p.In * x), x [T, N], in place. more [T, M], if present, is computed in the same launch by q.
func Sigmoid(l *launch.List, x launch.Mat, p device.Sigmoid, more launch.Mat, q device.Sigmoid) {
	const op = "Sigmoid"
	floats(op, "x", x, x.Rows, x.Cols)
	if !more.Zero() {
		floats(op, "more", more, x.Rows, more.Cols)
	}
	if x.Rows == 0 || x.Cols == 0 {
		return
	}
	vec, a, b := elem.Chunks(x), curve(p), curve(q)
	chunks := x.Cols
	if vec {
		chunks /= 8
	}
	l.Add(kSigmoid, pieces(op, x.Rows, chunks+more.Cols, false),
		launch.P(x.At), launch.I32(x.Stride), launch.I32(x.Cols), a[0], a[1], a[2],
		launch.P(more.At), launch.I32(more.Stride), launch.I32(more.Cols), b[0], b[1], b[2], flags(vec, x, more))
}

// What weighs a stream, as in src/streams.cu.
const (
	mean = iota
	byStream
	byValue
	byCurve
)

// Collapse computes out [T, H] = the sum of the streams of x [T, n*H], weighed by weights [T, n*H] or [T, n]; their mean
// without weights.
func Collapse(l *launch.List, out, x, weights launch.Mat) {
	collapse(l, out, x, weights, false, device.Sigmoid{})
}

// CollapseBy computes Collapse with weights [T, n*H] that p is computed of first; weights stay as they are.
func CollapseBy(l *launch.List, out, x, weights launch.Mat, p device.Sigmoid) {
	collapse(l, out, x, weights, true, p)
}

func collapse(l *launch.List, out, x, weights launch.Mat, bent bool, p device.Sigmoid) {
	const op = "Collapse"
	n, kind := count(op, x, out.Cols), mean
	floats(op, "out", out, x.Rows, out.Cols)
	floats(op, "x", x, x.Rows, x.Cols)
	vec := elem.Chunks(out, x)
	switch {
	case weights.Zero() && !bent:
	case weights.Cols == n && !bent && n != x.Cols:
		kind = byStream
		floats(op, "weights", weights, x.Rows, n)
	default:
		kind, vec = byValue, vec && elem.Chunks(weights)
		floats(op, "weights", weights, x.Rows, x.Cols)
		if bent {
			kind = byCurve
		}
	}
	if x.Rows == 0 {
		return
	}
	c := curve(p)
	l.Add(kCollapse, pieces(op, x.Rows, out.Cols, vec),
		launch.P(out.At), launch.I32(out.Stride), launch.P(x.At), launch.I32(x.Stride), launch.P(weights.At), launch.I32(weights.Stride),
		launch.I32(kind), c[0], c[1], c[2], launch.I32(n), launch.I32(out.Cols), flags(vec, out, x, weights))
}

// The most streams that Spread mixes, and those that it mixes by chunks.
const (
	mixedMost = 64
	mixedVec  = 4
)

// Spread computes out [T, n*H] = x [T, H] times weights [T, n], plus base [T, n*H], which may be out or absent. With weights
// [T, n+n*n] the rest of a row mixes the streams of base (device.List.Spread).
func Spread(l *launch.List, out, x, weights, base launch.Mat) {
	const op = "Spread"
	n, mixed := count(op, out, x.Cols), 0
	floats(op, "out", out, x.Rows, out.Cols)
	floats(op, "x", x, x.Rows, x.Cols)
	vec := elem.Chunks(out, x, base)
	if !base.Zero() {
		floats(op, "base", base, x.Rows, out.Cols)
	}
	if weights.Cols != n {
		floats(op, "weights", weights, x.Rows, n+n*n)
		if base.Zero() || n > mixedMost {
			refuse(op, "%d streams of %v are mixed", n, base)
		}
		mixed, vec = 1, vec && n <= mixedVec
	}
	floats(op, "weights", weights, x.Rows, weights.Cols)
	if x.Rows == 0 {
		return
	}
	l.Add(kSpread, pieces(op, x.Rows, x.Cols, vec),
		launch.P(out.At), launch.I32(out.Stride), launch.P(x.At), launch.I32(x.Stride), launch.P(weights.At), launch.I32(weights.Stride),
		launch.P(base.At), launch.I32(base.Stride), launch.I32(mixed), launch.I32(n), launch.I32(x.Cols), flags(vec, out, x, weights, base))
}

// Norms computes out [T, n*H]: RMSNorm of each of the n streams of x, by its part of w [1, n*H]; out may be x. With y [T, H]
// the streams first grow by y times weights [T, n], and x keeps them; then out is not x.
func Norms(l *launch.List, out, x, w launch.Mat, n int, eps float32, y, weights launch.Mat) {
	const op = "Norms"
	if n < 1 || x.Cols%n != 0 {
		refuse(op, "%d streams in %v", n, x)
	}
	h := x.Cols / n
	floats(op, "out", out, x.Rows, x.Cols)
	floats(op, "x", x, x.Rows, x.Cols)
	floats(op, "w", w, 1, x.Cols)
	if !y.Zero() {
		floats(op, "y", y, x.Rows, h)
		floats(op, "weights", weights, x.Rows, n)
	}
	if x.Rows == 0 || h == 0 {
		return
	}
	vec := elem.Chunks(out, x, w, y) && h%8 == 0
	threads := elem.NormThreads(8 * h) // of single values
	if vec {
		threads = elem.NormThreads(h)
	}
	l.Add(kNorms, launch.Config{Grid: launch.Dim{X: uint32(x.Rows), Y: uint32(n)}, Block: launch.Dim{X: uint32(threads)}, PDL: true},
		launch.P(out.At), launch.I32(out.Stride), launch.P(x.At), launch.I32(x.Stride), launch.P(w.At), launch.P(y.At), launch.I32(y.Stride),
		launch.P(weights.At), launch.I32(weights.Stride), launch.I32(h), launch.F32(eps), flags(vec, out, x, w, y, weights))
}

// Gates computes out [T, n]: with d the product of a stream of x and of y [T, n*H] over sqrt(H), sign(d) * sqrt(max(|d|, 1e-6)).
func Gates(l *launch.List, out, x, y launch.Mat) {
	const op = "StreamGates"
	if out.Cols < 1 || x.Cols%out.Cols != 0 {
		refuse(op, "out is %v, x is %v", out, x)
	}
	floats(op, "out", out, x.Rows, out.Cols)
	floats(op, "x", x, x.Rows, x.Cols)
	floats(op, "y", y, x.Rows, x.Cols)
	if x.Rows == 0 {
		return
	}
	const threads = 128
	l.Add(kGates, launch.Config{Grid: launch.Dim{X: uint32(x.Rows), Y: uint32(out.Cols)}, Block: launch.Dim{X: threads}, PDL: true},
		launch.P(out.At), launch.I32(out.Stride), launch.P(x.At), launch.I32(x.Stride), launch.P(y.At), launch.I32(y.Stride),
		launch.I32(x.Cols/out.Cols), flags(false, out, x, y))
}
