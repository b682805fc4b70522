// Package dispatch decides where routed experts are computed and what has to be copied to a device
// for that. A strategy is a pure function: its arguments are the routed work of a layer and what
// lies on the device, its result is a decision. The caller carries decisions out: it owns streams,
// memory and the Residency, which it keeps up to date by the loads it has enqueued.
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

// Phase of a batch: strategies are chosen for each by itself.
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

// Key is one expert of the model.
type Key struct{ Layer, Expert int32 }

// Unlimited is the budget of a device without one.
const Unlimited = math.MaxInt64

// Setup holds the values that do not change between steps.
type Setup struct {
	Layers  []int32 // of the model, that have experts; rising
	Experts int     // of each layer
	Bytes   int64   // of an expert on the device, the largest
	Budget  int64   // bytes of the device for experts; Unlimited: no bound
	// Heat [layer][expert], layers as in Layers, counts how often a router chose an expert. nil:
	// unknown; then the first experts by id count as the hottest, in every layer alike.
	Heat [][]uint32
	// Kept lie on the device permanently, apart from the strategy.
	Kept []Key
}

// Load is a copy of an expert to a slot: a place on the device for one expert.
type Load struct {
	Slot int32
	Key
}

// Place is neighbouring slots: First to First+Slots-1.
type Place struct{ First, Slots int32 }

// Start describes the slots that a strategy needs and their contents before the first step. Slots are numbered from 0.
type Start struct {
	Slots int    // on the device, Setup.Bytes each
	Loads []Load // into them; these experts stay
	// Places, by index in Setup.Layers, are where waves load the experts of a layer to;
	// one without slots: nowhere. Without Staged two of them are the same or share no slot.
	Places []Place
	// Staged, by index in Setup.Layers, are the experts that a place has slots for, in the
	// order of the slots. nil: places have a slot for every expert of a layer, by id, or
	// strategies choose slots as they go.
	Staged [][]int32
	// Parts are indices in Setup.Layers, the first 0, at which another part of the model
	// begins. All rows of a prefill, in however many pieces, go through the layers of a
	// part before any goes on: what was loaded for the part serves all. nil: one part.
	Parts []int
	// Fixed says for each phase whether Decide does the same whatever the router chose: then the work
	// is enqueued without waiting for the choice.
	Fixed [Phases]bool
	// Host says for each phase whether Decide may leave work to the host: then the input rows of
	// experts are worth copying along with the router's choice.
	Host [Phases]bool
	// Learns: between steps the caller puts other experts into the slots of Loads, those that routers
	// chose most often recently. Setup.Kept and places are not touched.
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
	Start     *Start // what the strategy's Start gave for Setup
	First     int32  // of its slots, among those of the residency
	Index     int    // of the layer, in Setup.Layers
	Phase     Phase
	Work      []Rows // no expert twice
	Residency *Residency
}

// Layer is the step's layer, of the model.
func (in *Step) Layer() int32 { return in.Setup.Layers[in.Index] }

// place is where experts of a layer are loaded to, among the slots of the residency.
func (in *Step) place(index int) Place {
	p := in.Start.Places[index]
	p.First += in.First
	return p
}

// Decision divides Step.Work, which it names by index. Its memory is used again.
type Decision struct {
	Host []int32 // computed by the host's pools, at the same time as the waves
	// Waves are for the device, one after the other; copies of a wave may begin
	// while the work of former ones runs that uses other slots. One without work
	// loads for later layers.
	Waves []Wave

	hits, misses []int32  // of Step.Work, while a decision is made
	order        []int32  // slots to be overwritten
	wanted       []uint64 // a bit an expert
}

// Wave is work whose experts are all on the device after Loads. Slots are numbered as in the
// residency.
type Wave struct {
	Loads []Load
	Work  []int32
}

// reset makes d empty.
func (d *Decision) reset() {
	d.Host, d.Waves = d.Host[:0], d.Waves[:0]
	d.hits, d.misses, d.order = d.hits[:0], d.misses[:0], d.order[:0]
}

// wave adds an empty one.
func (d *Decision) wave() *Wave {
	n := len(d.Waves)
	d.Waves = slices.Grow(d.Waves, 1)[:n+1]
	w := &d.Waves[n]
	w.Loads, w.Work = w.Loads[:0], w.Work[:0]
	return w
}

// split sorts the work of a step into what is there and what is not.
func (d *Decision) split(in *Step) {
	for i, w := range in.Work {
		if _, ok := in.Residency.Slot(Key{in.Layer(), w.Expert}); ok {
			d.hits = append(d.hits, int32(i))
		} else {
			d.misses = append(d.misses, int32(i))
		}
	}
}

// Strategy is one way to decide. It has no state: equal arguments give equal
// decisions.
type Strategy interface {
	// Name is as in Parse, with its number.
	Name() string
	// Start checks s and plans what is done once. It fails with the numbers
	// (ErrNoRoom) when the budget is too small.
	Start(s *Setup) (Start, error)
	// Decide fills out. The step's residency is read only.
	Decide(out *Decision, in *Step)
	// Smaller is the strategy that takes its place where there is no room for it; nil: no strategy
	// needs less.
	Smaller(s *Setup) Strategy
}
