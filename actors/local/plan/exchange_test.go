package plan

import (
	"testing"

	"krater/actors/local/config"
	"krater/stages/load"
)

// TestExchange: KV cache and experts that exchange memory take no more of it together than without, the cache has at least its size, and a
// server without that, or a command that fills in block tables itself, has no arena.
func TestExchange(t *testing.T) {
	args := []string{"--kv-cache", "600MiB", "--expert-vram", "3GiB", "--max-seqs", "48", "--prefill-strategy", "layer_grouped", "--decode-strategy", "learned"}
	c := config.Case{Rank: config.RankFacts{Name: "NVIDIA H200", Memory: 140 << 30, Capacity: 141 << 30}, Served: true}
	with, without := plannedFor(t, c, args...), plannedFor(t, c, append(args, "--no-exchange")...)
	a := with.Load.Arena
	if a == nil || without.Load.Arena != nil {
		t.Fatalf("%+v, %+v", a, without.Load.Arena)
	}
	if with.Load.Blocks <= without.Load.Blocks || a.Least != without.Load.Blocks {
		t.Errorf("%d to %d blocks, %d without", a.Least, with.Load.Blocks, without.Load.Blocks)
	}
	if with.Promised > without.Promised || with.Promised < without.Promised-int64(len(a.Caches)+1)*int64(a.Step) {
		t.Errorf("%d bytes, %d without", with.Promised, without.Promised)
	}
	slots, caches := a.Plain+len(a.Shared()), load.CacheBlocks(with.cfg, &with.Load)
	if out := with.Experts.outline; out.Slots != slots || !out.Lends || out.Lent > a.Plain || len(caches) != len(a.Caches) {
		t.Errorf("%d slots, %d lent, the arena has %d, %d not shared", out.Slots, out.Lent, slots, a.Plain)
	}
	t.Logf("%d to %d blocks, %d slots of which %d are shared, %d without", a.Least, with.Load.Blocks, slots, len(a.Shared()), without.Experts.outline.Slots)
	c.AllRows = true
	if p := plannedFor(t, c, args...); p.Load.Arena != nil {
		t.Error("an arena for block tables that a command fills in")
	}
}
