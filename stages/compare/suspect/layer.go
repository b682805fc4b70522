package suspect

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"krater/stages/model"
)

// layer computes the operators of one layer, or those outside, from values that were seen.
// The first error stays in err, which layers made by with share.
type layer struct {
	*shared
	values map[string][]float32 // put in the place of what was seen, with what follows from it
	moved  bool                 // something was put in: later operators are computed anew
}

// shared is what all layers of a search have in common.
type shared struct {
	c     *Case
	cfg   *model.Config
	n     *model.LayerSpec
	a     sizes
	t     int // tokens that are looked at, the first ones
	err   error
	order []string
}

// The operators in the order of their computation; a model has some of them.
var (
	latentOps  = []string{"q_a", "q", "q_pe", "kv_a", "kv_norm", "k_pe", "kv_b", "attn_probs", "attn"}
	groupedOps = []string{"q", "k", "v", "q_pe", "k_pe", "attn"}
	mixtureOps = []string{"router_logits", "router_ids", "router_weights", "experts_out", "shared_out"}
)

// narrows are the operators that depend on all before them.
var narrows = []string{"attn", "mixer_out", "post_norm", "router_logits"}

func newLayer(c *Case) (*layer, error) {
	s := &shared{c: c, cfg: c.Config, n: &model.LayerSpec{}, t: min(len(c.IDs), max(tokensMin, elementsMax/c.Config.Hidden))}
	if c.Layer < 0 {
		s.order = []string{"embed", "final_norm", "logits"}
		return &layer{shared: s}, nil
	}
	if c.Layer >= len(s.cfg.Layers) {
		return nil, fmt.Errorf("suspect: layer %d of %d", c.Layer, len(s.cfg.Layers))
	}
	s.n, s.a = &s.cfg.Layers[c.Layer], sizesOf(s.cfg, c.Layer)
	s.order = []string{"input_norm"}
	if s.a.grouped {
		s.order = append(s.order, groupedOps...)
	} else {
		s.order = append(s.order, latentOps...)
	}
	s.order = append(s.order, "mixer_out", "post_norm")
	if s.cfg.MoELayer(c.Layer) {
		s.order = append(s.order, mixtureOps...)
	}
	s.order = append(s.order, "mlp_out", "layer_out")
	s.order = slices.DeleteFunc(s.order, func(op string) bool {
		return op == "q_a" && s.a.QRank == 0 || op == "shared_out" && s.cfg.MoE.Shared == 0
	})
	return &layer{shared: s}, nil
}

// path is the operators up to op that the reference has not been found to agree in.
func (l *layer) path(op string) ([]string, error) {
	end := slices.Index(l.order, op)
	if end < 0 {
		return nil, fmt.Errorf("%w: %s", ErrUnknown, op)
	}
	if l.c.Layer < 0 {
		return l.order[end : end+1], nil
	}
	from := 0
	for i, o := range l.order[:end] {
		// All that was computed before these went through them; what branches off did not.
		if l.c.Agreed != nil && l.c.Agreed(o) && slices.Contains(narrows, o) {
			from = i + 1
		}
	}
	return slices.DeleteFunc(slices.Clone(l.order[from:end+1]), func(o string) bool {
		return o == "attn_probs" && op != o || o != op && l.c.Agreed != nil && l.c.Agreed(o)
	}), nil
}

// prefix is the rows of the tokens that are looked at.
func (l *layer) prefix(op string, v []float32) []float32 {
	all := len(l.c.IDs)
	if len(v)%all != 0 {
		return v // of another shape: nothing equals it
	}
	if op != "attn_probs" {
		return v[:len(v)/all*l.t]
	}
	out := make([]float32, 0, l.a.Heads*l.t*l.t)
	for at := 0; at < len(v); at += all * all {
		for i := range l.t {
			out = append(out, v[at+i*all:][:l.t]...)
		}
	}
	return out
}

// seen is what the engine computed, nil where nobody saw it.
func (l *layer) seen(op string) []float32 {
	if v := l.c.Seen(l.c.Layer, op); v != nil {
		return l.prefix(op, v)
	}
	return nil
}

// get is an operator's values: put in, seen, or by its definition.
func (l *layer) get(op string) []float32 {
	if v, ok := l.values[op]; ok {
		return v
	}
	if !l.moved || !l.follows(op) {
		if v := l.seen(op); v != nil {
			return v
		}
	}
	v := l.define(op)
	if l.values == nil {
		l.values = map[string][]float32{}
	}
	l.values[op] = v
	return v
}

// follows reports whether op comes after something that was put in.
func (l *layer) follows(op string) bool {
	at := slices.Index(l.order, op)
	for o := range l.values {
		if slices.Index(l.order, o) < at {
			return true
		}
	}
	return false
}

// with is a layer in which op came out as v.
func (l *layer) with(op string, v []float32) *layer {
	return &layer{shared: l.shared, values: map[string][]float32{op: v}, moved: true}
}

// clone is l with sizes of its own, for mistakes in them.
func (l *layer) clone(change func(*sizes)) *layer {
	s := *l.shared
	change(&s.a)
	return &layer{shared: &s, values: maps.Clone(l.values), moved: l.moved}
}

// in is the residual stream that enters the layer, [T, H].
func (l *layer) in() []float32 {
	op, layer := "layer_out", l.c.Layer-1
	if layer < 0 {
		op = "embed"
	}
	if l.c.Layer < 0 { // outside: what the last layer left
		op, layer = "layer_out", len(l.cfg.Layers)-1
	}
	v := l.c.Seen(layer, op)
	if v == nil {
		return l.fail(fmt.Errorf("suspect: nobody saw what enters layer %d", l.c.Layer))
	}
	return l.prefix(op, v)
}

// weight is a tensor of the files, which must have elements values.
func (l *layer) weight(name string, elements int) []float32 {
	w, err := l.c.Weight(name)
	if err == nil && elements > 0 && len(w) != elements {
		err = fmt.Errorf("suspect: %s has %d elements, want %d", name, len(w), elements)
	}
	if err != nil {
		return l.fail(err)
	}
	return w
}

// fail keeps the first error and gives nothing.
func (l *layer) fail(err error) []float32 {
	if l.err == nil {
		l.err = err
	}
	return nil
}

// short is a tensor's name without its place: "self_attn.q_proj.weight".
func short(name string) string {
	if rest, ok := strings.CutPrefix(name, "model.layers."); ok {
		_, name, _ = strings.Cut(rest, ".")
	}
	return name
}

// name is the tensor with a role.
func (l *layer) name(role string) string { return l.n.Name(role) }

// bias is the bias of a product with the weight of a role, "" if there is none.
func (l *layer) bias(role string) string {
	if !l.a.bias {
		return ""
	}
	return l.name(role + "_bias")
}

// sizes are those of a layer's attention; fields of another kind of attention are 0.
type sizes struct {
	grouped, bias                      bool
	Heads, KVHeads, HeadDim            int
	QRank, KVRank, Nope, RopeDim, VDim int
	LatentEps, Scale                   float32
	Rope                               *model.RopeConfig
}

func sizesOf(cfg *model.Config, layer int) sizes {
	switch a := cfg.Layers[layer].Mixer.(type) {
	case model.GQA:
		return sizes{grouped: true, bias: a.Bias, Heads: a.Heads, KVHeads: a.KVHeads, HeadDim: a.HeadDim, Scale: a.Scale, Rope: a.Rope}
	case model.MLA:
		return sizes{Heads: a.Heads, QRank: a.QRank, KVRank: a.KVRank, Nope: a.Nope, RopeDim: a.RopeDim, VDim: a.VDim,
			LatentEps: a.LatentEps, Scale: a.Scale, Rope: a.Rope}
	}
	return sizes{}
}

// QKDim is the length of a query or key head.
func (a sizes) QKDim() int { return a.HeadDim + a.Nope + a.RopeDim }
