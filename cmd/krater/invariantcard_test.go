//go:build cuda

package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"krater/actors/local/config"
	"krater/kernels/cuda"
	"krater/kernels/tensor"
	"krater/stages/drive"
)

// cardTable is a model on a GPU.
func cardTable(t *testing.T, dir string, args ...string) *table {
	t.Helper()
	return tableOf(t, dir, append([]string{"--device", "cuda", "--kv-cache", "4MiB", "--max-seqs", "16", "--prefill-chunk", "128"}, args...)...)
}

// TestBatchInvariantOnCard: on a GPU answers have the bits that they have alone with
// --batch-invariant, whatever requests come at once or in turn and however prompts are cut, and
// without it they do not, by which this test is known to see something.
func TestBatchInvariantOnCard(t *testing.T) {
	cardFor(t, cuda.Options{}).Close()
	equal := 8
	if testing.Short() {
		equal = 3
	}
	list, dir := company(equal, 3, 2, 40, 9), lessTiny(t)
	for _, g := range list {
		lessOf(g.prompt)
	}
	x := cardTable(t, dir, "--batch-invariant")
	want := x.alone(t, list)
	if who := differences(want, x.together(t, list, false)); who != nil {
		t.Errorf("guests %v are answered something else than alone", who)
	}
	x.tokensOnly = true // which the GPU chooses, a step ahead
	first := equal - 2
	for i, a := range x.together(t, list[first:], false) {
		if a.text == "" || a.text != want[first+i].text {
			t.Errorf("guest %d: the GPU chose %q, the host %q", first+i, a.text, want[first+i].text)
		}
	}
	if !testing.Short() { // TestFormsOnCard has chunks
		x = cardTable(t, dir, "--batch-invariant", "--prefill-chunk", "16", "--prefill-share", "7")
		if who := differences(want[equal-3:], x.together(t, list[equal-3:], true)); who != nil {
			t.Errorf("small chunks, in turn: guests %v are answered something else than alone", who)
		}
	}
	x = cardTable(t, dir)
	list = list[equal-1:]
	others := company(0, 3, 50, 31)
	for _, g := range others {
		lessOf(g.prompt)
	}
	if who := differences(x.alone(t, list), x.together(t, append(list, others...), false)[:len(list)]); who == nil {
		t.Error("without --batch-invariant all answers are the same in company, too: this test shows nothing")
	}
}

// TestFormsOnCard: the same without actors for a model of the sizes that the fast kernels are made
// for, over every row of logits.
func TestFormsOnCard(t *testing.T) {
	d := onCardBy(t, latentModel(t), cardPrecisions["int4 g128"], tensor.F8E4M3, cuda.Options{Invariant: true})
	var alone []answered
	lengths := []int{5, 33, 100} // rising: drive has them in this order, generated rows first
	for i, n := range lengths {
		alone = append(alone, runOn(t, d, randomTokens(n, i), 3+len(lengths)-i, 0))
	}
	for _, chunk := range []int{0, 40} {
		var seqs []*drive.Sequence
		got := make([]answered, len(lengths))
		for i, n := range lengths {
			seqs = append(seqs, &drive.Sequence{Prompt: randomTokens(n, i), New: len(alone[i].ids), See: func(pos int, row []float32) {
				if pos >= n-1 {
					got[i].rows = append(got[i].rows, slices.Clone(row))
				}
			}})
		}
		if err := drive.Run(d, seqs, drive.Options{Chunk: chunk}); err != nil {
			t.Fatal(err)
		}
		for i, s := range seqs {
			if !slices.Equal(s.Out, alone[i].ids) || !slices.EqualFunc(got[i].rows, alone[i].rows, slices.Equal) {
				t.Errorf("chunks of %d: the prompt of %d tokens has other logits than alone", chunk, lengths[i])
			}
		}
	}
}

// TestPreemptedOnCard: those who give up their memory and have it computed again, generated rows
// one at a time, go on with the bits they would have had.
func TestPreemptedOnCard(t *testing.T) {
	if testing.Short() {
		t.Skip("some 40 steps of an emulated GPU")
	}
	cardFor(t, cuda.Options{}).Close()
	const tokens = 9
	list := []guest{{prompt: randomIDs(6, 1), tokens: tokens}, {prompt: randomIDs(7, 2), tokens: tokens, temperature: 0.9}}
	x := cardTable(t, modelDir, "--batch-invariant", "--block-tokens", "4", "--kv-cache", fmt.Sprint(config.Size(6*blockOf4)), "--no-prefix-cache", "--max-seqs", "2")
	want := x.alone(t, list)
	if who := differences(want, x.together(t, list, false)); who != nil {
		t.Errorf("guests %v are answered something else than alone", who)
	}
	if n := x.gw.Stats().Preemptions; n == 0 {
		t.Error("no request was preempted")
	}
}

// TestBatchInvariantIsRefused: where it could not be kept, by name.
func TestBatchInvariantIsRefused(t *testing.T) {
	for _, args := range [][]string{
		{"bench", "--device", "cuda", "--max-seqs", "65"}, {"run", "--reuse-answers", "Hello"},
		{"run", "--device", "cuda", "--kv-cache", "4MiB", "--expert-vram", fmt.Sprint(70 * expertTiny), "--prefill-strategy", "layer_grouped", "--decode-strategy", "cpu_only", "Hello"},
	} {
		o := krater(t, "", append(args, "--batch-invariant")...)
		if o.status == 0 || !strings.Contains(o.err, "--batch-invariant: ") {
			t.Errorf("%q: %+v", args, o)
		}
	}
}
