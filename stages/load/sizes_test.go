package load_test

import (
	"testing"

	"krater/stages"
	"krater/stages/load"
	"krater/stages/model"
)

// TestStepSizesAreOfPieces: operators with scratch memory see as many rows as layers do.
func TestStepSizesAreOfPieces(t *testing.T) {
	cfg := &model.Config{Hidden: 8, Vocab: 16}
	for window, want := range map[int]int{0: 64, 24: 24, 100: 64} {
		if got := load.StepSizes(cfg, stages.Limits{Tokens: 64, Window: window, Seqs: 2, Blocks: 8, BlockTokens: 4}).Rows; got != want {
			t.Errorf("layers that see %d of 64 rows: %d, want %d", window, got, want)
		}
	}
}
