package cache

import (
	"fmt"

	"krater/kernels/tensor"
	"krater/stages/model"
	"krater/stages/weights"
	"krater/stages/weights/quant"
)

// Source gives experts in the plan's format: W13 [2F, H] and W2 [H, F].
type Source interface {
	Expert(layer, expert int) (w13, w2 *tensor.Matrix, err error)
}

// Respec is a Source that can give its experts in other formats as well. The two are
// asked in turn for the same expert and may share what they read for it.
type Respec interface {
	As(f tensor.Format) Source
}

// Packer is a Source that has experts packed for a CPU already, or as fast as any other way.
// Such files ask it instead of Expert.
type Packer interface {
	// Pack writes every byte of values and scales.
	Pack(layer, expert int, w13, w2 Packed) error
}

// Packed is memory for a matrix, as long as its layout says.
type Packed struct {
	tensor.Layout
	Values, Scales []byte
}

// Weights is the Source of a model's float weights.
type Weights struct {
	Config *model.Config
	Set    *weights.Set
	Format tensor.Format
	Method Method
	// Stats gives what an expert saw on a calibration text, the inputs of W13 and of
	// W2 (calibration.Collector.Expert). Needed by Weighted and Feedback.
	Stats   func(layer, expert int) (in, mid *quant.Hessian, ok bool)
	Threads int // 0: all cores

	*floats
}

// floats are the weights of the expert read last.
type floats struct {
	layer, expert int // of valid weights
	valid         bool
	w13, w2       []float32 // [2F, H], [H, F]
}

// As returns the same experts in another format. What was read for the one serves the
// other; they are not to be used at the same time.
func (w *Weights) As(f tensor.Format) Source {
	w.room()
	other := *w
	other.Format = f
	return &other
}

func (w *Weights) room() {
	if h, f := w.Config.Hidden, w.Config.MoE.FF; w.floats == nil {
		w.floats = &floats{w13: make([]float32, 2*f*h), w2: make([]float32, h*f)}
	}
}

// read widens the weights of an expert, unless they were read last.
func (w *Weights) read(layer, e int, n model.FFNNames) error {
	w.room()
	if w.valid && w.layer == layer && w.expert == e {
		return nil
	}
	w.valid = false
	half := len(w.w13) / 2
	for _, x := range []struct {
		name string
		dst  []float32
	}{{n.Gate, w.w13[:half]}, {n.Up, w.w13[half:]}, {n.Down, w.w2}} {
		t, ok := w.Set.Tensor(x.name)
		if !ok {
			return fmt.Errorf("cache: %w: %s", model.ErrTensorMissing, x.name)
		}
		if err := t.Floats(x.dst, 0); err != nil {
			return fmt.Errorf("cache: %s: %w", x.name, err)
		}
		w.Set.Release(x.name) // a conversion must not gather the whole source in memory
	}
	w.layer, w.expert, w.valid = layer, e, true
	return nil
}

// Expert reads, joins and quantises one expert. It is not safe for concurrent use.
func (w *Weights) Expert(layer, e int) (w13, w2 *tensor.Matrix, err error) {
	h, f := w.Config.Hidden, w.Config.MoE.FF
	n := w.Config.ExpertNames(layer, e)
	if w13, err = w.exact(h, n.Gate, n.Up); err == nil {
		w2, err = w.exact(f, n.Down)
	}
	if err != nil || w13 != nil && w2 != nil {
		return w13, w2, err
	}
	if err := w.read(layer, e, n); err != nil {
		return nil, nil, err
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
	if w13 == nil {
		if w13, err = w.quantize(w.w13, 2*f, h, in); err != nil {
			return nil, nil, fmt.Errorf("cache: %s and %s: %w", n.Gate, n.Up, err)
		}
	}
	if w2 == nil {
		if w2, err = w.quantize(w.w2, h, f, mid); err != nil {
			return nil, nil, fmt.Errorf("cache: %s: %w", n.Down, err)
		}
	}
	return w13, w2, nil
}

// exact returns the rows of tensors whose stored integers the format has.
func (w *Weights) exact(cols int, names ...string) (*tensor.Matrix, error) {
	var list []weights.Tensor
	for _, name := range names {
		t, _ := w.Set.Tensor(name)
		list = append(list, t)
	}
	m, err := weights.Exactly(w.Format, cols, list...)
	if err != nil {
		return nil, fmt.Errorf("cache: %s: %w", names[0], err)
	}
	if m != nil {
		for _, name := range names {
			w.Set.Release(name)
		}
	}
	return m, nil
}

func (w *Weights) quantize(x []float32, rows, cols int, stats *quant.Hessian) (*tensor.Matrix, error) {
	o := quant.Options{Threads: w.Threads}
	switch w.Method {
	case Absmax:
		o.Method = quant.Absmax
	case Weighted:
		o.Weight = stats.Diagonal()
	case Feedback:
		return quant.Feedback(x, rows, cols, w.Format, stats, quant.FeedbackOptions{Threads: w.Threads})
	}
	return quant.Quantize(x, rows, cols, w.Format, o)
}
