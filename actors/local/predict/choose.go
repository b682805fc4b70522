package predict

import (
	"fmt"

	"krater/actors/local/config"
	"krater/kernels/machine"
	"krater/kernels/tensor"
	"krater/scheduler/planner/forecast"
	"krater/scheduler/planner/rates"
	"krater/stages/model"
	"krater/stages/source"
)

// Choice is the forecast's choice for a GPU that does not hold all experts.
type Choice struct {
	Prefill, Decode string // fixed strategies if there is no forecast
	PrefillExperts  int    // number of expert slots for the prefill strategy at most; 0: what it needs
	Line            string // what was chosen and why, for people; "" if there was nothing to choose
}

// The strategies for a GPU that cannot hold all experts, where no option names others and no rates
// are known. A prompt has enough rows to pay for copies; decode leaves cold experts to the CPU.
const (
	partPrefill = "layer_grouped"
	partDecode  = "learned"
)

// Choose chooses the strategies that the options leave open, by the forecast. kv and experts are
// the parts of the GPU's memory for each; host is the format of experts on the CPU. If no rates of
// the GPU are known, it returns the fixed strategies.
func Choose(cfg *model.Config, f *config.Options, l config.Case, m *machine.Machine, host tensor.Format, kv, experts int64) *Choice {
	out := &Choice{Prefill: partPrefill, Decode: partDecode}
	prefill, decode, err := f.Wanted()
	if err != nil || prefill != "" && decode != "" {
		return out
	}
	out.Line = fmt.Sprintf("strategies: %s for prefill and %s for decode unless flags name others, because the rates of the GPU %s are unknown; measure them once with krater plan --measure, or start without --no-measure", partPrefill, partDecode, l.Rank.Name)
	r, known, ok := foreseenRates(f, l, m, host)
	if !ok {
		return out
	}
	w := forecast.Usual()
	w.Batches = nil // for the table only
	c, err := NewCase(source.Sizes{Config: cfg}, f, r, l.Rank.Memory, m.Total(), "zipf", w)
	if err != nil {
		return out
	}
	c.Budget.KV, c.Budget.Experts = max(kv, c.Shape.KVToken*int64(c.Work.Context+1)), max(1, experts)
	if skew, err := forecast.Counted(l.Heat, c.Shape.Experts); err == nil && l.Heat != nil {
		c.Skew = skew
	}
	made, err := forecast.New(*c)
	if err != nil || made.Prefill == nil || made.Prefill.Strategy == config.Persistent || made.Decode.Strategy == config.Persistent {
		return out
	}
	report := newPlanReport("", known, c, made)
	out.Prefill, out.Decode, out.PrefillExperts = report.Prefill, report.Decode, made.PrefillExperts
	out.Line = fmt.Sprintf("%s, predicted for %s (%s), routing %s; krater plan has the table", report.Line(), r.Card.Name, known.Card, c.Skew.Name)
	return out
}

// foreseenRates returns the rates of this machine and the GPU of a case: as measured, or those of a
// known GPU of that name; false if there are neither.
func foreseenRates(f *config.Options, l config.Case, m *machine.Machine, host tensor.Format) (r rates.Rates, known Known, ok bool) {
	threads := f.ThreadCount()
	var kept *rates.File
	if l.Measure != nil {
		kept = l.Measure(host)
	} else {
		kept = Kept(f.CacheDir, Identity(m, threads))
	}
	var err error
	switch {
	case kept != nil && sameGPU(kept, l.Rank.Name, l.Rank.Capacity):
		if r.Card, err = kept.Card.Complete(); err != nil {
			return r, known, false
		}
		known.Card = "measured on this machine"
	default:
		if r.Card, ok = rates.Known(l.Rank.Name); !ok {
			return r, known, false
		}
		known.Card = "its description"
	}
	if kept != nil && kept.CPU != nil {
		r.CPU, err = kept.CPU.Complete()
		known.CPU = "measured on this machine"
	} else {
		r.CPU = rates.AssumedCPU(m.CPU.Model, threads, m.CPU.Sockets, levelOf(m.CPU.Features))
		known.CPU = "assumed"
	}
	return r, known, err == nil
}
