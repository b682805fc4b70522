// Package index scores the keys of an index for a query (DeepSeek-V3.2, "lightning indexer") and chooses the best of them.
//
// A lane of a vector is a key. Its product with the query of a head is one chain of multiply-adds over the dimensions in
// rising order, and its score one over the heads. So a score has the same bits at every level, however many heads a
// call has and whatever keys lie beside it.
package index

import (
	"math"
	"math/bits"
	"unsafe"

	"krater/kernels/cpu/level"
)

const (
	// Keys is the number of keys of a panel.
	Keys = 32
	// Scores and ranks have room for a multiple of Round.
	Round = 64

	// step is the dimensions that the assembly turns at once: what is left is turned one by one.
	step = 32
)

// Rows are the rows of the keys of a panel, each aligned to its element. A key that is missing has some other row.
type Rows [Keys]unsafe.Pointer

// Tile is one call: Out[i] is the sum over h < Heads of W[h] * max(0, Q[h] . key i). The maximum of 0 and what is not a
// number is not a number.
type Tile struct {
	Panel *float32 // [Dim][Keys]
	Q     *float32 // Heads rows of Dim values
	W     *float32 // [Heads]
	Out   *float32 // [Keys]
	// Stride is the distance of rows of Q in bytes.
	Stride     int
	Dim, Heads int
}

// Funcs are the kernels of one level.
type Funcs struct {
	turnF32, turnBF16 func(panel *float32, rows *Rows, dim int)
	// Score computes a tile; Dim and Heads are at least 1.
	Score func(*Tile)
	// rank makes n scores, a multiple of Round, numbers that rise with them; all NaN have the least.
	rank func(scores *float32, n int)
	// count is how many of n ranks, a multiple of Round, are at least least.
	count func(ranks *int32, n int, least int32) int
	// mark sets bit i of marks if rank i of n, a multiple of Round, is at least least.
	mark func(marks *uint64, ranks *int32, n int, least int32)
}

// At returns the kernels of a level that Resolve has accepted.
func At(l level.Level) *Funcs {
	if f := vector(l); f != nil {
		return f
	}
	return &pure
}

// Panel writes the panel [dim][Keys] of rows of dim values, BF16 or F32.
func (f *Funcs) Panel(panel *float32, rows *Rows, dim int, bf16 bool) {
	turn, rest := f.turnF32, pureTurnF32
	if bf16 {
		turn, rest = f.turnBF16, pureTurnBF16
	}
	whole := dim &^ (step - 1)
	if whole > 0 {
		turn(panel, rows, whole)
	}
	rest(panel, rows, whole, dim)
}

// Marks is the length of the marks of a choice among n scores.
func Marks(n int) int { return 2 * ((n + Round - 1) / Round) }

// Choose writes the numbers of the best of n scores, rising, to chosen, which has room for fewer than n. Of equal scores it
// takes the first ones; NaN are the worst. Scores have room for a multiple of Round and are
// overwritten, marks have the length Marks(n).
func (f *Funcs) Choose(chosen []int32, scores *float32, n int, marks []uint64) {
	room := (n + Round - 1) / Round * Round
	f.rank(scores, room)
	ranks := unsafe.Slice((*int32)(unsafe.Pointer(scores)), room)
	for i := n; i < room; i++ {
		ranks[i] = math.MinInt32
	}
	// The greatest rank that at least len(chosen) scores reach. low is reached by as many, high by fewer.
	low, high := int64(math.MinInt32), int64(math.Float32bits(float32(math.Inf(1))))+1
	above := 0 // scores that reach high
	for high-low > 1 {
		middle := (low + high) >> 1
		switch count := f.count(&ranks[0], room, int32(middle)); {
		case count == len(chosen):
			low, high, above = middle, middle, count
		case count > len(chosen):
			low = middle
		default:
			high, above = middle, count
		}
	}
	words := len(marks) / 2
	f.mark(&marks[0], &ranks[0], room, int32(high))
	if above < len(chosen) {
		f.addEqual(marks, ranks, int32(low), len(chosen)-above)
	}
	at := 0
	for w, m := range marks[:words] {
		for ; m != 0; m &= m - 1 {
			chosen[at] = int32(64*w + bits.TrailingZeros64(m))
			at++
		}
	}
}

// addEqual marks the first n ranks that are least; those above it are marked.
func (f *Funcs) addEqual(marks []uint64, ranks []int32, least int32, n int) {
	words := len(marks) / 2
	from := marks[words:]
	f.mark(&from[0], &ranks[0], len(ranks), least)
	for w := 0; n > 0; w++ {
		for m := from[w] &^ marks[w]; m != 0 && n > 0; m &= m - 1 {
			marks[w] |= m & -m
			n--
		}
	}
}
