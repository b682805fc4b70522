package cpu

import "krater/kernels/device"

var (
	_ device.Device    = (*Device)(nil)
	_ device.Operators = (*Device)(nil)
)

// Accelerator is nil: the host addresses the memory, and waits for every operator.
func (d *Device) Accelerator() device.Accelerator { return nil }

// Run implements device.Device. Every operator is complete when the call returns.
func (d *Device) Run(s device.Stream, l device.List) {
	own := d.stream("Run", s)
	for ; len(l.Ops) > 0; l = l.From(1) {
		o := &l.Ops[0]
		own.lookAhead(l)
		switch n := d.Fused(l); {
		case n == 1:
			o.On(d, s)
		case o.Kind == device.OpMatMul:
			d.multiplyAll(s, l.To(n))
			l = l.From(n - 1)
		default:
			next := &l.Ops[1]
			d.AddRMSNorm(s, next.Out, next.X, o.X, next.W, next.Eps)
			l = l.From(1)
		}
	}
}

// Fused implements device.Device: a sum and its norm are one pass over the rows, and products of few rows
// that do not depend on each other are one loop.
func (d *Device) Fused(l device.List) int {
	if l.Ops[0].Kind == device.OpMatMul {
		return d.products(l)
	}
	if len(l.Ops) > 1 && l.Ops[0].Kind == device.OpAdd && l.Ops[1].Kind == device.OpRMSNorm && l.Ops[1].X == l.Ops[0].Out {
		return 2
	}
	return 1
}
