package benches

import (
	"fmt"
	"slices"

	"krater/actors/placement"
	"krater/bench/stat"
	"krater/scheduler/dispatch"
	"krater/stages/drive"
	"krater/stages/load"
)

// strategyWindow is one window of decode.
type strategyWindow struct {
	TokensPerS float64 `json:"tokens_per_second"` // of all streams
	HitRate    float64 `json:"hit_rate"`
	HostShare  float64 `json:"host_share"`
	Copies     float64 `json:"copies"` // experts copied, a step
}

// taken is a strategy with its experts placed.
type taken struct {
	pair
	parts   *load.Parts
	p       *placement.Placement
	m       *placement.Model
	windows []strategyWindow
}

// inTurn measures windows of decode of every strategy in turn, so that all of them see the same state of the
// machine. Every round has another text, the same for all strategies.
func (b *strategiesBench) inTurn(list []pair, budget int64) (out []strategyResult, err error) {
	var all []*taken
	defer func() {
		for _, t := range all {
			t.m.Close()
			t.p.Close()
		}
	}()
	for _, s := range list {
		t := &taken{pair: s, parts: b.s.Parts.Again()}
		o := placement.Options{Prefill: s.prefill, Decode: s.decode, Budget: max(1, budget), PrefillBudget: int64(b.c.PrefillExpertVRAM), Heat: b.heat, Now: b.now, Threshold: b.c.GPUPrefillThreshold}
		if t.p, err = placement.New(b.s.Rank().Device, b.host(), t.parts, o); err != nil {
			return nil, err
		}
		if t.m, err = placement.NewModel(b.s.Rank().Device, b.host(), t.parts, t.p); err != nil {
			t.p.Close()
			return nil, err
		}
		all = append(all, t)
	}
	for round := range b.c.Windows + 1 {
		for _, t := range all {
			w, err := b.window(t, round)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", t, err)
			}
			if round == 0 {
				continue // first steps are captured and memory is touched
			}
			t.windows = append(t.windows, w)
			b.tell(fmt.Sprintf("window %d, %d MB, %d streams: %s: %.1f tok/s, hits %.3f, host %.3f, %.2f copies a step", round, budget/1e6, max(1, b.c.Streams), t, w.TokensPerS, w.HitRate, w.HostShare, w.Copies))
		}
	}
	for _, t := range all {
		out = append(out, t.result(b, budget))
	}
	return out, nil
}

// window is one window of a strategy: streams that begin together and generate as many tokens each.
func (b *strategiesBench) window(t *taken, round int) (w strategyWindow, err error) {
	n := max(1, b.c.Streams)
	var seqs []*drive.Sequence
	for i := range n {
		seqs = append(seqs, b.sequence(benchPrompt, b.c.Decode+1, 9+round*n+i))
	}
	before := t.p.Stats(dispatch.Decode).Copies
	x, err := b.phase(t.m, t.p, seqs, n*b.c.Decode)
	return strategyWindow{x.TokensPerS, x.HitRate, x.HostShare, float64(t.p.Stats(dispatch.Decode).Copies-before) / float64(b.c.Decode)}, err
}

// result holds the medians of the windows.
func (t *taken) result(b *strategiesBench, budget int64) strategyResult {
	r := strategyResult{Strategy: t.String(), Budget: budget, Windows: t.windows, Falls: placement.TellFalls(t.p.Falls())}
	r.Runs = pair{t.p.Strategy(dispatch.Prefill), t.p.Strategy(dispatch.Decode)}.String()
	r.VRAM = b.s.Rank().Memory().Used
	_, r.OnRank = t.p.Slots()
	return r
}

// medianOf is the median of a figure of windows.
func medianOf(list []strategyWindow, f func(*strategyWindow) float64) float64 {
	var values []float64
	for i := range list {
		values = append(values, f(&list[i]))
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// windowTables returns the medians of windows by budget.
func (r *StrategiesReport) windowTables() (list []stat.Table) {
	for i, x := range r.Strategies {
		if i == 0 || x.Budget != r.Strategies[i-1].Budget {
			list = append(list, stat.Table{
				Title:   fmt.Sprintf("%s for experts: %.0f %% of them; medians of %d windows in turn", bytesText(x.Budget), 100*float64(x.Budget)/float64(max(1, r.ExpertBytes*int64(r.Experts))), len(x.Windows)),
				Columns: []string{"strategy", "decode tok/s", "of the first", "hits %", "host %", "copies a step"},
			})
		}
		t := &list[len(list)-1]
		rate := medianOf(x.Windows, func(w *strategyWindow) float64 { return w.TokensPerS })
		first := rate
		if len(t.Rows) > 0 {
			first = t.Rows[0][1].(float64)
		}
		t.Rows = append(t.Rows, []any{x.Strategy, rate, rate / first,
			100 * medianOf(x.Windows, func(w *strategyWindow) float64 { return w.HitRate }),
			100 * medianOf(x.Windows, func(w *strategyWindow) float64 { return w.HostShare }),
			medianOf(x.Windows, func(w *strategyWindow) float64 { return w.Copies })})
	}
	return list
}
