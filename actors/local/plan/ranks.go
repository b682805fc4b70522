package plan

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"krater/actors/local/config"
	"krater/scheduler/planner"
	"krater/stages/load"
)

// Each returns the plans of the ranks: the plan itself if there is one.
func (o *Plan) Each() []*Plan {
	if o.Ranks == nil {
		return []*Plan{o}
	}
	return o.Ranks
}

// Place returns the device of a rank.
func (o *Plan) Place() config.Place { return o.place }

// divide plans a model that is cut into several ranks. The scheduler has one number of KV blocks, so every rank has as
// many as the one with the least room.
func (o *Plan) divide(places []config.Place) (err error) {
	f := &o.Options
	o.Steps.Chunk = f.Chunk(o.least(places))
	if o.Load, err = f.LoadOptions(o.cfg, o.Case, o.Steps, 0); err != nil {
		return err
	}
	first, layers, given := 0, len(o.cfg.Layers), 0
	if part := o.Part; part != nil {
		if first, layers = part.First, part.Layers; first < 0 || layers < 1 || layers > len(o.cfg.Layers)-first {
			return fmt.Errorf("layers %d to %d of %d", first, first+layers-1, len(o.cfg.Layers))
		}
		if part.Limits.Blocks > 0 {
			o.Load.Limits, given = part.Limits, part.Limits.Blocks
			o.Load.QuantGroup = 0 // of each rank
		}
	}
	if f.RankCount() > layers {
		return fmt.Errorf("--ranks %d: the model has %d layers", f.RankCount(), layers)
	}
	w, err := o.weigh(places, first, layers)
	if err != nil { // some layers cannot be apart: those that can are as good as each other
		w = weighing{slices.Repeat([]int64{1}, layers), slices.Repeat([]planner.Stage{{Room: math.MaxInt64, Rate: 1}}, len(places))}
	}
	cuts, err := f.Cuts(first, layers, func(int, int) []int { return o.cutByTime(w) })
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			o.noteTimes(w, first)
		}
	}()
	if err := o.cut(places, cuts, given); err != nil || given > 0 {
		return errors.Join(err, o.addUp())
	}
	streams := slices.ContainsFunc(o.Ranks, func(r *Plan) bool { return r.Experts.streams() })
	if streams && f.PrefillPass == 0 && !o.Whole {
		o.Steps.Pass = config.PassChunks * o.Steps.Chunk
		o.Load.Tokens, o.Load.Window = f.StepRows(o.Steps)
		if o.Load.WindowBlocks > 0 {
			o.Load.WindowBlocks = f.WindowBlocks(o.cfg, &o.Load, cmp.Or(int64(f.KVCache), math.MaxInt64))
		}
		if err := o.cut(places, cuts, 0); err != nil {
			return err
		}
	}
	if err := o.level(); err != nil {
		return err
	}
	if err := o.cut(places, cuts, o.Load.Blocks); err != nil {
		return err
	}
	return o.addUp()
}

// least returns the memory of the smallest GPU of the ranks, by which chunks of prompts are chosen; 0 if a rank is on another device.
func (o *Plan) least(places []config.Place) int64 {
	n := int64(math.MaxInt64)
	for i, p := range places {
		if p.Kind != config.CUDA || i >= len(o.Case.Ranks) {
			return 0
		}
		n = min(n, o.Case.Ranks[i].Memory)
	}
	return n
}

// cut plans every rank. blocks is the number of KV blocks; 0: each rank has as many as it has room for.
func (o *Plan) cut(places []config.Place, cuts []load.Cut, blocks int) error {
	o.Ranks = nil
	here := 0 // layers on the CPU
	var besides *load.Precision
	for i, p := range places {
		if p.Kind == config.CPU {
			here += cuts[i].Layers()
		}
		if p.Kind == config.CUDA {
			continue
		}
		f := o.Options.Of(i, p)
		precision, err := f.Resolve(o.cfg, o.Whole, false)
		if err != nil {
			return err
		}
		besides = &precision
	}
	for i, p := range places {
		r := &Plan{
			Case: o.Case, Options: o.Options.Of(i, p), cfg: o.cfg, Machine: o.Machine, Steps: o.Steps, Nodes: o.Nodes, Pools: o.Pools,
			PrefillExperts: int64(o.Options.PrefillExpertVRAM), place: p, whole: o, index: i, blocks: blocks, device: memoryName,
		}
		if p.Kind.Own() {
			r.device = fmt.Sprintf("rank %d: %s", i, p)
		}
		if i < len(o.Case.Ranks) {
			r.Case.Rank = o.Case.Ranks[i]
		}
		free := int64(0)
		switch p.Kind {
		case config.CPU:
			free = o.Machine.Available() / int64(here) * int64(cuts[i].Layers())
		case config.HostSim:
			free = int64(r.Options.VRAM.One())
		}
		if blocks > 0 {
			free = 0
		}
		if err := r.plan(o.Load, cuts[i], besides, free); err != nil {
			return fmt.Errorf("rank %d on %s: %w", i, p, err)
		}
		o.Ranks = append(o.Ranks, r)
	}
	return nil
}

// plan plans the layers of a rank. all are the sizes of the load that the ranks share. besides is the precision of ranks that the host
// computes; nil: there are none.
func (o *Plan) plan(all load.Options, cut load.Cut, besides *load.Precision, free int64) (err error) {
	f := &o.Options
	if o.Load, err = f.RankLoad(o.cfg, all, cut, o.Case, free); err != nil {
		return err
	}
	if part := o.Part; part != nil {
		o.Load.Ends = load.NoEnds
		if o.index == 0 {
			o.Load.Ends = part.Ends
		}
	}
	if o.place.Kind == config.CUDA {
		if o.HostExperts, err = f.HostExperts(o.cfg, o.Load.Precision); err != nil {
			return err
		}
		if besides != nil {
			o.HostExperts = besides.Experts
		}
	}
	return o.add()
}

// level gives all ranks the number of KV blocks of the one with the fewest.
func (o *Plan) level() (err error) {
	for i, r := range o.Ranks {
		if r.Load.Blocks < o.Load.Blocks {
			o.Load.Blocks = r.Load.Blocks
			o.Limits = fmt.Sprintf("rank %d (%s)", i, r.place)
		}
	}
	o.Load.HostBlocks, err = o.Options.HostBlocks(o.cfg, &o.Load)
	return err
}

// addUp joins the plans of the ranks.
func (o *Plan) addUp() (err error) {
	all := &ledger{}
	o.Needs, o.Promised = nil, 0
	for _, r := range o.Ranks {
		all.list = append(all.list, r.ledger.list...)
		o.Needs = append(o.Needs, r.Needs...)
		o.Promised = planner.Add(o.Promised, r.Promised)
		o.Load.Precision = r.Load.Precision
	}
	o.process(all)
	o.Memory, err = planner.New(o.devices(), all.list)
	return err
}
