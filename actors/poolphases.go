package actors

import (
	"krater/actors/trace"
	"krater/kernels/device"
)

// poolPhases records what a pool does with its part of a layer, in a row of the trace beside the
// pool's own: rows are copied near, gate and up, down, sums. The zero value records nothing.
type poolPhases struct {
	ring  *trace.Ring // nil: nothing is recorded
	timer device.PhaseTimer
	last  int64 // the end of the last recorded phase
}

// newPoolPhases makes those of a pool that computes on s. In virtual time there are none, because
// the CPU's phases are of real time.
func (p *Pipeline) newPoolPhases(pool string, s device.Stream) (n poolPhases) {
	timer, ok := s.(device.PhaseTimer)
	if _, live := p.host.(*library); ok && live {
		n.ring, n.timer = p.trace.Ring(trace.PhaseLane(pool)), timer
	}
	return n
}

// begin begins a part at a time of the trace's clock.
func (n *poolPhases) begin(noted bool, at int64) {
	if n.ring != nil {
		n.timer.TimePhases(noted)
		n.last = at
	}
}

// until records that the pool's work since the last phase was of one kind.
func (n *poolPhases) until(about *trace.Event, kind trace.Kind, at int64) {
	if n.ring == nil || at <= n.last {
		return
	}
	e := trace.Event{
		Batch: about.Batch, Epoch: about.Epoch, Rows: about.Rows, Layer: about.Layer, Lane: about.Lane, Device: about.Device, Others: about.Others,
		Kind: kind, Started: n.last, Ended: at,
	}
	n.ring.Record(&e)
	n.last = at
}

// products records the times that the CPU has measured for the experts that it has just computed.
func (n *poolPhases) products(about *trace.Event) {
	if n.ring == nil {
		return
	}
	for _, x := range n.timer.Phases() {
		kind := trace.PoolUp
		if x.Down {
			kind = trace.PoolDown
		}
		n.last = max(n.last, trace.At(x.From))
		n.until(about, kind, trace.At(x.To))
	}
}
