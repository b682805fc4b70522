//go:build cuda

package cuda

import (
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/ops"
	"krater/kernels/device"
)

// streamNorms returns how many norms of streams l begins with that lie side by side, in x, out and weights.
func streamNorms(l device.List) int {
	n := 0
	for n < len(l.Ops) && l.Ops[n].Kind == device.OpRMSNorm {
		first, o := &l.Ops[0], &l.Ops[n]
		from, to := n*first.X.Cols, (n+1)*first.X.Cols
		if o.X != first.X.ColRange(from, to) || o.Out != first.Out.ColRange(from, to) || o.W != first.W.ColRange(from, to) || o.Eps != first.Eps {
			break
		}
		n++
	}
	return n
}

// all returns the columns of n neighbours of which m is the first.
func all(m device.Mat, n int) launch.Mat { return mat(m.ColRange(0, n*m.Cols)) }

func isStreamNorms(_ *Device, l device.List) int {
	n := streamNorms(l)
	if n < 2 {
		return 0
	}
	return n
}

func addStreamNorms(b *ops.Builder, o []device.Op) {
	n := len(o)
	b.StreamNorms(all(o[0].Out, n), all(o[0].X, n), all(o[0].W, n), n, o[0].Eps, launch.Mat{}, launch.Mat{})
}

// isSpreadNorms finds streams that grow, and their norms.
func isSpreadNorms(_ *Device, l device.List) int {
	s := &l.Ops[0]
	n := streamNorms(l.From(1))
	if n == 0 || s.A.Cols != n || s.Out != s.W || n*s.X.Cols != s.Out.Cols || l.Ops[1].X != s.Out.ColRange(0, s.X.Cols) || l.Ops[1].Out.Overlaps(s.Out) || l.Ops[1].Out.Overlaps(s.X) {
		return 0
	}
	return 1 + n
}

func addSpreadNorms(b *ops.Builder, o []device.Op) {
	s, n := &o[0], len(o)-1
	b.StreamNorms(all(o[1].Out, n), mat(s.Out), all(o[1].W, n), n, o[1].Eps, mat(s.X), mat(s.A))
}

// isMixLow finds the product of streams, and what is computed of its columns: of low ones and of those behind, or of low ones
// alone.
func isMixLow(_ *Device, l device.List) int {
	if !kinds(l, device.OpMatMul, device.OpSigmoid) {
		return 0
	}
	out, low := l.Ops[0].Out, &l.Ops[1]
	if !low.Sigmoid.Silu || low.Out != out.ColRange(0, low.Out.Cols) {
		return 0
	}
	if kinds(l.From(2), device.OpSigmoid) {
		more := &l.Ops[2]
		if end := low.Out.Cols + more.Out.Cols; !more.Sigmoid.Silu && end <= out.Cols && more.Out == out.ColRange(low.Out.Cols, end) {
			return 3
		}
	}
	if low.Out != out {
		return 0
	}
	return 2
}

func addMixLow(b *ops.Builder, o []device.Op) {
	more, q := launch.Mat{}, device.Sigmoid{}
	if len(o) > 2 {
		more, q = mat(o[2].Out), o[2].Sigmoid
	}
	b.MixLow(mat(o[0].Out), mat(o[0].X), weight(o[0].Weight), mat(o[1].Out), o[1].Sigmoid, more, q)
}

// isMixIn finds the product that becomes the weights of streams, and their sum, if nothing else reads the weights.
func isMixIn(_ *Device, l device.List) int {
	if !kinds(l, device.OpMatMul, device.OpSigmoid, device.OpCollapse) {
		return 0
	}
	w, bent, sum := l.Ops[0].Out, &l.Ops[1], &l.Ops[2]
	if bent.Out != w || bent.Sigmoid.Silu || sum.A != w || sum.X.Cols != w.Cols || !unread(l.From(3), w) {
		return 0
	}
	return 3
}

func addMixIn(b *ops.Builder, o []device.Op) {
	product, bent, sum := &o[0], &o[1], &o[2]
	b.MixIn(mat(sum.Out), mat(sum.X), mat(product.Out), mat(product.X), weight(product.Weight), bent.Sigmoid)
}
