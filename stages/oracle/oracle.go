// Package oracle defines what a model computes: every operator, by its name in the goldens, in
// float64, for a whole text at once, without cache or batching. It is slow, and meant to be checked
// by reading. It shares nothing with the stages and kernels, which are compared with it.
//
// Logits and Choices run a whole model, and Variant one that is rounded, for tests. stages/compare computes single operators from
// the engine's values, and stages/compare/suspect does so with deliberate mistakes. Each kind of
// attention is one type (mixer) in one file.
package oracle

import (
	"slices"

	"krater/stages/model"
)

// Weight returns a tensor by name, row-major, widened to float32.
type Weight func(name string) ([]float32, error)

// Logits returns the logits [len(ids)][V] of a model of any supported family (arXiv 2405.04434,
// 2407.10671, and the modelling code of the releases where the papers are silent).
func Logits(cfg *model.Config, weight Weight, ids []int32) ([][]float64, error) {
	logits, _, err := Variant{}.Run(cfg, weight, ids)
	return logits, err
}

// Choices returns the experts that the router of each layer with some chooses for each token, by
// the number of the layer: [len(ids)][top_k], rising.
func Choices(cfg *model.Config, weight Weight, ids []int32) (map[int][][]int, error) {
	chosen := map[int][][]int{}
	_, err := Variant{}.run(cfg, weight, ids, choices(chosen))
	return chosen, err
}

// Variant is a model whose routed experts differ from its definition. The zero Variant is the model.
type Variant struct {
	Feed Feed // computes an expert; nil: SwiGLU
	// Choices are the experts of each token, as Choices returns them. Their weights follow from the
	// logits of the router as if it had chosen them. nil: the router chooses.
	Choices map[int][][]int
}

// Run returns the logits and what the routers choose, also where Choices take other experts.
func (v Variant) Run(cfg *model.Config, weight Weight, ids []int32) (logits [][]float64, chosen map[int][][]int, err error) {
	chosen = map[int][][]int{}
	stream, err := v.run(cfg, weight, ids, choices(chosen))
	if err != nil {
		return nil, nil, err
	}
	l, err := New(cfg, weight, ids, -1, entering(-1, stream, nil))
	if err != nil {
		return nil, nil, err
	}
	return slices.Collect(slices.Chunk(l.Get("logits"), cfg.Vocab)), chosen, l.Err
}

// choices puts the experts that a layer chooses into chosen.
func choices(chosen map[int][][]int) func(*Layer) {
	return func(l *Layer) {
		if !l.Routed {
			return
		}
		for row := range slices.Chunk(l.Get("router_ids"), l.Config.MoE.Router.TopK) {
			var experts []int
			for _, id := range row {
				experts = append(experts, int(id))
			}
			slices.Sort(experts)
			chosen[l.Index] = append(chosen[l.Index], experts)
		}
	}
}

// run returns what leaves the last layer. after is called with each layer.
func (v Variant) run(cfg *model.Config, weight Weight, ids []int32, after func(*Layer)) ([]float64, error) {
	l, err := New(cfg, weight, ids, -1, nil)
	if err != nil {
		return nil, err
	}
	stream, kept := l.Get("embed"), keep{}
	if cfg.PerLayer > 0 {
		kept[value{-1, "per_layer_inputs"}] = l.Get("per_layer_inputs")
	}
	for i := 0; i < len(cfg.Layers) && l.Err == nil; i++ {
		if l, err = New(cfg, weight, ids, i, entering(i, stream, kept)); err != nil {
			return nil, err
		}
		if l.Routed {
			v.experts(l)
		}
		stream = l.Get("layer_out")
		if l.Indexer.TopK > 0 {
			kept[lastSelected] = l.Get("selected")
		}
		if i+1 < len(cfg.Layers) && lends(cfg, i) {
			for _, op := range []string{"k_pe", "v", "v_norm"} {
				if slices.Contains(l.Order, op) {
					kept[value{i, op}] = l.Get(op)
				}
			}
		}
		after(l)
	}
	return stream, l.Err
}

// experts puts the experts' results into l.
func (v Variant) experts(l *Layer) {
	ids, weights := l.Get("router_ids"), l.Get("router_weights")
	if given := v.Choices[l.Index]; given != nil {
		token := -1
		ids, weights = l.Route(func(logits []float64) ([]int, []float64) {
			token++
			r := l.Config.MoE.Router
			return Weigh(Scores(logits, r.Scoring), given[token], l.Factors(), r)
		})
	}
	feed := v.Feed
	if feed == nil {
		feed = SwiGLU
	}
	l.values["experts_out"] = l.Mixture(ids, weights, feed)
}

// value names values of an operator of a layer.
type value struct {
	layer int
	op    string
}

// lastSelected names the choice of the last layer with an indexer.
var lastSelected = value{-2, "selected"}

// keep is values that later layers read.
type keep map[value][]float64

// lends reports whether a later layer reads the keys and values of a layer.
func lends(cfg *model.Config, layer int) bool {
	return slices.ContainsFunc(cfg.Layers[layer+1:], func(l model.LayerSpec) bool { return l.KV == layer })
}

// entering gives only what enters a layer: the residual stream, and what was kept for it.
func entering(layer int, stream []float64, kept keep) Given {
	return func(at int, op string) []float64 {
		if v, ok := kept[value{at, op}]; ok {
			return v
		}
		switch {
		case at == layer:
			return nil
		case op == "selected":
			return kept[lastSelected]
		}
		return stream
	}
}
