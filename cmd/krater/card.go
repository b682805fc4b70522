package main

import (
	"errors"
	"fmt"
	"io"

	"krater/kernels/cuda"
	"krater/kernels/device"
	"krater/scheduler/planner"
	"krater/stages/load"
	"krater/stages/weights/cache"
)

// card is a GPU that layers run on.
type card interface {
	load.Device
	// Describe names it.
	Describe() string
	// Capacity is its memory in bytes, whoever has it.
	Capacity() int64
}

// errNoCard: there is none, or this program cannot use one.
var errNoCard = errors.New("no GPU")

// settle opens the card that --device cuda asks for. Where there is none it says so in
// one line and the flags ask for the processor.
func (f *engineFlags) settle(w io.Writer) (card, error) {
	if !f.onCard() {
		return nil, nil
	}
	c, err := openCard(cuda.Options{Index: f.CardIndex, Budget: int64(f.VRAM), F32: f.Rows == "f32", Invariant: f.BatchInvariant})
	if errors.Is(err, errNoCard) {
		fmt.Fprintf(w, "krater: --device cuda: %v; running on the processor\n", err)
		f.Device, f.VRAM, f.ExpertVRAM = "cpu", 0, 0
		f.PrefillStrategy, f.DecodeStrategy = auto, auto
		f.ExpertDivisor, f.CacheStrategy, f.NoGPUDecode, f.PrefillExpertVRAM = -1, "", false, 0
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("--device cuda: %w", err)
	}
	return c, nil
}

// onCard reports whether the layers are on a GPU.
func (f *engineFlags) onCard() bool { return f.Device == "cuda" }

// loadOnCard puts the model on the card, its routed experts too unless strategies say where
// they are.
func (s *session) loadOnCard(f *engineFlags, o load.Options, r reporter) error {
	if s.experts != nil {
		o.ExpertTiles = s.expertTiles
	}
	if !s.look.resident {
		return s.loadOnRank(f, o, r)
	}
	var err error
	s.parts, err = load.Model(s.card, s.cfg, s.set, o)
	if err == nil && s.experts != nil {
		err = s.experts.Close() // all of it is on the card now
		s.experts = nil
	}
	return err
}

// expertTiles finds an expert in the open cache.
func (s *session) expertTiles(layer, e int) (load.ExpertTiles, error) {
	list := s.experts.ExpertsA(layer)
	if e >= len(list) {
		return load.ExpertTiles{}, fmt.Errorf("the cache has %d experts", len(list))
	}
	x := &list[e]
	matrix := func(m *cache.MatrixA) load.MatrixTiles {
		return load.MatrixTiles{FormatA: m.FormatA, Values: x.Data[m.ValueAt:][:m.ValueBytes()], Scales: x.Data[m.ScaleAt:][:m.ScaleBytes()]}
	}
	return load.ExpertTiles{W13: matrix(&x.W13), W2: matrix(&x.W2)}, nil
}

// cardShare is the part of a card's memory that the KV cache may fill up to: the rest
// is for kernels, graphs and what operators need besides.
const cardShare = planner.RefuseShare - 0.03

// layout is how the device of the layers wants batches.
func (f *engineFlags) layout() device.Layout {
	if f.onCard() {
		return cuda.Layout{F32: f.Rows == "f32"}
	}
	return nil
}

// states is the number of batches with memory of their own: a card has twice as many
// on their way, half of which take the tokens that those before them choose.
func (f *engineFlags) states() int {
	if f.onCard() {
		return 2 * f.microBatches()
	}
	return f.microBatches()
}

// use says how the model will be run.
func (o *outlook) use(f *engineFlags) load.Use {
	return load.Use{States: f.states(), Streams: f.LayerGroups + o.pools + 1, Threads: f.threads()}
}
