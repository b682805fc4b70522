package scheduler

import (
	"cmp"
	"fmt"
	"math"
)

// Config holds the limits of a Core. All are fixed for its life and none has a default: the caller
// chooses.
type Config struct {
	BlockTokens    int // positions in a KV block
	Blocks         int // KV blocks in the pool
	Open           int // number of blocks that may be used at first; 0: all. See Resize
	Calm           int // number of consecutive batches that must need fewer blocks before Demand falls; 0: 512
	MaxBatchTokens int // rows in a batch; at least MaxSeqs, so that prefill always finds room
	MaxSeqs        int // sequences with a slot: running, or ended and still in flight
	PrefillChunk   int // prefill rows of one sequence in a batch
	PrefillShare   int // prefill rows of all sequences in a batch while a stream is in decode
	MaxQueue       int // waiting requests
	MicroBatches   int // micro-batches that the running streams are divided into, each with a place in flight
	PrefillBatches int // batches in flight at once that may have rows of prompts, 1 to MicroBatches
	LogitRows      int // rows of a batch that may have logits, at least MaxSeqs; 0: MaxSeqs
	MaxRetries     int // recomputations of one sequence after failures; 0 fails it at once

	// PassRows is for devices that copy a model's experts for every batch of PassRows rows or more. Such a
	// batch is a pass; its time hardly depends on its number of rows. While any stream is in decode,
	// prompts of at most PassMixed rows together join the next batch unless that makes it a pass. Other
	// prompts wait for a pass, which has at most PrefillShare rows of prompts. Passes take at most
	// PassShare percent of the time. With PassRows 0 no batch is a pass.
	PassRows, PassMixed, PassShare int

	// Aging is the number of batches in which a waiting request gains one level of priority among the
	// requests of its key. 0 means that requests gain none. Background requests never do.
	Aging int

	// Classes says that rows of generated tokens are computed differently from rows of a prompt (latent
	// attention is absorbed), so that the cache may have other bits. Each form is a numerics class.
	// Cached rows of one class are not used for the other, and rows that are computed again keep their
	// class. So neither a cache hit nor a preemption changes a token.
	Classes bool
	// ReuseAnswers, with Classes, lets a request that starts take cached rows of its prompt in either
	// class. When they are computed again, after a preemption, they keep the class that the request
	// found.
	ReuseAnswers bool
	// RecomputeSingly is for devices that compute one generated row of a sequence at a time. With Classes
	// a batch then has at most one generated row of a sequence that is computed again. These rows come
	// right after the decode rows.
	RecomputeSingly bool
	// NoReuse says that cached rows are never used again: not by other sequences, and not by the same
	// sequence after a preemption.
	NoReuse bool
	// RAMBlocks is the number of places in host memory for cached blocks that were evicted from the
	// pool; 0: none.
	RAMBlocks int
	// LoadRate is the number of tokens of cached blocks that are loaded from host memory in the time of
	// one row of a prompt. While any stream is in decode, loads are charged to PrefillShare at this rate,
	// so that they delay the streams no more than a chunk does. With 0 loads are not limited.
	LoadRate int
	// Snapshots is for models with state outside of blocks (recurrent states). It is the number of places
	// for copies of a sequence's state, taken at borders of blocks. A sequence can continue from a cached
	// prefix only at such a copy. 0 means that all state is in blocks.
	Snapshots int
	// Window is for models in which some layers see only the newest positions of a sequence. It is the
	// largest number of positions that such a layer sees, the row's own included. These layers have
	// WindowBlocks blocks of their own, and a sequence holds only the blocks that its next row reads.
	// 0 means that all layers keep their rows in Blocks.
	Window       int
	WindowBlocks int // at least WindowNeed

	// Follow is for a pipeline in which batches with a common sequence pass every layer in the order in
	// which they were made. The next chunk of a prompt may then be in flight before the one before it is
	// back. Follow excludes Ahead, Snapshots, WindowBlocks and PassRows.
	Follow bool

	// Ahead is for a device that chooses tokens itself. Every micro-batch then has a second place in
	// flight, for a batch whose rows take the tokens that the batch before it will choose.
	Ahead bool
}

// logitRows returns LogitRows or its default.
func (c *Config) logitRows() int { return max(c.LogitRows, c.MaxSeqs) }

// Depth returns the largest number of batches in flight.
func (c *Config) Depth() int {
	if c.Ahead {
		return 2 * c.MicroBatches
	}
	return c.MicroBatches
}

// calm returns Calm or its default.
func (c *Config) calm() uint64 { return uint64(cmp.Or(c.Calm, 512)) }

// The largest values of a Config's fields. They bound the memory that New allocates.
const (
	seqsMax         = 1 << 16
	queueMax        = 1 << 16
	rowsMax         = 1 << 24
	microBatchesMax = 64
)

// check names the first field that is out of its range.
func (c *Config) check() error {
	if c.Follow && (c.Ahead || c.Snapshots > 0 || c.WindowBlocks > 0 || c.PassRows > 0) {
		return fmt.Errorf("%w: Follow with Ahead, Snapshots, WindowBlocks or PassRows", ErrConfig)
	}
	fields := []struct {
		name          string
		value, lo, hi int
	}{
		{"BlockTokens", c.BlockTokens, 1, rowsMax},
		{"Blocks", c.Blocks, 1, math.MaxInt32},
		{"Open", c.Open, 0, c.Blocks},
		{"Calm", c.Calm, 0, math.MaxInt32},
		{"PassRows", c.PassRows, 0, rowsMax},
		{"PassMixed", c.PassMixed, 0, rowsMax},
		{"PassShare", c.PassShare, min(1, c.PassRows), 100},
		{"MaxSeqs", c.MaxSeqs, 1, seqsMax},
		{"MaxBatchTokens", c.MaxBatchTokens, c.MaxSeqs, rowsMax},
		{"PrefillChunk", c.PrefillChunk, 1, rowsMax},
		{"PrefillShare", c.PrefillShare, 1, rowsMax},
		{"MaxQueue", c.MaxQueue, 1, queueMax},
		{"MicroBatches", c.MicroBatches, 1, microBatchesMax},
		{"PrefillBatches", c.PrefillBatches, 1, c.MicroBatches},
		{"MaxRetries", c.MaxRetries, 0, math.MaxInt32},
		{"Aging", c.Aging, 0, math.MaxInt32},
		{"RAMBlocks", c.RAMBlocks, 0, math.MaxInt32 - c.Blocks},
		{"LoadRate", c.LoadRate, 0, rowsMax},
		{"Snapshots", c.Snapshots, 0, seqsMax},
		{"Window", c.Window, 0, math.MaxInt32},
		{"WindowBlocks", c.WindowBlocks, c.WindowNeed(), math.MaxInt32},
	}
	if c.LogitRows != 0 && c.LogitRows < c.MaxSeqs {
		return fmt.Errorf("%w: LogitRows is %d, smaller than MaxSeqs", ErrConfig, c.LogitRows)
	}
	for _, f := range fields {
		if f.value < f.lo || f.value > f.hi {
			return fmt.Errorf("%w: %s is %d, wants %d to %d", ErrConfig, f.name, f.value, f.lo, f.hi)
		}
	}
	return nil
}

// maxPasses returns the number of batches that may pass by an idle stream while it waits for its
// micro-batch. It is the number of batches that the other micro-batches may have in flight.
func (c *Config) maxPasses() uint64 { return uint64(c.Depth() - c.Depth()/c.MicroBatches) }

// blocksFor returns the number of blocks that hold positions 0 to n-1.
func (c *Config) blocksFor(n int) int { return (n + c.BlockTokens - 1) / c.BlockTokens }
