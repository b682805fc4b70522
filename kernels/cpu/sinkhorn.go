package cpu

import (
	"math"
	"unsafe"

	"krater/kernels/device"
)

// mixTask has the arguments of the operators whose weights are of whole streams.
type mixTask struct {
	dev                                *Device
	kind                               device.Kind
	out, x, a, base                    *float32
	oStride, xStride, aStride, bStride int
	cols                               int // of a stream, or of the weights
	sizes                              device.StreamMix
	rows                               colPieces
}

// MixWeights: out [T, N], x [T, n*H], base [1, N], scale [1, 3] or [1, 1] F32.
func (d *Device) MixWeights(stream device.Stream, out, x, base, scale device.Mat, p device.StreamMix) {
	const op = "MixWeights"
	s := d.stream(op, stream)
	scales := 3
	if out.Cols == p.Streams {
		scales = 1
	} else if p.Streams < 1 || out.Cols != p.Width() || p.Iterations < 1 {
		fail(op, "out is %s, sizes %+v", out, p)
	}
	s.mix = mixTask{dev: d, kind: device.OpMixWeights, cols: out.Cols, sizes: p, oStride: out.Stride, xStride: x.Stride,
		out: f32(op, "out", &out, x.Rows, out.Cols), x: f32(op, "x", &x, x.Rows, x.Cols),
		a: f32(op, "scale", &scale, 1, scales), base: f32(op, "base", &base, 1, out.Cols)}
	s.mix.bStride = x.Cols
	s.mix.run(s, x.Rows, x.Cols+16*p.Iterations*out.Cols)
}

// collapseWhole is Collapse with one weight for each stream, or with the mean.
func (d *Device) collapseWhole(s *Stream, out, x, weights *device.Mat) {
	const op = "Collapse"
	n := x.Cols / out.Cols
	s.mix = mixTask{dev: d, kind: device.OpCollapse, sizes: device.StreamMix{Streams: n}, cols: out.Cols,
		out: f32(op, "out", out, x.Rows, out.Cols), x: f32(op, "x", x, x.Rows, x.Cols), oStride: out.Stride, xStride: x.Stride}
	if !weights.Zero() {
		s.mix.a, s.mix.aStride = f32(op, "weights", weights, x.Rows, n), weights.Stride
	}
	s.mix.run(s, x.Rows, x.Cols)
}

// spreadMixed is Spread with a matrix that mixes the streams. Scratch per thread: the streams of a row, and a stream.
func (d *Device) spreadMixed(s *Stream, out, x, weights, base *device.Mat) {
	const op = "Spread"
	n := out.Cols / x.Cols
	s.mix = mixTask{dev: d, kind: device.OpSpread, sizes: device.StreamMix{Streams: n}, cols: x.Cols,
		out: f32(op, "out", out, x.Rows, out.Cols), x: f32(op, "x", x, x.Rows, x.Cols), a: f32(op, "weights", weights, x.Rows, n+n*n),
		base: f32(op, "base", base, x.Rows, out.Cols), oStride: out.Stride, xStride: x.Stride, aStride: weights.Stride, bStride: base.Stride}
	s.mix.run(s, x.Rows, out.Cols*(n+1))
}

// run runs the task over rows; values is how many there are to go through in each.
func (t *mixTask) run(s *Stream, rows, values int) {
	if values == 0 {
		return
	}
	ns := rows * values * streamNs / 16
	if t.rows = s.cutCols(rows, t.cols, ns); t.kind == device.OpMixWeights { // which depend on each other
		t.rows = colPieces{rowChunks{rows}, t.cols, 1, t.cols}
	}
	scratch := piece(t.rows.width)
	if t.kind == device.OpSpread {
		scratch += piece(t.sizes.Streams * t.rows.width)
	}
	s.each(t, t.rows.count(), ns, scratch)
}

func (t *mixTask) do(l *lane, i int) {
	var old *float32
	from, to, at, n := t.rows.of(i)
	l.arena.clear()
	part := l.arena.take(n)
	if t.kind == device.OpSpread {
		old = l.arena.take(t.sizes.Streams * n)
	}
	for r := from; r < to; r++ {
		out, x := rowAt(t.out, t.oStride, r), rowAt(t.x, t.xStride, r)
		switch t.kind {
		case device.OpMixWeights:
			t.weights(unsafe.Slice(out, t.cols), x)
		case device.OpCollapse:
			t.collapse(shift(out, at), part, shift(x, at), r, n)
		default:
			base := shift(rowAt(t.base, t.bStride, r), at)
			for j := range t.sizes.Streams {
				copy(unsafe.Slice(shift(old, j*n), n), unsafe.Slice(shift(base, j*t.cols), n))
			}
			t.spread(shift(out, at), part, shift(x, at), old, rowAt(t.a, t.aStride, r), n)
		}
	}
}

// sum is out += the sum of streams of n columns, apart from each other from x on, each times a factor of w, step apart. part
// has room for a stream.
func (t *mixTask) sum(out, part, x *float32, w []float32, streams, step, apart, n int) {
	for j := range streams {
		copy(unsafe.Slice(part, n), unsafe.Slice(shift(x, j*apart), n))
		t.dev.axpy.Scale(part, n, w[j*step])
		t.dev.axpy.Add(out, part, n)
	}
}

// collapse makes n columns of row r from those of the streams, from x on.
func (t *mixTask) collapse(out, part, x *float32, r, n int) {
	streams := t.sizes.Streams
	clearF32(out, n)
	if t.a != nil {
		t.sum(out, part, x, unsafe.Slice(rowAt(t.a, t.aStride, r), streams), streams, 1, t.cols, n)
		return
	}
	for j := range streams {
		t.dev.axpy.Add(out, shift(x, j*t.cols), n)
	}
	t.dev.axpy.Scale(out, n, 1/float32(streams))
}

// spread makes n columns of each stream, from out on, of those of x and of the streams before, old.
func (t *mixTask) spread(out, part, x, old, weights *float32, n int) {
	streams := t.sizes.Streams
	w := unsafe.Slice(weights, streams+streams*streams)
	for k := range streams {
		to := shift(out, k*t.cols)
		clearF32(to, n)
		t.sum(to, part, old, w[streams+k:], streams, streams, n, n)
		t.sum(to, part, x, w[k:], 1, 1, 0, n)
	}
}

// weights turns the products of a row into weights.
func (t *mixTask) weights(row []float32, x *float32) {
	n, eps := t.sizes.Streams, t.sizes.Eps
	by := rmsScale(t.dev.norm.SumSquares(x, t.bStride), t.bStride, t.sizes.NormEps)
	base, scale := unsafe.Slice(t.base, t.cols), t.a
	for i := range row {
		row[i] = row[i]*by**shift(scale, min(i/n, 2)) + base[i]
	}
	sigmoid := func(v float32) float32 { return float32(1 / (1 + math.Exp(-float64(v)))) }
	for i := range n {
		row[i] = sigmoid(row[i]) + eps
	}
	if t.cols == n {
		return
	}
	for i := n; i < 2*n; i++ {
		row[i] = 2 * sigmoid(row[i])
	}
	mix := row[2*n:]
	for j := range n {
		line := mix[j*n:][:n]
		top, sum := line[0], float32(0)
		for _, v := range line {
			top = max(top, v)
		}
		for k, v := range line {
			line[k] = float32(math.Exp(float64(v - top)))
			sum += line[k]
		}
		for k := range line {
			line[k] = line[k]/sum + eps
		}
	}
	balance(mix, n, 1, n, eps)
	for range t.sizes.Iterations - 1 {
		balance(mix, n, n, 1, eps)
		balance(mix, n, 1, n, eps)
	}
}

// balance divides lines of a matrix [n, n] by their sums plus eps. Lines begin step apart, their values along apart.
func balance(m []float32, n, step, along int, eps float32) {
	for a := range n {
		sum := eps
		for b := range n {
			sum += m[a*step+b*along]
		}
		for b := range n {
			m[a*step+b*along] /= sum
		}
	}
}
