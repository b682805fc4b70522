// Package calibration collects what the routed experts of a model see on a text: the statistics
// with which quantisation weighs its errors.
package calibration

import (
	"errors"
	"fmt"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/model"
	"krater/stages/weights"
	"krater/stages/weights/quant"
)

// seen is the statistics of one expert.
type seen struct {
	in  *quant.Hessian // of the inputs [H] of gate and up
	mid *quant.Hessian // of the inputs [F] of down: silu(gate x) * up x, unquantised
}

// Collector is a probe (stages.Probe) that adds up the inputs of the experts of some layers while a
// text runs through the model. It belongs to one goroutine.
//
// Memory: 8 * (H^2 + F^2) bytes an expert of the chosen layers. For a large model the text is run
// once for every few layers.
type Collector struct {
	cfg   *model.Config
	set   *weights.Set
	from  int
	layer []layer // from, from+1, ...

	x        []float32 // [T, H] input of the layer at hand
	mid      []float32 // [F]
	gate, up []float32 // [F, H] of the expert at hand
	biases   []float32 // [2F] of its gate and up; nil: none
	assigned [][]int   // [E] rows
	err      error
}

type layer struct {
	experts []seen // nil in a dense layer
	in      *quant.Hessian
}

// New returns a collector for the layers [from, to). set has the experts' weights, which are needed
// to compute the inputs of down; it must stay open.
func New(cfg *model.Config, set *weights.Set, from, to int) (*Collector, error) {
	if from < 0 || to > len(cfg.Layers) || from >= to {
		return nil, fmt.Errorf("calibration: layers %d to %d of %d", from, to, len(cfg.Layers))
	}
	c := &Collector{cfg: cfg, set: set, from: from, layer: make([]layer, to-from), assigned: make([][]int, cfg.MoE.Experts)}
	for i := range c.layer {
		if !cfg.MoELayer(from + i) {
			continue
		}
		l := &c.layer[i]
		l.in = quant.NewHessian(cfg.Hidden)
		l.experts = make([]seen, cfg.MoE.Experts)
		for e := range l.experts {
			l.experts[e] = seen{in: quant.NewHessian(cfg.Hidden), mid: quant.NewHessian(cfg.MoE.FF)}
		}
	}
	n := cfg.MoE.FF * cfg.Hidden
	c.gate, c.up, c.mid = make([]float32, n), make([]float32, n), make([]float32, cfg.MoE.FF)
	if cfg.MoE.Biases {
		c.biases = make([]float32, 2*cfg.MoE.FF)
	}
	return c, nil
}

// Err returns the first error of Observe.
func (c *Collector) Err() error { return c.err }

// Observe is stages.Probe: it takes the rows that experts read once the router has chosen, and shares
// them out.
func (c *Collector) Observe(s device.Stream, layer int, op string, m device.Mat, st *stages.State) {
	last := "router_weights" // then st.Normed has the rows that experts read
	if c.cfg.MoE.OwnNorms {
		last = "expert_norm"
	}
	if c.err != nil || layer < c.from || layer >= c.from+len(c.layer) || c.layer[layer-c.from].experts == nil || op != last {
		return
	}
	x := make([]byte, st.Normed.Bytes())
	s.CopyOut(x, st.Normed)
	if c.err = s.Synchronize(); c.err != nil {
		return
	}
	if n := st.T * c.cfg.Hidden; len(c.x) < n {
		c.x = make([]float32, n)
	}
	if c.err = tensor.Widen(c.x[:st.T*c.cfg.Hidden], st.Normed.DType, x); c.err == nil {
		c.err = c.add(layer, st.HostRouterIDs(), st.T)
	}
}

// add shares out the rows of one layer.
func (c *Collector) add(index int, ids []int32, rows int) error {
	h, k, l := c.cfg.Hidden, c.cfg.MoE.Router.TopK, &c.layer[index-c.from]
	for e := range c.assigned {
		c.assigned[e] = c.assigned[e][:0]
	}
	for a, e := range ids {
		c.assigned[e] = append(c.assigned[e], a/k)
	}
	for t := range rows {
		l.in.Add(c.x[t*h : (t+1)*h])
	}
	for e, list := range c.assigned {
		if len(list) == 0 {
			continue
		}
		names := c.cfg.ExpertNames(index, e)
		if err := c.read(c.gate, names.Gate); err != nil {
			return err
		}
		if err := c.read(c.up, names.Up); err != nil {
			return err
		}
		if names.GateBias != "" {
			if err := errors.Join(c.read(c.biases[:len(c.mid)], names.GateBias), c.read(c.biases[len(c.mid):], names.UpBias)); err != nil {
				return err
			}
		}
		for _, t := range list {
			x := c.x[t*h : (t+1)*h]
			l.experts[e].in.Add(x)
			c.middle(x)
			l.experts[e].mid.Add(c.mid)
		}
	}
	return nil
}

func (c *Collector) read(dst []float32, name string) error {
	t, ok := c.set.Tensor(name)
	if !ok {
		return fmt.Errorf("calibration: %w: %s", model.ErrTensorMissing, name)
	}
	if err := t.Floats(dst, 0); err != nil {
		return fmt.Errorf("calibration: %s: %w", name, err)
	}
	return nil
}

// middle is the activation of gate x and up x.
func (c *Collector) middle(x []float32) {
	h := len(x)
	for i := range c.mid {
		g, u := dot(c.gate[i*h:(i+1)*h], x), dot(c.up[i*h:(i+1)*h], x)
		if c.biases != nil {
			g, u = g+c.biases[i], u+c.biases[len(c.mid)+i]
		}
		c.mid[i] = float32(c.cfg.MoE.Act.Of(float64(g), float64(u)))
	}
}

//go:norace
func dot(a, b []float32) float32 {
	var s0, s1, s2, s3 float32
	for len(a) >= 4 && len(b) >= 4 {
		s0 += a[0] * b[0]
		s1 += a[1] * b[1]
		s2 += a[2] * b[2]
		s3 += a[3] * b[3]
		a, b = a[4:], b[4:]
	}
	for i, v := range a {
		s0 += v * b[i]
	}
	return s0 + s1 + s2 + s3
}

// Share of what all experts of a layer saw that is added to what one saw itself, in inputs: an
// expert that the text hardly reaches is still weighed sensibly.
const borrowed = 32

// Expert returns the statistics of one expert of a collected layer: of the inputs [H] of gate and
// up, and of the inputs [F] of down in the unquantised network. Both are mixed with the mean over
// the layer's experts, with the weight of 32 inputs; Count is the expert's own number of inputs. ok
// is false if the text never reached the layer.
func (c *Collector) Expert(layer, e int) (in, mid *quant.Hessian, ok bool) {
	if layer < c.from || layer >= c.from+len(c.layer) || c.layer[layer-c.from].experts == nil {
		return nil, nil, false
	}
	l := &c.layer[layer-c.from]
	if l.in.Count == 0 {
		return nil, nil, false
	}
	in, mid = quant.NewHessian(c.cfg.Hidden), quant.NewHessian(c.cfg.MoE.FF)
	in.AddScaled(l.in, borrowed/float64(l.in.Count))
	assigned := float64(l.in.Count * c.cfg.MoE.Router.TopK)
	for i := range l.experts {
		mid.AddScaled(l.experts[i].mid, borrowed/assigned)
	}
	x := &l.experts[e]
	in.AddScaled(x.in, 1)
	mid.AddScaled(x.mid, 1)
	in.Count, mid.Count = x.in.Count, x.mid.Count
	return in, mid, true
}
