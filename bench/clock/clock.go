// Package clock is a device that adds up the time of its operators by stage, and the bytes of weights
// and cache they read. It is exact only over a device whose operators are complete when their call
// returns, and for one stream at a time.
package clock

import (
	"slices"
	"strings"
	"time"

	"krater/kernels/device"
	"krater/stages/load"
)

// The stages that operators are counted for.
const (
	Embed     = "embed"
	Norms     = "norms"
	Streams   = "streams"
	Attention = "attention"
	Router    = "router"
	Quantize  = "quantise"
	Experts   = "experts"
	Shared    = "shared"
	Dense     = "dense"
	Merge     = "merge"
	Head      = "head"
)

// Spent is the time and the bytes of one operator in one stage.
type Spent struct {
	Stage    string
	Operator string
	Calls    int
	Time     time.Duration
	Bytes    int64 // of weights and of the KV cache
}

// Device is a device that counts while On.
type Device struct {
	load.Device
	On    bool
	vocab int

	spent  map[[2]string]*Spent
	routed bool // experts were chosen since the last norm
}

// New wraps dev. A product with vocab rows of weights counts as the head.
func New(dev load.Device, vocab int) *Device {
	return &Device{Device: dev, vocab: vocab, spent: map[[2]string]*Spent{}}
}

// Reset forgets everything counted.
func (d *Device) Reset() { clear(d.spent) }

// Spent lists what was counted, by stage and operator.
func (d *Device) Spent() []Spent {
	var out []Spent
	for _, s := range d.spent {
		if s.Calls > 0 {
			out = append(out, *s)
		}
	}
	slices.SortFunc(out, func(a, b Spent) int {
		if c := strings.Compare(a.Stage, b.Stage); c != 0 {
			return c
		}
		return strings.Compare(a.Operator, b.Operator)
	})
	return out
}

// entry is the count of an operator for a stage.
func (d *Device) entry(stage, op string) *Spent {
	key := [2]string{stage, op}
	s := d.spent[key]
	if s == nil {
		s = &Spent{Stage: stage, Operator: op}
		d.spent[key] = s
	}
	return s
}

// Run implements device.Device. Operators that the device computes as one are counted as one, and named by their kinds.
func (d *Device) Run(s device.Stream, l device.List) {
	if !d.On {
		d.Device.Run(s, l)
		return
	}
	for part := range l.Parts(d) {
		name, bytes := "", int64(0)
		for i := range part.Ops {
			bytes += reads(&part.Ops[i])
			switch kind := part.Ops[i].Kind; {
			case i == 0:
				name = kind.String()
			case kind != part.Ops[i-1].Kind:
				name += "+" + kind.String()
			}
		}
		start := time.Now()
		d.Device.Run(s, part)
		took := time.Since(start)
		e := d.entry(d.stage(l), name)
		e.Calls, e.Time, e.Bytes = e.Calls+1, e.Time+took, e.Bytes+bytes
		l = l.From(len(part.Ops))
	}
}

// stage returns the stage of a layer that the first operator of l belongs to.
func (d *Device) stage(l device.List) string {
	o := &l.Ops[0]
	switch o.Kind {
	case device.OpGatherRows:
		return Embed
	case device.OpSigmoid, device.OpMixWeights, device.OpCollapse, device.OpSpread, device.OpStreamGates, device.OpNGrams, device.OpTapConv:
		return Streams
	case device.OpSoftcap:
		return Head
	case device.OpRMSNorm, device.OpAdd, device.OpScale, device.OpActivate:
		d.routed = false
		return Norms
	case device.OpQuantizeRows:
		return Quantize
	case device.OpRouteTopK, device.OpRouteByToken:
		d.routed = true
		return Router
	case device.OpExperts, device.OpExpertsOn:
		return Experts
	case device.OpWeightedSum:
		return Merge
	case device.OpGateRows:
		return Shared
	case device.OpFFN:
		if d.routed {
			return Shared
		}
		return Dense
	case device.OpMatMul:
		switch {
		case len(l.Ops) > 1 && (l.Ops[1].Kind == device.OpRouteTopK || l.Ops[1].Kind == device.OpRouteByToken):
			return Router
		case o.Out.Cols == d.vocab:
			return Head
		}
	}
	return Attention
}

// reads is the bytes of weights and of the KV cache that an operator reads.
func reads(o *device.Op) (n int64) {
	switch o.Kind {
	case device.OpGatherRows:
		return int64(o.Out.Bytes())
	case device.OpRMSNorm, device.OpAddBias, device.OpGateRows, device.OpGatedNorm:
		return int64(o.W.Bytes())
	case device.OpMatMul:
		return int64(o.Weight.Bytes())
	case device.OpFFN:
		return int64(o.FFN.Bytes())
	case device.OpLayerNorm:
		return int64(o.W.Bytes() + o.B.Bytes())
	case device.OpSelect:
		return cached(o.KV, o.Spans.List) / int64(max(1, o.Index.Pool))
	case device.OpSparseMLA:
		return sparse(o) + int64(o.KVB.Bytes())
	case device.OpMLA:
		return cached(o.KV, o.Spans.List) + int64(o.KVB.Bytes())
	case device.OpConv, device.OpDelta:
		return int64(o.W.Bytes()+o.B.Bytes()) + states(o)
	case device.OpTapConv, device.OpPoolKeys:
		return int64(o.W.Bytes())
	case device.OpNGrams:
		return int64(o.Out.Bytes())
	case device.OpSelectBlocks:
		return cached(o.KV, o.Spans.List) / int64(o.Blocks.Block)
	case device.OpSparseGQA:
		return sparse(o)
	case device.OpGQA:
		return cached(o.KV, o.Spans.List)
	case device.OpCompressed:
		return near(o)
	case device.OpExperts:
		for _, w := range o.Experts.Work {
			bytes, _, _ := o.Experts.Sizes(w.Expert)
			n += int64(bytes)
		}
	}
	return n
}

// sparse is the bytes of the rows of the cache that OpSparseMLA or OpSparseGQA reads.
func sparse(o *device.Op) (n int64) {
	row, seen := int64(o.KV.Bytes()/max(1, o.KV.Rows)), o.A.Cols
	if o.GQA != nil {
		seen /= max(1, o.GQA.Lists)
	}
	for _, sp := range o.Spans.List {
		for r := range sp.Len {
			n += row * int64(min(sp.Pos+r+1, seen))
		}
	}
	return n
}

// near is the bytes of the rows that attention over tokens and entries reads.
func near(o *device.Op) (n int64) {
	row, p := int64(o.Near.KV.Bytes()/max(1, o.Near.KV.Rows)), o.Compressed
	for _, sp := range o.Near.Spans.List {
		for pos := sp.Pos; pos < sp.Pos+sp.Len; pos++ {
			sees := p.Sees(pos)
			if !o.A.Zero() {
				sees = min(sees, o.A.Cols)
			}
			n += row * int64(pos+1-p.First(pos)+sees)
		}
	}
	return n
}

// states is the bytes of what an operator of gated DeltaNet keeps of sequences, each read once.
func states(o *device.Op) (n int64) {
	rows := o.Delta.StateRows()
	if o.Kind == device.OpConv {
		rows = o.Delta.Taps
	}
	for _, s := range o.Spans.List {
		if s.Len > 0 {
			n += int64(o.KV.RowRange(0, rows).Bytes())
		}
	}
	return n
}

// cached is the bytes of the cache that attention over spans reads, each row once.
func cached(cache device.KV, spans []device.Span) int64 {
	var rows int64
	for _, s := range spans {
		rows += int64(s.Pos + s.Len)
	}
	return rows * int64(cache.Bytes()) / int64(max(1, cache.Mat.Rows))
}
