//go:build cuda

package main

import (
	"fmt"
	"slices"
	"testing"

	"krater/actors/placement"
	"krater/kernels/cuda"
	"krater/scheduler/dispatch"
	"krater/stages/drive"
	"krater/stages/load"
)

// TestLearnedOnCard: while experts move between steps, sequences get the tokens that they get with all
// experts on the GPU, by graphs that were captured before the moves.
func TestLearnedOnCard(t *testing.T) {
	place := besideCard(t, load.Precision{}, 0, cuda.Options{F32: true})
	const threshold = 30
	n, prefills := 14, []string{"layer_grouped", "learned"}
	if testing.Short() {
		n, prefills = 4, prefills[:1]
	}
	prompts := [][]int32{randomTokens(32, 1), randomTokens(6, 2), randomTokens(6, 3), randomTokens(6, 4)}
	var want [][]int32
	var slot int64
	t.Run("all of them", func(t *testing.T) {
		all := place(t, placement.Options{Prefill: chosen(t, "persistent"), Decode: chosen(t, "persistent"), Threshold: threshold})
		slot = all.slot
		for _, p := range prompts {
			want = append(want, runOn(t, all.Model, p, n, 0).ids)
		}
	})
	for _, prefill := range prefills {
		t.Run(fmt.Sprint("prompts by ", prefill), func(t *testing.T) {
			m := place(t, placement.Options{Prefill: chosen(t, prefill), Decode: chosen(t, "learned"), Threshold: threshold, Budget: 10 * slot})
			stats := func() placement.Stats { return m.place.Stats(dispatch.Decode) }
			graphs, copies := 0, int64(0)
			for i, p := range prompts {
				if got := runOn(t, m.Model, p, n, 0).ids; !slices.Equal(got, want[i]) {
					t.Errorf("prompt %d: %v, want %v", i, got, want[i])
				}
				if i == 0 {
					graphs, copies = m.place.Device().Memory().Graphs, stats().Copies
				}
			}
			// Steps that copy for themselves have a graph of their own.
			if now, x := m.place.Device().Memory().Graphs, stats(); graphs == 0 || now > 2*graphs || x.Copies == copies || x.Misses == 0 {
				t.Errorf("%d graphs, then %d; %d copies, then %+v", graphs, now, copies, x)
			}
			if testing.Short() {
				return
			}
			var seqs []*drive.Sequence
			for _, p := range prompts {
				seqs = append(seqs, &drive.Sequence{Prompt: p, New: n})
			}
			if err := drive.Run(m.Model, seqs, drive.Options{}); err != nil {
				t.Fatal(err)
			}
			for i, s := range seqs {
				if !slices.Equal(s.Out, want[i]) {
					t.Errorf("together, prompt %d: %v, want %v", i, s.Out, want[i])
				}
			}
		})
	}
}
