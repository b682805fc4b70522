package oracle

import "krater/stages/model"

// grouped is grouped-query attention (arXiv 2305.13245): query head h reads key head
// h / (query heads of a key head). The first Rope.Dim values of a head are rotated; some models norm each head before,
// or all of them as one row.
type grouped struct{}

var _ = define(func(s *Spec, a model.GQA) mixer {
	s.Scale = float64(a.Scale)
	s.Heads, s.KVHeads, s.HeadDim, s.QKDim, s.OutDim = a.Heads, a.KVHeads, a.HeadDim, a.HeadDim, a.HeadDim
	s.QNorm, s.KNorm = a.NormDims()
	s.Window, s.Sinks, s.Gated, s.ValueNorm, s.Blocks, s.Borrows = a.Window, a.Sinks, a.Gate, a.ValueNorm, a.Index, a.Shared
	return grouped{}
})

func (grouped) operators() []string {
	return []string{"q_and_gate", "gate", "q", "k", "v", "q_norm", "k_norm", "v_norm", "q_pe", "k_pe",
		"index_qk", "index_q", "index_k", "indexer_query", "indexer_keys", "indexer_key_raw", "indexer_block_keys", "indexer_scores", "indexer_selected", "attn_ungated", "attn"}
}

func (grouped) product(l *Layer, op string) (Product, bool) {
	p := Product{In: l.of("input_norm"), Role: op, Heads: l.KVHeads, Parts: []int{l.HeadDim}, Out: l.KVHeads * l.HeadDim}
	if op != "v" && l.Rope.Dim < l.HeadDim {
		p.Parts = []int{l.Rope.Dim, l.HeadDim - l.Rope.Dim}
	}
	switch {
	case op == "q_and_gate":
		p.Role, p.Heads, p.Parts, p.Out, p.Rope = "q", l.Heads, []int{l.HeadDim, l.HeadDim}, 2*l.Heads*l.HeadDim, -1
	case op == "q" && !l.Gated:
		p.Heads, p.Out = l.Heads, l.Heads*l.HeadDim
	case op == "index_q" && l.Blocks.Local > 0:
		p.Heads, p.Parts, p.Out, p.Rope = l.Blocks.Heads, []int{l.Blocks.Dim}, l.Blocks.Heads*l.Blocks.Dim, -1
	case op == "index_k" && l.Blocks.Local > 0:
		p.Heads, p.Parts, p.Out, p.Rope = 1, []int{l.Blocks.Dim}, l.Blocks.Dim, -1
	case op == "index_qk" && l.Blocks.Chooses():
		p.Heads, p.Parts, p.Out, p.Rope = l.Blocks.Heads+1, []int{l.Blocks.Dim}, (l.Blocks.Heads+1)*l.Blocks.Dim, -1
	case op == "k":
		p.Alike = "v"
	case op == "v":
		if p.Alike, p.Rope = "k", -1; l.Tensor("v") == "" {
			p.Role = "k"
		}
	default:
		return p, false
	}
	return p, true
}

// define has the norm of values and the operators of attention with gates.
func (grouped) define(l *Layer, op string) ([]float64, bool) {
	if op == "v_norm" {
		ones := make([]float32, l.HeadDim)
		for i := range ones {
			ones[i] = 1
		}
		return RMSNorm(l.Get("v"), ones, float64(l.Config.NormEps)), true
	}
	if l.Blocks.Chooses() {
		if v, ok := l.indexed(op); ok {
			return v, true
		}
	}
	if !l.Gated {
		return nil, false
	}
	switch op {
	case "q":
		return part(l.Get("q_and_gate"), 2*l.HeadDim, 0, l.HeadDim), true
	case "gate":
		return part(l.Get("q_and_gate"), 2*l.HeadDim, l.HeadDim, l.HeadDim), true
	case "attn_ungated":
		x, ok := l.Attention()
		if !ok {
			return nil, true
		}
		out, _ := l.Attend(x)
		return out, true
	case "attn":
		return Multiplied(l.Get("attn_ungated"), l.Get("gate"), sigmoid), true
	}
	return nil, false
}

func (grouped) unrotated(l *Layer, op string) (x []float64, dim int) {
	head := op[:1]
	if l.Tensor(head+"_norm") != "" {
		head += "_norm"
	}
	return l.Get(head), l.HeadDim
}

func (grouped) rotatedPart(_ *Spec, q []float32) []float32 { return q }

func (grouped) attention(l *Layer, x *Attention) bool {
	v := "v"
	if l.ValueNorm {
		v = "v_norm"
	}
	q, keys, values, d := l.Get("q_pe"), l.read("k_pe"), l.read(v), l.HeadDim
	if l.Window > 0 {
		x.First = func(i int) int { return max(0, i+1-l.Window) }
	}
	if l.Blocks.Chooses() {
		x.Chosen = l.blocksChosen()
	}
	if l.Sinks {
		sinks := l.Weight(l.Tensor("sinks"), l.Heads)
		x.Sink = func(h int) float64 { return float64(sinks[h]) }
		if sinks == nil {
			return false
		}
	}
	x.Key = func(h int) int { return h / (l.Heads / l.KVHeads) }
	x.Score = func(h, k, i, j int) float64 { return Dot(q[(i*l.Heads+h)*d:][:d], keys[(j*l.KVHeads+k)*d:]) }
	x.Value = func(k, j int) []float64 { return values[(j*l.KVHeads+k)*d:][:d] }
	return len(q) == l.T*l.Heads*d && len(keys) == l.T*l.KVHeads*d && len(values) == len(keys)
}
