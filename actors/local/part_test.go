package local

import (
	"context"
	"fmt"
	"testing"

	"github.com/rs/zerolog"

	"krater/actors/local/config"
	"krater/kernels/machine"
	"krater/models"
	"krater/scheduler/planner"
	"krater/stages"
	"krater/stages/load"
	"krater/stages/source"
)

// openPart loads a part of the built-in model, or of random weights where none is built in; nil: all of it.
func openPart(t *testing.T, device config.Kind, part *config.Part, change func(*config.Options)) *Model {
	t.Helper()
	c := Config{Options: config.Default(), Machine: machine.Here()}
	if _, err := models.Default(); err != nil { // of a binary for a machine with GPUs
		random := source.Synthetic{Shape: "deepseek-v2-lite", Layers: 4, Vocab: 1000, RoutingSkew: "uniform"}
		if c.Source, err = random.Source(); err != nil {
			t.Fatal(err)
		}
	}
	c.Part = part
	o := &c.Options
	o.Device, o.MaxSeqs, o.PrefillChunk, o.CacheDir = device, 4, 64, t.TempDir()
	o.DecodeStrategy, o.PrefillStrategy = "cpu_only", "cpu_only"
	if change != nil {
		change(o)
	}
	m, err := Load(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// TestParts: members of a cluster load their layers, the leader with the embedding and the head, all with the leader's limits; together
// they have the model once.
func TestParts(t *testing.T) {
	whole := openPart(t, config.CPU, nil, nil)
	leader := openPart(t, "cpu", &config.Part{Layers: 2, Ends: load.BothEnds}, nil)
	lim := leader.Parts.Limits
	worker := openPart(t, "hostsim,cpu", &config.Part{First: 2, Layers: len(whole.Config.Layers) - 2, Ends: load.NoEnds, Limits: lim}, nil)
	if p := leader.Parts; p.Embed == nil || p.Head == nil || len(p.Groups) != 1 || p.Groups[0].First != 0 || p.Groups[0].Last != 2 {
		t.Errorf("the leader has %+v", p)
	}
	at, weights := 2, leader.Parts.WeightBytes
	for i, p := range worker.Ranks {
		if p.Parts.Embed != nil || p.Parts.Head != nil || len(p.Parts.Groups) != 1 || p.Parts.Groups[0].First != at {
			t.Errorf("rank %d of the worker has %+v", i, p.Parts)
		}
		got, want := p.Parts.Limits, lim
		got.QuantGroup, got.Queues, want.QuantGroup, want.Queues = 0, 0, 0, 0
		if got != want {
			t.Errorf("rank %d of the worker has limits %+v, the leader %+v", i, got, want)
		}
		at, weights = p.Parts.Groups[0].Last, weights+p.Parts.WeightBytes
	}
	if at != len(whole.Config.Layers) {
		t.Errorf("the worker ends at layer %d", at)
	}
	if off := planner.Off(whole.Parts.WeightBytes, weights); off < -0.01 || off > 0.01 {
		t.Errorf("%d bytes of weights in parts, %d in the model", weights, whole.Parts.WeightBytes)
	}
	for _, bad := range []config.Part{{First: 1, Layers: len(whole.Config.Layers)}, {First: -1, Layers: 1}, {Layers: 0}} {
		c := Config{Options: config.Default(), Machine: machine.Here()}
		c.Part = &bad
		if _, err := Prepare(c); err == nil {
			t.Errorf("%+v was planned", bad)
		}
	}
}

// TestBlocksOfRanks: the rank with the least memory limits the KV cache of all, and the memory taken is as planned.
func TestBlocksOfRanks(t *testing.T) {
	for i, vram := range []string{"96MiB,64MiB", "64MiB,96MiB"} {
		m := openPart(t, "hostsim,hostsim", nil, func(o *config.Options) {
			if err := o.VRAM.UnmarshalText([]byte(vram)); err != nil {
				t.Fatal(err)
			}
			o.MaxSeqs, o.PPPartition = 32, "4,3"
		})
		if want := fmt.Sprintf("rank %d (hostsim)", 1-i); m.Plan.Limits != want {
			t.Errorf("--vram %s: %q limits the cache, want %q", vram, m.Plan.Limits, want)
		}
		blocks := func(l stages.Limits) int { return l.Blocks }
		if a, b := blocks(m.Ranks[0].Parts.Limits), blocks(m.Ranks[1].Parts.Limits); a != b || a != m.Plan.Load.Blocks {
			t.Errorf("--vram %s: %d and %d blocks, planned %d", vram, a, b, m.Plan.Load.Blocks)
		}
		p, err := m.Pipeline(zerolog.Nop())
		if err != nil {
			t.Fatal(err)
		}
		if u := m.MemoryUse(); u.Allocated != u.Promised || u.Allocated == 0 {
			t.Errorf("--vram %s: %d bytes promised, %d allocated", vram, u.Promised, u.Allocated)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}
