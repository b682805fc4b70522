package plan

import (
	"errors"
	"fmt"

	"krater/actors/local/config"
	"krater/actors/local/predict"
	"krater/actors/placement"
	"krater/kernels/cpu/level"
	"krater/kernels/cuda"
	"krater/scheduler/dispatch"
	"krater/scheduler/planner"
	"krater/stages"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/offload"
)

// fitGPU divides a GPU's memory between KV cache and experts. If all experts fit next to a minimal
// cache, they go there and the cache gets the rest. Otherwise the cache gets a quarter of what is
// left and the experts get the other three.
func (o *Plan) fitGPU() error {
	f := &o.Options
	if o.kvMost == 0 {
		o.kvMost = o.Load.Blocks
	}
	if o.blocks > 0 || f.KVCache == 0 {
		o.Load.Blocks = 1
	}
	left, experts, err := o.roomOnGPU()
	if err != nil {
		return err
	}
	size := config.KVSizeOf(o.cfg, &o.Load)
	if o.blocks > 0 { // counted as when they were chosen, or experts that had room then have none now
		left -= size.Bytes(int64(o.blocks)) - size.Bytes(1)
		o.Load.Blocks = o.blocks
	}
	if o.Experts, o.Resident, err = o.gpuStrategies(left, experts, size); err != nil {
		return err
	}
	if err := o.checkSame(); err != nil {
		return err
	}
	if f.KVCache == 0 && o.blocks == 0 {
		kv := left - experts
		if !o.Resident {
			kv = max(kv, left/4)
		}
		if o.Load.WindowBlocks > 0 && o.whole == nil {
			o.Load.WindowBlocks = f.WindowBlocks(o.cfg, &o.Load, kv)
			size = config.KVSizeOf(o.cfg, &o.Load)
		}
		o.Load.Blocks = int(max(1, min(int64(o.kvMost), int64(f.MostBlocks(o.cfg, &o.Load)), size.Blocks(kv))))
		left -= size.Bytes(int64(o.Load.Blocks)) - size.Bytes(1)
	}
	if o.Resident && o.Helper == nil {
		return nil
	}
	o.Resident = false // the experts are told apart by tables
	return o.placeOnGPU(left)
}

// checkSame refuses experts whose results depend on where they are computed, if an option asks that they
// do not.
func (o *Plan) checkSame() error {
	f := &o.Options
	switch {
	case f.SameTokens && o.cfg.MoE.Experts > 0:
		if err := cuda.CheckSame(o.Load.Precision.Experts); err != nil {
			return fmt.Errorf("--same-tokens: %w: see --precision and --gpu-expert-bits", err)
		}
		if l, err := level.Active(); err != nil || l == level.Pure {
			return errors.Join(err, errors.New("--same-tokens: a GPU has the arithmetic of a processor's vectors, which need AVX2"))
		}
		if !o.Resident && o.HostExperts != o.Load.Precision.Experts {
			return fmt.Errorf("--same-tokens: experts are %s on the GPU and %s on the CPU; use one format", o.Load.Precision.Experts, o.HostExperts)
		}
	case f.BatchInvariant && !f.SameTokens && !o.Resident:
		return fmt.Errorf("--batch-invariant: all experts must be on the GPU; with the strategies %s for prefill and %s for decode, where an expert is computed depends on the batch. --same-tokens takes experts anywhere",
			o.Experts.Prefill.Name(), o.Experts.Decode.Name())
	}
	return nil
}

// roomOnGPU returns the GPU memory that the load leaves next to one block of KV cache, or next to
// --kv-cache, and the memory that all experts take.
func (o *Plan) roomOnGPU() (left, experts int64, err error) {
	needs, err := load.Plan(o.cfg, o.Load, o.use())
	if err != nil {
		return 0, 0, err
	}
	left = int64(config.GPUShare * float64(o.Case.Rank.Memory))
	for _, n := range needs {
		if n.Part == load.Experts {
			experts += n.Bytes
		} else {
			left -= n.Bytes
		}
	}
	if o.Helper == nil {
		return left, experts, nil
	}
	slot, err := offload.SlotBytes(o.cfg, o.Load.Precision, o.Load.Layout)
	if err != nil {
		return 0, 0, err
	}
	_, rank, err := o.helperRows()
	beside, besideErr := o.rowsBeside()
	all := o.setup(slot, 0)
	return left - rank, max(experts, int64(len(all.Layers)*all.Experts)*slot+beside), errors.Join(err, besideErr)
}

// rowsBeside returns the memory that a GPU needs for experts that are not all told by their place: rows from the host, and tables.
func (o *Plan) rowsBeside() (int64, error) {
	lim, err := o.Load.LimitsFor(o.cfg)
	return int64(o.states())*offload.StageBytes(o.cfg, lim, o.Load.Layout) + ViewBytes(o.Load.Own(o.cfg)), err
}

// gpuStrategies chooses the strategies, and reports whether all experts are on the GPU.
func (o *Plan) gpuStrategies(left, experts int64, size config.KVSize) (s strategies, resident bool, err error) {
	f := &o.Options
	least := size.Bytes(min(int64(o.kvMost), int64((leastContext+f.BlockTokens-1)/f.BlockTokens)))
	if f.KVCache > 0 || o.blocks > 0 {
		least = 0 // it is included in left
	}
	fits := left-least >= experts && (f.ExpertVRAM == 0 || int64(f.ExpertVRAM) >= experts)
	autoPrefill, autoDecode := config.Persistent, config.Persistent
	if !fits {
		if o.Foreseen == nil && o.Helper == nil {
			kv, room := int64(f.KVCache), left
			switch {
			case o.blocks > 0:
				kv = size.Bytes(int64(o.blocks))
			case kv == 0:
				kv = min(size.Bytes(int64(o.kvMost)), max(0, left)/4)
				room -= kv
			}
			if f.ExpertVRAM > 0 {
				room = min(room, int64(f.ExpertVRAM))
			}
			o.Foreseen = predict.Choose(o.Load.Own(o.cfg), f, o.Case, o.Machine, o.HostExperts, kv, room)
		}
		if autoPrefill, autoDecode = hotCached, hotCached; o.Helper == nil {
			autoPrefill, autoDecode = o.Foreseen.Prefill, o.Foreseen.Decode
		}
	}
	if s.Prefill, s.Decode, err = f.Named(autoPrefill, autoDecode); err != nil {
		return s, false, err
	}
	return s, o.cfg.MoE.Experts == 0 || s.Prefill.Name() == config.Persistent && s.Decode.Name() == config.Persistent && fits, nil
}

// placeOnGPU chooses which experts are on a GPU with the given memory left.
func (o *Plan) placeOnGPU(left int64) error {
	f := &o.Options
	slot, err := offload.SlotBytes(o.cfg, o.Load.Precision, o.Load.Layout)
	if err != nil {
		return err
	}
	beside, err := o.rowsBeside()
	if err != nil {
		return err
	}
	left -= beside
	if f.ExpertVRAM > 0 {
		left = min(left, int64(f.ExpertVRAM))
	}
	if o.Foreseen != nil && o.Foreseen.PrefillExperts > 0 { // no option set it
		o.PrefillExperts = int64(o.Foreseen.PrefillExperts) * slot
	}
	return o.Experts.sketch(o.PrefillExperts, o.setup(slot, max(0, left)))
}

// leastContext is the smallest KV cache, in tokens, that all experts must leave room for when no
// option sets its size.
const leastContext = 4096

// ViewBytes returns the GPU memory that tables of experts take.
func ViewBytes(cfg *model.Config) int64 {
	return int64(dispatch.Phases) * offload.ViewBytes(len(setupOf(cfg, 1, 0).Layers), cfg.MoE.Experts)
}

// addBesideGPU adds the memory, on the GPU and on the host, of strategies for a GPU that does not
// hold all experts.
func (o *Plan) addBesideGPU(l *ledger, lim stages.Limits) error {
	cfg, states := o.cfg, o.states()
	batches := planner.Count(states, "batch")
	l.promise("rows from the host", batches, int64(states)*offload.StageBytes(cfg, lim, o.Load.Layout))
	l.promise("experts on it", o.Experts.String(), planner.Add(o.Experts.bytes(), ViewBytes(o.Load.Own(cfg))))
	near := lim
	near.QuantGroup = o.hostGroup() // the host's rows are integers if its experts are, whatever a GPU takes
	l.host("rows of pools", o.poolRows(), o.nearBytes(near))
	all := len(o.setup(1, 0).Layers)
	moved := o.Experts.movedLayers(all)
	l.host("experts as on the GPU", planner.Count(moved, "layer")+", pinned", int64(moved*cfg.MoE.Experts)*o.Experts.Slot)
	group := 0
	if o.Experts.Host() {
		p := o.Load.Precision
		p.Experts = o.HostExperts
		one, err := offload.SlotBytes(cfg, p, nil)
		if err != nil {
			return err
		}
		group = o.hostGroup()
		l.host("experts", "for the processor, "+planner.Count(all, "layer"), int64(all*cfg.MoE.Experts)*one)
		l.host("host calls", batches, int64(states)*offload.HostCallBytes(cfg, placement.HostCallRows(o.Options.GPUPrefillThreshold, lim.LayerRows()), o.Pools, group))
	}
	l.host("rows beside the GPU", batches, int64(states)*offload.MirrorBytes(cfg, lim, group, o.Load.Layout))
	return nil
}

// hostGroup returns how many numbers of a row share a scale for experts on the host, or 0 if these
// are not integers.
func (o *Plan) hostGroup() int {
	if o.Resident || !o.Experts.Host() {
		return 0
	}
	return o.HostExperts.Of(o.cfg.Hidden).Group
}
