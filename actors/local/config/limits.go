package config

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	"krater/kernels/tensor"
	"krater/scheduler/planner/rates"
	"krater/stages"
	"krater/stages/load"
	"krater/stages/model"
)

// RankFacts describes the GPU that computes the layers. It is the zero value for other devices.
type RankFacts struct {
	Name     string // the driver's
	Memory   int64  // memory that Krater may use
	Capacity int64  // memory of the GPU, with what other programs use
}

// Case says what a load is for, besides its options.
type Case struct {
	LogitRows int // rows with logits in a step; 0: one per sequence
	Context   int // positions of the longest sequence, if they are known and fewer than the model allows; 0: unknown
	KVType    tensor.DType
	Rank      RankFacts
	Helper    RankFacts                               // of --expert-device
	Part      *Part                                   // nil: all of the model
	Ranks     []RankFacts                             // of the ranks, where there are several, by rank
	Heat      [][]uint32                              // router counts, [layer][expert], for choosing strategies
	Measure   func(experts tensor.Format) *rates.File // measures the machine's rates where none are kept; nil: do not measure
	Served    bool                                    // the model serves requests: tokenizer and weights must be there
	AllRows   bool                                    // no window blocks: the rows of all tokens are kept, for callers that fill in block tables themselves
	Whole     bool                                    // keep every part as its file holds it, so that operators can be compared one by one
}

// Part is a part of a model, for a process that loads no more than that.
type Part struct {
	First, Layers int // consecutive layers
	// Ends says whether the embedding and the head come with the first of its ranks: load.NoEnds or load.BothEnds.
	Ends load.Ends
	// Limits apply to every member of the cluster; zero: as the options say, with as many KV blocks as there is room for.
	Limits stages.Limits
}

// Steps returns how many tokens go through the model together: a chunk of a prompt, or a pass of
// several chunks where prompts go through groups of layers. 0 means one chunk at a time.
type Steps struct{ Chunk, Pass int }

// PassChunks is the default number of prefill chunks that go through a group of layers together.
const PassChunks = 4

// StepRows returns the tokens of a batch, and those of the window that goes on to the next group of
// layers; 0: all of them.
func (f *Options) StepRows(s Steps) (tokens, window int) {
	tokens = f.MaxBatchTokens
	if tokens == 0 {
		tokens = s.Chunk + f.MaxSeqs
	}
	if s.Pass > s.Chunk {
		return s.Pass + f.MaxSeqs, tokens
	}
	return tokens, 0
}

// LoadOptions turns options into the sizes of a load. free is the available memory, 0 if unknown. Where there are several ranks,
// it leaves open what differs between them (see RankLoad).
func (f *Options) LoadOptions(cfg *model.Config, l Case, s Steps, free int64) (o load.Options, err error) {
	o.KVType = l.KVType
	if o.KVType == tensor.Invalid {
		o.KVType = KVTypes[f.KVDType]
	}
	if f.MaxBatchTokens != 0 && f.MaxBatchTokens < f.MaxSeqs {
		return o, fmt.Errorf("--max-batch-tokens %d: smaller than --max-seqs %d", f.MaxBatchTokens, f.MaxSeqs)
	}
	o.Limits = stages.Limits{Queues: 1, Seqs: f.MaxSeqs, LogitRows: l.LogitRows, Context: l.Context, BlockTokens: f.BlockTokens}
	if f.Device == CUDA {
		o.Queues = f.MicroBatchCount()
	}
	o.Tokens, o.Window = f.StepRows(s)
	if f.ChosenOnHost() {
		if _, o.ChosenRow = cfg.ChosenTokenBytes(o.KVType); o.ChosenRow == 0 {
			return o, errors.New("--sparse-kv host: the model has no sparse attention over rows of the KV cache")
		}
	}
	memory := int64(f.KVCache)
	if memory == 0 {
		memory = free / 4
	}
	if !l.AllRows {
		o.WindowBlocks = f.WindowBlocks(cfg, &o, cmp.Or(memory, math.MaxInt64))
	}
	if o.Blocks, err = kvBlocks(cfg, f, l.Context, KVSizeOf(cfg, &o), memory); err != nil {
		return o, err
	}
	if o.Blocks = min(o.Blocks, f.MostBlocks(cfg, &o)); o.Blocks < 1 {
		return o, fmt.Errorf("--kv-ram %s: one block of %d tokens needs %d bytes", f.KVRAM, f.BlockTokens, ChosenBlock(cfg, &o))
	}
	if o.HostBlocks, err = f.HostBlocks(cfg, &o); err != nil {
		return o, err
	}
	if f.RankCount() > 1 || l.Part != nil {
		return o, nil
	}
	cuts, err := f.Cuts(0, len(cfg.Layers), load.Even)
	if err != nil {
		return o, err
	}
	o.Partition, o.Layout = cuts[0].Groups, f.layout()
	o.Precision, err = f.Resolve(cfg, l.Whole, f.Device == CUDA)
	return o, err
}

// RankLoad turns the sizes of a load that all ranks share into those of one rank. f are the options of the rank (see Of), free is
// the memory that its KV cache may be a quarter of, 0 if unknown.
func (f *Options) RankLoad(cfg *model.Config, all load.Options, cut load.Cut, l Case, free int64) (o load.Options, err error) {
	o = all.On(cut)
	if o.Layout, o.Queues = f.layout(), 1; f.Device == CUDA {
		o.Queues = f.MicroBatchCount()
	}
	if f.KVCache == 0 && free > 0 {
		n, err := kvBlocks(cfg, f, l.Context, KVSizeOf(cfg, &o), free/4)
		if err != nil {
			return o, err
		}
		o.Blocks = min(o.Blocks, n)
	}
	o.Precision, err = f.Resolve(cfg, l.Whole, f.Device == CUDA)
	return o, err
}

// kvBlocks returns the size of the KV cache in blocks. memory is --kv-cache or what else it should not
// exceed, 0 if unknown; context is that of Case.
func kvBlocks(cfg *model.Config, f *Options, context int, kv KVSize, memory int64) (int, error) {
	if context == 0 || context > cfg.MaxContext {
		context = cfg.MaxContext
	}
	full := int64((context + f.BlockTokens - 1) / f.BlockTokens)
	n := full * int64(f.MaxSeqs)
	if f.KVCache > 0 {
		most := int64(math.MaxInt32)
		if kv.Block == 0 { // a sequence takes no more, however long it is
			most = max(n, kv.Windows)
		}
		if n = min(most, kv.Blocks(memory)); n < 1 {
			return 0, fmt.Errorf("--kv-cache %s: one block of %d tokens needs %d bytes", f.KVCache, f.BlockTokens, kv.Bytes(1))
		}
		return int(n), nil
	}
	if memory > 0 {
		n = min(n, max(full, kv.Blocks(memory)))
	}
	return int(n), nil
}

// HostBlocks returns the size of --kv-ram in blocks: rows of all layers but those that have window
// blocks.
func (f *Options) HostBlocks(cfg *model.Config, o *load.Options) (int, error) {
	if f.KVRAM == 0 || o.ChosenRow > 0 {
		return 0, nil
	}
	if !f.OwnMemory() {
		return 0, fmt.Errorf("--kv-ram %s: the KV cache of --device %s is in host memory already; make it larger with --kv-cache", f.KVRAM, f.Device)
	}
	block := KVSizeOf(cfg, o).HostBlock(int64(o.Blocks))
	if block == 0 {
		return 0, nil
	}
	n := int64(f.KVRAM) / block
	if n < 1 {
		return 0, fmt.Errorf("--kv-ram %s: one block of %d tokens needs %d bytes", f.KVRAM, f.BlockTokens, block)
	}
	return int(min(n, int64(math.MaxInt32/f.BlockTokens))), nil
}

// MostBlocks returns the number of blocks that --kv-ram allows where rows of the KV cache lie in host memory.
func (f *Options) MostBlocks(cfg *model.Config, o *load.Options) int {
	if o.ChosenRow == 0 {
		return math.MaxInt32
	}
	return int(min(int64(f.KVRAM)/ChosenBlock(cfg, o), int64(math.MaxInt32/f.BlockTokens)))
}

// ChosenBlock returns the size of the rows of a block that sparse attention chooses from.
func ChosenBlock(cfg *model.Config, o *load.Options) int64 {
	n, _ := o.Own(cfg).ChosenTokenBytes(o.KVType)
	return int64(o.BlockTokens) * n
}
