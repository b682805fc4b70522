package main

import (
	"fmt"
	"io/fs"
	"runtime"

	"github.com/rs/zerolog"

	"krater/kernels/cpu"
	"krater/kernels/machine"
	"krater/scheduler/planner"
	"krater/stages/expert"
	"krater/stages/load"
	"krater/stages/model"
)

// outlook is what is known before anything is loaded.
type outlook struct {
	machine *machine.Machine
	options load.Options
	needs   []load.Need
	plan    *planner.Plan
	nodes   []cpu.Node // nil: one
	pools   int
}

// The memory of the process itself: code, heap, stacks, and the tokenizer, which
// takes some 3.4 bytes for each of tokenizer.json while it is read and leaves
// the collector as much again.
const (
	runtimeBytes      = 48 << 20
	tokenizerOverhead = 8
)

// look plans a load for the flags. Nothing of the model is read but its config.
func (s *source) look(cfg *model.Config, f *engineFlags, l limits, m *machine.Machine) (*outlook, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	o, err := loadOptions(cfg, f, l, m.Available())
	if err != nil {
		return nil, err
	}
	look := &outlook{machine: m, options: o}
	if look.nodes, err = f.nodesOf(m); err != nil {
		return nil, err
	}
	look.pools = look.poolCount(f)
	needs, err := load.Plan(cfg, o, load.Use{
		States: f.depth(), Streams: f.LayerGroups + look.pools + 1, Threads: f.threads(),
	})
	if err != nil {
		return nil, err
	}
	const device = "memory"
	var list []planner.Component
	for _, n := range needs {
		list = append(list, planner.Component{Device: device, Name: n.Part.String(), Detail: n.Detail, Bytes: n.Bytes})
	}
	if len(look.nodes) > 1 && cfg.MoE.Experts > 0 {
		lim, err := o.Limits.For(cfg)
		if err != nil {
			return nil, err
		}
		list = append(list, planner.Component{Device: device, Name: "rows of pools", Detail: fmt.Sprintf("%d pools on %d nodes", look.pools, len(look.nodes)),
			Bytes: int64(look.pools) * expert.NearBytes(lim, cfg.Hidden)})
	}
	list = append(list, planner.Component{Device: device, Name: "runtime", Detail: "code, heap, tokenizer", Bytes: runtimeBytes + tokenizerOverhead*s.size("tokenizer.json")})
	p, err := planner.New([]planner.Device{{Name: device, Total: m.Total(), Available: m.Available()}}, list)
	if err != nil {
		return nil, err
	}
	look.needs, look.plan = needs, p
	return look, nil
}

// size is a file's size, 0 if it is not there.
func (s *source) size(name string) int64 {
	info, err := fs.Stat(s.files, name)
	if err != nil {
		return 0
	}
	return info.Size()
}

// depth is the number of batches in flight.
func (f *engineFlags) depth() int {
	if f.Depth == 0 {
		return f.LayerGroups
	}
	return f.Depth
}

// threads is the number of threads that compute together.
func (f *engineFlags) threads() int {
	if f.Threads == 0 {
		return runtime.GOMAXPROCS(0)
	}
	return f.Threads
}

// sum adds up the needs that a test picks.
func (o *outlook) sum(pick func(load.Part) bool) int64 {
	var n int64
	for _, x := range o.needs {
		if pick(x.Part) {
			n = planner.Add(n, x.Bytes)
		}
	}
	return n
}

// refusal is the error of a plan that does not fit, nil if forced.
func (o *outlook) refusal(force bool) error {
	err := o.plan.Check()
	if err == nil || force {
		return nil
	}
	return fmt.Errorf("%w\na smaller --kv-cache, --max-seqs or --prefill-chunk takes less; --force goes on in spite of it", err)
}

// memoryUse is memory planned and taken, in bytes.
type memoryUse struct {
	planned   int64 // by the whole plan
	resident  int64 // of the process, 0: unknown
	promised  int64 // what the plan says of weights and allocations
	allocated int64 // what they are
}

// warnings compares plan and reality. The system finds memory when it is first
// used, so that soon after the load less is resident than planned; what is not
// resident yet is compared by what has been allocated.
func (u memoryUse) warnings() []string {
	var list []string
	if off := planner.Off(u.planned, u.resident); off > planner.OffShare {
		list = append(list, fmt.Sprintf("%.0f %% more memory is resident than planned", 100*off))
	}
	if off := planner.Off(u.promised, u.allocated); off > planner.OffShare || off < -planner.OffShare {
		list = append(list, fmt.Sprintf("weights and buffers are %+.0f %% off the plan", 100*off))
	}
	return list
}

// memoryUse measures a loaded session; its pipeline must have started.
func (s *session) memoryUse() memoryUse {
	u := memoryUse{
		resident:  machine.Resident(),
		promised:  s.look.sum(func(p load.Part) bool { return p.Weight() || p.Allocated() }),
		allocated: s.dev.Memory().Used + s.parts.WeightBytes - s.parts.MadeBytes - s.copied,
	}
	if s.sim != nil {
		u.allocated = u.promised // on two devices, partly twice: the rank keeps its own account
	}
	for i := range s.look.plan.Devices {
		u.planned = planner.Add(u.planned, s.look.plan.Devices[i].Planned)
	}
	return u
}

// log writes one line with all numbers, as a warning if they disagree.
func (u memoryUse) log(log zerolog.Logger) {
	line := func(ev *zerolog.Event) *zerolog.Event {
		return ev.Int64("planned_bytes", u.planned).Int64("resident_bytes", u.resident).
			Int64("promised_bytes", u.promised).Int64("allocated_bytes", u.allocated)
	}
	warnings := u.warnings()
	if len(warnings) == 0 {
		line(log.Info()).Msg("memory as planned")
	}
	for _, w := range warnings {
		line(log.Warn()).Msg(w)
	}
}
