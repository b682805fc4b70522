// Package loss measures what a number format of routed experts costs golden models, and tells rounded
// weights, rounded rows and other choices of experts apart. It computes by definition, in float64
// (stages/oracle), so the engine has no part in it.
package loss

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"

	"krater/kernels/tensor"
	"krater/stages/compare"
	"krater/stages/model"
	"krater/stages/oracle"
	"krater/stages/weights"
	"krater/stages/weights/cache"
	"krater/stages/weights/scaled"
)

// ErrDense: a model without routed experts.
var ErrDense = errors.New("loss: no routed experts")

// Model is a golden model. The caller closes it.
type Model struct {
	Config *model.Config
	Golden *compare.Golden

	set     *weights.Set
	tensors map[string][]float32 // that have been read
	experts map[string]place     // matrices of routed experts
}

// place of a matrix.
type place struct{ layer, expert int }

// Open reads a folder with a model and its golden vectors.
func Open(dir string) (*Model, error) {
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return nil, err
	}
	m := &Model{tensors: map[string][]float32{}, experts: map[string]place{}}
	if m.Config, err = model.Parse(data); err != nil {
		return nil, err
	}
	if m.Config.MoE.Experts == 0 {
		return nil, fmt.Errorf("%w: %s", ErrDense, dir)
	}
	if m.Golden, err = compare.ReadGolden(dir); err != nil {
		return nil, err
	}
	for i := range m.Config.Layers {
		if m.Config.Layers[i].FFN.Routed() == 0 {
			continue
		}
		for e := range m.Config.MoE.Experts {
			n := m.Config.ExpertNames(i, e)
			for _, name := range []string{n.Gate, n.Up, n.Down} {
				m.experts[name] = place{i, e}
			}
		}
	}
	m.set, err = scaled.Open(dir)
	return m, err
}

// Close unmaps the files.
func (m *Model) Close() { m.set.Close() }

// weight is a tensor of the files.
func (m *Model) weight(name string) ([]float32, error) {
	if w, ok := m.tensors[name]; ok {
		return w, nil
	}
	w, err := compare.Weights(m.set)(name)
	m.tensors[name] = w
	return w, err
}

// Rounding says which parts of routed experts are rounded. The zero Rounding rounds nothing.
type Rounding struct {
	Weights tensor.Format // in which a load keeps them; zero: they are not
	Rows    tensor.Format // the format in whose groups input rows become integers of 8 bits; zero: they do not
}

// Result is the logits of a text and the experts of each token, by layer.
type Result struct {
	Logits  [][]float64
	Choices map[int][][]int
}

// Run computes a text. choices, if not nil, replace those of the routers.
func (m *Model) Run(ids []int32, r Rounding, choices map[int][][]int) (out Result, err error) {
	v := oracle.Variant{Choices: choices}
	if !r.Rows.Zero() {
		v.Feed = oracle.Rounded(func(row []float64) { roundRow(row, r.Rows.Of(len(row)).Group) })
	}
	weight := m.weight
	if !r.Weights.Zero() {
		weight = m.rounded(r.Weights)
	}
	out.Logits, out.Choices, err = v.Run(m.Config, weight, ids)
	return out, err
}

// rounded is weight with routed experts in a format.
func (m *Model) rounded(f tensor.Format) oracle.Weight {
	kept := map[string][]float32{}
	source := &cache.Weights{Config: m.Config, Set: m.set, Format: f}
	return func(name string) ([]float32, error) {
		at, ok := m.experts[name]
		if !ok {
			return m.weight(name)
		}
		if kept[name] == nil {
			w13, w2, err := source.Expert(at.layer, at.expert)
			if err != nil {
				return nil, err
			}
			n, size := m.Config.ExpertNames(at.layer, at.expert), m.Config.Hidden*m.Config.MoE.FF
			both := w13.Dequantize()
			kept[n.Gate], kept[n.Up], kept[n.Down] = both[:size], both[size:], w2.Dequantize()
		}
		return kept[name], nil
	}
}

// roundRow rounds every group of a row to multiples of its largest magnitude / 127
// (kernels/device, QuantizeRows). 0: the group is the row.
func roundRow(row []float64, group int) {
	if group == 0 {
		group = len(row)
	}
	for part := range slices.Chunk(row, group) {
		top := 0.0
		for _, v := range part {
			top = max(top, math.Abs(v))
		}
		if top == 0 {
			continue
		}
		for i, v := range part {
			part[i] = math.RoundToEven(v*127/top) * top / 127
		}
	}
}

// L2 is the relative L2 error of the logits of prompt p17.
func (m *Model) L2(r Rounding) (float64, error) {
	want, ok := m.Golden.Vector("p17.logits")
	if !ok {
		return 0, fmt.Errorf("%w: %s: no logits of p17", compare.ErrGolden, m.Golden.Name)
	}
	for _, p := range m.Golden.Prompts {
		if p.Name == "p17" {
			got, err := m.Run(p.IDs, r, nil)
			return relative(got.Logits, want.F32), err
		}
	}
	return 0, fmt.Errorf("%w: %s: no p17", compare.ErrGolden, m.Golden.Name)
}

func relative(got [][]float64, want []float32) float64 {
	var off, size float64
	for i, v := range slices.Concat(got...) {
		d := v - float64(want[i])
		off, size = off+d*d, size+float64(want[i])*float64(want[i])
	}
	return math.Sqrt(off / size)
}
