//go:build cuda

package main

import (
	"slices"
	"testing"

	"krater/actors/placement"
	"krater/kernels/cpu"
	"krater/kernels/cuda"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/arena"
	"krater/stages/load"
)

// opened is a model of which some blocks may be used.
type opened struct {
	*placement.Model
	blocks int
}

func (m opened) Limits() stages.Limits {
	l := m.Model.Limits()
	l.Blocks = m.blocks
	return l
}

// TestExchangeOnCard: KV blocks take memory of experts on a GPU and give it back. Sequences whose rows lie there get the tokens that they get
// with all experts on the GPU, and nothing is allocated.
func TestExchangeOnCard(t *testing.T) {
	const n, threshold = 3, 30
	prompts, least, most := [][]int32{randomTokens(6, 2), randomTokens(200, 1), randomTokens(6, 3)}, 8, 24
	if testing.Short() {
		prompts[1], least, most = prompts[1][:90], 3, 20 // as many shared slots
	}
	var want [][]int32
	t.Run("all of them", func(t *testing.T) {
		all := besideCard(t, load.Precision{}, 0, cuda.Options{F32: true})(t, placement.Options{Prefill: chosen(t, "persistent"), Decode: chosen(t, "persistent"), Threshold: threshold})
		for _, p := range prompts {
			want = append(want, runOn(t, all.Model, p, n, 0).ids)
		}
	})
	m := latentModel(t)
	host, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { host.Close() })
	c := cardFor(t, cuda.Options{F32: true})
	lo := load.Options{Limits: stages.Limits{Tokens: 257, Seqs: 9, LogitRows: 66, Blocks: most, BlockTokens: 16}, KVType: tensor.BF16, Routed: host}
	step, err := load.SlotBytes(m.Config, lo.Precision)
	if err != nil {
		t.Fatal(err)
	}
	lo.Arena = &arena.Layout{Step: int(step), Plain: 4, Blocks: lo.Blocks, Least: least, Caches: load.CacheBlocks(m.Config, &lo)}
	l, err := m.LoadCard(c, host, lo, tensor.Format{}, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	place, err := placement.New(c, host, l.Parts, placement.Options{
		Prefill: chosen(t, "layer_grouped"), Decode: chosen(t, "learned"), Threshold: threshold, Budget: int64(lo.Arena.Plain+len(lo.Arena.Shared())) * step,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(place.Close)
	model, err := placement.NewModel(c, host, l.Parts, place)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(model.Close)
	first := place.Blocks()
	for i, blocks := range []int{0, lo.Blocks, 0} {
		used := c.Memory().Used
		if err := place.Exchange(blocks); err != nil {
			t.Fatal(err)
		}
		if now := c.Memory().Used; now != used {
			t.Errorf("%d blocks: %d bytes in use, then %d", blocks, used, now)
		}
		if now := place.Blocks(); now != place.BlocksFor(blocks) || (blocks > 0) != (now > first) || blocks > 0 && now*16 < len(prompts[1])+n {
			t.Fatalf("%d blocks, %d at first", now, first)
		}
		if got := runOn(t, opened{model, place.Blocks()}, prompts[i], n, 0).ids; !slices.Equal(got, want[i]) {
			t.Errorf("prompt %d: %v, want %v", i, got, want[i])
		}
	}
}
