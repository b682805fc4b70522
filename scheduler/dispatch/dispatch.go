// Package dispatch decides where routed experts are computed and which experts are copied to a device
// for that. A strategy is a pure function: its arguments are the routed work of a layer and the experts
// on the device, its result is a decision. The caller carries decisions out. It owns streams, memory
// and the Residency, and updates the Residency when it enqueues loads.
//
//	settled, err := Settle(strategy, &setup)   // once: room, and what to load
//	first := residency.Add(&settled.Start)
//	strategy.Decide(&decision, &step)          // for each layer of each batch
//	residency.Apply(&decision, &step)          // or wave by wave, in order
//
// Every strategy gives the same bits if both devices keep experts in the same precision: rows of
// experts are summed in the order of the router's choice, on whichever device they were computed.
package dispatch

import (
	"math"
	"slices"
)

// Phase is the phase of a batch. Each phase has a strategy of its own.
type Phase uint8

const (
	// Prefill is a batch with enough rows that copying an expert to the device pays off.
	Prefill Phase = iota
	Decode
	Phases
)

func (p Phase) String() string {
	if p == Prefill {
		return "prefill"
	}
	return "decode"
}

// Key identifies an expert of the model.
type Key struct{ Layer, Expert int32 }

// Unlimited is the budget of a device whose memory for experts is not limited.
const Unlimited = math.MaxInt64

// Setup holds the values that do not change between steps.
type Setup struct {
	Layers  []int32 // the model's layers that have experts, rising
	Experts int     // experts of each layer
	Bytes   int64   // size of the largest expert on the device
	Budget  int64   // bytes of the device for experts
	// Heat [layer][expert], layers as in Layers, counts how often a router chose an expert. nil means
	// unknown: the experts with the lowest ids count as the hottest of each layer.
	Heat [][]uint32
	// Kept are experts that stay on the device, outside of the strategy's slots.
	Kept []Key
}

// Load is a copy of an expert to a slot: a place on the device for one expert.
type Load struct {
	Slot int32
	Key
}

// Place is a range of slots: First to First+Slots-1.
type Place struct{ First, Slots int32 }

// Start describes the slots that a strategy needs and their contents before the first step. Slots are numbered from 0.
type Start struct {
	Slots int    // slots on the device, Setup.Bytes each
	Loads []Load // the first experts of the slots; they stay
	// Places, by index in Setup.Layers, are the slots into which waves load the experts of a layer. A
	// place without slots means that waves load none. Without Staged any two places are equal or
	// share no slot.
	Places []Place
	// Staged, by index in Setup.Layers, lists the experts that a place has slots for, in the order of
	// the slots. nil means that a place has a slot for every expert of a layer, by id, or that the
	// strategy chooses slots in each step.
	Staged [][]int32
	// Parts are the indices in Setup.Layers at which parts of the model begin; the first is 0. All
	// rows of a prefill, in however many pieces, go through the layers of a part before any row goes
	// on, so the experts loaded for the part serve all rows. nil means one part.
	Parts []int
	// Fixed says for each phase whether decisions do not depend on the router's choice. Then the
	// caller enqueues the work without waiting for the choice.
	Fixed [Phases]bool
	// Host says for each phase whether Decide may leave work to the host. Then the caller copies the
	// input rows of experts to the host together with the router's choice.
	Host [Phases]bool
	// Learns says that between steps the caller replaces experts in the slots of Loads by those that
	// routers chose most often recently. It leaves Setup.Kept and places as they are.
	Learns bool
}

// Rows is the routed work of one expert.
type Rows struct {
	Expert int32
	Rows   int32 // > 0
}

// Step is the routed work of a layer.
type Step struct {
	Setup     *Setup
	Start     *Start // the result of the strategy's Start for Setup
	First     int32  // the first of its slots in the residency
	Index     int    // the layer's index in Setup.Layers
	Phase     Phase
	Work      []Rows // no expert twice
	Residency *Residency
}

// Layer returns the step's layer, as a layer of the model.
func (in *Step) Layer() int32 { return in.Setup.Layers[in.Index] }

// place returns the place of a layer, given by its index in Setup.Layers, in slots of the residency.
func (in *Step) place(index int) Place {
	p := in.Start.Places[index]
	p.First += in.First
	return p
}

// Decision divides the work of a step between the host and the device. It refers to Step.Work by
// index. Decide reuses the memory of its slices.
type Decision struct {
	Host []int32 // computed by the host's pools, at the same time as the waves
	// Waves run on the device one after the other. The copies of a wave may begin while the work of
	// earlier waves runs, if that work uses other slots. A wave without work loads experts for later
	// layers.
	Waves []Wave

	hits, misses []int32  // of Step.Work, while a decision is made
	order        []int32  // slots to be overwritten
	wanted       []uint64 // a bit an expert
}

// Wave is work of a step, by index in Step.Work, whose experts are all on the device after Loads. Slots
// are numbered as in the residency.
type Wave struct {
	Loads []Load
	Work  []int32
}

// reset makes d empty.
func (d *Decision) reset() {
	d.Host, d.Waves = d.Host[:0], d.Waves[:0]
	d.hits, d.misses, d.order = d.hits[:0], d.misses[:0], d.order[:0]
}

// wave adds an empty wave and returns it.
func (d *Decision) wave() *Wave {
	n := len(d.Waves)
	d.Waves = slices.Grow(d.Waves, 1)[:n+1]
	w := &d.Waves[n]
	w.Loads, w.Work = w.Loads[:0], w.Work[:0]
	return w
}

// split divides the work of a step into hits, whose experts are on the device, and misses.
func (d *Decision) split(in *Step) {
	for i, w := range in.Work {
		if _, ok := in.Residency.Slot(Key{in.Layer(), w.Expert}); ok {
			d.hits = append(d.hits, int32(i))
		} else {
			d.misses = append(d.misses, int32(i))
		}
	}
}

// Strategy decides where experts are computed. It has no state: equal arguments give equal decisions.
type Strategy interface {
	// Name returns the name as Parse takes it, with its number.
	Name() string
	// Start checks s and plans the slots and first loads. If the budget is too small it returns an
	// error that wraps ErrNoRoom and has the sizes.
	Start(s *Setup) (Start, error)
	// Decide writes its decision to out. It does not change the step's residency.
	Decide(out *Decision, in *Step)
	// Smaller returns the strategy to use instead if there is no room for this one, nil if no strategy
	// needs less.
	Smaller(s *Setup) Strategy
}
