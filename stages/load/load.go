package load

import (
	"cmp"
	"errors"
	"fmt"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/arena"
	"krater/stages/attention"
	"krater/stages/embed"
	"krater/stages/group"
	"krater/stages/head"
	"krater/stages/model"
	"krater/stages/weights"
)

// Options of a load.
type Options struct {
	stages.Limits
	// First and Layers are the layers that the device takes; 0 layers: all.
	First, Layers int
	// Ends says whether the embedding and the head are with them.
	Ends Ends
	// Partition is the number of layers of each group, in order; nil: one group.
	Partition []int
	KVType    tensor.DType // one of group.KVTypes; Invalid: BF16
	// Arena has KV blocks and slots for experts in one piece of memory, with Limits.Blocks as the most blocks and the
	// caches that CacheBlocks lists; nil: they have memory of their own. If there is no room for the arena, there are Arena.Least blocks
	// without one.
	Arena     *arena.Layout
	Precision Precision
	Layout    device.Layout // of the device, for a plan without one; nil: it computes on host memory
	// Experts gives the packed routed experts of a layer. Needed where Precision.Experts is a
	// format; they stay the giver's.
	Experts func(layer int) []device.QExpert
	// Packed gives a routed expert in host memory, packed for an accelerator; nil: they are
	// made at every load.
	Packed func(layer, expert int) (device.QExpert, error)
	// Quantized gives a matrix that an accelerator keeps as l by its name ("layer.3.o",
	// "experts.3.5.w13"); nil: it is made of the files.
	Quantized func(name string, l tensor.Layout) (*tensor.Matrix, error)
	// Routed is where routed experts go that stay as the files hold them; nil: with
	// the rest of the model. With it an accelerator has none of them yet: Parts.Slots, and
	// the host computes those that Experts or the files give it.
	Routed device.Device
	// Store keeps the other packed matrices; nil: they are made at every load.
	Store Store
	// Native keeps routed experts as tensor.Native or tensor.Mixed; nil: they are made at every load. If an
	// accelerator uses them, the store is in host memory, and the host computes with the same experts.
	Native Store
	// Progress, if set, is called with the phase of the load and the bytes on the device, done so far and in all.
	// Model's phase is "load weights".
	Progress func(phase string, done, all int64)
}

// Even cuts layers into groups whose sizes differ by one at most, the larger
// ones first. groups is held within 1..layers.
func Even(layers, groups int) []int {
	groups = max(1, min(groups, layers))
	sizes := make([]int, groups)
	for i := range sizes {
		sizes[i] = layers / groups
		if i < layers%groups {
			sizes[i]++
		}
	}
	return sizes
}

// Parts is a model on a device, cut into what a pipeline places.
type Parts struct {
	Config *model.Config
	Limits stages.Limits // defaults filled in
	Embed  *embed.Stage  // nil where it is elsewhere, and in a draft layer
	Join   *embed.Join   // of a draft layer (model.Config.DraftModel); nil in others
	Groups []*group.Group
	Head   *head.Stage // nil where it is elsewhere
	// WeightBytes is the size of all weights bound.
	WeightBytes int64
	// Histories is the memory with which a device changes logits before it chooses tokens; nil
	// where the host chooses.
	Histories *stages.Histories
	// Slots is how an accelerator keeps routed experts; nil elsewhere and without such.
	Slots *Slots
	// Arena has the KV blocks, and room for slots; nil: there is none.
	Arena *arena.Arena
	// MadeBytes is the part of it that this load made and keeps in memory of the
	// device: packed matrices without a Store, weights that the files hold
	// in another type.
	MadeBytes int64

	bufs []device.Buffer
}

// Again returns the same parts with experts that can be placed once more, apart from those of p. Both
// use one KV cache and one scratch memory, so only one of them may run at a time. Only p is closed.
func (p *Parts) Again() *Parts {
	q := *p
	q.Groups = nil
	for _, g := range p.Groups {
		q.Groups = append(q.Groups, g.Again())
	}
	return &q
}

// Close frees all memory of the parts; nothing may run on them.
func (p *Parts) Close() {
	for _, g := range p.Groups {
		g.Close()
	}
	for _, b := range p.bufs {
		b.Free()
	}
	if p.Slots != nil {
		p.Slots.close()
	}
	p.Histories.Close()
	p.Arena.Close()
	p.Groups, p.bufs, p.Histories, p.Arena = nil, nil, nil, nil
}

// CacheBlocks lists the bytes of a KV block in each cache of the layers that o loads, as an arena wants them; nil: the caches cannot lie in
// one.
func CacheBlocks(cfg *model.Config, o *Options) (list []int) {
	kv, layers := cmp.Or(o.KVType, tensor.BF16), cmp.Or(o.Layers, len(cfg.Layers))
	for i := o.First; i < o.First+layers; i++ {
		if cfg.Layers[i].KV != i {
			continue
		}
		for _, s := range cfg.Layers[i].State(cfg.Hidden) {
			if !group.InBlocks(&s, &o.Limits) {
				continue
			}
			if s.Type(kv) == tensor.I8 {
				return nil // its scales are a cache of their own
			}
			list = append(list, s.BlockRows(o.BlockTokens)*s.Bytes(kv))
		}
	}
	return list
}

// share allocates the arena.
func (p *Parts) share(dev Device, o *Options) (err error) {
	if o.Arena == nil {
		return nil
	}
	l := *o.Arena
	l.Blocks, l.Caches = p.Limits.Blocks, CacheBlocks(p.Config, o)
	if p.Arena, err = arena.New(dev, l); !errors.Is(err, device.ErrOutOfMemory) {
		return err
	}
	o.Blocks = l.Least
	p.Limits, err = o.LimitsFor(p.Config)
	return err
}

// Model binds the weights of set to stages on dev. On devices that compute on
// host memory the weights are not copied: set must stay open until Close. Every
// missing, misshapen or stray tensor is named in the error; routed experts that
// are packed need not be in set.
func Model(dev Device, cfg *model.Config, set *weights.Set, o Options) (*Parts, error) {
	o.Layout = device.LayoutOf(dev)
	lim, err := o.LimitsFor(cfg)
	if err != nil {
		return nil, err
	}
	layout := o.Layout
	given := !o.Precision.Experts.Zero() && (layout == nil || o.Packed != nil || o.Quantized != nil) && !o.native()
	if given && layout == nil && cfg.MoE.Experts > 0 && o.Experts == nil {
		return nil, fmt.Errorf("load: nobody gives the experts as %s", o.Precision.Experts)
	}
	if err := CheckTensors(cfg, set, given); err != nil {
		return nil, err
	}
	p := &Parts{Config: cfg, Limits: lim}
	b := &binder{dev: dev, cfg: cfg, set: set, parts: p, precision: o.Precision, store: o.Store, experts: o.Experts, routed: o.Routed}
	if b.routed == nil {
		b.routed = dev
	}
	if layout != nil {
		b.card = &card{dev: dev, experts: o.Packed, made: o.Quantized}
		defer b.card.close()
	}
	if b.store == nil {
		b.store = memory{dev, p}
	}
	if b.own = o.Native; b.own == nil && b.card == nil {
		b.own = b.store
	}
	if o.Progress != nil {
		b.follow(&o)
	}
	if err = p.share(dev, &o); err == nil {
		err = p.build(dev, b, o)
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

func (p *Parts) build(dev Device, b *binder, o Options) error {
	cfg := p.Config
	tables := attention.Tables{}
	for _, rope := range cfg.Ropes() {
		table, err := attention.RopeTable(dev, rope, p.Limits.Context)
		if err != nil {
			return fmt.Errorf("load: rope table: %w", err)
		}
		p.bufs = append(p.bufs, table.Buf)
		tables[rope] = table
	}
	var err error
	if p.Histories, err = stages.NewHistories(dev, p.Limits); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	names := cfg.Names()
	switch {
	case cfg.Joined:
		if err := p.join(dev, b); err != nil {
			return err
		}
	case o.embeds():
		p.Embed = &embed.Stage{Dev: dev, Table: b.mat(names.Embed), Scale: cfg.EmbedScale, PerLayer: b.perLayer()}
	}
	first, partition := o.First, o.Partition
	if partition == nil {
		partition = []int{o.Layers}
	}
	for _, n := range partition {
		layers := make([]group.Layer, n)
		for i := range layers {
			layers[i] = b.layer(first + i)
		}
		if b.err != nil {
			return b.err
		}
		g, err := group.New(dev, cfg, p.Limits, o.KVType, first, layers, tables, p.Arena, p.Groups...)
		if err != nil {
			return err
		}
		p.Groups = append(p.Groups, g)
		first += n
	}
	if o.heads(cfg) {
		p.head(dev, b, o.Precision)
	}
	if b.err == nil {
		b.bound(b.all) // a plan may be off by what alignment takes
	}
	return b.err
}

// join binds what makes the rows that enter a draft layer.
func (p *Parts) join(dev Device, b *binder) error {
	cfg, names := p.Config, p.Config.Names()
	if b.card != nil {
		return fmt.Errorf("load: a draft layer on an accelerator: %w", errors.ErrUnsupported)
	}
	both, err := device.AllocMat(dev, tensor.F32, p.Limits.Tokens, 2*cfg.Hidden)
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	p.bufs = append(p.bufs, both.Buf)
	p.Join = &embed.Join{Dev: dev, Table: b.mat(names.Embed), EmbedNorm: b.norm(names.EmbedNorm, cfg.Hidden), HiddenNorm: b.norm(names.HiddenNorm, cfg.Hidden),
		Proj: device.Weight{F: b.mat(names.Join)}, Eps: cfg.NormEps, Both: both}
	return nil
}

// head binds the head.
func (p *Parts) head(dev Device, b *binder, precision Precision) {
	cfg, names := p.Config, p.Config.Names()
	p.Head = &head.Stage{Dev: dev, Norm: b.end(), Softcap: cfg.Softcap}
	switch {
	case !cfg.TieEmbed:
		p.Head.Proj = b.weight("head", names.Head, precision.format(cfg, model.Head, names.Head))
	case !precision.Head.Zero():
		p.Head.Proj = b.weight("head", names.Embed, precision.format(cfg, model.Head, names.Embed))
	case p.Join != nil:
		p.Head.Proj.F = p.Join.Table
	case p.Embed != nil:
		p.Head.Proj.F = p.Embed.Table
	default:
		p.Head.Proj.F = b.mat(names.Embed)
	}
}

// LimitsFor checks the options for a model and gives its limits with nothing left
// open: those of the Parts that Model makes.
func (o *Options) LimitsFor(cfg *model.Config) (stages.Limits, error) {
	lim, err := o.Limits.For(cfg)
	if err != nil {
		return lim, err
	}
	if o.Layers == 0 {
		o.Layers = len(cfg.Layers) - o.First
	}
	if o.First < 0 || o.Layers < 1 || o.Layers > len(cfg.Layers)-o.First {
		return lim, fmt.Errorf("load: layers %d to %d of %d", o.First, o.First+o.Layers-1, len(cfg.Layers))
	}
	if cfg.PerLayer > 0 && (o.First > 0 || o.Layers < len(cfg.Layers)) {
		return lim, fmt.Errorf("load: layers %d to %d of %d: a model with rows for single layers must be on one device", o.First, o.First+o.Layers-1, len(cfg.Layers))
	}
	if err := checkPartition(o.Partition, o.Layers); err != nil {
		return lim, err
	}
	if err := o.checkBorrowed(cfg); err != nil {
		return lim, err
	}
	o.Precision.kind = tensor.CPU
	if o.Layout != nil {
		o.Precision.kind = tensor.GPU
	}
	if err := o.Precision.check(cfg); err != nil {
		return lim, err
	}
	if o.Layout != nil {
		if err := o.Layout.Check(StepSizes(o.Own(cfg), lim)); err != nil {
			return lim, err
		}
	}
	if o.KVType == tensor.Invalid {
		o.KVType = tensor.BF16
	}
	if o.Layout == nil { // else rows are multiplied as they are
		lim.QuantGroup = o.Precision.quantGroup(cfg)
	}
	return lim, nil
}

// checkBorrowed refuses layers that use what a layer on another device keeps.
func (o *Options) checkBorrowed(cfg *model.Config) error {
	for i := o.First; i < o.First+o.Layers; i++ {
		if from := cfg.Layers[i].KV; from < o.First {
			return fmt.Errorf("load: layers %d to %d: layer %d uses the keys and values of layer %d, which must be on the same device",
				o.First, o.First+o.Layers-1, i, from)
		}
	}
	return nil
}

func checkPartition(sizes []int, layers int) error {
	if sizes == nil {
		return nil
	}
	sum := 0
	for _, n := range sizes {
		if n < 1 || n > layers {
			return fmt.Errorf("load: a group of %d layers", n)
		}
		sum += n
	}
	if sum != layers {
		return fmt.Errorf("load: groups %v hold %d layers, there are %d", sizes, sum, layers)
	}
	return nil
}
