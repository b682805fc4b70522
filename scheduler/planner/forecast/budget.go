package forecast

import (
	"fmt"

	"krater/scheduler/planner"
)

// Budget holds the available memory and its division, in bytes.
type Budget struct {
	VRAM    int64 `json:"vram"`    // memory of the GPU, of which planner.RefuseShare is used
	Fixed   int64 `json:"fixed"`   // part of VRAM for weights except routed experts, states, and workspace
	KV      int64 `json:"kv"`      // least part of VRAM for the KV cache
	Experts int64 `json:"experts"` // most of VRAM for routed experts; 0: all that the other parts leave
	Prefill int64 `json:"prefill"` // most of the experts' part for prefill's strategy; 0: all
	Window  int64 `json:"window"`  // part of VRAM for the rows of prompts in groups of layers
	RAM     int64 `json:"ram"`     // memory of the host; 0: not known, taken as enough
}

// Room returns the number of bytes that routed experts may take if besides bytes of the GPU's memory
// are taken, which do not count against Experts. It is below 0 if the other parts do not fit.
func (b *Budget) Room(besides int64) int64 {
	room := int64(planner.RefuseShare*float64(b.VRAM)) - b.Fixed - b.KV - besides
	if b.Experts > 0 {
		room = min(room, b.Experts)
	}
	return room
}

// kv returns the memory left to the KV cache if experts take the given number of bytes.
func (b *Budget) kv(experts int64) int64 {
	return int64(planner.RefuseShare*float64(b.VRAM)) - b.Fixed - experts
}

func (b *Budget) check() error {
	for _, n := range []int64{b.VRAM, b.Fixed, b.KV, b.Experts, b.Prefill, b.Window, b.RAM} {
		if n < 0 || n > bytesMost {
			return fmt.Errorf("%w: a budget of %+v", ErrShape, *b)
		}
	}
	return nil
}

// Work describes the prompts and streams that a forecast predicts.
type Work struct {
	// Lengths are the lengths of prompts, in tokens. The strategy for prefill is chosen by the geometric
	// mean of the rates of all prompts that fit into Budget.KV.
	Lengths []int `json:"lengths"`
	Batches []int `json:"batches"` // numbers of streams that decode together
	Streams int   `json:"streams"` // number of streams for which the strategy for decode is chosen
	Context int   `json:"context"` // tokens before a generated one
	Chunk   int   `json:"chunk"`   // prompt tokens of a pass
	Window  int   `json:"window"`  // prompt tokens that pass a group of layers before the next group begins; 0: the whole prompt
}

// Usual returns the work for which tables are printed by default.
func Usual() Work {
	return Work{Lengths: []int{512, 2048, 8192}, Batches: []int{1, 8, 32}, Streams: 1, Context: 2048, Chunk: 2048}
}

const (
	tokensMost = 1 << 24
	listMost   = 64
	passesMost = 1 << 14 // of a prompt
)

func (w *Work) check() error {
	if n := len(w.Lengths); n == 0 || n > listMost || len(w.Batches) > listMost {
		return fmt.Errorf("%w: %d lengths, %d batches, want 1 to %d", ErrShape, n, len(w.Batches), listMost)
	}
	for _, n := range append(append([]int{max(1, w.Context), w.Chunk, w.Streams}, w.Lengths...), w.Batches...) {
		if n < 1 || n > tokensMost {
			return fmt.Errorf("%w: work of %+v", ErrShape, *w)
		}
	}
	for _, n := range w.Lengths {
		if n/w.Chunk > passesMost {
			return fmt.Errorf("%w: a prompt of %d in chunks of %d", ErrShape, n, w.Chunk)
		}
	}
	if w.Context < 0 || w.Window < 0 || w.Window > tokensMost {
		return fmt.Errorf("%w: work of %+v", ErrShape, *w)
	}
	return nil
}
