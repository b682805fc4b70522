package load

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/model"
)

// Need is memory a model takes on a device, told before it is loaded.
type Need struct {
	Part   Part
	Detail string // what decides about the size, for people
	Bytes  int64
}

// Part is a purpose of memory.
type Part uint8

// The parts in the order in which a plan lists them: weights up to Head, as in model.Part, then the
// allocations by Device.Alloc, then the memory that operators allocate themselves.
const (
	Embedding = Part(model.Embedding)
	Attention = Part(model.Attention)
	Dense     = Part(model.DenseFFN)
	Experts   = Part(model.Experts)
	Shared    = Part(model.Shared)
	Router    = Part(model.Router) // with the norms
	Head      = Part(model.Head)
)

const (
	KVCache = Head + 1 + iota
	SequenceStates
	RopeTable
	Workspace // of the attention of each layer group
	States    // of the batches in flight
	Histories // of sequences, for changes of their logits
	Scratch   // of the operators: an upper bound
	Tables    // of n-grams: in the files, where they take no memory but page cache, or beside an accelerator in memory of the host
)

var partNames = [...]string{"embedding", "attention", "dense MLP", "experts", "shared experts", "router and norms", "head",
	"KV cache", "sequence states", "rope table", "attention workspace", "batch states", "token histories", "operator scratch", "n-gram tables"}

func (p Part) String() string { return partNames[p] }

// Weight reports whether the part is made of the model's tensors.
func (p Part) Weight() bool { return p <= Head }

// Allocated reports whether Device.Alloc is asked for the part, so that
// Device.Memory counts it.
func (p Part) Allocated() bool { return p > Head && p < Scratch }

// Use says how a loaded model is going to be run.
type Use struct {
	States  int // batches in flight
	Streams int // streams that compute
	Threads int // of each
}

// Plan lists the memory that Model with these options and Use.States calls of
// stages.NewState take. It reads no tensor: weights not packed count as
// the config's type (BF16 where it names none, F32 for F16).
func Plan(cfg *model.Config, o Options, u Use) ([]Need, error) {
	lim, err := o.LimitsFor(cfg)
	if err != nil {
		return nil, err
	}
	if u.States < 0 || u.Streams < 0 || u.Threads < 0 {
		return nil, fmt.Errorf("load: a plan for %+v", u)
	}
	needs := weightNeeds(cfg, &o)
	add := func(part Part, bytes int64, format string, args ...any) {
		needs = append(needs, Need{part, fmt.Sprintf(format, args...), bytes})
	}
	own, angles := o.Own(cfg), 0
	block, windows := own.KVBlockBytes(lim.BlockTokens, o.KVType), ""
	kv := int64(0)
	if lim.WindowBlocks > 0 {
		n := own.WindowTokenBytes(o.KVType)
		block, kv = block-int64(lim.BlockTokens)*n, times(lim.WindowSlots(), int(n))
		windows = fmt.Sprintf(", %d where layers see %d", lim.WindowSlots(), cfg.Window())
	}
	if lim.ChosenRow > 0 {
		n, _ := own.ChosenTokenBytes(o.KVType)
		block -= int64(lim.BlockTokens) * n
	}
	for _, r := range cfg.Ropes() {
		angles += r.Dim
	}
	blocks, tokens := times(lim.Blocks, int(block)), fmt.Sprintf("%d tokens", lim.Slots())
	if o.Arena != nil {
		l := *o.Arena
		l.Blocks, l.Caches = lim.Blocks, CacheBlocks(cfg, &o)
		blocks, tokens = l.Own(), fmt.Sprintf("%d to %d tokens", l.Least*lim.BlockTokens, lim.Slots())
	}
	add(KVCache, plus(kv, blocks), "%s in blocks of %d%s, %s", tokens, lim.BlockTokens, windows, o.KVType)
	if n := own.SequenceBytes(o.KVType); n > 0 {
		add(SequenceStates, times(lim.Seqs+1+lim.Snapshots, int(n)), "%s and %s", count(lim.Seqs, "sequence"), count(lim.Snapshots, "snapshot"))
	}
	if n := tableBytes(own); n > 0 {
		if o.Layout == nil {
			add(Tables, 0, "%d bytes, of which a token reads %s from the files", n, tableReads(own))
		} else {
			add(Tables, n, "pinned, of which a token reads %s", tableReads(own))
		}
	}
	add(RopeTable, times(lim.Context, angles, 4), "%d positions", lim.Context)
	add(Workspace, workspace(cfg, o, lim), "%s of %d tokens", count(max(1, len(o.Partition)), "layer group"), lim.LayerRows())
	add(States, times(u.States, int(stages.RowsBytes(cfg, lim, o.Layout, o.heads(cfg)))), "%s of %d tokens", count(u.States, "batch"), lim.Tokens)
	if n := stages.HistoriesBytes(lim, o.Layout); n > 0 {
		add(Histories, n, "%s of %d tokens", count(lim.Seqs, "sequence"), lim.Context)
	}
	if o.Layout != nil { // of the batches' streams; others enqueue nothing
		add(Scratch, times(u.States, o.Layout.ScratchBytes(StepSizes(cfg, lim))), "of %s", count(u.States, "stream"))
		return needs, nil
	}
	add(Scratch, times(u.Streams, scratchBytes(cfg, lim, u.Threads, o.Precision.native())), "%s of %s", count(u.Streams, "stream"), count(u.Threads, "thread"))
	return needs, nil
}

// workspace returns the number of bytes that the mixers of all groups allocate. Equal mixers of a
// group share their workspace.
func workspace(cfg *model.Config, o Options, lim stages.Limits) (n int64) {
	partition, first := o.Partition, o.First
	if partition == nil {
		partition = []int{o.Layers}
	}
	for _, layers := range partition {
		seen := map[model.Mixer]bool{}
		for i := first; i < first+layers; i++ {
			if g := cfg.Layers[i].NGrams; g != nil {
				for _, x := range g.Scratch(cfg.Hidden) {
					n = plus(n, times(lim.Queues, lim.LayerRows(), x.Width, tensor.F32.Size()))
				}
			}
			m := cfg.Layers[i].Mixer
			if seen[m] {
				continue
			}
			seen[m] = true
			values := 0
			for _, x := range m.Scratch() {
				values += x.Width
			}
			n = plus(n, times(lim.Queues, lim.LayerRows(), values, device.RowType(o.Layout).Size()))
			n = plus(n, times(lim.Queues, o.Precision.inner(m, lim.LayerRows())))
		}
		first += layers
	}
	return n
}

// WeightBytes returns the size of a model's tensors as its files hold them.
func WeightBytes(cfg *model.Config) (n int64) {
	for _, x := range weightNeeds(cfg, &Options{Layers: len(cfg.Layers)}) {
		n = plus(n, x.Bytes)
	}
	return n
}

// weightNeeds adds up by part the tensors that o loads; its limits are checked.
func weightNeeds(cfg *model.Config, o *Options) []Need {
	p := o.Precision
	needs := make([]Need, Head+1)
	moe := 0
	for i := range o.Layers {
		if cfg.MoELayer(o.First + i) {
			moe++
		}
	}
	for i := range needs {
		needs[i] = Need{Part: Part(i), Detail: kept(cfg, p, model.Part(i))}
	}
	attention, kvb := needs[Attention].Detail, kept(cfg, p, model.KVB)
	if kvb != attention && cfg.Has(model.KVB) {
		attention += ", kv_b " + kvb
	}
	needs[Attention].Detail = fmt.Sprintf("%s, %s", count(o.Layers, "layer"), attention)
	needs[Dense].Detail = fmt.Sprintf("%s, %s", count(o.Layers-moe, "layer"), needs[Dense].Detail)
	needs[Experts].Detail = fmt.Sprintf("%s of %d, %s", count(moe, "layer"), cfg.MoE.Experts, needs[Experts].Detail)
	needs[Shared].Detail = fmt.Sprintf("%s, %s", count(moe, "layer"), needs[Shared].Detail)
	top := cfg.Names()
	var outer []string // behind the layers
	for _, t := range cfg.Outer() {
		outer = append(outer, t.Name)
	}
	if !cfg.TieEmbed {
		outer = append(outer, top.Head)
	}
	for _, t := range o.Own(cfg).Expected() {
		switch {
		case t.Name == top.Embed && !o.embeds(), slices.Contains(outer, t.Name) && !o.heads(cfg):
			continue
		case t.Part == model.Tables:
			continue // see tables
		}
		part := Part(t.Part)
		if t.Part == model.KVB {
			part = Attention
		}
		needs[part].Bytes = plus(needs[part].Bytes, p.tensorBytes(cfg, t))
	}
	if cfg.TieEmbed && o.heads(cfg) {
		needs[Head].Detail = "the embedding"
		if !p.Head.Zero() || !o.embeds() {
			needs[Head] = Need{Head, "the embedding, " + kept(cfg, p, model.Head), p.tensorBytes(cfg, model.TensorSpec{Name: top.Embed, Shape: []int{cfg.Vocab, cfg.Hidden}, Part: model.Head})}
		}
	}
	return needs
}

// tableBytes returns the size of the tables of n-grams in the files.
func tableBytes(cfg *model.Config) (n int64) {
	for i := range cfg.Layers {
		if g := cfg.Layers[i].NGrams; g != nil {
			n = plus(n, times(g.Rows, g.Sizes.Dim, KeptType(cfg, model.Tables).Size()))
		}
	}
	return n
}

// tableReads says how much a token reads of the tables.
func tableReads(cfg *model.Config) string {
	rows, bytes := 0, 0
	for i := range cfg.Layers {
		if g := cfg.Layers[i].NGrams; g != nil {
			rows += g.Sizes.Heads()
			bytes += g.Sizes.Width() * KeptType(cfg, model.Tables).Size()
		}
	}
	return fmt.Sprintf("%s (%d bytes)", count(rows, "row"), bytes)
}

// What the operators of the CPU hold at most, in rows: they say so where they
// are declared.
const (
	scratchRows     = 128     // of a matrix product, brought into another order
	scratchGroup    = 256     // assignments of experts worked on together
	scratchHeads    = 16      // of a decoded token worked on together
	scratchKeys     = 128     // of a block of attention
	scratchScores   = 1 << 20 // of an indexer, of several rows
	scratchQuery    = 64      // queries of a key head worked on together
	scratchPrepared = 64      // rows brought into the order of weights that are blocks
	scratchTile     = 4096    // values of gate and up each, between two passes
	scratchSpare    = 256     // values of padding a piece; nothing takes more pieces than eight
	scratchPieces   = 8
)

// scratchBytes bounds what the operators of one stream hold: for the widest
// matrix product or expert, and for a block of attention or an expert's tile on
// each thread.
func scratchBytes(cfg *model.Config, lim stages.Limits, threads int, blocks bool) int {
	s, h := StepSizes(cfg, lim), cfg.Hidden
	inner := max(s.DenseFF, s.ExpertFF, s.SharedFF)
	widest := max(cfg.StreamWidth(), inner)
	for i := range cfg.Layers {
		for _, x := range cfg.Layers[i].Mixer.Scratch() {
			if x.Product {
				widest = max(widest, x.Width)
			}
		}
	}
	group := scratchGroup
	switch { // integer networks take more rows together where there are many threads
	case threads >= 16:
		group *= 4
	case threads >= 8:
		group *= 2
	}
	// Gate and up, their integers, and rows packed for the tile unit: of a network, and
	// all rows of a product.
	shared := max(scratchRows*(widest+scratchSpare), group*(h+3*inner+2*scratchSpare), lim.LayerRows()*(widest+scratchSpare)/4)
	qk, latent := max(s.MLA.Nope+s.MLA.Rope, s.GQA.HeadDim), s.MLA.Rank+s.MLA.Rope+scratchSpare
	decode := scratchHeads*(3*latent+scratchKeys+3) + latent
	prefill := scratchKeys*(latent+qk+s.MLA.V+8) + 3*lim.LayerRows()
	grouped := scratchQuery*(2*(qk+scratchSpare)+3) + 8*scratchKeys
	if x := s.Index; x.TopK > 0 { // the scores of rows; a copy of chosen rows, and a query with its products
		shared = max(shared, scratchScores+lim.Context)
		decode = max(decode+scratchKeys*latent, x.Heads*(x.Dim+scratchSpare)+(scratchHeads+1)*scratchKeys+scratchKeys*(x.Dim+scratchSpare))
	}
	lane := max(decode, prefill, grouped, 2*scratchTile) + scratchPieces*scratchSpare
	if x := s.Blocks; x.Heads > 0 { // scores of blocks, and copies of their keys, or of chosen keys and values
		shared = max(shared, scratchScores+lim.Context)
		scores := x.Heads*(x.Dim+scratchSpare) + scratchKeys*(scratchHeads+x.Dim+scratchSpare)
		lane = max(lane, scores, grouped+2*scratchKeys*(qk+scratchSpare)) + scratchPieces*scratchSpare
	}
	if x := s.Compressed; x.Heads > 0 {
		dim, p := x.Dim+scratchSpare, s.Compress
		lane = max(lane, (2*x.Heads+scratchKeys)*dim+8*scratchKeys, (p.Ratio*p.Parts()+7)*(p.Dim+scratchSpare))
		lane += scratchPieces * scratchSpare
	}
	if blocks { // 44 bytes for 32 columns of a row
		lane += scratchPrepared*widest*44/32/4 + scratchSpare
	}
	return 4 * (shared + max(1, threads)*lane)
}

// StepSizes are the bounds of a step for those who plan an accelerator's memory. Operators
// that take scratch memory are layers', who see a piece of a batch, and the head's.
func StepSizes(cfg *model.Config, lim stages.Limits) *device.StepSizes {
	m := cfg.MoE
	s := &device.StepSizes{
		Rows: lim.LayerRows(), Seqs: lim.Seqs, LogitRows: lim.LogitRows, Context: lim.Context, Hidden: cfg.Hidden, Vocab: cfg.Vocab,
		Streams: cfg.Streams.Count, Mixed: cfg.Streams.Mixed(), Experts: m.Experts, TopK: m.Router.TopK, ExpertFF: m.FF, SharedFF: m.SharedFF, DenseFF: cfg.DenseFF(), PerLayer: cfg.PerLayer, ChosenRow: lim.ChosenRow,
	}
	for i := range cfg.Layers {
		act := cfg.Layers[i].FFN.Activation()
		s.Cubic = s.Cubic || act.Cubic != 0
		s.Clamped = s.Clamped || act.Cubic == 0 && act != device.Activation{}
		if g := cfg.Layers[i].NGrams; g != nil && g.Conv().Reach() > s.Taps.Reach() {
			s.Taps = g.Conv()
		}
		cfg.Layers[i].Mixer.Step(s, lim.BlockTokens)
	}
	return s
}

// times returns a product of sizes, at most the largest there is.
func times(sizes ...int) int64 {
	n := int64(1)
	for _, s := range sizes {
		if s == 0 {
			return 0
		}
		if n > math.MaxInt64/int64(s) {
			n = math.MaxInt64
			continue
		}
		n *= int64(s)
	}
	return n
}

// plus returns a sum of sizes, at most the largest there is.
func plus(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// count writes "1 layer", "2 layers".
func count(n int, noun string) string {
	switch {
	case n == 1:
		return "1 " + noun
	case strings.HasSuffix(noun, "ch"):
		noun += "e"
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
