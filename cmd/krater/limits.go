package main

import (
	"fmt"
	"math"

	"krater/kernels/tensor"
	"krater/scheduler/planner/rates"
	"krater/stages"
	"krater/stages/load"
	"krater/stages/model"
)

// limits are the sizes a session is loaded for; zero fields come from the flags.
type limits struct {
	logitRows int // rows with logits a step; 0: one a sequence
	kv        tensor.DType
	card      int64 // memory of the GPU that may be used
	cardName  string
	cardBytes int64                      // of memory that the GPU has, whoever has it
	heat      [][]uint32                 // counts of routers, [layer][expert], by which strategies are chosen
	measure   func(bits int) *rates.File // finds out what is not kept of this machine and its card; nil: nobody does
	served    bool                       // people ask the model: tokenizer and weights must be there
	whole     bool                       // every part as its file holds it, unless a flag says otherwise
}

// loadOptions turns flags into the sizes of a load; free is the memory that is
// available, 0 if unknown.
func loadOptions(cfg *model.Config, f *engineFlags, l limits, free int64) (load.Options, error) {
	kv := l.kv
	if kv == tensor.Invalid {
		kv = kvTypes[f.KVDType]
	}
	switch {
	case f.MaxBatchTokens != 0 && f.MaxBatchTokens < f.MaxSeqs:
		return load.Options{}, fmt.Errorf("--max-batch-tokens %d: smaller than --max-seqs %d", f.MaxBatchTokens, f.MaxSeqs)
	case f.LayerGroups > len(cfg.Layers):
		return load.Options{}, fmt.Errorf("--layer-groups %d: the model has %d layers", f.LayerGroups, len(cfg.Layers))
	}
	tokens := f.MaxBatchTokens
	if tokens == 0 {
		tokens = f.PrefillChunk + f.MaxSeqs
	}
	blocks, err := kvBlocks(cfg, f, kv, free)
	if err != nil {
		return load.Options{}, err
	}
	kept, err := hostBlocks(cfg, f, kv)
	if err != nil {
		return load.Options{}, err
	}
	precision, err := f.precision(cfg, l.whole, f.onCard())
	if err != nil {
		return load.Options{}, err
	}
	window := 0
	if f.pass(l) > f.PrefillChunk {
		window, tokens = tokens, f.pass(l)+f.MaxSeqs
	}
	lanes := 1
	if f.onCard() {
		lanes = f.microBatches()
	}
	return load.Options{
		Limits:    stages.Limits{Tokens: tokens, Window: window, Lanes: lanes, Seqs: f.MaxSeqs, LogitRows: l.logitRows, Blocks: blocks, BlockTokens: f.BlockTokens, HostBlocks: kept},
		Partition: load.Even(len(cfg.Layers), f.LayerGroups), KVType: kv, Precision: precision, Layout: f.layout(),
	}, nil
}

// kvBlocks is the size of the KV cache in blocks.
func kvBlocks(cfg *model.Config, f *engineFlags, kv tensor.DType, free int64) (int, error) {
	block := kvBlockBytes(cfg, f.BlockTokens, kv)
	full := int64((cfg.MaxContext + f.BlockTokens - 1) / f.BlockTokens)
	if f.KVCache > 0 {
		n := int64(f.KVCache) / block
		if n < 1 {
			return 0, fmt.Errorf("--kv-cache %s: one block of %d tokens needs %d bytes", f.KVCache, f.BlockTokens, block)
		}
		return int(n), nil
	}
	n := full * int64(f.MaxSeqs)
	if free > 0 {
		n = min(n, max(full, free/4/block))
	}
	return int(n), nil
}

// hostBlocks is the size of --kv-ram in blocks.
func hostBlocks(cfg *model.Config, f *engineFlags, kv tensor.DType) (int, error) {
	if f.KVRAM == 0 {
		return 0, nil
	}
	if !f.onCard() && !f.onRank() {
		return 0, fmt.Errorf("--kv-ram %s: the KV cache of --device %s lies in host memory itself, --kv-cache makes it larger", f.KVRAM, f.Device)
	}
	n := int64(f.KVRAM) / kvBlockBytes(cfg, f.BlockTokens, kv)
	if n < 1 {
		return 0, fmt.Errorf("--kv-ram %s: one block of %d tokens needs %d bytes", f.KVRAM, f.BlockTokens, kvBlockBytes(cfg, f.BlockTokens, kv))
	}
	return int(min(n, int64(math.MaxInt32/f.BlockTokens))), nil
}

// kvBlockBytes is the size of a KV block in all layers.
func kvBlockBytes(cfg *model.Config, tokens int, kv tensor.DType) int64 {
	return int64(tokens) * cfg.KVTokenBytes(kv)
}
