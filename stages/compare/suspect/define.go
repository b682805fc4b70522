package suspect

import (
	"math"
	"slices"

	"krater/kernels/device"
	"krater/stages/model"
	"krater/stages/oracle"
)

// define computes an operator from what goes into it, as config and files say.
func (l *layer) define(op string) []float32 {
	if p, ok := l.product(op); ok {
		return p.values(l)
	}
	eps := float64(l.cfg.NormEps)
	switch op {
	case "embed":
		return l.embed(l.c.IDs[:l.t])
	case "final_norm":
		return rms(l.in(), l.weight(l.cfg.Names().Norm, l.cfg.Hidden), eps)
	case "input_norm":
		return rms(l.in(), l.weight(l.name("input_norm"), l.cfg.Hidden), eps)
	case "post_norm":
		return rms(sum(l.in(), l.get("mixer_out")), l.weight(l.name("post_norm"), l.cfg.Hidden), eps)
	case "kv_norm":
		return rms(l.latent(), l.weight(l.name("kv_a_norm"), l.a.KVRank), float64(l.a.LatentEps))
	case "q_pe", "k_pe":
		return l.rotated(op, rotation{rope: *l.a.Rope})
	case "attn":
		out, _ := l.attention(attending{})
		return out
	case "attn_probs":
		_, probs := l.attention(attending{})
		return probs
	case "router_ids":
		ids, _ := l.route(l.cfg.MoE.Router)
		return ids
	case "router_weights":
		_, weights := l.route(l.cfg.MoE.Router)
		return weights
	case "experts_out":
		return l.experts(network{})
	case "shared_out":
		return l.network(l.n.FFNNames("shared."), l.get("post_norm"), l.t, network{})
	case "mlp_out":
		return l.mlp()
	case "layer_out":
		return sum(sum(l.in(), l.get("mixer_out")), l.get("mlp_out"))
	}
	return l.fail(ErrUnknown)
}

// embed is the rows of the table for ids.
func (l *layer) embed(ids []int32) []float32 {
	table, h := l.weight(l.cfg.Names().Embed, l.cfg.Vocab*l.cfg.Hidden), l.cfg.Hidden
	if table == nil {
		return nil
	}
	out := make([]float32, 0, len(ids)*h)
	for _, id := range ids {
		at := max(0, min(int(id), l.cfg.Vocab-1)) * h
		out = append(out, table[at:at+h]...)
	}
	return out
}

// latent is the compressed part of kv_a.
func (l *layer) latent() []float32 {
	a := l.a
	return l.part(l.get("kv_a"), a.KVRank+a.RopeDim, 0, a.KVRank)
}

// part is n columns from at on of every width columns of x.
func (l *layer) part(x []float32, width, at, n int) []float32 {
	if width == 0 || len(x)%width != 0 {
		return nil
	}
	out := make([]float32, 0, len(x)/width*n)
	for ; len(x) > 0; x = x[width:] {
		out = append(out, x[at:at+n]...)
	}
	return out
}

// mlp is the network of the layer: dense, or the routed experts and the shared ones.
func (l *layer) mlp() []float32 {
	if !l.cfg.MoELayer(l.c.Layer) {
		return l.network(l.n.FFNNames(""), l.get("post_norm"), l.t, network{})
	}
	out := l.get("experts_out")
	if l.cfg.MoE.Shared > 0 {
		out = sum(out, l.get("shared_out"))
	}
	return out
}

// network is how a SwiGLU network is computed; zero: rightly.
type network struct {
	swapped            bool // gate and up
	gate, up, down     bool // transposed
	back               bool // the other way: written so, not read so
	gelu, none, silent bool // another activation; none at all; the product with up left out
}

// network is down(silu(gate x) * up x) of t rows of x.
func (l *layer) network(n model.FFNNames, x []float32, t int, k network) []float32 {
	if k.swapped {
		n.Gate, n.Up = n.Up, n.Gate
	}
	h := l.cfg.Hidden
	read := func(name string, in int, flip bool) []float32 {
		w := l.weight(name, 0)
		switch {
		case w == nil || !flip:
			return w
		case k.back:
			return transposed(w, in, len(w)/in)
		}
		return transposed(w, len(w)/in, in)
	}
	mid := mul(x, read(n.Gate, h, k.gate), t)
	up := mul(x, read(n.Up, h, k.up), t)
	if mid == nil || len(mid) != len(up) {
		return nil
	}
	for i, g := range mid {
		v := float64(g)
		switch {
		case k.gelu:
			v *= (1 + math.Erf(v/math.Sqrt2)) / 2
		case !k.none:
			v /= 1 + math.Exp(-v)
		}
		if !k.silent {
			v *= float64(up[i])
		}
		mid[i] = float32(v)
	}
	return mul(mid, read(n.Down, len(mid)/t, k.down), t)
}

// experts is the weighted sum of the routed experts that were chosen.
func (l *layer) experts(k network) []float32 {
	return l.mixture(l.get("router_ids"), l.get("router_weights"), k)
}

// mixture is the sum over the choices ids [t, K] of weights times the experts' results; ids
// count modulo the number of experts.
func (l *layer) mixture(ids, weights []float32, k network) []float32 {
	x, h, e := l.get("post_norm"), l.cfg.Hidden, l.cfg.MoE.Experts
	if len(ids) != len(weights) || len(x) != l.t*h || e == 0 {
		return nil
	}
	top, out := len(ids)/l.t, make([]float32, l.t*h)
	// Expert by expert, so that each is read once.
	for expert := range e {
		var rows []int
		for i, id := range ids {
			if (int(id)%e+e)%e == expert {
				rows = append(rows, i)
			}
		}
		if len(rows) == 0 {
			continue
		}
		in := make([]float32, 0, len(rows)*h)
		for _, i := range rows {
			in = append(in, x[i/top*h:][:h]...)
		}
		y := l.network(l.cfg.ExpertNames(l.c.Layer, expert), in, len(rows), k)
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

// route is the choice of a router [t, K] and its weights, by falling weight, then rising id.
func (l *layer) route(p device.Router) (ids, weights []float32) {
	logits := l.get("router_logits")
	if len(logits) != l.t*p.Experts {
		return nil, nil
	}
	for t := range l.t {
		row := make([]float64, p.Experts)
		for i, v := range logits[t*p.Experts:][:p.Experts] {
			row[i] = float64(v)
		}
		w := oracle.Route(row, p)
		order := make([]int, p.Experts)
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(a, b int) int {
			switch {
			case w[a] > w[b]:
				return -1
			case w[a] < w[b]:
				return 1
			}
			return 0
		})
		for _, e := range order[:p.TopK] {
			ids, weights = append(ids, float32(e)), append(weights, float32(w[e]))
		}
	}
	return ids, weights
}
