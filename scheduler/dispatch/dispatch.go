// Package dispatch decides where routed experts are computed and what has to be
// copied to a device for that. A strategy is a pure function: the routed work of a
// layer and what lies on the device go in, a decision comes out. Whoever carries
// decisions out owns streams, memory and the Residency, which it keeps up to date
// by the loads it has enqueued.
//
//	start, err := strategy.Start(&setup)    // once: room, and what to load
//	residency := NewResidency(&start)
//	strategy.Decide(&decision, &step)       // for each layer of each batch
//	residency.Load(wave.Loads)              // for each wave, in order
//
// Every strategy gives the same bits where both places keep experts in the same
// precision: rows of experts are summed by rank, whoever computed them.
package dispatch

import (
	"math"
	"slices"
)

// Phase of a batch: strategies are chosen for each by itself.
type Phase uint8

const (
	// Prefill is a batch of so many rows that reading an expert is paid back.
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

// Setup is what does not change between steps.
type Setup struct {
	Layers  []int32 // of the model, that have experts; rising
	Experts int     // of each layer
	Bytes   int64   // of an expert on the device, the largest
	Budget  int64   // bytes of the device for experts; Unlimited: no bound
	// Resident are the experts of each of Layers that are to stay on the device,
	// where a strategy keeps a part of them there; nil: all.
	Resident [][]int32
}

// Load is a copy of an expert to a slot: a place on the device for one expert.
type Load struct {
	Slot int32
	Key
}

// Start is what a strategy wants before the first step.
type Start struct {
	Slots int    // on the device, Setup.Bytes each
	Loads []Load // into them
	// Host tells for each phase whether Decide may leave work to the host: then
	// the rows experts take are worth copying along with the router's choice.
	Host [Phases]bool
}

// Rows is the routed work of one expert.
type Rows struct {
	Expert int32
	Rows   int32 // > 0
}

// Step is the routed work of a layer.
type Step struct {
	Setup     *Setup
	Layer     int32
	Phase     Phase
	Work      []Rows // no expert twice
	Residency *Residency
}

// Decision divides Step.Work, which it names by index. Its memory is used again.
type Decision struct {
	Host []int32 // computed by the host's pools, at the same time as the waves
	// Waves are for the device, one after the other; copies of a wave may begin
	// while the work of former ones runs that uses other slots. One without work
	// loads for later layers.
	Waves []Wave
}

// Wave is work whose experts are all on the device after Loads.
type Wave struct {
	Loads []Load
	Work  []int32
}

// reset makes d empty, with room for waves.
func (d *Decision) reset(waves int) {
	d.Host = d.Host[:0]
	d.Waves = slices.Grow(d.Waves[:0], waves)[:waves]
	for i := range d.Waves {
		d.Waves[i].Loads, d.Waves[i].Work = d.Waves[i].Loads[:0], d.Waves[i].Work[:0]
	}
}

// Strategy is one way to decide. It has no state: equal arguments give equal
// decisions.
type Strategy interface {
	// Name is as in Parse.
	Name() string
	// Start checks s and plans what is done once. It fails with the numbers
	// (ErrNoRoom) when the budget is too small.
	Start(s *Setup) (Start, error)
	// Decide fills out. The step's setup must have passed Start, and its residency
	// is read only.
	Decide(out *Decision, in *Step)
}
