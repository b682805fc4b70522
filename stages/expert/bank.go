// Package expert holds the experts of a layer, the split of a batch by expert
// and the division of that work among pools.
package expert

import (
	"sync"

	"krater/kernels/device"
	"krater/stages"
)

// Bank holds the experts of one layer.
type Bank struct {
	Routed   []device.Expert  // [E]
	Integers []device.QExpert // [E] instead of Routed
	Here     device.Bank      // instead of both: experts in one piece of memory, which the device finds by number
	Away     int              // instead of all: the number of experts whose place the bank does not know
	Shared   device.FFN       // all shared experts as one network; zero: none
	Gate     device.Mat       // [1, H] of the shared network's output, absent without such a gate
}

// Len returns the number of routed experts.
func (b *Bank) Len() int { return max(len(b.Routed), len(b.Integers), b.Here.Experts, b.Away) }

// Resident reports whether the device finds the experts by itself.
func (b *Bank) Resident() bool { return !b.Here.Zero() }

// ExpertBytes returns the number of bytes that a pass over one routed expert reads.
func (b *Bank) ExpertBytes() int {
	switch {
	case len(b.Integers) > 0:
		return b.Integers[0].Bytes()
	case len(b.Routed) > 0:
		return b.Routed[0].Bytes()
	case b.Resident():
		return b.Here.ExpertBytes()
	}
	return 0
}

// Prepare appends the quantisation of the rows of st.Input if experts or the shared network are kept as
// integers. It must be called for the stream of the router, before Run and RunShared.
func (b *Bank) Prepare(p *device.List, st *stages.State) {
	if len(b.Integers) > 0 || b.Shared.Integer() {
		p.QuantizeRows(st.Input.Q, st.Input.X)
	}
}

// lists are lists of one operator: several streams make one at the same time.
var lists = sync.Pool{New: func() any { return new(device.List) }}

// Run computes the rows of st.ExpertOut that work lists, from st.Input. After
// Prepare it may run on several streams at once, with lists that share no
// assignment.
func (b *Bank) Run(s device.Stream, dev device.Device, st *stages.State, work []device.ExpertRows) {
	if len(work) == 0 {
		return
	}
	l := lists.Get().(*device.List)
	defer lists.Put(l)
	l.Reset()
	l.Experts(st.ExpertOut, st.Normed, st.Input.Q, device.Routed{F: b.Routed, Q: b.Integers, Work: work, TopK: st.RouterIDs.Cols})
	dev.Run(s, *l)
}

// RunShared appends the computation of the shared network for st.Input, with the result in out, such as
// st.Shared. Without shared experts it does nothing.
func (b *Bank) RunShared(p *stages.Program, st *stages.State, out device.Mat, layer int) {
	if b.Shared.Zero() {
		return
	}
	p.FFN(out, st.Normed, st.Input.Q, &b.Shared)
	if !b.Gate.Zero() {
		p.Observe(layer, "shared_raw", out)
		p.GateRows(out, st.Normed, b.Gate)
	}
	p.Observe(layer, "shared_out", out)
}
