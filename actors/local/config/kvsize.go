package config

import (
	"math"

	"krater/scheduler"
	"krater/stages/load"
	"krater/stages/model"
)

// KVSize is the memory of KV blocks.
type KVSize struct {
	Block   int64 // bytes of a block in the device's memory, in the layers whose rows are in blocks
	Window  int64 // bytes of a window block, in the layers with a window
	Windows int64 // window blocks (load.Options.WindowBlocks); 0: the rows of all layers are in blocks
}

// KVSizeOf returns the sizes for a load, of the layers that it has.
func KVSizeOf(cfg *model.Config, o *load.Options) KVSize {
	cfg = o.Own(cfg)
	k := KVSize{Block: cfg.KVBlockBytes(o.BlockTokens, o.KVType), Windows: int64(o.WindowBlocks)}
	if k.Windows > 0 {
		k.Window = int64(o.BlockTokens) * cfg.WindowTokenBytes(o.KVType)
		k.Block -= k.Window
	}
	if o.ChosenRow > 0 {
		k.Block -= ChosenBlock(cfg, o)
	}
	return k
}

// Bytes returns the memory of a number of blocks, with no more window blocks than blocks.
func (k KVSize) Bytes(blocks int64) int64 { return blocks*k.Block + min(blocks, k.Windows)*k.Window }

// Blocks returns the number of blocks that memory has room for.
func (k KVSize) Blocks(bytes int64) int64 {
	switch most := k.Bytes(k.Windows); {
	case bytes < most:
		return bytes / (k.Block + k.Window)
	case k.Block == 0:
		return math.MaxInt32
	default:
		return k.Windows + (bytes-most)/k.Block
	}
}

// HostBlock returns the size of a block in host memory, for a cache of the given number of blocks. Window
// blocks are not moved there.
func (k KVSize) HostBlock(blocks int64) int64 {
	if blocks >= k.Windows {
		return k.Block
	}
	return k.Block + k.Window
}

// WindowBlocks returns the number of window blocks for a KV cache of the given memory: those that all
// sequences may hold and, as memory allows, the windows of MaxSeqs earlier requests. It is 0 if the
// model has no layers with a window.
func (f *Options) WindowBlocks(cfg *model.Config, o *load.Options, memory int64) int {
	c := scheduler.Config{
		Blocks: math.MaxInt32, BlockTokens: f.BlockTokens, MaxSeqs: f.MaxSeqs, MaxBatchTokens: o.Tokens, PrefillBatches: f.MicroBatchCount(),
		Window: cfg.Window(),
	}
	if c.Window == 0 {
		return 0
	}
	need, room := c.WindowNeed(), memory/cfg.KVBlockBytes(f.BlockTokens, o.KVType)
	return max(need, int(min(int64(need+c.MaxSeqs*(1+c.Window/c.BlockTokens)), room)))
}
