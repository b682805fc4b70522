package model

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"krater/bench/plot"
)

// TestCardCharts: every figure of a report is drawn, streams apart, and the files can be made.
func TestCardCharts(t *testing.T) {
	r := &GPUReport{
		Prefill: []GPUPrefill{{Tokens: 512, TokS: 40000}, {Tokens: 2048, TokS: 60000}},
		Decode:  []GPUDecode{{Streams: 1, Context: 512, TokS: 900}, {Streams: 1, Context: 2048, TokS: 800}, {Streams: 32, Context: 512, TokS: 6000}},
	}
	charts := r.Charts()
	if len(charts) != 2 || len(charts[1].Series) != 2 || !slices.Equal(charts[1].Series[0].Y, []float64{900, 800}) ||
		!slices.Equal(charts[0].Series[0].X, []float64{512, 2048}) {
		t.Fatalf("%+v", charts)
	}
	if err := plot.Save(filepath.Join(t.TempDir(), "card.svg"), charts...); err != nil {
		t.Error(err)
	}
	if got := (&GPUReport{}).Charts(); len(got) != 0 {
		t.Errorf("an empty report draws %+v", got)
	}
}

// TestCardParts: operators by falling time within a step, steps in the order of their measuring.
func TestCardParts(t *testing.T) {
	r := &GPUReport{Operators: []GPUPart{{Of: "b", Op: "x", MS: 1}, {Of: "b", Op: "y", MS: 3}, {Of: "a", Op: "z", MS: 2}, {Of: "a", Op: "w", MS: 9}}}
	var text strings.Builder
	if err := r.Text(&text); err != nil {
		t.Fatal(err)
	}
	at := -1
	for _, op := range []string{"y", "x", "w", "z"} {
		i := strings.Index(text.String(), op+"  ")
		if i <= at {
			t.Fatalf("%s is not where it belongs in\n%s", op, text.String())
		}
		at = i
	}
}

// TestCardBlocks: the cache holds what is measured, several streams only where they are.
func TestCardBlocks(t *testing.T) {
	o := GPUOptions{Prefill: []int{10000}, Decode: 10, Batch: []int{1, 32}, Context: []int{2048, 32768}}
	if got, want := o.pairs(), [][2]int{{1, 2048}, {1, 32768}, {32, 2048}}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got, want := o.Blocks(32), 32*((2048+16+31)/32); got != want {
		t.Errorf("%d blocks, want %d", got, want)
	}
}
