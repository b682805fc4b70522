//go:build cuda

package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"krater/kernels/cuda"
)

// sameHeat compares the counts of a text on a GPU with those on the processor.
func sameHeat(t *testing.T, name string, got, want heatJSON) {
	t.Helper()
	if got.Tokens != want.Tokens || got.Identity != want.Identity || len(got.Layers) != len(want.Layers) {
		t.Fatalf("%s: %+v, on the processor %+v", name, got, want)
	}
	for i, l := range got.Layers {
		if l.Tokens != want.Layers[i].Tokens || !slices.Equal(l.Counts, want.Layers[i].Counts) {
			t.Errorf("%s, layer %d: %d tokens %v, on the processor %d %v", name, l.Layer, l.Tokens, l.Counts, want.Layers[i].Tokens, want.Layers[i].Counts)
		}
	}
}

// TestCardHeatmap: the choices that a GPU reports at the end of a step equal those that the processor
// counts, wherever the experts are. Steps in which the host takes part are counted once. Prompts come in
// batches of 16 rows and less, and in pieces of 7.
func TestCardHeatmap(t *testing.T) {
	cardFor(t, cuda.Options{}).Close()
	tokens := 40
	if testing.Short() {
		tokens = 30
	}
	args := []string{"heatmap", "--model", lessTiny(t), "--json", "--kv-dtype", "f32", "--tokens", fmt.Sprint(tokens), "--window", "23", "--prefill-chunk", "16"}
	want := decode[heatJSON](t, answers(t, "", args...))
	if want.Tokens != uint64(tokens) {
		t.Fatalf("%+v", want)
	}
	for name, flags := range map[string][]string{
		"resident":   nil,
		"pieces":     {"--prefill-chunk", "7", "--prefill-pass", "23", "--gpu-prefill-threshold", "20", "--prefill-strategy", "layer_grouped", "--decode-strategy", "lru"},
		"copied":     {"--prefill-strategy", "active_only", "--decode-strategy", "active_only"},
		"host calls": {"--prefill-strategy", "hot_cached_static", "--decode-strategy", "hot_cached_static", "--expert-vram", fmt.Sprint(besideSlots() / 2 * expertTiny)},
	} {
		t.Run(name, func(t *testing.T) {
			sameHeat(t, name, decode[heatJSON](t, answers(t, "", slices.Concat(args, []string{"--device", "cuda", "--rows", "f32"}, flags)...)), want)
		})
	}
}

// TestCardServesHeat: a server on a GPU keeps the map of what it serves, prompts in chunks and
// generated rows, whose steps soon are graphs: as one on the processor does.
func TestCardServesHeat(t *testing.T) {
	cardFor(t, cuda.Options{}).Close()
	dir := fewLayers(t)
	served := func(flags ...string) heatJSON {
		path := filepath.Join(t.TempDir(), "served.heat")
		s := open(t, append([]string{"--model", dir, "--kv-dtype", "f32", "--max-seqs", "2", "--prefill-chunk", "16", "--kv-cache", "1MiB",
			"--heat-file", path, "--heat-sample", "1"}, flags...)...)
		for range 2 {
			s.reply(t, routes[2], greedy("A lighthouse is a tower, a beacon at the edge of the sea, and a river is a stream", 12).with("ignore_eos", true))
		}
		if err := s.stop(); err != nil {
			t.Fatal(err)
		}
		return decode[heatJSON](t, answers(t, "", "heatmap", "--model", dir, "--json", "--load", path))
	}
	want := served()
	if want.Tokens < 2*(16+11) {
		t.Fatalf("%d tokens", want.Tokens)
	}
	sameHeat(t, "resident", served("--device", "cuda", "--rows", "f32"), want)
	if testing.Short() {
		return // TestCardHeatmap has experts placed
	}
	sameHeat(t, "placed", served("--device", "cuda", "--rows", "f32", "--prefill-strategy", "layer_grouped", "--decode-strategy", "hot_cached_static"), want)
}
