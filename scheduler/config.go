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
	Open           int // of them, those that may be used at first; 0: all. See Resize
	Calm           int // batches in a row that must need fewer blocks before Demand says so; 0: 512
	MaxBatchTokens int // rows in a batch; at least MaxSeqs, so that prefill always finds room
	MaxSeqs        int // sequences with a slot: running, or ended and still in flight
	PrefillChunk   int // prefill rows of one sequence in a batch
	PrefillShare   int // prefill rows of all sequences in a batch while a stream is in decode
	MaxQueue       int // waiting requests
	MicroBatches   int // micro-batches that the running streams are divided into, each with a place in flight
	PrefillBatches int // batches in flight at once that may have rows of prompts, 1 to MicroBatches
	LogitRows      int // rows of a batch that may have logits, at least MaxSeqs; 0: MaxSeqs
	MaxRetries     int // recomputations of one sequence after failures; 0 fails it at once

	// PassRows is for devices that copy a model's experts for a batch of that many rows or more, a pass, which takes about as long
	// whatever its rows are. While any stream is in decode, prompts of at most PassMixed rows together join the next batch, as long as that is no pass. Others
	// wait for a pass, which has PrefillShare rows of prompts at most, and passes take at most PassShare percent of the time. 0: no batch is
	// a pass.
	PassRows, PassMixed, PassShare int

	// Aging is the number of batches after which a waiting request gains one level of priority among
	// those of its key, and again after as many more; 0: none does. Background requests never do.
	Aging int

	// Classes says that rows of generated tokens are not computed as those of a prompt are (latent
	// attention is absorbed there), which may leave other bits in the cache. Then cached rows of one
	// numerics class are not taken for the other, and what is computed again keeps its class: a hit or
	// a preemption changes no token.
	Classes bool
	// ReuseAnswers, with Classes, lets a request that starts take cached rows of its prompt in either
	// class. When they are computed again, after a preemption, they keep the class that the request
	// found.
	ReuseAnswers bool
	// RecomputeSingly is for devices that take one generated row of a sequence at a time: with
	// Classes, generated rows that are computed again are one of a sequence in a batch, and come right
	// after the decode rows.
	RecomputeSingly bool
	// NoReuse: nothing that one sequence has computed is used by another, or by itself
	// after it was preempted.
	NoReuse bool
	// RAMBlocks is the number of places in host memory for cached blocks that were evicted from the
	// pool; 0: none.
	RAMBlocks int
	// LoadRate is how many tokens of cached blocks are loaded from host memory in the time that a row
	// of a prompt takes. While any stream is in decode, loads are charged to PrefillShare at that
	// rate, so that they delay the streams by no more than a chunk does. 0: they are not bounded.
	LoadRate int
	// Snapshots is for models with state that is not in blocks (recurrent states):
	// the number of places for such states of whole sequences, at borders of blocks. A sequence can
	// continue from a cached prefix only where one is kept. 0: all state is in blocks.
	Snapshots int
	// Window is for models in which some layers see only the newest positions of a sequence: the
	// largest number that any of these layers sees, the row's own included. Their rows are in
	// WindowBlocks blocks, of which a sequence holds those that its next row reads. 0: all layers
	// keep their rows in Blocks.
	Window       int
	WindowBlocks int // at least WindowNeed

	// Follow is for a pipeline whose batches pass every layer in the order in which they were made, wherever they have a
	// sequence in common: the next chunk of a prompt may be in flight before the last one is back. Not with Ahead, Snapshots,
	// WindowBlocks or PassRows.
	Follow bool

	// Ahead is for a device that chooses tokens itself: every micro-batch has a second place in
	// flight, for a batch whose rows take the tokens that the batch before it will choose.
	Ahead bool
}

// logitRows is LogitRows with its default.
func (c *Config) logitRows() int { return max(c.LogitRows, c.MaxSeqs) }

// Depth is the most batches in flight.
func (c *Config) Depth() int {
	if c.Ahead {
		return 2 * c.MicroBatches
	}
	return c.MicroBatches
}

// calm is Calm with its default.
func (c *Config) calm() uint64 { return uint64(cmp.Or(c.Calm, 512)) }

// The limits of the limits: what New allocates is bounded by them.
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

// maxPasses is how many batches may pass by an idle stream that waits for its micro-batch: as many
// as the other micro-batches make in turn while this one's come back.
func (c *Config) maxPasses() uint64 { return uint64(c.Depth() - c.Depth()/c.MicroBatches) }

// blocksFor is the number of blocks that hold positions 0 to n-1.
func (c *Config) blocksFor(n int) int { return (n + c.BlockTokens - 1) / c.BlockTokens }
