//go:build cuda

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"krater/actors/local/config"
	"krater/kernels/cuda"
	"krater/kernels/tensor"
	"krater/stages/model"
	"krater/stages/source"
	"krater/stages/synth"
)

// windowedDir is windowModel as a folder.
func windowedDir(t *testing.T, window int) string {
	t.Helper()
	m, dir := windowModel(t, window), filepath.Join(t.TempDir(), "windowed")
	f := synth.Folder{Dir: dir, Threads: 2, Files: map[string][]byte{"tokenizer.json": source.MadeTokenizer(m.Config.Vocab)}}
	if err := m.WriteSafetensors(context.Background(), f); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestWindowBlocksServedOnCard: requests to a model with window blocks are answered on a GPU, to the bit,
// as alone: after prefixes are reused from the GPU and from host memory, and after one has lost its
// blocks to another.
func TestWindowBlocksServedOnCard(t *testing.T) {
	cardFor(t, cuda.Options{}).Close()
	const window, blockTokens, blocks, windows = 8, 4, 26, 23
	dirs := []string{windowedDir(t, window)}
	if !testing.Short() { // whose heads only the plain kernels take
		dirs = append(dirs, copyDir(t, filepath.Join("..", "..", "testdata", "goldens", "gpt_oss"), nil))
		writeIn(t, dirs[1], "tokenizer.json", string(source.MadeTokenizer(512)))
	}
	for _, dir := range dirs {
		text, err := os.ReadFile(filepath.Join(dir, "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := model.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		part := blockTokens * cfg.WindowTokenBytes(tensor.BF16)
		memory := config.KVSize{Block: blockTokens*cfg.KVBlockBytes(1, tensor.BF16) - part, Window: part, Windows: windows}.Bytes(blocks)
		s, p := startedOf(t, dir, "--device", "cuda", "--batch-invariant", "--kv-dtype", "bf16", "--block-tokens", fmt.Sprint(blockTokens), "--prefill-chunk", "16",
			"--max-seqs", "2", "--micro-batches", "1", "--kv-cache", fmt.Sprint(memory), "--kv-ram", "1MiB")
		gw, err := s.Gateway(p, "")
		if err != nil {
			t.Fatal(err)
		}
		x, watch := &table{gw: gw}, gw.Trace().Watch()
		list := []guest{{prompt: randomTokens(40, 1), tokens: 24}, {prompt: randomTokens(38, 2), tokens: 24, temperature: 0.9}, {prompt: randomTokens(30, 3), tokens: 4}}
		want, lim := x.alone(t, list), s.Parts.Limits
		first, st := gw.Stats(), gw.Stats()
		for i := 0; i < 20 && st.Preemptions == 0 && !t.Failed(); i++ { // on a busy machine they may come one after the other
			if who := differences(want, x.together(t, list, false)); who != nil {
				t.Errorf("guests %v are answered something else than alone", who)
			}
			st = gw.Stats()
		}
		blocksAreTraced(t, gw.Trace().Snapshot(0))
		watch()
		t.Logf("%d blocks, %d window blocks, %d preemptions, %d tokens from the cache", lim.Blocks, lim.WindowBlocks, st.Preemptions, st.PrefixHits)
		if lim.WindowBlocks != windows || lim.Blocks != blocks || first.PrefixHits != 0 || st.PrefixHits == 0 || st.Preemptions == 0 {
			t.Error("the test is too easy")
		}
	}
}
