package main

import (
	"fmt"

	"krater/actors/placement"
	"krater/cmd/krater/console"
	"krater/scheduler/dispatch"
	"krater/stages"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/offload"
)

// The strategies of a card whose memory does not hold all experts, where nobody names others
// and nothing is known to choose by: prompts pay for copies with many rows, generated tokens leave cold experts to the processor.
const (
	partPrefill = "layer_grouped"
	partDecode  = "hot_cached_static"
)

// fitCard divides a card's memory between KV cache and experts. All experts go there if
// they fit beside some cache, which gets the rest then; else a quarter of what is left is for
// the cache, and the experts have the others.
func (o *outlook) fitCard(cfg *model.Config, f *engineFlags) error {
	if o.kvMost == 0 {
		o.kvMost = o.options.Blocks
	}
	if f.KVCache == 0 {
		o.options.Blocks = 1
	}
	needs, err := load.Plan(cfg, o.options, o.use(f))
	if err != nil {
		return err
	}
	left, experts := int64(cardShare*float64(o.card)), int64(0)
	for _, n := range needs {
		if n.Part == load.Experts {
			experts += n.Bytes
		} else {
			left -= n.Bytes
		}
	}
	block := kvBlockBytes(cfg, f.BlockTokens, o.options.KVType)
	least := min(int64(o.kvMost), int64((leastContext+f.BlockTokens-1)/f.BlockTokens)) * block
	if f.KVCache > 0 {
		least = 0 // it is in left
	}
	fits := left-least >= experts && (f.ExpertVRAM == 0 || int64(f.ExpertVRAM) >= experts)
	autoPrefill, autoDecode := allThere, allThere
	if !fits {
		if o.foreseen == nil {
			kv, room := int64(f.KVCache), left
			if kv == 0 {
				kv = min(int64(o.kvMost)*block, max(0, left)/4)
				room -= kv
			}
			if f.ExpertVRAM > 0 {
				room = min(room, int64(f.ExpertVRAM))
			}
			o.foreseen = o.foresee(cfg, f, kv, room)
		}
		autoPrefill, autoDecode = o.foreseen.prefill, o.foreseen.decode
	}
	s, err := f.named(autoPrefill, autoDecode)
	if err != nil {
		return err
	}
	o.resident = cfg.MoE.Experts == 0 || s.prefill.Name() == allThere && s.decode.Name() == allThere && fits
	if f.BatchInvariant && !o.resident {
		return fmt.Errorf("--batch-invariant: on a GPU all experts have to be there, with strategies %s for prompts and %s for answers it hangs on the step where one is computed",
			s.prefill.Name(), s.decode.Name())
	}
	if f.KVCache == 0 {
		kv := left - experts
		if !o.resident {
			kv = max(kv, left/4)
		}
		o.options.Blocks = int(max(1, min(int64(o.kvMost), kv/block)))
		left -= int64(o.options.Blocks-1) * block
	}
	if o.resident {
		o.rank = strategies{prefill: s.prefill, decode: s.decode}
		return nil
	}
	slot, err := offload.SlotBytes(cfg, o.options.Precision, o.options.Layout)
	if err != nil {
		return err
	}
	lim, err := o.options.LimitsFor(cfg)
	if err != nil {
		return err
	}
	left -= int64(f.states())*offload.StageBytes(cfg, lim, o.options.Layout) + o.viewBytes(cfg)
	if f.ExpertVRAM > 0 {
		left = min(left, int64(f.ExpertVRAM))
	}
	if o.foreseen != nil && o.foreseen.prefillExperts > 0 { // a flag left it open
		f.PrefillExpertVRAM = size(int64(o.foreseen.prefillExperts) * slot)
	}
	o.rank = s
	return o.rank.sketch(&f.rankFlags, setupOf(cfg, slot, max(0, left)))
}

// leastContext is the KV cache, in tokens, beside which all experts have to fit where nobody
// says how large it is to be.
const leastContext = 4096

// viewBytes is what tables of experts take on a card.
func (o *outlook) viewBytes(cfg *model.Config) int64 {
	return int64(dispatch.Phases) * offload.ViewBytes(len(setupOf(cfg, 1, 0).Layers), cfg.MoE.Experts)
}

// hostSide lists what a card's strategies take of the host: the name of a component, what it
// is for, bytes.
func (o *outlook) hostSide(cfg *model.Config, f *engineFlags, lim stages.Limits, put func(name, detail string, bytes int64)) error {
	all, moved, states := len(setupOf(cfg, 1, 0).Layers), o.rank.movedLayers(), int64(f.states())
	put("experts as on the GPU", fmt.Sprintf("%s, pinned", console.Count(moved, "layer")), int64(moved*cfg.MoE.Experts)*o.rank.slot)
	group := 0
	if o.rank.host() {
		p := o.options.Precision
		p.Experts = o.hostBits
		one, err := offload.SlotBytes(cfg, p, nil)
		if err != nil {
			return err
		}
		group = o.hostGroup(cfg)
		put("experts", fmt.Sprintf("for the processor, %s", console.Count(all, "layer")), int64(all*cfg.MoE.Experts)*one)
		put("letters", console.Count(f.states(), "batch"), states*offload.LettersBytes(cfg, placement.LetterRows(f.GPUPrefillThreshold, lim.LayerRows()), o.pools, group))
	}
	put("rows beside the GPU", console.Count(f.states(), "batch"), states*offload.MirrorBytes(cfg, lim, group, o.options.Layout))
	return nil
}

// hostGroup is how many numbers of a row share a scale beside a card, 0 where the processor has no
// experts as integers there.
func (o *outlook) hostGroup(cfg *model.Config) int {
	switch {
	case o.resident || !o.rank.host() || o.hostBits == 0:
		return 0
	case o.options.Precision.Group == 0:
		return cfg.Hidden
	}
	return o.options.Precision.Group
}

// host reports whether any phase leaves experts to the host.
func (s *strategies) host() bool {
	for phase := range dispatch.Phases {
		if s.outline.Sides[phase].Start.Host[phase] {
			return true
		}
	}
	return false
}

// movedLayers is how many layers have experts that are copied again and again.
func (s *strategies) movedLayers() int {
	moved := map[int]bool{}
	for phase := range dispatch.Phases {
		for i, place := range s.outline.Sides[phase].Start.Places {
			if place.Slots > 0 {
				moved[i] = true
			}
		}
	}
	return len(moved)
}
