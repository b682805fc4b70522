package stages

import "krater/kernels/device"

// Program collects the operators of a batch's step and sends them to the device as one list, so
// that the device sees what follows what and may compute several as one.
type Program struct {
	device.List
	dev   device.Device
	s     device.Stream
	probe Probe
	st    *State
}

// On gives the program of st for operators on s. What was appended for another stream is sent there
// first.
func (st *State) On(dev device.Device, s device.Stream, probe Probe) *Program {
	p := &st.program
	if p.s != s {
		p.Send()
	}
	p.dev, p.s, p.probe, p.st = dev, s, probe, st
	return p
}

// Send enqueues what was appended and has not been sent.
func (p *Program) Send() {
	if len(p.Ops) == 0 {
		return
	}
	l := p.List
	p.Reset() // also where an operator panics
	p.dev.Run(p.s, l)
}

// Observe sends what was appended and shows m to the probe; without a probe it does nothing.
func (p *Program) Observe(layer int, op string, m device.Mat) {
	if p.probe != nil {
		p.Send()
		p.probe.Observe(p.s, layer, op, m, p.st)
	}
}

// Probed reports whether a probe observes the step.
func (p *Program) Probed() bool { return p.probe != nil }

// Input is rows that linear layers multiply: as they are and, for layers kept as integers,
// quantised.
type Input struct {
	X device.Mat
	// Q has room for the rows as integers, in groups of the layers that take them;
	// absent where no layer is kept as integers.
	Q device.QRows
}

// NewInput is an input whose rows are x; q has room for at least as many.
func NewInput(x device.Mat, q device.QRows) Input {
	if !q.Zero() {
		q = q.RowRange(0, x.Rows)
	}
	return Input{X: x, Q: q}
}

// RowRange is the first n rows.
func (in *Input) RowRange(n int) Input { return NewInput(in.X.RowRange(0, n), in.Q) }

// Prepare appends that the rows are quantised, if any of the layers that take them wants that.
// Whoever changed the rows calls it once.
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
