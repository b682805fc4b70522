// Package plan decides what goes where before a model is loaded: the memory of each part on each
// device, which experts are on a GPU, and the size of the KV cache. It refuses what does not fit,
// and names the option to change.
package plan

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strings"

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

// Plan is the result of planning a load: what goes where, and how the model will run. It is
// computed once from the options and the machine.
type Plan struct {
	config.Case
	Options config.Options // as the user gave them
	cfg     *model.Config
	Machine *machine.Machine
	Steps   config.Steps
	Load    load.Options
	Needs   []load.Need
	Memory  *planner.Plan // memory of the host, and of a device with its own memory
	Nodes   []cpu.Node    // nil: one
	Pools   int

	Experts        strategies      // of a device with its own memory that does not hold all experts
	PrefillExperts int64           // limit of the memory for the prefill strategy's experts; 0: what it needs
	Resident       bool            // all experts are on the GPU
	HostExperts    tensor.Format   // the format of experts on the CPU next to a GPU
	kvMost         int             // number of blocks above which a GPU's KV cache has no use
	Foreseen       *predict.Choice // what the forecast chose; nil: there was none

	Helper *Helper // nil: no device computes experts for the only rank

	// Unhelped is why --expert-device gets no experts; "": it does, or there is none.
	Unhelped string

	Ranks  []*Plan // of the single ranks, if there are several: Load and Experts are theirs then
	Limits string  // with several ranks: which of them limits the KV cache; "": none, it is as large as it is of use
	// Seconds is the estimated time of a generated token on a rank of several, TimeShare its share of all ranks'.
	Seconds, TimeShare float64
	place              config.Place
	whole              *Plan  // of which this is a rank; nil: this is the plan of all layers on one device
	index              int    // of the rank
	device             string // name of the device of the layers in Memory
	blocks             int    // of the KV cache, for a rank whose cache must be as large as that of others; 0: it chooses
	ledger             *ledger

	tokenizer int64 // the size of tokenizer.json
	// promised is the memory that the device of the layers is asked for, plus weights there.
	// MemoryUse compares it with what was taken.
	Promised int64
}

// The memory of the process itself: code, heap, stacks and the tokenizer. While tokenizer.json is
// read, the tokenizer takes about 3.4 bytes per byte of the file, and leaves as much for the
// garbage collector.
const (
	runtimeBytes      = 48 << 20
	tokenizerOverhead = 8
	// Memory of a driver in the process and of pinned buffers of streams, as far as known.
	driverBytes = 400 << 20
)

// New plans a load. It reads nothing of the model but its config; tokenizer is the size of
// tokenizer.json.
func New(cfg *model.Config, tokenizer int64, f config.Options, l config.Case, m *machine.Machine) (*Plan, error) {
	if err := f.Check(); err != nil {
		return nil, err
	}
	places, err := f.Places()
	if err != nil {
		return nil, err
	}
	if len(places) == 1 {
		f = f.Alone(places[0])
	}
	o := &Plan{Case: l, Options: f, cfg: cfg, Machine: m, PrefillExperts: int64(f.PrefillExpertVRAM), tokenizer: tokenizer}
	if !l.Whole {
		o.Steps.Pass = f.PrefillPass
	}
	if o.Nodes, err = nodesOf(&f, m); err != nil {
		return nil, err
	}
	if o.Pools = f.ExpertPools; o.Pools == 0 {
		o.Pools = max(1, len(o.Nodes))
	}
	if len(places) > 1 || l.Part != nil {
		return o, o.divide(places)
	}
	if o.Helper, err = newHelper(&f, places[0], cfg, &l); err != nil {
		return nil, err
	}
	err = o.single(places[0])
	if why, ok := errors.AsType[helperError](err); ok {
		f.ExpertDevice, f.ExpertShare, f.VRAM = "", 0, config.Each(f.VRAM.One())
		if o, err = New(cfg, tokenizer, f, l, m); err == nil {
			o.Unhelped = why.Error()
		}
	}
	return o, err
}

// single plans a model on one device.
func (o *Plan) single(p config.Place) (err error) {
	f, cfg, l := &o.Options, o.cfg, o.Case
	o.place, o.device = p, layersOn[p.Kind]
	free := o.Machine.Available()
	if vram := f.VRAM.One(); f.Device == config.HostSim && vram > 0 {
		free = int64(vram)
	}
	o.Steps.Chunk = f.Chunk(l.Rank.Memory)
	if o.Load, err = f.LoadOptions(cfg, l, o.Steps, free); err != nil {
		return err
	}
	if f.Device == config.CUDA {
		if o.HostExperts, err = f.HostExperts(cfg, o.Load.Precision); err != nil {
			return err
		}
	}
	if err := o.add(); err != nil {
		return err
	}
	if o.Experts.streams() && f.PrefillPass == 0 && !l.Whole { // batches are known only now to take more memory
		o.Steps.Pass = config.PassChunks * o.Steps.Chunk
		o.Load.Tokens, o.Load.Window = f.StepRows(o.Steps)
		if o.Load.WindowBlocks > 0 {
			o.Load.WindowBlocks = f.WindowBlocks(cfg, &o.Load, cmp.Or(int64(f.KVCache), math.MaxInt64))
		}
		err = o.add()
	}
	if err == nil {
		err = o.share()
	}
	if err == nil {
		err = o.addHelper()
	}
	if err == nil {
		o.Memory, err = planner.New(o.devices(), o.ledger.list)
	}
	return err
}

// nodesOf returns the NUMA nodes that threads are divided among: those of --fake-topology, or the
// machine's; nil for a single node.
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

// Places reports whether pools have their own NUMA nodes to which experts are moved. With fewer
// pools than nodes, none has. Experts that are blocks of the files are not moved.
func (o *Plan) Places() bool {
	return len(o.Nodes) > 1 && o.Pools >= len(o.Nodes) && !o.Load.Precision.Experts.PerTensor()
}

// The devices of a plan.
const (
	memoryName = "memory"
	rankName   = "hostsim"
	gpuName    = "GPU"
)

// layersOn returns the devices of a plan that compute layers.
var layersOn = map[config.Kind]string{config.CPU: memoryName, config.HostSim: rankName, config.CUDA: gpuName}

// devices returns the devices of a plan.
func (o *Plan) devices() []planner.Device {
	list := []planner.Device{{Name: memoryName, Total: o.Machine.Total(), Available: o.Machine.Available()}}
	for _, r := range o.Each() {
		switch r.place.Kind {
		case config.HostSim:
			list = append(list, planner.Device{Name: r.device, Total: int64(r.Options.VRAM.One())})
		case config.CUDA:
			list = append(list, planner.Device{Name: r.device, Total: r.Case.Rank.Memory, Available: r.Case.Rank.Memory})
		}
	}
	if o.Helper != nil {
		list = append(list, planner.Device{Name: o.Helper.name(), Total: o.Helper.Memory})
	}
	return list
}

// ledger lists the memory of a load.
type ledger struct {
	layers   string // device of the layers
	rank     string // before the names of components, where there are several ranks
	list     []planner.Component
	promised int64
}

// host adds host memory.
func (l *ledger) host(name, detail string, bytes int64) {
	l.list = append(l.list, planner.Component{Device: memoryName, Name: l.rank + name, Detail: detail, Bytes: bytes})
}

// promise adds memory of the device of the layers.
func (l *ledger) promise(name, detail string, bytes int64) {
	if l.layers == memoryName {
		name = l.rank + name
	}
	l.list = append(l.list, planner.Component{Device: l.layers, Name: name, Detail: detail, Bytes: bytes})
	l.promised = planner.Add(l.promised, bytes)
}

// add adds the memory of a load.
func (o *Plan) add() error {
	f := &o.Options
	if f.Device == config.CUDA {
		if err := o.fitGPU(); err != nil {
			return err
		}
		if o.whole == nil {
			var err error
			if o.Load.HostBlocks, err = f.HostBlocks(o.cfg, &o.Load); err != nil {
				return err
			}
		}
	}
	return o.list()
}

// list lists the memory of a load whose sizes are known.
func (o *Plan) list() error {
	f := &o.Options
	lim, err := o.Load.LimitsFor(o.cfg)
	if err != nil {
		return err
	}
	if o.Needs, err = load.Plan(o.cfg, o.Load, o.use()); err != nil {
		return err
	}
	l := &ledger{layers: o.device}
	if o.whole != nil && f.RankCount() > 1 {
		l.rank = fmt.Sprintf("rank %d: ", o.index)
	}
	for _, n := range o.Needs {
		switch {
		case n.Part == load.Experts && f.Device == config.HostSim:
			l.host(n.Part.String(), n.Detail, n.Bytes)
		case n.Part == load.Experts && f.Device == config.CUDA && !o.Resident: // see addBesideGPU
		case n.Part == load.Tables, n.Part == load.Scratch && f.Device != config.CUDA: // not the device's; a limit, not an allocation
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
		l.host("evicted KV blocks", fmt.Sprintf("%d tokens", n*lim.BlockTokens), int64(n)*config.KVSizeOf(o.cfg, &o.Load).HostBlock(int64(lim.Blocks)))
	}
	if lim.ChosenRow > 0 {
		l.host("rows of sparse attention", fmt.Sprintf("%d tokens, pinned", lim.Slots()), int64(lim.Blocks)*config.ChosenBlock(o.cfg, &o.Load))
	}
	if o.whole == nil {
		o.process(l)
	}
	o.Promised, o.ledger = l.promised, l
	return nil
}

// process adds the memory of the process itself.
func (o *Plan) process(l *ledger) {
	l.host("runtime", "code, heap, tokenizer", runtimeBytes+tokenizerOverhead*o.tokenizer)
}

// poolRows says how many pools have rows, and where.
func (o *Plan) poolRows() string {
	return fmt.Sprintf("%s on %s", planner.Count(o.Pools, "pool"), planner.Count(len(o.Nodes), "node"))
}

// nearBytes returns the memory of rows close to the experts, for pools with their own NUMA nodes.
func (o *Plan) nearBytes(lim stages.Limits) int64 {
	if o.cfg.MoE.Experts == 0 || !o.Places() {
		return 0
	}
	return int64(o.Pools) * expert.NearBytes(lim, o.cfg.Hidden)
}

// addSimulated adds what a simulated device takes besides the model. Its own memory is host memory.
func (o *Plan) addSimulated(l *ledger, lim stages.Limits) (err error) {
	n := o.Options.MicroBatchCount()
	batches := planner.Count(n, "batch")
	if o.Load.Arena == nil { // else they are chosen
		rest := l.promised + int64(n)*offload.StageBytes(o.cfg, lim, nil)
		if o.Helper != nil {
			_, rows, err := o.helperRows()
			if err != nil {
				return err
			}
			rest += rows
		}
		if o.Experts, err = o.chooseBeside(rest); err != nil {
			return err
		}
	}
	if o.cfg.MoE.Experts > 0 {
		l.promise("rows from the host", batches, int64(n)*offload.StageBytes(o.cfg, lim, nil))
	}
	l.promise("experts on it", o.Experts.String(), o.Experts.bytes())
	l.host("rows of pools", o.poolRows(), o.nearBytes(lim))
	l.host("rows beside the rank", batches, int64(n)*offload.MirrorBytes(o.cfg, lim, lim.QuantGroup, nil))
	l.host("simulated rank", "the memory of "+o.device, l.promised)
	return nil
}

// addGPU adds what a GPU takes besides the model, and what its driver keeps on the host.
func (o *Plan) addGPU(l *ledger, lim stages.Limits) error {
	n := o.states()
	if !o.Resident {
		if err := o.addBesideGPU(l, lim); err != nil {
			return err
		}
	}
	l.host("driver", "of the GPU, pinned memory", driverBytes)
	l.host("step graphs", fmt.Sprintf("up to %d for each of %s", kernel.GraphsKept, planner.Count(n, "batch")),
		int64(kernel.GraphsKept*n*len(o.Load.Own(o.cfg).Layers)*kernel.GraphBytes))
	return nil
}

// Beside reports whether the routed experts are on the host next to the device of the layers, or
// move between the two.
func (o *Plan) Beside() bool {
	return o.place.Kind == config.HostSim || o.place.Kind == config.CUDA && !o.Resident
}

// Chosen says what the forecast chose and why, for people; "" if there was nothing to choose.
func (o *Plan) Chosen() string {
	var lines []string
	for _, r := range o.Each() {
		if r.Foreseen != nil && r.Foreseen.Line != "" {
			lines = append(lines, r.ledger.rank+r.Foreseen.Line)
		}
	}
	return strings.Join(lines, "\n")
}

// states returns the number of batches with memory of their own. What runs a part of a model does not run ahead.
func (o *Plan) states() int {
	if o.Part != nil {
		return o.Options.MicroBatchCount()
	}
	return o.Options.States()
}

// use says how the model will run.
func (o *Plan) use() load.Use {
	return load.Use{States: o.states(), Streams: len(o.Load.Partition) + o.Pools + 1, Threads: o.Options.ThreadCount()}
}

// Weights returns the size of the model's tensors in their precision.
func (o *Plan) Weights() (n int64) {
	for _, x := range o.Needs {
		if x.Part.Weight() {
			n = planner.Add(n, x.Bytes)
		}
	}
	return n
}

// Refusal returns the error of a plan that does not fit, or nil if the user forces it.
func (o *Plan) Refusal() error {
	err := o.Memory.Check()
	if err == nil || o.Options.Force {
		return nil
	}
	return fmt.Errorf("%w\nlower --kv-cache, --max-seqs or --prefill-chunk, or continue anyway with --force", err)
}
