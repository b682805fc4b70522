package plan

import (
	"krater/actors/local/config"
	"krater/scheduler/dispatch"
	"krater/stages/arena"
	"krater/stages/load"
)

// share has KV blocks and experts exchange memory while the model serves (stages/arena), where experts move between steps. KV blocks have
// at least the planned number, and at most as many more as half of the slots that prompts do not borrow hold. Both together take no
// more memory than without.
func (o *Plan) share() error {
	f, out := &o.Options, &o.Experts.outline
	if !f.Exchange || !o.Served || o.AllRows || o.Whole || !o.Beside() || !out.Sides[dispatch.Decode].Start.Learns ||
		f.RankCount() > 1 || f.MicroBatchCount() > 1 {
		return nil
	}
	plain := *o
	l := arena.Layout{Step: int(o.Experts.Slot), Least: o.Load.Blocks, Caches: load.CacheBlocks(o.cfg, &o.Load)}
	block := int64(0)
	for _, bytes := range l.Caches {
		block += int64(bytes)
	}
	if block == 0 {
		return nil
	}
	all, context := o.cfg.MaxContext, o.Case.Context
	if context > 0 {
		all = min(all, context)
	}
	all = (all + f.BlockTokens - 1) / f.BlockTokens * f.MaxSeqs // every sequence at its longest
	memory := int64(l.Least)*block + o.Experts.bytes()
	l.Blocks = int(min(int64(all), int64(l.Least)+int64(out.Slots-out.Lent)/2*int64(l.Step)/block))
	if l.Blocks <= l.Least {
		return nil
	}
	before, err := o.fixed()
	if err != nil {
		return err
	}
	o.Load.Blocks, o.Load.Arena = l.Blocks, &l
	after, err := o.fixed() // tables of positions are longer
	if err != nil {
		return err
	}
	l.Plain = int((memory-max(0, after-before))/int64(l.Step)) - l.Steps()
	slots := l.Plain + len(l.Shared())
	if l.Plain >= out.Lent && slots > 0 {
		err = o.Experts.sketch(o.PrefillExperts, o.setup(o.Experts.Slot, int64(slots)*o.Experts.Slot))
		if err == nil && out.Slots == slots && out.Sides[dispatch.Decode].Start.Learns && l.Plain >= out.Lent {
			return o.list()
		}
	}
	*o = plain
	return err
}

// fixed returns the memory of the layers' device apart from KV blocks and experts.
func (o *Plan) fixed() (n int64, err error) {
	needs, err := load.Plan(o.cfg, o.Load, o.use())
	for _, x := range needs {
		if x.Part != load.Experts && x.Part != load.KVCache && (x.Part != load.Scratch || o.Options.Device == config.CUDA) && x.Part != load.Tables {
			n += x.Bytes
		}
	}
	return n, err
}
