package scheduler

import (
	"fmt"
	"math"
)

// Config holds the limits of a Core. All are fixed for its life and none has a
// default here: the command line chooses.
type Config struct {
	BlockTokens    int // positions in a KV block
	Blocks         int // KV blocks in the pool
	MaxBatchTokens int // rows in a batch; at least MaxSeqs, so that prefill always finds room
	MaxSeqs        int // sequences with a slot: running, or ended and still in flight
	PrefillChunk   int // prefill rows of one sequence in a batch
	PrefillShare   int // prefill rows of all sequences in a batch while a stream is in decode
	MaxQueue       int // waiting requests
	Depth          int // batches in flight: the number of layer groups, and one more with Ahead
	MaxRetries     int // recomputations of one sequence after failures; 0 fails it at once

	// Ahead is for a device that chooses tokens itself: the last of the Depth
	// places, of which there must be two or more, is kept for a batch whose rows
	// take the tokens that the batch before it will choose.
	Ahead bool
}

// The limits of the limits: what New allocates is bounded by them.
const (
	seqsMax  = 1 << 16
	queueMax = 1 << 16
	rowsMax  = 1 << 24
	depthMax = 64
)

// check names the first field that is out of its range.
func (c *Config) check() error {
	depthMin := 1
	if c.Ahead {
		depthMin = 2
	}
	fields := []struct {
		name          string
		value, lo, hi int
	}{
		{"BlockTokens", c.BlockTokens, 1, rowsMax},
		{"Blocks", c.Blocks, 1, math.MaxInt32},
		{"MaxSeqs", c.MaxSeqs, 1, seqsMax},
		{"MaxBatchTokens", c.MaxBatchTokens, c.MaxSeqs, rowsMax},
		{"PrefillChunk", c.PrefillChunk, 1, rowsMax},
		{"PrefillShare", c.PrefillShare, 1, rowsMax},
		{"MaxQueue", c.MaxQueue, 1, queueMax},
		{"Depth", c.Depth, depthMin, depthMax},
		{"MaxRetries", c.MaxRetries, 0, math.MaxInt32},
	}
	for _, f := range fields {
		if f.value < f.lo || f.value > f.hi {
			return fmt.Errorf("%w: %s is %d, wants %d to %d", ErrConfig, f.name, f.value, f.lo, f.hi)
		}
	}
	return nil
}

// places is the number of batches in flight that are not ahead of another.
func (c *Config) places() int {
	if c.Ahead {
		return c.Depth - 1
	}
	return c.Depth
}

// blocksFor is the number of blocks that hold positions 0 to n-1.
func (c *Config) blocksFor(n int) int { return (n + c.BlockTokens - 1) / c.BlockTokens }
