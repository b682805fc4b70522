// Package oracle computes a whole model by its definition: float64 throughout,
// the full text at once, no cache, no batching and nothing shared with the
// stages or kernels. It is for tests: slow, and meant to be checked by reading.
package oracle

import (
	"math"

	"krater/stages/model"
)

// Weight gives a tensor by name, row-major, widened to float32.
type Weight func(name string) ([]float32, error)

// matrix is rows of equal length.
type matrix [][]float64

// oracle is a run over one text. The first error of weight stays in err.
type oracle struct {
	cfg    *model.Config
	weight Weight
	chosen map[int][][]int // see Choices
	err    error
}

// Logits [len(ids)][V] of the DeepSeek-V2 and Qwen2 families (arXiv 2405.04434,
// 2407.10671, and the modelling code of the releases where the papers are
// silent).
func Logits(cfg *model.Config, weight Weight, ids []int32) ([][]float64, error) {
	o := &oracle{cfg: cfg, weight: weight, chosen: map[int][][]int{}}
	h := o.layers(ids)
	if o.err != nil {
		return nil, o.err
	}
	top := cfg.Names()
	return o.linear(o.norm(h, top.Norm, float64(cfg.NormEps)), top.Head), o.err
}

// Choices are the experts that the router of each layer with some chooses for each
// token, by the model's number of the layer: [len(ids)][top_k], rising.
func Choices(cfg *model.Config, weight Weight, ids []int32) (map[int][][]int, error) {
	o := &oracle{cfg: cfg, weight: weight, chosen: map[int][][]int{}}
	o.layers(ids)
	return o.chosen, o.err
}

// layers gives what goes into the last norm.
func (o *oracle) layers(ids []int32) matrix {
	cfg := o.cfg
	top := cfg.Names()
	table := o.load(top.Embed, cfg.Hidden)
	h := make(matrix, len(ids))
	for t, id := range ids {
		if o.err == nil {
			h[t] = append([]float64(nil), table[id]...)
		}
	}
	for i := 0; i < len(cfg.Layers) && o.err == nil; i++ {
		l := &cfg.Layers[i]
		add(h, o.attention(l, o.norm(h, l.Name("input_norm"), float64(cfg.NormEps))))
		x := o.norm(h, l.Name("post_norm"), float64(cfg.NormEps))
		if cfg.MoELayer(i) {
			add(h, o.moe(i, l, x))
		} else {
			add(h, o.ffn(l.FFNNames(""), x))
		}
	}
	return h
}

// load reads a tensor as rows of width elements.
func (o *oracle) load(name string, width int) matrix {
	w, err := o.weight(name)
	if err != nil {
		o.err = err
		return nil
	}
	m := make(matrix, len(w)/width)
	for r := range m {
		m[r] = make([]float64, width)
		for c := range m[r] {
			m[r][c] = float64(w[r*width+c])
		}
	}
	return m
}

// linear is x * w^T.
func (o *oracle) linear(x matrix, name string) matrix {
	w := o.load(name, len(x[0]))
	out := make(matrix, len(x))
	for t := range x {
		out[t] = make([]float64, len(w))
		for j := range w {
			out[t][j] = dot(x[t], w[j])
		}
	}
	return out
}

// norm is RMSNorm.
func (o *oracle) norm(x matrix, name string, eps float64) matrix {
	out := make(matrix, len(x))
	for t := range x {
		w := o.load(name, len(x[t]))
		out[t] = make([]float64, len(x[t]))
		for i, v := range x[t] {
			if o.err == nil {
				out[t][i] = v / math.Sqrt(dot(x[t], x[t])/float64(len(x[t]))+eps) * w[0][i]
			}
		}
	}
	return out
}

// ffn is down(silu(gate x) * up x).
func (o *oracle) ffn(n model.FFNNames, x matrix) matrix {
	mid, up := o.linear(x, n.Gate), o.linear(x, n.Up)
	for t := range mid {
		for i, g := range mid[t] {
			mid[t][i] = g / (1 + math.Exp(-g)) * up[t][i]
		}
	}
	return o.linear(mid, n.Down)
}

// moe is the weighted sum of the chosen experts plus the shared ones.
func (o *oracle) moe(layer int, l *model.LayerSpec, x matrix) matrix {
	out := make(matrix, len(x))
	logits := o.linear(x, l.Name("router"))
	o.chosen[layer] = make([][]int, len(x))
	for t := range x {
		out[t] = make([]float64, len(x[t]))
		if o.cfg.MoE.Shared > 0 {
			out[t] = o.ffn(l.FFNNames("shared."), x[t:t+1])[0]
		}
		for e, w := range Route(logits[t], o.cfg.MoE.Router) {
			if w != 0 {
				o.chosen[layer][t] = append(o.chosen[layer][t], e)
				for i, v := range o.ffn(o.cfg.ExpertNames(layer, e), x[t:t+1])[0] {
					out[t][i] += w * v
				}
			}
		}
	}
	return out
}

func add(x, delta matrix) {
	for t := range x {
		for i := range x[t] {
			x[t][i] += delta[t][i]
		}
	}
}

//go:norace
func dot(a, b []float64) float64 {
	var sum float64
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}
