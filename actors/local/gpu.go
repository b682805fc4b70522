package local

import (
	"errors"
	"fmt"

	"krater/actors/local/config"
	"krater/kernels/cuda"
	"krater/stages/load"
)

// GPU is a GPU that computes layers.
type GPU interface {
	load.Device
	// Describe returns the driver's name for it.
	Describe() string
	// Capacity returns all its memory in bytes, including what other programs use.
	Capacity() int64
}

// ErrNoGPU reports that there is no GPU, or that this program cannot use one.
var ErrNoGPU = errors.New("no GPU")

// openRank opens the device of a rank if it is a GPU. Other devices are opened when the model is loaded.
func openRank(f *config.Options, rank int, p config.Place) (Rank, error) {
	if p.Kind != config.CUDA {
		return Rank{}, nil
	}
	g := f.Of(rank, p)
	c, err := OpenGPU(cuda.Options{Index: p.Index, Budget: int64(g.VRAM.One()), F32: g.Rows == "f32", Invariant: g.Invariant(), Same: g.SameTokens, Portable: g.Portable})
	if err != nil {
		if rank > 0 && f.ExpertDevice != "" {
			return Rank{}, fmt.Errorf("--expert-device %s: %w", f.ExpertDevice, err)
		}
		return Rank{}, fmt.Errorf("--device %s: %w", f.Device, err)
	}
	return Rank{c, c}, nil
}

// Settle opens the GPUs of the ranks that options ask for; the devices of other ranks are nil. If --device cuda asks for one and there
// is none, it reports that and returns options for the CPU.
func Settle(f config.Options, r config.Reporter) ([]Rank, config.Options, error) {
	places, err := f.Places()
	if err != nil {
		return nil, f, err
	}
	if len(places) == 1 {
		f = f.Alone(places[0])
	}
	list := make([]Rank, len(places))
	for i, p := range places {
		if list[i], err = openRank(&f, i, p); err != nil {
			CloseRanks(list)
			break
		}
	}
	if errors.Is(err, ErrNoGPU) && f.Device == config.CUDA {
		r.Notice(fmt.Sprintf("%v; running on the CPU", err))
		return make([]Rank, f.RankCount()), f.OnProcessor(), nil
	}
	return list, f, err
}

// CloseRanks closes the GPUs of ranks.
func CloseRanks(list []Rank) {
	for _, r := range list {
		if r.GPU != nil {
			r.GPU.Close()
		}
	}
}

// FactsOf describes the GPUs of ranks to a case.
func FactsOf(list []Rank, c *config.Case) {
	c.Ranks = make([]config.RankFacts, len(list))
	for i, r := range list {
		if r.GPU != nil {
			c.Ranks[i] = config.RankFacts{Name: r.GPU.Describe(), Memory: r.GPU.Memory().Total, Capacity: r.GPU.Capacity()}
		}
	}
	c.Rank = c.Ranks[0]
}
