//go:build cuda

package cuda

import (
	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/ops"
	"krater/kernels/device"
)

// mixed is the streams that l turns into the input of a block, and that input; ok: l begins with that.
func mixed(l []device.Op) (m elem.Mixed, out launch.Mat, ok bool) {
	if !kinds(device.List{Ops: l}, device.OpMatMul, device.OpMixWeights, device.OpCollapse, device.OpRMSNorm) {
		return m, out, false
	}
	product, weights, sum, norm := &l[0], &l[1], &l[2], &l[3]
	x, n := product.X, weights.Mix.Streams
	if product.Weight.F.Zero() || weights.Out != product.Out || weights.X != x || sum.X != x || sum.A != weights.Out.ColRange(0, n) || norm.X != sum.Out || norm.Out != sum.Out {
		return m, out, false
	}
	return elem.Mixed{X: mat(x), W: mat(product.Weight.F), Base: mat(weights.W), Scale: mat(weights.A), Weights: mat(weights.Out), Norm: mat(norm.W),
		Eps: norm.Eps, StreamMix: weights.Mix}, mat(norm.Out), true
}

// isMixedInput finds what makes mixed streams the input of a block.
func isMixedInput(_ *Device, l device.List) int {
	if m, out, ok := mixed(l.Ops); !ok || !elem.CanMixedInput(out, &m) {
		return 0
	}
	return 4
}

func addMixedInput(b *ops.Builder, o []device.Op) {
	m, out, _ := mixed(o)
	b.MixedInput(out, &m)
}

// grown is mixed with the output of the block before, which changes the streams first.
func grown(l []device.Op) (m elem.Mixed, out launch.Mat, ok bool) {
	m, out, ok = mixed(l[1:])
	if s := &l[0]; ok && s.Out == s.W && s.Out == l[1].X && s.A.Cols == m.Width()-m.Streams {
		m.Y, m.By = mat(s.X), mat(s.A)
		return m, out, true
	}
	return m, out, false
}

func isGrownInput(_ *Device, l device.List) int {
	if m, out, ok := grown(l.Ops); !ok || !elem.CanMixedInput(out, &m) {
		return 0
	}
	return 5
}

func addGrownInput(b *ops.Builder, o []device.Op) {
	m, out, _ := grown(o)
	b.MixedInput(out, &m)
}
