package oracle

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"krater/kernels/device"
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

// In returns the residual stream that enters the layer, [T, H].
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
		return l.Biased(p, Mul(x, l.Matrix(p, x), l.T))
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
		correction := l.Correction()
		ids, weights := l.Route(func(logits []float64) ([]int, []float64) { return Route(logits, correction, l.Config.MoE.Router) })
		if op == "router_ids" {
			return ids
		}
		return weights
	case "experts_out":
		return l.Mixture(l.Get("router_ids"), l.Get("router_weights"), SwiGLU)
	case "shared_raw":
		return l.Network(l.Shared, device.Activation{}, l.Get("post_norm"), l.T, SwiGLU)
	case "shared_out":
		if l.Tensor("shared_gate") == "" {
			return l.Define("shared_raw")
		}
		return Gate(l.Get("shared_raw"), l.Get("shared_gate_logit"))
	case "mlp_out":
		return l.mlp()
	case "layer_out":
		return Sum(Sum(l.In(), l.Get("mixer_out")), l.Get("mlp_out"))
	}
	l.fail(ErrUnknown)
	return nil
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
	switch op {
	case "input_norm":
	case "final_norm":
		n.Role = "norm"
	case "embed_norm":
		n.In = l.of("embed")
	case "hidden_norm":
		n.In = l.of("hidden")
	case "post_norm":
		n.In = func() []float64 { return Sum(l.In(), l.Get("mixer_out")) }
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
	case "mixer_out":
		return Product{In: l.of("attn"), Role: "o", Out: l.Config.Hidden, Heads: 1, Rope: -1, ColumnDim: l.OutDim}, true
	case "proj":
		in := func() []float64 { return beside(l.T, l.Get("embed_norm"), l.Get("hidden_norm")) }
		return Product{In: in, Role: "join", Out: l.Config.Hidden, Heads: 1, Rope: -1}, true
	case "shared_gate_logit":
		return Product{In: l.of("post_norm"), Role: "shared_gate", Out: 1, Heads: 1, Rope: -1}, true
	case "router_logits":
		return Product{In: l.of("post_norm"), Role: "router", Out: l.Config.MoE.Experts, Heads: 1, Rope: -1}, true
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
		for _, v := range table[max(0, min(int(id), vocab-1))*h:][:h] {
			out = append(out, float64(v))
		}
	}
	return out
}

// Net is the weights of a feed-forward network.
type Net struct {
	Gate, Up, Down             []float32 // [FF, H], [FF, H], [H, FF]
	GateBias, UpBias, DownBias []float32 // [FF], [FF], [H]; nil: none
	Act                        device.Activation
}

// Feed is a feed-forward network of t rows of x.
type Feed func(x []float64, n Net, t int) []float64

// SwiGLU is down(act(gate x, up x)) with the biases and the activation of the network.
func SwiGLU(x []float64, n Net, t int) []float64 { return Gated(activate(n.Act))(x, n, t) }

// activate is SwiGLU's activation: silu(g) * u, or that of gpt-oss (arXiv 2508.10925, section 2.3).
func activate(a device.Activation) func(g, u float64) float64 {
	return func(g, u float64) float64 {
		alpha, limit := float64(a.Alpha), float64(a.Limit)
		if a.Alpha == 0 {
			alpha = 1
		}
		if a.Limit == 0 {
			limit = math.Inf(1)
		}
		g, u = min(g, limit), min(max(u, -limit), limit)
		return Silu(alpha*g) / alpha * (u + float64(a.Shift))
	}
}

// Gate is the rows of x, each times the sigmoid of its logit.
func Gate(x, logits []float64) []float64 {
	if len(logits) == 0 {
		return nil
	}
	out, n := slices.Clone(x), len(x)/len(logits)
	for i := range out {
		out[i] /= 1 + math.Exp(-logits[i/n])
	}
	return out
}

// Gated is a network with what makes one value of those of gate and up.
func Gated(act func(g, u float64) float64) Feed { return gated(act, func([]float64) {}) }

// Rounded is SwiGLU whose products get rows that round has changed in place.
func Rounded(round func(row []float64)) Feed {
	return func(x []float64, n Net, t int) []float64 {
		x = slices.Clone(x)
		for row := range slices.Chunk(x, len(x)/t) {
			round(row)
		}
		return gated(activate(n.Act), round)(x, n, t)
	}
}

// gated is Gated; round changes the rows between its products.
func gated(act func(g, u float64) float64, round func(row []float64)) Feed {
	return func(x []float64, n Net, t int) []float64 {
		mid, u := biased(Mul(x, n.Gate, t), n.GateBias), biased(Mul(x, n.Up, t), n.UpBias)
		if mid == nil || len(mid) != len(u) {
			return nil
		}
		for i, g := range mid {
			mid[i] = act(g, u[i])
		}
		for row := range slices.Chunk(mid, len(mid)/t) {
			round(row)
		}
		return biased(Mul(mid, n.Down, t), n.DownBias)
	}
}

// biased is x plus the bias in every row; nil: none.
func biased(x []float64, bias []float32) []float64 {
	if bias == nil {
		return x
	}
	return Sum(x, bias)
}

// Network is feed on t rows of x with weights of the files.
func (l *Layer) Network(n model.FFNNames, act device.Activation, x []float64, t int, feed Feed) []float64 {
	w := Net{Act: act, Gate: l.Weight(n.Gate, 0), Up: l.Weight(n.Up, 0), Down: l.Weight(n.Down, 0)}
	if len(x) == 0 || w.Gate == nil || w.Up == nil || w.Down == nil {
		return nil
	}
	if n.GateBias != "" {
		w.GateBias, w.UpBias, w.DownBias = l.Weight(n.GateBias, 0), l.Weight(n.UpBias, 0), l.Weight(n.DownBias, 0)
		if w.GateBias == nil || w.UpBias == nil || w.DownBias == nil {
			return nil
		}
	}
	return feed(x, w, t)
}

// mlp returns the network of the layer: dense, or the routed experts and the shared ones.
func (l *Layer) mlp() []float64 {
	if !l.Routed {
		return l.Network(l.Dense, device.Activation{}, l.Get("post_norm"), l.T, SwiGLU)
	}
	out := l.Get("experts_out")
	if l.Shared.Gate != "" {
		out = Sum(out, l.Get("shared_out"))
	}
	return out
}

// Mixture returns the sum over the choices ids [T, K] of weights times the experts' results; ids
// count modulo the number of experts.
func (l *Layer) Mixture(ids, weights []float64, feed Feed) []float64 {
	x, h, e := l.Get("post_norm"), l.Config.Hidden, l.Config.MoE.Experts
	if len(ids) != len(weights) || len(x) != l.T*h || e == 0 {
		return nil
	}
	top, out := len(ids)/l.T, make([]float64, l.T*h)
	// Expert by expert, so that each is read once.
	for expert := range e {
		var rows []int
		var in []float64
		for i, id := range ids {
			if (int(id)%e+e)%e == expert {
				rows = append(rows, i)
				in = append(in, x[i/top*h:][:h]...)
			}
		}
		if len(rows) == 0 {
			continue
		}
		y := l.Network(l.Config.ExpertNames(l.Index, expert), l.Config.MoE.Act, in, len(rows), feed)
		if y == nil {
			return nil
		}
		for j, i := range rows {
			for c, v := range y[j*h : (j+1)*h] {
				out[i/top*h+c] += weights[i] * v
			}
		}
	}
	return out
}

// Correction returns what is added to the scores of experts for the choice; nil: nothing.
func (l *Layer) Correction() []float64 {
	name := l.Tensor("correction")
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
