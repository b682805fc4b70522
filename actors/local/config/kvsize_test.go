package config

import (
	"strings"
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages/load"
	"krater/stages/model"
)

// windowedModel has gpt-oss's layers: every other one sees a window, in all of them where full is
// false.
func windowedModel(context, window int, full bool) *model.Config {
	cfg := &model.Config{Hidden: 64, Vocab: 64, MaxContext: context}
	moe := model.MoE{Experts: 2, FF: 32, Router: device.Router{Experts: 2, TopK: 1}}
	cfg.Stack(4, nil, func(i int) (model.Mixer, model.FFN) {
		a := model.GQA{Heads: 4, KVHeads: 2, HeadDim: 16, Window: window, Rope: &model.RopeConfig{Dim: 16}}
		if full && i%2 == 1 {
			a.Window = 0
		}
		return a, moe
	})
	return cfg
}

// TestWindowMemory: the memory of layers with a window does not grow with the context that a
// sequence may have; a small cache is as it would be without windows.
func TestWindowMemory(t *testing.T) {
	const row = 2 * 2 * 16 * 2 // keys and values of a layer, BF16
	planned := func(context, window int, full, all bool) (bytes int64, o load.Options) {
		f := Default()
		f.MaxSeqs, f.KVDType, f.BlockTokens = 2, "bf16", 16
		cfg := windowedModel(context, window, full)
		o, err := f.LoadOptions(cfg, Case{AllRows: all}, Steps{Chunk: 256}, 0)
		if err != nil {
			t.Fatal(err)
		}
		o.Precision, o.Layers = load.Precision{}, len(cfg.Layers)
		needs, err := load.Plan(cfg, o, load.Use{})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range needs {
			if n.Part == load.KVCache {
				bytes = n.Bytes
			}
		}
		if want := KVSizeOf(cfg, &o).Bytes(int64(o.Blocks)); bytes != want {
			t.Errorf("context %d, window %d: a cache of %d bytes, sized for %d", context, window, bytes, want)
		}
		return bytes, o
	}
	for full, layers := range map[bool]int64{true: 2, false: 0} {
		base, o := planned(1<<14, 128, full, false)
		if o.WindowBlocks < 2*(128/16+1)+256/16 || o.WindowBlocks > 100 {
			t.Errorf("%d window blocks", o.WindowBlocks)
		}
		for _, context := range []int{1 << 15, 1 << 17} {
			if got, _ := planned(context, 128, full, false); got-base != 2*int64(context-1<<14)*layers*row {
				t.Errorf("context %d takes %d bytes more than %d, %d for layers that see all of it", context, got-base, 1<<14, layers)
			}
		}
	}
	for _, c := range []struct{ context, window int }{{1 << 14, 0}, {1 << 12, 1 << 12}, {64, 32}} {
		for _, all := range []bool{false, true} {
			if got, _ := planned(c.context, c.window, true, all); got != 2*int64(c.context)*4*row {
				t.Errorf("context %d, window %d: %d bytes", c.context, c.window, got)
			}
		}
	}
}

// TestKVSize: as many blocks fit into memory as it has room for, and no more.
func TestKVSize(t *testing.T) {
	for _, k := range []KVSize{{Block: 7}, {Block: 7, Window: 5, Windows: 10}, {Window: 5, Windows: 10}} {
		for bytes := range int64(300) {
			n := k.Blocks(bytes)
			if k.Bytes(n) > bytes || k.Block > 0 && k.Bytes(n+1) <= bytes {
				t.Errorf("%+v: %d blocks in %d bytes", k, n, bytes)
			}
		}
	}
	if k := (KVSize{Block: 7, Window: 5, Windows: 10}); k.HostBlock(9) != 12 || k.HostBlock(10) != 7 {
		t.Errorf("blocks in host memory take %d and %d bytes", k.HostBlock(9), k.HostBlock(10))
	}
	f := Default()
	f.MaxSeqs, f.KVCache, f.BlockTokens = 2, 1<<20, 16
	cfg := windowedModel(1<<12, 128, false)
	if o, err := f.LoadOptions(cfg, Case{KVType: tensor.BF16}, Steps{Chunk: 256}, 0); err != nil || o.Blocks != 2*(1<<12)/16 {
		t.Errorf("%d blocks for two contexts of 4096, all windows: %v", o.Blocks, err)
	}
}

// TestWindowBlocksFit: if memory is short, fewer window blocks are left for earlier requests. Only if not
// even the windows of all sequences fit do layers with a window keep the rows of all tokens.
func TestWindowBlocksFit(t *testing.T) {
	const block = 4 * 16 * 2 * 2 * 16 * 2 // of all four layers
	for _, full := range []bool{true, false} {
		cfg := windowedModel(1<<12, 1<<10, full)
		f := Default()
		f.MaxSeqs, f.BlockTokens = 2, 16
		before := 0
		for blocks := 100; blocks < 600; blocks += 7 {
			f.KVCache = Size(blocks * block)
			o, err := f.LoadOptions(cfg, Case{KVType: tensor.BF16}, Steps{Chunk: 256}, 0)
			if err != nil {
				t.Fatal(err)
			}
			if bytes := KVSizeOf(cfg, &o).Bytes(int64(o.Blocks)); bytes > int64(f.KVCache) || o.Blocks < before {
				t.Errorf("%d blocks, all windows %t: %d blocks, %d window blocks take %d of %d bytes", blocks, !full, o.Blocks, o.WindowBlocks, bytes, f.KVCache)
			}
			before = o.Blocks
			need := 2*((1<<10-1)/16+5) + (256+2+15)/16
			if blocks < need && o.Blocks != blocks || blocks >= need && (o.WindowBlocks < need || o.WindowBlocks > o.Blocks || !full && o.Blocks < 2*(1<<12)/16) {
				t.Errorf("%d blocks, all windows %t: %d blocks, %d window blocks, %d are needed", blocks, !full, o.Blocks, o.WindowBlocks, need)
			}
		}
	}
}

// TestRowsOnHost: where rows that an index chooses lie in host memory, --kv-ram bounds the blocks, and the device's memory
// has only index keys.
func TestRowsOnHost(t *testing.T) {
	const rows, keys, tokens = (64 + 16) * 2, 32 * 2, 16 // bytes of a token of a layer in BF16
	cfg := &model.Config{Hidden: 64, Vocab: 64, MaxContext: 4096}
	cfg.Stack(3, nil, func(int) (model.Mixer, model.FFN) {
		return model.MLA{Heads: 2, Nope: 16, RopeDim: 16, VDim: 16, KVRank: 64, QRank: 32, Rope: &model.RopeConfig{Dim: 16},
			Index: model.Indexer{Heads: 2, Dim: 32, TopK: 8}}, model.Dense{FF: 64}
	})
	f := Default()
	f.Device, f.SparseKV, f.MaxSeqs, f.KVDType, f.BlockTokens = CUDA, "host", 2, "bf16", tokens
	f.KVRAM = 20*3*rows*tokens + 1
	o, err := f.LoadOptions(cfg, Case{}, Steps{Chunk: 256}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if size := KVSizeOf(cfg, &o); o.Blocks != 20 || o.HostBlocks != 0 || o.ChosenRow != rows || size.Block != 3*keys*tokens {
		t.Errorf("%d blocks of %d bytes, %d blocks evicted to the host, rows of %d bytes", o.Blocks, size.Block, o.HostBlocks, o.ChosenRow)
	}
	f.KVRAM = 3*rows*tokens - 1
	if _, err := f.LoadOptions(cfg, Case{}, Steps{Chunk: 256}, 0); err == nil || !strings.Contains(err.Error(), "one block of 16 tokens needs 7680 bytes") {
		t.Errorf("%v", err)
	}
	if _, err := f.LoadOptions(windowedModel(4096, 0, true), Case{}, Steps{Chunk: 256}, 0); err == nil || !strings.Contains(err.Error(), "no sparse attention") {
		t.Errorf("%v", err)
	}
	f.KVRAM = 0
	if err := f.Check(); err == nil || !strings.Contains(err.Error(), "--kv-ram says") {
		t.Errorf("%v", err)
	}
}
