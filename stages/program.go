package stages

import "krater/kernels/device"

// Program collects the operators of a batch's step and sends them to the device as one list, so that
// the device can fuse them.
type Program struct {
	device.List
	dev   device.Device
	s     device.Stream
	probe Probe
	st    *State
}

// On returns the program of st for operators on s. It first sends operators that were appended for
// another stream.
func (st *State) On(dev device.Device, s device.Stream, probe Probe) *Program {
	p := &st.program
	if p.s != s {
		p.Send()
	}
	p.dev, p.s, p.probe, p.st = dev, s, probe, st
	return p
}

// Send enqueues the appended operators that have not been sent.
func (p *Program) Send() {
	if len(p.Ops) == 0 {
		return
	}
	l := p.List
	p.Reset() // even if an operator panics
	p.dev.Run(p.s, l)
}

// Observe sends the appended operators and passes m to the probe. Without a probe it does nothing.
func (p *Program) Observe(layer int, op string, m device.Mat) {
	if p.probe != nil {
		p.Send()
		p.probe.Observe(p.s, layer, op, m, p.st)
	}
}

// Probed reports whether a probe observes the step.
func (p *Program) Probed() bool { return p.probe != nil }

// Input is the input rows of linear layers: as they are and, for layers with integer weights,
// quantised.
type Input struct {
	X device.Mat
	// Q is memory for the rows as integers, in groups of the size that layers take; absent if no layer
	// has integer weights.
	Q device.QRows
}

// NewInput returns an input with the rows x. q must have at least as many rows.
func NewInput(x device.Mat, q device.QRows) Input {
	if !q.Zero() {
		q = q.RowRange(0, x.Rows)
	}
	return Input{X: x, Q: q}
}

// RowRange returns the first n rows.
func (in *Input) RowRange(n int) Input { return NewInput(in.X.RowRange(0, n), in.Q) }

// Prepare appends the quantisation of the rows if any of the layers has integer weights. The code that
// changes the rows calls it once.
func (in *Input) Prepare(p *device.List, layers ...*device.Weight) {
	for _, w := range layers {
		if w.Integer() {
			p.QuantizeRows(in.Q, in.X)
			return
		}
	}
}

// Mul appends out = rows * w^T.
func (in *Input) Mul(p *device.List, out device.Mat, w *device.Weight) { p.MatMul(out, in.X, in.Q, w) }
