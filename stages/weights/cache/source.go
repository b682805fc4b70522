package cache

import (
	"fmt"

	"krater/kernels/tensor"
	"krater/stages/model"
	"krater/stages/weights"
	"krater/stages/weights/quant"
)

// Source gives experts as integers, in the plan's formats: W13 [2F, H] and
// W2 [H, F].
type Source interface {
	Expert(layer, expert int) (w13, w2 *quant.Matrix, err error)
}

// Weights is the Source of a model's float weights.
type Weights struct {
	Config *model.Config
	Set    *weights.Set
	Spec   quant.Spec
	Method Method
	// Stats gives what an expert saw on a calibration text, the inputs of W13 and of
	// W2 (calibration.Collector.Expert). Needed by Weighted and Feedback.
	Stats   func(layer, expert int) (in, mid *quant.Hessian, ok bool)
	Threads int // 0: all cores

	w13, w2 []float32
}

// Expert reads, joins and quantises one expert. It is not safe for concurrent use.
func (w *Weights) Expert(layer, e int) (w13, w2 *quant.Matrix, err error) {
	h, f := w.Config.Hidden, w.Config.MoE.FF
	if w.w13 == nil {
		w.w13, w.w2 = make([]float32, 2*f*h), make([]float32, h*f)
	}
	n := w.Config.ExpertNames(layer, e)
	for _, x := range []struct {
		name string
		dst  []float32
	}{{n.Gate, w.w13[:f*h]}, {n.Up, w.w13[f*h:]}, {n.Down, w.w2}} {
		t, ok := w.Set.Tensor(x.name)
		if !ok {
			return nil, nil, fmt.Errorf("cache: %w: %s", model.ErrTensorMissing, x.name)
		}
		if err := tensor.Widen(x.dst, t.DType, t.Data); err != nil {
			return nil, nil, fmt.Errorf("cache: %s: %w", x.name, err)
		}
		w.Set.Release(x.name) // a conversion must not gather the whole source in memory
	}
	var in, mid *quant.Hessian
	if w.Method >= Weighted {
		var ok bool
		if w.Stats == nil {
			return nil, nil, fmt.Errorf("cache: %s needs a calibration text", w.Method)
		}
		if in, mid, ok = w.Stats(layer, e); !ok {
			return nil, nil, fmt.Errorf("cache: the calibration text does not reach layer %d", layer)
		}
	}
	if w13, err = w.quantize(w.w13, 2*f, h, in); err != nil {
		return nil, nil, fmt.Errorf("cache: %s and %s: %w", n.Gate, n.Up, err)
	}
	if w2, err = w.quantize(w.w2, h, f, mid); err != nil {
		return nil, nil, fmt.Errorf("cache: %s: %w", n.Down, err)
	}
	return w13, w2, nil
}

func (w *Weights) quantize(x []float32, rows, cols int, stats *quant.Hessian) (*quant.Matrix, error) {
	o := quant.Options{Threads: w.Threads}
	switch w.Method {
	case Absmax:
		o.Method = quant.Absmax
	case Weighted:
		o.Weight = stats.Diagonal()
	case Feedback:
		return quant.Feedback(x, rows, cols, w.Spec, stats, quant.FeedbackOptions{Threads: w.Threads})
	}
	return quant.Quantize(x, rows, cols, w.Spec, o)
}
