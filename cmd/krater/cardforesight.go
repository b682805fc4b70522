package main

import (
	"fmt"

	"krater/scheduler/planner/forecast"
	"krater/scheduler/planner/rates"
	"krater/stages/model"
)

// foresight is what the forecast chooses for a card that does not hold all experts.
type foresight struct {
	prefill, decode string // the fixed strategies where there is no forecast
	prefillExperts  int    // that prefill's strategy has places for at most; 0: what it asks for
	line            string // what was chosen and why, for people; "" where nothing had to be
}

// foresee chooses strategies for o.card by the forecast, where flags leave any open. kv and
// experts are the parts of the card's memory that are for either. Without a forecast, of a
// card that nothing is known of, the fixed strategies stand.
func (o *outlook) foresee(cfg *model.Config, f *engineFlags, kv, experts int64) *foresight {
	out := &foresight{prefill: partPrefill, decode: partDecode}
	prefill, decode, err := f.wanted()
	if err != nil || prefill != "" && decode != "" {
		return out
	}
	out.line = fmt.Sprintf("strategies: %s and %s where no flag says otherwise, since nothing is known of the card %s to predict by; krater plan --measure finds it out once, as a start does without --no-measure", partPrefill, partDecode, o.cardName)
	r, known, ok := o.foreseenRates(f)
	if !ok {
		return out
	}
	w := forecast.Usual()
	w.Batches = nil // of the table alone
	c, err := forecastCase(sizes{cfg, nil}, f, r, o.card, o.machine.Total(), "zipf", w)
	if err != nil {
		return out
	}
	c.Budget.KV, c.Budget.Experts = max(kv, c.Shape.KVToken*int64(c.Work.Context+1)), max(1, experts)
	if skew, err := forecast.Counted(o.heat, c.Shape.Experts); err == nil && o.heat != nil {
		c.Skew = skew
	}
	made, err := forecast.New(*c)
	if err != nil || made.Prefill == nil || made.Prefill.Strategy == allThere || made.Decode.Strategy == allThere {
		return out
	}
	report := newPlanReport("", known, c, made)
	out.prefill, out.decode, out.prefillExperts = report.Prefill, report.Decode, made.PrefillExperts
	out.line = fmt.Sprintf("%s, predicted for %s (%s), routing %s; krater plan has the table", report.line(), r.Card.Name, known.Card, c.Skew.Name)
	return out
}

// foreseenRates are those of this machine and of the card that is open: as measured here
// before or now, else those of a card by this name; false where neither is there.
func (o *outlook) foreseenRates(f *engineFlags) (r rates.Rates, known knownRates, ok bool) {
	threads := f.threads()
	var kept *rates.File
	if o.measure != nil {
		kept = o.measure(o.hostBits)
	} else {
		kept = keptRates(f.CacheDir, identity(o.machine, threads))
	}
	var err error
	switch {
	case kept != nil && sameCard(kept, o.cardName, o.cardBytes):
		if r.Card, err = kept.Card.Complete(); err != nil {
			return r, known, false
		}
		known.Card = "measured on this machine"
	default:
		if r.Card, ok = rates.Known(o.cardName); !ok {
			return r, known, false
		}
		known.Card = "its description"
	}
	if kept != nil && kept.CPU != nil {
		r.CPU, err = kept.CPU.Complete()
		known.CPU = "measured on this machine"
	} else {
		r.CPU = rates.AssumedCPU(o.machine.CPU.Model, threads, o.machine.CPU.Sockets, levelOf(o.machine.CPU.Features))
		known.CPU = "assumed"
	}
	return r, known, err == nil
}
