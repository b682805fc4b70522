// Package delta has the inner loops of gated DeltaNet (arXiv 2412.06464): a token of one value head,
// and the short convolution. Every column of a state is a chain of multiply-adds over its rows in
// rising order, so it has the same bits however columns are cut into calls and tokens into steps.
package delta

import "krater/kernels/cpu/level"

// Tile is columns of a head's state and what a token does to them.
type Tile struct {
	S           *float32 // [Rows, Width] state, rows Stride bytes apart
	Q, K        *float32 // [Rows] query and key
	Next        *float32 // [Rows] key of the token after it; unused but by StepNext
	V           *float32 // [Width] value
	Known       *float32 // [Width] K times the state before the token
	Out         *float32 // [Width] Q times the state after it
	Stride      int
	Rows, Width int     // Rows at least 1
	Decay       float32 // of the whole state, 1 if K and Next are decayed for Known
	Strength    float32
	Decays      *float32 // the factor of row 0, which is Decay itself or that of a row's own
	DecayStep   int      // bytes from the factor of a row to that of the next: 0 or 4
}

// MaxTaps is the most rows that a convolution sees.
const MaxTaps = 16

// Funcs are the kernels of one level.
type Funcs struct {
	// Known computes t.Known.
	Known func(t *Tile)
	// Step multiplies the rows of the state by Decays, adds K times the change Strength * (V - Decay * Known), and
	// computes Out.
	Step func(t *Tile)
	// StepNext is Step, then Known with Next in the place of K.
	StepNext func(t *Tile)
	// Conv is out = the sum over taps (at least 1) of row i of w, stride bytes apart, times x[i],
	// n elements each.
	Conv func(out *float32, x **float32, w *float32, stride, taps, n int)
}

// At returns the kernels of a level that Resolve has accepted.
func At(l level.Level) *Funcs {
	if f := vector(l); f != nil {
		return f
	}
	return &pure
}
