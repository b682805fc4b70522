package config

import (
	"math"

	"krater/scheduler"
	"krater/stages/load"
	"krater/stages/model"
)

// KVSize says what KV blocks take: Block bytes each in the layers that see all tokens, and Window
// bytes in those that see the newest ones only, for the first Windows of them (load.Options'
// WindowBlocks). Windows is 0 where all layers keep all blocks, whose bytes are Block then.
type KVSize struct{ Block, Window, Windows int64 }

// KVSizeOf returns the sizes for a load.
func KVSizeOf(cfg *model.Config, o *load.Options) KVSize {
	k := KVSize{Block: KVBlockBytes(cfg, o.BlockTokens, o.KVType), Windows: int64(o.WindowBlocks)}
	if k.Windows > 0 {
		k.Window = int64(o.BlockTokens) * cfg.WindowTokenBytes(o.KVType)
		k.Block -= k.Window
	}
	return k
}

// Bytes is the memory of a number of blocks.
func (k KVSize) Bytes(blocks int64) int64 { return blocks*k.Block + min(blocks, k.Windows)*k.Window }

// Blocks is the number of blocks that memory has room for.
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

// HostBlock is the size of a block in host memory where the cache has a number of blocks: window
// blocks are not moved there.
func (k KVSize) HostBlock(blocks int64) int64 {
	if blocks >= k.Windows {
		return k.Block
	}
	return k.Block + k.Window
}

// WindowBlocks returns how many blocks the layers with a window keep where the KV cache has that much
// memory: what all sequences need, and up to as many again as a cache. 0: the model has no such layers.
func (f *Options) WindowBlocks(cfg *model.Config, o *load.Options, memory int64) int {
	c := scheduler.Config{
		Blocks: math.MaxInt32, BlockTokens: f.BlockTokens, MaxSeqs: f.MaxSeqs, MaxBatchTokens: o.Tokens, PrefillBatches: f.MicroBatchCount(),
		Window: cfg.Window(),
	}
	if c.Window == 0 {
		return 0
	}
	need, room := c.WindowNeed(), memory/KVBlockBytes(cfg, f.BlockTokens, o.KVType)
	return max(need, int(min(int64(need+c.MaxSeqs*(1+c.Window/c.BlockTokens)), room)))
}
