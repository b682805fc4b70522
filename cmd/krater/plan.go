package main

import (
	"fmt"
	"io/fs"
	"runtime"

	"github.com/rs/zerolog"

	"krater/cmd/krater/console"
	"krater/kernels/cpu"
	kernel "krater/kernels/cuda/launch"
	"krater/kernels/machine"
	"krater/scheduler/planner"
	"krater/scheduler/planner/rates"
	"krater/stages/expert"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/offload"
)

// outlook is what is known before anything is loaded.
type outlook struct {
	machine *machine.Machine
	options load.Options
	needs   []load.Need
	plan    *planner.Plan // of the memory, and of a rank with memory of its own
	nodes   []cpu.Node    // nil: one
	pools   int
	rank    strategies // of a rank, or of a GPU that is not to hold all experts
	card    int64      // memory of the GPU that the layers are on
	// Of that GPU: its driver's name for it and all its memory; who measures it, nil for nobody; what was counted of routers, [layer][expert], nil
	// where nothing was; what was chosen by that, once it had to be.
	cardName  string
	cardBytes int64
	measure   func(bits int) *rates.File
	heat      [][]uint32
	foreseen  *foresight
	// Of a GPU: all experts are there; the bits of those on the host; blocks of KV cache
	// that would be of use.
	resident bool
	hostBits int
	kvMost   int
	// promised is what the device that the layers are on is asked for, and weights
	// that lie there: what memoryUse compares.
	promised int64
}

// The memory of the process itself: code, heap, stacks, and the tokenizer, which
// takes some 3.4 bytes for each of tokenizer.json while it is read and leaves
// the collector as much again.
const (
	runtimeBytes      = 48 << 20
	tokenizerOverhead = 8
	// What a driver keeps in the process and pinned memory of streams, as far as is known.
	driverBytes = 400 << 20
)

// look plans a load for the flags. Nothing of the model is read but its config.
func (s *source) look(cfg *model.Config, f *engineFlags, l limits, m *machine.Machine) (*outlook, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	f.chooseChunk(l.card)
	free := m.Available()
	if f.onRank() && f.VRAM > 0 {
		free = int64(f.VRAM)
	}
	o, err := loadOptions(cfg, f, l, free)
	if err != nil {
		return nil, err
	}
	look := &outlook{machine: m, options: o, card: l.card, cardName: l.cardName, cardBytes: l.cardBytes, measure: l.measure, heat: l.heat}
	if f.onCard() {
		if look.hostBits, err = f.hostBits(cfg, o.Precision); err != nil {
			return nil, err
		}
	}
	if look.nodes, err = f.nodesOf(m); err != nil {
		return nil, err
	}
	look.pools = look.poolCount(f)
	tokenizer := s.size("tokenizer.json")
	if err := look.add(cfg, f, tokenizer); err != nil {
		return look, err
	}
	if look.rank.streams() && f.PrefillPass == 0 { // known only now: batches take more memory
		f.PrefillPass = passChunks * f.PrefillChunk
		look.promised = 0
		if look.options, err = loadOptions(cfg, f, l, free); err == nil {
			err = look.add(cfg, f, tokenizer)
		}
	}
	return look, err
}

// The devices of a plan.
const (
	memoryName = "memory"
	rankName   = "hostsim"
	cardName   = "GPU"
)

// add adds up what the load takes. tokenizer is the size of tokenizer.json.
func (o *outlook) add(cfg *model.Config, f *engineFlags, tokenizer int64) error {
	if f.onCard() {
		if err := o.fitCard(cfg, f); err != nil {
			return err
		}
	}
	lim, err := o.options.LimitsFor(cfg)
	if err != nil {
		return err
	}
	o.needs, err = load.Plan(cfg, o.options, o.use(f))
	if err != nil {
		return err
	}
	devices := []planner.Device{{Name: memoryName, Total: o.machine.Total(), Available: o.machine.Available()}}
	layers := memoryName // the device they are on
	if f.onRank() {
		layers = rankName
		devices = append(devices, planner.Device{Name: rankName, Total: int64(f.VRAM)})
	}
	if f.onCard() {
		layers = cardName
		devices = append(devices, planner.Device{Name: cardName, Total: o.card, Available: o.card})
	}
	var list []planner.Component
	put := func(device, name, detail string, bytes int64) {
		list = append(list, planner.Component{Device: device, Name: name, Detail: detail, Bytes: bytes})
	}
	promise := func(name, detail string, bytes int64) {
		put(layers, name, detail, bytes)
		o.promised = planner.Add(o.promised, bytes)
	}
	for _, n := range o.needs {
		switch {
		case n.Part == load.Experts && f.onRank():
			put(memoryName, n.Part.String(), n.Detail, n.Bytes)
		case n.Part == load.Experts && f.onCard() && !o.resident: // see hostSide
		case n.Part == load.Scratch && !f.onCard(): // a bound, not an allocation
			put(memoryName, n.Part.String(), n.Detail, n.Bytes)
		default:
			promise(n.Part.String(), n.Detail, n.Bytes)
		}
	}
	near := int64(0)
	if cfg.MoE.Experts > 0 && o.places() {
		beside := lim // rows are integers there if the host's experts are, whatever a card takes
		if f.onCard() {
			beside.QuantGroup = o.hostGroup(cfg)
		}
		near = int64(o.pools) * expert.NearBytes(beside, cfg.Hidden)
	}
	detail := fmt.Sprintf("%s on %s", console.Count(o.pools, "pool"), console.Count(len(o.nodes), "node"))
	if !f.onRank() && !f.onCard() {
		promise("rows of pools", detail, near)
	} else if f.onRank() {
		if o.rank, err = f.choose(cfg, o.options.Precision, o.promised); err != nil {
			return err
		}
		if cfg.MoE.Experts > 0 {
			promise("rows from the host", console.Count(f.microBatches(), "batch"), int64(f.microBatches())*offload.StageBytes(cfg, lim, nil))
		}
		promise("experts on it", o.rank.String(), o.rank.bytes())
		put(memoryName, "rows of pools", detail, near)
		put(memoryName, "rows beside the rank", console.Count(f.microBatches(), "batch"), int64(f.microBatches())*offload.MirrorBytes(cfg, lim, lim.QuantGroup, nil))
		put(memoryName, "simulated rank", "the memory of "+rankName, o.promised)
	}
	if f.onCard() && !o.resident {
		promise("rows from the host", console.Count(f.states(), "batch"), int64(f.states())*offload.StageBytes(cfg, lim, o.options.Layout))
		promise("experts on it", o.rank.String(), planner.Add(o.rank.bytes(), o.viewBytes(cfg)))
		put(memoryName, "rows of pools", detail, near)
		if err := o.hostSide(cfg, f, lim, func(name, detail string, bytes int64) { put(memoryName, name, detail, bytes) }); err != nil {
			return err
		}
	}
	if f.onCard() {
		put(memoryName, "driver", "of the GPU, pinned memory", driverBytes)
		put(memoryName, "step graphs", fmt.Sprintf("up to %d for each of %s", kernel.GraphsKept, console.Count(f.states(), "batch")),
			int64(kernel.GraphsKept*f.states()*len(cfg.Layers)*kernel.GraphBytes))
	}
	if n := lim.HostBlocks; n > 0 {
		put(memoryName, "evicted KV blocks", fmt.Sprintf("%d tokens", n*lim.BlockTokens), int64(n)*kvBlockBytes(cfg, lim.BlockTokens, o.options.KVType))
	}
	put(memoryName, "runtime", "code, heap, tokenizer", runtimeBytes+tokenizerOverhead*tokenizer)
	o.plan, err = planner.New(devices, list)
	return err
}

// weights is the size of the model's tensors as they are kept.
func (o *outlook) weights() (n int64) {
	for _, x := range o.needs {
		if x.Part.Weight() {
			n = planner.Add(n, x.Bytes)
		}
	}
	return n
}

// size is a file's size, 0 if it is not there.
func (s *source) size(name string) int64 {
	info, err := fs.Stat(s.files, name)
	if err != nil {
		return 0
	}
	return info.Size()
}

// microBatches is the number of parts that running sequences are divided into.
func (f *engineFlags) microBatches() int {
	if f.MicroBatches == 0 {
		return f.LayerGroups
	}
	return f.MicroBatches
}

// threads is the number of threads that compute together.
func (f *engineFlags) threads() int {
	if f.Threads == 0 {
		return runtime.GOMAXPROCS(0)
	}
	return f.Threads
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
	u := memoryUse{planned: s.look.plan.Devices[0].Planned, resident: machine.Resident(), promised: s.look.promised}
	if s.sim != nil || s.card != nil {
		u.allocated = s.rank().Memory().Used // weights too: it has copies
		return u
	}
	u.allocated = s.dev.Memory().Used + s.parts.WeightBytes - s.parts.MadeBytes - s.copied
	return u
}

// log writes one line with all numbers, as a warning if they disagree.
func (u memoryUse) log(log zerolog.Logger) {
	line := func(ev *zerolog.Event) *zerolog.Event {
		return ev.Int64("planned_bytes", u.planned).Int64("resident_bytes", u.resident).
			Int64("planned_allocation_bytes", u.promised).Int64("allocated_bytes", u.allocated)
	}
	warnings := u.warnings()
	if len(warnings) == 0 {
		line(log.Info()).Msg("memory use matches the plan")
	}
	for _, w := range warnings {
		line(log.Warn()).Msg(w)
	}
}
