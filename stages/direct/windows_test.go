package direct_test

import (
	"fmt"
	"slices"
	"testing"

	"krater/kernels/tensor"
	"krater/stages/compare/goldens"
	"krater/stages/internal/refdevice"
	"krater/stages/load"
)

// TestWindowBlocksAreBitwiseEqual: a model has the same logits, to the bit, whether its layers with a
// window have few window blocks or keep all rows: for chunks of any size, every type of KV cache,
// and layers cut into groups. Window blocks take the planned memory, for a context of any length.
func TestWindowBlocksAreBitwiseEqual(t *testing.T) {
	windowed := 0
	for _, name := range goldens.Names(t) {
		dir := folder(name)
		cfg, _ := files(t, dir, "config.json")
		if cfg.Window() == 0 {
			continue
		}
		more := max(0, cfg.Window()-8+3) / 4 // blocks of a sequence, beside those for a window of 8
		windowed++
		prompts := texts(t, dir, 2)
		for i := range prompts {
			prompts[i] = slices.Concat(prompts[i], prompts[i], prompts[i])
		}
		for _, kv := range []tensor.DType{tensor.F32, tensor.BF16, tensor.F8E4M3, tensor.I8} {
			for what, dev := range map[string]load.Device{"cpu": processor(t, 2), "reference": refdevice.Device{}} {
				if what == "reference" && (testing.Short() || kv == tensor.F32) {
					continue
				}
				t.Run(fmt.Sprintf("%s, %s, %s", name, kv, what), func(t *testing.T) {
					o := load.Options{Limits: limits, KVType: kv}
					o.BlockTokens = 4
					o.Blocks = 200
					all := open(t, dev, dir, "config.json", o)
					want := recorded(t, all.model, prompts, 0)
					for _, c := range []struct {
						chunk, blocks int
						cut           []int
					}{{1, 2 * 3, nil}, {7, 2 * 5, halves(t, dir)}, {64, 2 * 19, nil}, {64, 2 * 4, halves(t, dir)}} {
						o.WindowBlocks, o.Partition = c.blocks+2*more, c.cut
						m := open(t, dev, dir, "config.json", o)
						windowMemory(t, m, all, o)
						for i, got := range recorded(t, m.model, prompts, c.chunk) {
							if !slices.Equal(got, want[i]) {
								t.Errorf("chunks of %d, %d window blocks: text %d has other bits", c.chunk, o.WindowBlocks, i)
							}
						}
					}
				})
			}
		}
	}
	if windowed < 3 {
		t.Errorf("%d models have windows", windowed)
	}
}

// windowMemory holds the KV caches of a model against its plan, and against those of the same model
// that keeps all rows.
func windowMemory(t *testing.T, m, all *opened, o load.Options) {
	t.Helper()
	bytes := func(m *opened) (n int64) {
		for _, g := range m.model.Parts.Groups {
			n += g.KVBytes()
		}
		return n
	}
	needs, err := load.Plan(m.cfg, o, load.Use{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range needs {
		if n.Part == load.KVCache && n.Bytes != bytes(m) {
			t.Errorf("%d bytes of KV cache, planned are %d", bytes(m), n.Bytes)
		}
	}
	saved := int64(o.Blocks-o.WindowBlocks) * int64(o.BlockTokens) * m.cfg.WindowTokenBytes(o.KVType)
	if got := bytes(all) - bytes(m); got != saved || saved == 0 {
		t.Errorf("window blocks save %d bytes, want %d", got, saved)
	}
}
