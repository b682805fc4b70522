// Package forecast predicts speed and memory of each dispatch strategy, and chooses one.
// It needs the sizes of a model, the rates of a machine and a budget, and says why a
// strategy does not fit. It measures nothing. docs/planner.md has the formulas and their
// sources.
package forecast

import (
	"fmt"
	"math"
	"slices"

	"krater/scheduler/planner"
	"krater/scheduler/planner/rates"
)

// Case holds the inputs of a forecast.
type Case struct {
	Shape   Shape
	Rates   rates.Rates // completed if need be
	Skew    Skew        // of Shape.Experts
	Learned Learned
	Budget  Budget
	Work    Work
	// Prefill and Decode name strategies to use whatever they cost, such as layer_grouped:4. "" means
	// the best.
	Prefill, Decode string
}

// Point is a prediction for a prompt's length or a number of streams.
type Point struct {
	N         int     `json:"n"`                 // tokens of the prompt, or streams
	PerSecond float64 `json:"tokens_per_second"` // of all streams together; 0: the KV cache is too small
	Seconds   float64 `json:"seconds"`           // of the prompt, or of a step
	Copied    float64 `json:"copied_bytes"`      // experts copied for it
	HitRate   float64 `json:"hit_rate"`          // of the experts needed, those that were on the GPU
	Time      Time    `json:"parts"`
}

// Side is the prediction for a strategy in one phase.
type Side struct {
	Fits    bool    `json:"fits"`
	Chosen  bool    `json:"chosen"`
	Reason  string  `json:"reason"` // why it does not fit or was not chosen, or what limits its speed
	Kept    int     `json:"kept"`   // experts that always stay on the GPU
	VRAM    int64   `json:"vram"`   // bytes of the GPU for experts, and for rows of prompts in groups of layers
	RAM     int64   `json:"ram"`    // bytes of the host for experts
	KV      int64   `json:"kv_tokens"`
	Points  []Point `json:"points"`
	Score   float64 `json:"score"`   // tokens per second, by which strategies are compared
	Decides Point   `json:"decides"` // the point of Work.Streams, or of the middle length
	layout  layout
}

// Candidate is a strategy with the predictions for prompts and for generated tokens.
type Candidate struct {
	Strategy string `json:"strategy"`
	Groups   int    `json:"groups,omitempty"` // of layer_grouped
	// Prefill is predicted with the whole budget, or with its part of the budget if it was chosen.
	// Decode is predicted with the memory that the chosen prefill leaves.
	Prefill Side `json:"prefill"`
	Decode  Side `json:"decode"`
}

// Name returns the strategy as a flag takes it, such as layer_grouped:4.
func (c *Candidate) Name() string {
	if c.Groups > 0 {
		return fmt.Sprintf("%s:%d", c.Strategy, c.Groups)
	}
	return c.Strategy
}

// Forecast holds all candidates, by the number of their strategy, and the choice among them.
type Forecast struct {
	Candidates []Candidate
	// Prefill and Decode are the chosen candidates, nil if none fits.
	Prefill, Decode *Candidate
	// PrefillExperts is the largest number of experts that prefill should have places for, so that more
	// memory is left for decode. 0 means as many as fit.
	PrefillExperts int
}

// New predicts every strategy for a case and chooses one for each phase.
func New(c Case) (*Forecast, error) {
	x, err := c.chooser()
	if err != nil {
		return nil, err
	}
	f := &Forecast{}
	for _, s := range strategies {
		groups := []int{0}
		if s.name == groupedName {
			groups = groupings(&c.Shape, x.wanted[:])
		}
		for _, g := range groups {
			f.Candidates = append(f.Candidates, Candidate{Strategy: s.name, Groups: g})
			x.of = append(x.of, s)
		}
	}
	x.choose(f)
	return f, nil
}

// chooser checks a case.
func (c *Case) chooser() (*chooser, error) {
	for _, check := range []func() error{c.Shape.check, c.Budget.check, c.Work.check, c.Rates.Check} {
		if err := check(); err != nil {
			return nil, err
		}
	}
	if n, m := len(c.Skew.share), len(c.Learned.Hits.share); n != c.Shape.Experts || m != n && m != 0 {
		return nil, fmt.Errorf("%w: skews of %d and %d experts, there are %d", ErrShape, n, m, c.Shape.Experts)
	}
	card, err := c.Rates.Card.Complete()
	if err != nil {
		return nil, err
	}
	cpu, err := c.Rates.CPU.Complete()
	if err != nil {
		return nil, err
	}
	x := &chooser{calc: calc{s: &c.Shape, card: &card, cpu: &cpu, w: &c.Work, picks: c.Skew.picks(c.Shape.TopK)}, b: &c.Budget, slow: c.Learned.Slow}
	if c.Learned.Hits.share != nil {
		x.found = c.Learned.Hits.picks(c.Shape.TopK)
	}
	x.wanted, err = wantedOf(c)
	return x, err
}

// chooser fills in a forecast.
type chooser struct {
	calc
	b      *Budget
	of     []strategy // of each candidate
	wanted [2]want    // for prefill and decode
	slow   float64    // Learned.Slow
	// divided: prefill has a part of the room, see divide.
	divided bool
}

// layers is all layers with routed experts for m rows of a pass: those that stay whole,
// and the others.
func (x *chooser) layers(s *strategy, l layout, m float64, few bool) (t Time) {
	if l.layers > 0 {
		t = resident(&x.calc, l, m, few).times(l.layers)
	}
	if l.more > 0 {
		one := l
		one.kept++
		t.add(s.layer(&x.calc, one, m, few).times(l.more))
	}
	if n := x.s.MoE - l.layers - l.more; n > 0 {
		t.add(s.layer(&x.calc, l, m, few).times(n))
	}
	if s.looks(l, x.s) {
		look := micro * x.card.SyncUS
		t.add(Time{Total: look, HandOver: look}.times(x.s.MoE))
	}
	return t
}

// prompt returns the time of a prompt.
func (x *chooser) prompt(s *strategy, l layout, tokens int) (t Time) {
	streams := l.groups > 0 && !l.whole(x.s)
	if l.groups > 0 { // all of a group are there when it is computed
		s = &strategy{layer: resident}
	}
	var rows float64
	var layers, window Time // layers: for rows rows; only the last pass has another number
	pieces := 0             // of the window
	x.chunks(tokens, func(pos, m float64) {
		if m != rows {
			rows, layers = m, x.layers(s, l, m, false)
		}
		pieces++
		window.add(x.rest(pos, m))
		window.add(layers)
		end := int(pos + m)
		if end == tokens {
			window.add(x.head())
		} else if w := x.w.Window; w == 0 || end/w == int(pos)/w {
			return
		}
		if streams {
			window = x.pipeline(l, window, pieces)
		}
		t.add(window)
		window, pieces = Time{}, 0
	})
	return t
}

// token returns the time of a step of b streams.
func (x *chooser) token(s *strategy, l layout, b int) Time {
	t := x.tokens(s, l, float64(b))
	if s.between && x.slow > 0 {
		return t.slower(x.slow)
	}
	return t
}

// tokens returns the time of a step of b streams on average, before it is corrected.
func (x *chooser) tokens(s *strategy, l layout, b float64) (t Time) {
	t = x.step(b, !s.looks(l, x.s) && (!s.copies || l.whole(x.s)))
	t.add(x.layers(s, l, b, true))
	return t
}

// point returns a prediction of n tokens or streams in t.
func point(n int, t Time, fits bool) Point {
	p := Point{N: n, Seconds: t.Total, Copied: t.Copied, Time: t}
	if t.Wanted > 0 {
		p.HitRate = t.Found / t.Wanted
	}
	if fits && t.Total > 0 {
		p.PerSecond = float64(n) / t.Total
	}
	return p
}

// side predicts one layout in a phase. held is the number of other experts on the GPU.
func (x *chooser) side(s *strategy, l layout, held int, decode bool) Side {
	out := Side{Fits: true, Kept: l.stay(x.s), layout: l, VRAM: x.s.expertBytes(held + l.experts(x.s))}
	out.KV = x.b.kv(out.VRAM) / x.s.KVToken
	out.RAM = x.ram(s, l)
	at := func(n int) Point {
		if decode {
			return point(n, x.token(s, l, n), int64(n)*int64(x.w.Context+1) <= out.KV)
		}
		return point(n, x.prompt(s, l, n), int64(n) <= out.KV)
	}
	if decode {
		for _, n := range x.w.Batches {
			out.Points = append(out.Points, at(n))
		}
		out.Decides = at(x.w.Streams)
		out.Score = out.Decides.PerSecond
		return out
	}
	sum, count := 0.0, 0
	for _, n := range x.w.Lengths {
		p := at(n)
		out.Points = append(out.Points, p)
		if n <= x.sure() && p.PerSecond > 0 {
			sum, count = sum+math.Log(p.PerSecond), count+1
		}
	}
	if count > 0 {
		out.Score = math.Exp(sum / float64(count))
	}
	out.Decides = at(x.middle())
	return out
}

// sure returns the length of the longest prompt that fits into the KV cache whatever memory experts take.
func (x *chooser) sure() int { return int(min(tokensMost, x.b.KV/x.s.KVToken)) }

// middle returns the middle one of the lengths that decide, the shortest of all if none does.
func (x *chooser) middle() int {
	sorted := slices.Sorted(slices.Values(x.w.Lengths))
	n, _ := slices.BinarySearch(sorted, x.sure()+1)
	return sorted[n/2]
}

// ram returns the number of bytes of host memory that experts take, in both forms.
func (x *chooser) ram(s *strategy, l layout) (n int64) {
	if l.whole(x.s) {
		return 0
	}
	if s.hosts {
		n += int64(x.s.all()) * x.s.ExpertHost
	}
	if s.copies || s.between {
		n = planner.Add(n, x.s.expertBytes(x.s.all()))
	}
	return n
}
