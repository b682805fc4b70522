// Package plan says what goes where before a model is loaded: the memory that each part takes on each device, which experts
// are on a GPU, and how large the KV cache is. What does not fit is refused with the option to change.
package plan

import (
	"fmt"

	"krater/actors/local/config"
	"krater/actors/local/predict"
	"krater/kernels/cpu"
	kernel "krater/kernels/cuda/launch"
	"krater/kernels/machine"
	"krater/kernels/tensor"
	"krater/scheduler/planner"
	"krater/stages"
	"krater/stages/expert"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/offload"
)

// Plan is what is known of a load before anything is loaded: what goes where, and how the model will be run. It is
// computed once from options and machine.
type Plan struct {
	config.Case
	Options config.Options // as they were asked for
	cfg     *model.Config
	Machine *machine.Machine
	Steps   config.Steps
	Load    load.Options
	Needs   []load.Need
	Memory  *planner.Plan // of the memory, and of a device with memory of its own
	Nodes   []cpu.Node    // nil: one
	Pools   int

	Experts        strategies      // of a device with memory of its own that does not hold all experts
	PrefillExperts int64           // bytes on it for the prefill strategy's experts at most; 0: what that asks for
	Resident       bool            // all experts are on the GPU
	HostExperts    tensor.Format   // of experts on the processor beside a GPU
	kvMost         int             // blocks of KV cache that would be of use on a GPU
	Foreseen       *predict.Choice // what the forecast chose; nil: it was not asked

	tokenizer int64 // the size of tokenizer.json
	// promised is what the device that the layers are on is asked for, and weights that lie there: memoryUse compares it.
	Promised int64
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

// New plans a load. Nothing of the model is read but its config; tokenizer is the size of its tokenizer.json.
func New(cfg *model.Config, tokenizer int64, f config.Options, l config.Case, m *machine.Machine) (*Plan, error) {
	if err := f.Check(); err != nil {
		return nil, err
	}
	free := m.Available()
	if f.Device == config.HostSim && f.VRAM > 0 {
		free = int64(f.VRAM)
	}
	o := &Plan{Case: l, Options: f, cfg: cfg, Machine: m, PrefillExperts: int64(f.PrefillExpertVRAM), tokenizer: tokenizer}
	o.Steps.Chunk = f.Chunk(l.Rank.Memory)
	if !l.Whole {
		o.Steps.Pass = f.PrefillPass
	}
	var err error
	if o.Load, err = f.LoadOptions(cfg, l, o.Steps, free); err != nil {
		return nil, err
	}
	if f.Device == config.CUDA {
		if o.HostExperts, err = f.HostExperts(cfg, o.Load.Precision); err != nil {
			return nil, err
		}
	}
	if o.Nodes, err = nodesOf(&f, m); err != nil {
		return nil, err
	}
	if o.Pools = f.ExpertPools; o.Pools == 0 {
		o.Pools = max(1, len(o.Nodes))
	}
	if err := o.add(); err != nil {
		return nil, err
	}
	if o.Experts.streams() && f.PrefillPass == 0 && !l.Whole { // known only now: batches take more memory
		o.Steps.Pass = config.PassChunks * o.Steps.Chunk
		o.Load.Tokens, o.Load.Window = f.StepRows(o.Steps)
		err = o.add()
	}
	return o, err
}

// nodesOf are the nodes that the threads are divided among: those of --fake-topology, else the machine's; nil where there
// is one.
func nodesOf(f *config.Options, m *machine.Machine) ([]cpu.Node, error) {
	var fake []machine.Node
	if f.FakeTopology != "" {
		var err error
		if fake, err = machine.ParseTopology(f.FakeTopology); err != nil {
			return nil, fmt.Errorf("--fake-topology: %w", err)
		}
	}
	return cpu.NodesOf(m, fake, f.Threads)
}

// Places reports whether pools have nodes of their own, to which their experts are brought. With fewer pools than nodes
// none has.
func (o *Plan) Places() bool { return len(o.Nodes) > 1 && o.Pools >= len(o.Nodes) }

// The devices of a plan.
const (
	memoryName = "memory"
	rankName   = "hostsim"
	gpuName    = "GPU"
)

// layersOn are the devices of a plan that layers are on.
var layersOn = map[config.Kind]string{config.CPU: memoryName, config.HostSim: rankName, config.CUDA: gpuName}

// devices are those that the plan is for.
func (o *Plan) devices() []planner.Device {
	list := []planner.Device{{Name: memoryName, Total: o.Machine.Total(), Available: o.Machine.Available()}}
	switch o.Options.Device {
	case config.HostSim:
		list = append(list, planner.Device{Name: rankName, Total: int64(o.Options.VRAM)})
	case config.CUDA:
		list = append(list, planner.Device{Name: gpuName, Total: o.Case.Rank.Memory, Available: o.Case.Rank.Memory})
	}
	return list
}

// ledger is the list of what a load takes.
type ledger struct {
	layers   string // the device that they are on
	list     []planner.Component
	promised int64
}

// host adds memory of the host.
func (l *ledger) host(name, detail string, bytes int64) {
	l.list = append(l.list, planner.Component{Device: memoryName, Name: name, Detail: detail, Bytes: bytes})
}

// promise adds memory of the device that the layers are on.
func (l *ledger) promise(name, detail string, bytes int64) {
	l.list = append(l.list, planner.Component{Device: l.layers, Name: name, Detail: detail, Bytes: bytes})
	l.promised = planner.Add(l.promised, bytes)
}

// add adds up what the load takes.
func (o *Plan) add() error {
	f := &o.Options
	if f.Device == config.CUDA {
		if err := o.fitGPU(); err != nil {
			return err
		}
	}
	lim, err := o.Load.LimitsFor(o.cfg)
	if err != nil {
		return err
	}
	if o.Needs, err = load.Plan(o.cfg, o.Load, o.use()); err != nil {
		return err
	}
	l := &ledger{layers: layersOn[f.Device]}
	for _, n := range o.Needs {
		switch {
		case n.Part == load.Experts && f.Device == config.HostSim:
			l.host(n.Part.String(), n.Detail, n.Bytes)
		case n.Part == load.Experts && f.Device == config.CUDA && !o.Resident: // see addBesideGPU
		case n.Part == load.Scratch && f.Device != config.CUDA: // a bound, not an allocation
			l.host(n.Part.String(), n.Detail, n.Bytes)
		default:
			l.promise(n.Part.String(), n.Detail, n.Bytes)
		}
	}
	switch f.Device {
	case config.HostSim:
		err = o.addSimulated(l, lim)
	case config.CUDA:
		err = o.addGPU(l, lim)
	default:
		l.promise("rows of pools", o.poolRows(), o.nearBytes(lim))
	}
	if err != nil {
		return err
	}
	if n := lim.HostBlocks; n > 0 {
		l.host("evicted KV blocks", fmt.Sprintf("%d tokens", n*lim.BlockTokens), int64(n)*config.KVBlockBytes(o.cfg, lim.BlockTokens, o.Load.KVType))
	}
	l.host("runtime", "code, heap, tokenizer", runtimeBytes+tokenizerOverhead*o.tokenizer)
	o.Promised = l.promised
	o.Memory, err = planner.New(o.devices(), l.list)
	return err
}

// poolRows says how many pools have rows, and where.
func (o *Plan) poolRows() string {
	return fmt.Sprintf("%s on %s", planner.Count(o.Pools, "pool"), planner.Count(len(o.Nodes), "node"))
}

// nearBytes is what rows take near the experts of pools that have nodes of their own.
func (o *Plan) nearBytes(lim stages.Limits) int64 {
	if o.cfg.MoE.Experts == 0 || !o.Places() {
		return 0
	}
	return int64(o.Pools) * expert.NearBytes(lim, o.cfg.Hidden)
}

// addSimulated adds what a simulated device takes besides the model, and its own memory, which is the host's.
func (o *Plan) addSimulated(l *ledger, lim stages.Limits) (err error) {
	n := o.Options.MicroBatchCount()
	batches := planner.Count(n, "batch")
	if o.Experts, err = chooseBeside(&o.Options.RankOptions, o.cfg, o.Load.Precision, l.promised); err != nil {
		return err
	}
	if o.cfg.MoE.Experts > 0 {
		l.promise("rows from the host", batches, int64(n*o.Options.RankCount())*offload.StageBytes(o.cfg, lim, nil))
	}
	l.promise("experts on it", o.Experts.String(), o.Experts.bytes())
	l.host("rows of pools", o.poolRows(), o.nearBytes(lim))
	l.host("rows beside the rank", batches, int64(n*o.Options.RankCount())*offload.MirrorBytes(o.cfg, lim, lim.QuantGroup, nil))
	l.host("simulated rank", "the memory of "+rankName, l.promised)
	return nil
}

// addGPU adds what a GPU takes besides the model, and what its driver keeps on the host.
func (o *Plan) addGPU(l *ledger, lim stages.Limits) error {
	n := o.Options.States()
	if !o.Resident {
		if err := o.addBesideGPU(l, lim); err != nil {
			return err
		}
	}
	l.host("driver", "of the GPU, pinned memory", driverBytes)
	l.host("step graphs", fmt.Sprintf("up to %d for each of %s", kernel.GraphsKept, planner.Count(n, "batch")),
		int64(kernel.GraphsKept*n*len(o.cfg.Layers)*kernel.GraphBytes))
	return nil
}

// Beside reports whether the routed experts are on the host beside the device of the layers, or go between both.
func (o *Plan) Beside() bool {
	return o.Options.Device == config.HostSim || o.Options.Device == config.CUDA && !o.Resident
}

// Chosen is what the forecast chose and why, for people; "" where nothing had to be chosen.
func (o *Plan) Chosen() string {
	if o.Foreseen == nil {
		return ""
	}
	return o.Foreseen.Line
}

// use says how the model will be run.
func (o *Plan) use() load.Use {
	return load.Use{States: o.Options.States() * o.Options.RankCount(), Streams: o.Options.Groups() + o.Pools + 1, Threads: o.Options.ThreadCount()}
}

// Weights is the size of the model's tensors as they are kept.
func (o *Plan) Weights() (n int64) {
	for _, x := range o.Needs {
		if x.Part.Weight() {
			n = planner.Add(n, x.Bytes)
		}
	}
	return n
}

// Refusal is the error of a plan that does not fit, nil if forced.
func (o *Plan) Refusal() error {
	err := o.Memory.Check()
	if err == nil || o.Options.Force {
		return nil
	}
	return fmt.Errorf("%w\na smaller --kv-cache, --max-seqs or --prefill-chunk takes less; --force goes on in spite of it", err)
}
