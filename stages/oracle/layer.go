package oracle

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"krater/stages/model"
)

// ErrUnknown: an operator that has no definition here.
var ErrUnknown = errors.New("oracle: unknown operator")

// Given are values that are known: of an operator of a layer, [T, width]; nil: not known.
type Given func(layer int, op string) []float64

// Layer computes the operators of one layer, or those outside the layers, for a text: each by its
// definition from the operators before it. Operators are named as in the goldens.
type Layer struct {
	*shared
	values map[string][]float64 // computed, or put in
	moved  bool                 // a value was put in: later operators are computed again
}

// shared is the common part of a layer and of the layers that With derives from it.
type shared struct {
	Spec
	Config *model.Config
	Index  int // of the layer, -1 outside
	IDs    []int32
	T      int      // tokens
	Order  []string // the operators in the order of their computation
	Err    error    // the first

	weight Weight
	given  Given
}

// New makes a layer for the text ids. given may be nil.
func New(cfg *model.Config, weight Weight, ids []int32, layer int, given Given) (*Layer, error) {
	if layer < -1 || layer >= len(cfg.Layers) {
		return nil, fmt.Errorf("oracle: layer %d of %d", layer, len(cfg.Layers))
	}
	if given == nil {
		given = func(int, string) []float64 { return nil }
	}
	s := &shared{Spec: specOf(cfg, layer), Config: cfg, Index: layer, IDs: ids, T: len(ids), weight: weight, given: given}
	if layer >= 0 && s.mixer == nil {
		return nil, fmt.Errorf("oracle: %T is not defined", cfg.Layers[layer].Mixer)
	}
	s.Order = s.operators()
	return &Layer{shared: s}, nil
}

// Given returns an operator's values where they are known, else nil.
func (l *Layer) Given(op string) []float64 { return l.given(l.Index, op) }

// Get returns an operator's values: put in, given, or by its definition.
func (l *Layer) Get(op string) []float64 {
	if v, ok := l.values[op]; ok {
		return v
	}
	if !l.moved || !l.follows(op) {
		if v := l.Given(op); v != nil {
			return v
		}
	}
	v := l.Define(op)
	if l.values == nil {
		l.values = map[string][]float64{}
	}
	l.values[op] = v
	return v
}

// of is Get, later.
func (l *Layer) of(op string) func() []float64 { return func() []float64 { return l.Get(op) } }

// follows reports whether op comes after a value that was put in.
func (l *Layer) follows(op string) bool {
	at := slices.Index(l.Order, op)
	for o := range l.values {
		if slices.Index(l.Order, o) < at {
			return true
		}
	}
	return false
}

// With returns a layer in which op came out as v.
func (l *Layer) With(op string, v []float64) *Layer {
	return &Layer{shared: l.shared, values: map[string][]float64{op: v}, moved: true}
}

// Resized returns the layer with other sizes and with values in the place of those it has; what
// fails there is no error of l.
func (l *Layer) Resized(change func(*Spec), values map[string][]float64) *Layer {
	s := *l.shared
	if change != nil {
		change(&s.Spec)
	}
	if values == nil {
		values = maps.Clone(l.values)
	}
	return &Layer{shared: &s, values: values, moved: l.moved}
}

// read is Get of keys or values, which may be those of another layer.
func (l *Layer) read(op string) []float64 {
	if l.KV == l.Index {
		return l.Get(op)
	}
	v := l.given(l.KV, op)
	if v == nil {
		l.fail(fmt.Errorf("oracle: %s of layer %d, which layer %d reads, is not known", op, l.KV, l.Index))
	}
	return v
}

// In returns the residual streams that enter the layer, [T, H] each.
func (l *Layer) In() []float64 {
	op, layer := "layer_out", l.Index-1
	switch {
	case l.Index < 0: // what the last layer left
		layer = len(l.Config.Layers) - 1
	case layer < 0 && l.Config.Joined:
		op = "proj"
	case layer < 0:
		op = "embed"
	}
	v := l.given(layer, op)
	if v == nil {
		l.fail(fmt.Errorf("oracle: what enters layer %d is not known", l.Index))
	}
	if op == "embed" && l.Streams.Several() { // all streams begin with it
		return l.spread(slices.Repeat([]float64{1}, l.T*l.Streams.Count), v)
	}
	return v
}

// Weight returns a tensor of the files, which must have elements values unless that is 0.
func (l *Layer) Weight(name string, elements int) []float32 {
	w, err := l.weight(name)
	if err == nil && elements > 0 && len(w) != elements {
		err = fmt.Errorf("oracle: %s has %d elements, want %d", name, len(w), elements)
	}
	if err != nil {
		l.fail(err)
		return nil
	}
	return w
}

// Neighbours returns the tensors with a role in the layers before and after.
func (l *Layer) Neighbours(role string) []string {
	var list []string
	for _, i := range []int{l.Index - 1, l.Index + 1} {
		if l.Index < 0 || i < 0 || i >= len(l.Config.Layers) {
			continue
		}
		if s := specOf(l.Config, i); s.Tensor(role) != "" {
			list = append(list, s.Tensor(role))
		}
	}
	return list
}

// Lenders returns the other layers before this one whose keys and values it could read, if it reads those of a layer.
func (l *Layer) Lenders() (list []int) {
	for i := range l.Index {
		s := specOf(l.Config, i)
		if l.Borrows && i != l.KV && !s.Borrows && s.KVHeads == l.KVHeads && s.HeadDim == l.HeadDim {
			list = append(list, i)
		}
	}
	return list
}

// fail keeps the first error.
func (l *Layer) fail(err error) {
	if l.Err == nil {
		l.Err = err
	}
}

// Define computes an operator from its inputs, as config and files define it.
func (l *Layer) Define(op string) []float64 {
	if p, ok := l.Product(op); ok {
		x := p.In()
		return l.Capped(op, l.Biased(p, Mul(x, l.Matrix(p, x), l.T)))
	}
	if l.Streams.Several() {
		if v, ok := l.streams(op); ok {
			return v
		}
	}
	if l.NGrams != nil {
		if v, ok := l.ngrams(op); ok {
			return v
		}
	}
	if n, ok := l.Norm(op); ok {
		return RMSNorm(n.In(), l.NormWeight(n), n.Eps)
	}
	if d, ok := l.mixer.(definer); ok {
		if v, ok := d.define(l, op); ok {
			return v
		}
	}
	switch op {
	case "embed":
		return l.Embed(l.IDs)
	case "per_layer_inputs":
		return l.PerLayerInputs(1, 1)
	case "per_layer_out":
		return l.perLayerOut()
	case "q_pe", "k_pe":
		x, dim := l.Unrotated(op)
		return Rotate(x, l.T, dim, &l.Rope, func(row int) float64 { return float64(row) })
	case "attn", "attn_probs":
		x, ok := l.Attention()
		if !ok {
			return nil
		}
		out, probs := l.Attend(x)
		if op == "attn_probs" {
			return probs
		}
		return out
	case "router_ids", "router_weights":
		return l.routed(op)
	case "experts_out":
		return l.Mixture(l.Get("router_ids"), l.Get("router_weights"), SwiGLU)
	case "shared_raw":
		return l.Network(l.Shared, l.Act(), l.Get("post_norm"), l.T, SwiGLU)
	case "shared_out":
		if l.Tensor("shared_gate") == "" {
			return l.Define("shared_raw")
		}
		return Gate(l.Get("shared_raw"), l.Get("shared_gate_logit"))
	case "mlp_raw", "mlp_out":
		return l.mlp()
	case "layer_out":
		return l.out()
	}
	l.fail(ErrUnknown)
	return nil
}

// Capped bounds a product where the config does so: logits.
func (l *Layer) Capped(op string, x []float64) []float64 {
	if limit := float64(l.Config.Softcap); op == "logits" && limit > 0 {
		for i, v := range x {
			x[i] = limit * math.Tanh(v/limit)
		}
	}
	return x
}

// Norm is an operator that is an RMSNorm.
type Norm struct {
	In    func() []float64
	Role  string // of the weight
	Width int
	Eps   float64
}

// Norm describes an operator that is one.
func (l *Layer) Norm(op string) (Norm, bool) {
	n := Norm{In: l.In, Role: op, Width: l.Config.Hidden, Eps: float64(l.Config.NormEps)}
	if l.Streams.Several() && slices.Contains([]string{"input_norm", "post_norm", "final_norm"}, op) {
		return n, false
	}
	switch op {
	case "input_norm":
	case "final_norm":
		n.Role = "norm"
	case "embed_norm":
		n.In = l.of("embed")
	case "hidden_norm":
		n.In = l.of("hidden")
	case "post_norm", "router_norm", "expert_norm":
		n.In = func() []float64 { return Sum(l.In(), l.Get("mixer_out")) }
	case "mixer_out":
		if !l.NormsAfter {
			return n, false
		}
		n.In, n.Role = l.of("mixer_raw"), "mixer_norm"
	case "mlp_out":
		if !l.NormsAfter {
			return n, false
		}
		n.In, n.Role = l.of("mlp_raw"), "ffn_norm"
	case "q_norm":
		n.In, n.Width = l.of("q"), l.QNorm
	case "k_norm":
		n.In, n.Width = l.of("k"), l.KNorm
	case "kv_norm":
		n.In = func() []float64 { return part(l.Get("kv_a"), l.KVRank+l.RopeDim, 0, l.KVRank) }
		n.Role, n.Width, n.Eps = "kv_a_norm", l.KVRank, l.LatentEps
	default:
		return n, false
	}
	return n, true
}

// NormWeight returns the weight that a norm multiplies by.
func (l *Layer) NormWeight(n Norm) []float32 {
	w := l.Weight(l.Tensor(n.Role), n.Width)
	if n.Role == "router_norm" {
		w = slices.Clone(w)
		for i := range w {
			w[i] = float32(float64(w[i]) / math.Sqrt(float64(n.Width)))
		}
	}
	if !l.Config.CentredNorms {
		return w
	}
	w = slices.Clone(w)
	for i := range w {
		w[i]++
	}
	return w
}

// Product describes an operator that is one.
func (l *Layer) Product(op string) (Product, bool) {
	switch op {
	case "logits":
		return Product{In: l.of("final_norm"), Role: "head", Out: l.Config.Vocab, Heads: 1, Rope: -1, Alike: "embed"}, true
	case "mixer_out", "mixer_raw":
		if l.NormsAfter != (op == "mixer_raw") {
			return Product{}, false
		}
		in := "attn"
		if l.Tensor("o_a") != "" {
			in = "o_a"
		}
		return Product{In: l.of(in), Role: "o", Out: l.Config.Hidden, Heads: 1, Rope: -1, ColumnDim: l.OutDim}, true
	case "proj":
		in := func() []float64 { return beside(l.T, l.Get("embed_norm"), l.Get("hidden_norm")) }
		return Product{In: in, Role: "join", Out: l.Config.Hidden, Heads: 1, Rope: -1}, true
	case "shared_gate_logit":
		return Product{In: l.of("post_norm"), Role: "shared_gate", Out: 1, Heads: 1, Rope: -1}, true
	case "router_logits":
		in := "post_norm"
		if l.OwnNorms {
			in = "router_norm"
		}
		return Product{In: l.of(in), Role: "router", Out: l.Config.MoE.Experts, Heads: 1, Rope: -1}, true
	}
	if l.mixer == nil {
		return Product{}, false
	}
	return l.mixer.product(l, op)
}

// Matrix returns the product's weight for the input x.
func (l *Layer) Matrix(p Product, x []float64) []float32 {
	if len(x) == 0 {
		return nil
	}
	return l.Weight(l.Tensor(p.Role), p.Out*len(x)/l.T)
}

// Biased adds the product's bias, if there is one.
func (l *Layer) Biased(p Product, y []float64) []float64 {
	if bias := l.Tensor(p.Role + "_bias"); bias != "" {
		return Sum(y, l.Weight(bias, p.Out))
	}
	return y
}

// Embed returns the rows of the embedding for ids.
func (l *Layer) Embed(ids []int32) []float64 {
	vocab, h := l.Config.Vocab, l.Config.Hidden
	table := l.Weight(l.Tensor("embed"), vocab*h)
	if table == nil {
		return nil
	}
	out := make([]float64, 0, len(ids)*h)
	for _, id := range ids {
		for _, v := range table[l.row(id)*h:][:h] {
			out = append(out, float64(v)*cmp.Or(float64(l.Config.EmbedScale), 1))
		}
	}
	return out
}

// row returns the row of the tables of embeddings for an id.
func (l *Layer) row(id int32) int {
	if slices.Contains(l.Config.Placeholders, id) {
		id = l.Config.Pad
	}
	return max(0, min(int(id), l.Config.Vocab-1))
}

// Correction returns what is added to the scores of experts for the choice; nil: nothing.
func (l *Layer) Correction() []float64 {
	name := l.Tensor("correction")
	if name == "" {
		return nil
	}
	return Widen(l.Weight(name, l.Config.MoE.Experts))
}

// routed returns the choice of the router, or its weights.
func (l *Layer) routed(op string) []float64 {
	correction, r, token := l.Correction(), l.Config.MoE.Router, -1
	ids, weights := l.Route(func(logits []float64) ([]int, []float64) {
		if token++; l.Tensor("token_experts") != "" {
			return Weigh(Scores(logits, r.Scoring), l.tokenExperts(token), nil, r)
		}
		return Route(logits, correction, l.Factors(), r)
	})
	if op == "router_ids" {
		return ids
	}
	return weights
}

// tokenExperts returns the experts that a table has for a token of the text.
func (l *Layer) tokenExperts(token int) (ids []int) {
	k := l.Config.MoE.Router.TopK
	table := l.Weight(l.Tensor("token_experts"), l.Config.Vocab*k)
	for i := range k {
		ids = append(ids, i) // harmless, of a missing table
		if table != nil {
			ids[i] = int(table[l.row(l.IDs[token])*k+i])
		}
	}
	return ids
}

// Factors returns the factors of the weights of experts; nil: none.
func (l *Layer) Factors() []float64 {
	name := l.Tensor("factors")
	if name == "" {
		return nil
	}
	return Widen(l.Weight(name, l.Config.MoE.Experts))
}

// Route returns the choice of the router [T, K] and its weights, by what route makes of a token's
// logits.
func (l *Layer) Route(route func(logits []float64) (ids []int, weights []float64)) (ids, weights []float64) {
	logits, n := l.Get("router_logits"), l.Config.MoE.Experts
	if len(logits) != l.T*n {
		return nil, nil
	}
	for t := range l.T {
		chosen, w := route(logits[t*n:][:n])
		for _, e := range chosen {
			ids = append(ids, float64(e))
		}
		weights = append(weights, w...)
	}
	return ids, weights
}
