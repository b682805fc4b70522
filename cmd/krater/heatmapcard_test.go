//go:build cuda

package main

import (
	"path/filepath"
	"slices"
	"testing"

	"krater/kernels/cuda"
)

// TestCardHeatmap: what a card is asked for after every layer is what the processor
// counts. A server on a card leaves a map as it is.
func TestCardHeatmap(t *testing.T) {
	cardFor(t, cuda.Options{}).Close()
	args := []string{"heatmap", "--json", "--kv-dtype", "f32", "--tokens", "24", "--window", "16"}
	want := decode[heatJSON](t, answers(t, "", args...))
	path := filepath.Join(t.TempDir(), "card.heat")
	got := decode[heatJSON](t, answers(t, "", append(args, "--device", "cuda", "--rows", "f32", "--save", path)...))
	if got.Tokens != 24 || got.Identity != want.Identity || len(got.Layers) != len(want.Layers) {
		t.Fatalf("%+v", got)
	}
	for i, l := range got.Layers {
		if !slices.Equal(l.Counts, want.Layers[i].Counts) {
			t.Errorf("layer %d: %v, on the processor %v", l.Layer, l.Counts, want.Layers[i].Counts)
		}
	}
	s := open(t, "--device", "cuda", "--rows", "f32", "--max-seqs", "1", "--prefill-chunk", "16", "--kv-cache", "1MiB", "--heat-file", path)
	s.log.wait(t, "stays as it is", s.done)
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if m := decode[heatJSON](t, answers(t, "", "heatmap", "--json", "--load", path)); m.Tokens != 24 {
		t.Errorf("%d tokens in the file, want 24", m.Tokens)
	}
}
