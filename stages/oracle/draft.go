package oracle

import (
	"errors"
	"slices"

	"krater/stages/model"
)

// ErrNoDraft: the model has no draft layer.
var ErrNoDraft = errors.New("oracle: the model has no draft layer")

// Draft returns the logits [T][V] of a model's draft layer (model.Draft) for the hidden states [T, H]
// that the model's head multiplies, and the tokens next [T] that follow them.
func Draft(cfg *model.Config, weight Weight, hidden []float64, next []int32) ([][]float64, error) {
	d := cfg.DraftModel()
	if d == nil {
		return nil, ErrNoDraft
	}
	stream := hidden
	for _, x := range []struct {
		layer int
		op    string
	}{{-1, "proj"}, {0, "layer_out"}, {-1, "logits"}} {
		l, err := New(d, weight, next, x.layer, func(_ int, op string) []float64 {
			if op == "hidden" || op == "proj" && x.layer == 0 || op == "layer_out" && x.op == "logits" {
				return stream
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if stream = l.Get(x.op); l.Err != nil {
			return nil, l.Err
		}
	}
	return slices.Collect(slices.Chunk(stream, cfg.Vocab)), nil
}
