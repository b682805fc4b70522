// Package suspect names the usual mistake that explains why an operator's values differ from a
// reference: a weight read transposed, heads in another order, a residual left out. It computes an
// operator by its definition, once as the config and the files say and once with each mistake, and
// reports the mistakes that reproduce the values of the engine or the reference.
package suspect

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"krater/stages/model"
)

// Case is a model, a prompt, and the first operator at which an engine and a reference part.
type Case struct {
	Config *model.Config
	// Weight returns a tensor of the files, widened to float32.
	Weight func(name string) ([]float32, error)
	IDs    []int32 // [T] the prompt
	Layer  int     // -1 outside the layers
	Op     string  // named as in the goldens
	// Seen is the engine's values [T, width], router ids as numbers; nil if they were not captured.
	// Operators before Op agree with the reference as far as it has them.
	Seen func(layer int, op string) []float32
	Want []float32 // the reference's values of Op, [T, width]
	// Agreed says of an operator of Layer that the reference has it and agrees.
	Agreed func(op string) bool
}

// Suspect is a mistake that explains a difference.
type Suspect struct {
	Op   string `json:"op"`   // where it is made
	Who  string `json:"who"`  // "engine" or "reference": whose values it reproduces
	What string `json:"what"` // "self_attn.q_proj.weight transposed"
	// Before and After are relative L2 errors against those values: as the config and the files
	// say, and with the mistake.
	Before float64 `json:"before"`
	After  float64 `json:"after"`
}

// Finding is the outcome of a search.
type Finding struct {
	// Own is the operator whose values the engine does not get from its own inputs by the
	// definition, "" when it gets all of them: then the reference has other weights, another layout
	// or other sizes than this model's files say.
	Own      string    `json:"own,omitempty"`
	Tried    int       `json:"tried"` // mistakes tried
	Suspects []Suspect `json:"suspects"`
}

const (
	engine    = "engine"
	reference = "reference"

	// A mistake explains a difference when it leaves less than an eighth of it and no more than
	// explainedMax: rounding to bfloat16 leaves less than a hundredth.
	explainedShare = 1.0 / 8
	explainedMax   = 0.05
	// What float32 arithmetic in another order may leave.
	roundingMax = 1e-5
	suspectsMax = 5
	// elementsMax bounds the rows that are computed again: rows times hidden size.
	elementsMax = 1 << 16
	tokensMin   = 8
)

// Find looks for the mistake. It returns an error only where values or weights cannot be read; a
// difference that no mistake explains is a Finding without suspects.
func Find(c *Case) (Finding, error) {
	var f Finding
	l, err := newLayer(c)
	if err != nil {
		return f, err
	}
	if c.Op == "inv_freq" {
		l.frequencies(&f)
		return f, nil
	}
	want := l.prefix(c.Op, c.Want)
	got := l.Get(c.Op)
	if l.Err != nil {
		return f, l.Err
	}
	before := distance(got, want)
	ops, err := l.path(c.Op)
	if err != nil {
		return f, err
	}
	tolerance := math.Min(math.Max(before*explainedShare, roundingMax), explainedMax)
	var hidden []string // operators before op that were not captured
	for _, op := range ops {
		seen := l.Given(op)
		if seen == nil {
			hidden = append(hidden, op)
			continue
		}
		own := distance(l.Define(op), seen)
		if l.Err != nil {
			return f, l.Err
		}
		if own > tolerance {
			f.Own = op
			for _, before := range append(hidden, op) {
				l.try(&f, before, engine, own, func(v []float64) float64 { return distance(l.with(before, v).Get(op), seen) })
			}
			l.tryScales(&f, op, engine, own, seen)
			return f.sorted(), l.Err
		}
		hidden = nil
	}
	for _, op := range ops {
		l.try(&f, op, reference, before, func(v []float64) float64 {
			return distance(l.with(op, v).Get(c.Op), want)
		})
	}
	l.tryScales(&f, c.Op, reference, before, want)
	return f.sorted(), l.Err
}

// sorted returns the suspects that explain most first, and limits their number. Those that leave
// only rounding stay in the order in which they were tried: fitted ones come last.
func (f Finding) sorted() Finding {
	slices.SortStableFunc(f.Suspects, func(a, b Suspect) int {
		return cmp.Compare(max(a.After, roundingMax), max(b.After, roundingMax))
	})
	f.Suspects = f.Suspects[:min(len(f.Suspects), suspectsMax)]
	return f
}

// try adds the mistakes of an operator that explain what err measures.
func (l *layer) try(f *Finding, op, who string, before float64, measure func([]float64) float64) {
	for _, m := range l.mistakes(op) {
		v := m.values()
		if l.Err != nil {
			return
		}
		f.consider(op, who, m.what, before, measure(v))
	}
}

// consider counts a mistake, and adds it if it explains the difference.
func (f *Finding) consider(op, who, what string, before, after float64) {
	f.Tried++
	if explains(before, after) {
		// JSON has no infinity.
		f.Suspects = append(f.Suspects, Suspect{Op: op, Who: who, What: what, Before: math.Min(before, math.MaxFloat64), After: after})
	}
}

// explains reports whether a mistake leaves little enough of a difference.
func explains(before, after float64) bool {
	return after <= before*explainedShare && after <= explainedMax
}

// mistake is a way in which an operator is done wrongly.
type mistake struct {
	what   string
	values func() []float64 // the operator's values [T, width]; nil if they cannot be computed
}

// String is one line: "the engine computes q with self_attn.q_proj.weight transposed: error 1.3e+00
// without, 2.1e-07 with it".
func (s Suspect) String() string {
	return fmt.Sprintf("the %s computes %s with %s: error %.1e without, %.1e with it", s.Who, s.Op, s.What, s.Before, s.After)
}
