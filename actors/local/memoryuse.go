package local

import (
	"fmt"

	"github.com/rs/zerolog"

	"krater/actors/local/config"
	"krater/actors/local/plan"
	"krater/kernels/machine"
	"krater/scheduler/planner"
	"krater/stages/source"
)

// MemoryUse compares the memory planned with the memory taken, in bytes.
type MemoryUse struct {
	Planned   int64 // the whole plan
	Resident  int64 // resident memory of the process; 0: unknown
	Promised  int64 // what the plan says of weights and allocations
	Allocated int64 // what weights and allocations take
}

// warnings compares the plan with what was taken. The system provides memory on first use, so soon
// after the load less is resident than planned; the allocations show the rest.
func (u MemoryUse) warnings() []string {
	var list []string
	if off := planner.Off(u.Planned, u.Resident); off > planner.OffShare {
		list = append(list, fmt.Sprintf("%.0f %% more memory is resident than planned", 100*off))
	}
	if off := planner.Off(u.Promised, u.Allocated); off > planner.OffShare || off < -planner.OffShare {
		list = append(list, fmt.Sprintf("weights and buffers are %+.0f %% off the plan", 100*off))
	}
	return list
}

// MemoryUse measures the memory of a loaded model whose pipeline has started.
func (s *Model) MemoryUse() MemoryUse {
	u := MemoryUse{Planned: s.Plan.Memory.Devices[0].Planned, Resident: machine.Resident(), Promised: s.Plan.Promised}
	if !s.Plan.Options.OwnMemory() {
		u.Allocated = s.Host.Memory().Used - s.copied
		for _, p := range s.Ranks {
			u.Allocated += p.Parts.WeightBytes - p.Parts.MadeBytes
		}
		return u
	}
	u.Promised = 0 // host memory is of all ranks together, so only devices with their own are compared
	for _, p := range s.Ranks {
		if p.place.Kind.Own() {
			u.Promised += p.Plan.Promised
			u.Allocated += p.Memory().Used // includes weights, of which it has copies
		}
	}
	return u
}

// Log writes one line with all numbers, as a warning if they disagree.
func (u MemoryUse) Log(log zerolog.Logger) {
	line := func(ev *zerolog.Event) *zerolog.Event {
		return ev.Int64("planned_bytes", u.Planned).Int64("resident_bytes", u.Resident).
			Int64("planned_allocation_bytes", u.Promised).Int64("allocated_bytes", u.Allocated)
	}
	warnings := u.warnings()
	if len(warnings) == 0 {
		line(log.Info()).Msg("memory use matches the plan")
	}
	for _, w := range warnings {
		line(log.Warn()).Msg(w)
	}
}

// Refusal returns why a server with these options would refuse to load the model, nil if no reason is
// known. It does not open a GPU.
func Refusal(s *source.Source, f config.Options, l config.Case, m *machine.Machine) error {
	cfg, _, err := s.Config()
	if err == nil {
		err = s.Check(cfg, true)
	}
	if err != nil || f.On(config.CUDA) {
		return err
	}
	o, err := plan.New(cfg, s.TokenizerSize(), f, l, m)
	if err == nil {
		err = o.Refusal()
	}
	if err != nil {
		return fmt.Errorf("model %s: %w", s.Name, err)
	}
	return nil
}
