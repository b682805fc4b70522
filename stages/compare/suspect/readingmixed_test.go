package suspect

import (
	"math"
	"slices"

	"krater/stages/oracle"
)

// transposedMix is the streams behind the first block, mixed by the transposed matrix.
func transposedMix(l *oracle.Layer) []float64 {
	n, h := l.Streams.Count, l.Config.Hidden
	x, y, post, comb := l.Entered(), l.Get("mixer_out"), l.Get("attn_hc_post"), l.Get("attn_hc_comb")
	out := make([]float64, l.T*n*h)
	for t := range l.T {
		for k := range n {
			for c := range h {
				sum := post[t*n+k] * y[t*h+c]
				for j := range n {
					sum += comb[t*n*n+k*n+j] * x[(t*n+j)*h+c]
				}
				out[(t*n+k)*h+c] = sum
			}
		}
	}
	return out
}

// mixMatrix is the matrix that mixes streams with a mistake.
type mixMatrix struct{ rows, once, mlp bool }

func (m mixMatrix) values(l *oracle.Layer) (out []float64) {
	n, h, prefix, x := l.Streams.Count, l.Config.Hidden, "attn_", l.Entered()
	if m.mlp {
		prefix, x = "mlp_", l.Get("streams_mid")
	}
	fn, base, scale := l.Weight(l.Tensor(prefix+"hc_fn"), 0), l.Weight(l.Tensor(prefix+"hc_base"), 0), l.Weight(l.Tensor(prefix+"hc_scale"), 0)
	for t := range l.T {
		row, squares := x[t*n*h:][:n*h], 0.0
		for _, v := range row {
			squares += v * v
		}
		by, a := 1/math.Sqrt(squares/float64(n*h)+float64(l.Config.NormEps)), make([]float64, n*n)
		for i := range a {
			for c, v := range row {
				a[i] += v * by * float64(fn[(2*n+i)*n*h+c])
			}
			a[i] = math.Exp(a[i]*float64(scale[2]) + float64(base[2*n+i]))
		}
		divide := func(eps float64, line func(i int) int) {
			sums := make([]float64, n)
			for i, v := range a {
				sums[line(i)] += v
			}
			for i := range a {
				a[i] /= sums[line(i)] + eps
			}
		}
		rows, columns, eps := func(i int) int { return i / n }, func(i int) int { return i % n }, float64(l.Streams.Eps)
		divide(0, rows)
		for i := range a {
			a[i] += eps
		}
		if m.rows {
			divide(eps, rows)
		} else {
			divide(eps, columns)
		}
		for i := 1; i < l.Streams.Iterations && !m.once; i++ {
			divide(eps, rows)
			divide(eps, columns)
		}
		out = append(out, a...)
	}
	return out
}

// softplusDecays is Kimi Delta Attention whose decays have no lower bound.
func softplusDecays(l *oracle.Layer) []float64 {
	p, conv, beta, a := l.Delta, l.Get("delta_conv"), l.Get("delta_beta"), l.Get("in_proj_a")
	n, d := p.ValueHeads, p.KeyDim
	log, bias := l.Weight(l.Tensor("a_log"), 0), l.Weight(l.Tensor("dt_bias"), 0)
	out := make([]float64, l.T*n*p.ValueDim)
	for h := range n {
		state := make([]float64, d*p.ValueDim)
		for t := range l.T {
			unit := func(at int) []float64 {
				x, length := slices.Clone(conv[t*p.Channels()+at:][:d]), 1e-6
				for _, v := range x {
					length += v * v
				}
				for i := range x {
					x[i] /= math.Sqrt(length)
				}
				return x
			}
			q, k, value := unit(h*d), unit((n+h)*d), conv[t*p.Channels()+2*n*d+h*p.ValueDim:]
			for i := range state {
				at := h*d + i/p.ValueDim
				state[i] *= math.Exp(-math.Exp(float64(log[h])) * math.Log1p(math.Exp(a[t*n*d+at]+float64(bias[at]))))
			}
			for c := range p.ValueDim {
				known := 0.0
				for i := range d {
					known += k[i] * state[i*p.ValueDim+c]
				}
				for i := range d {
					s := &state[i*p.ValueDim+c]
					*s += k[i] * (value[c] - known) * beta[t*n+h]
					out[(t*n+h)*p.ValueDim+c] += q[i] * *s / math.Sqrt(float64(d))
				}
			}
		}
	}
	return out
}

// pooled reports whether token i attends to token j by its choice of pools.
func pooled(l *oracle.Layer, i, j int) bool {
	n, pool := l.Indexer.TopK, j/l.Indexer.Pool
	return pool >= (i+1)/l.Indexer.Pool || slices.Contains(l.Get("selected")[i*n:][:n], float64(pool))
}

// latentSeen is latent attention of tokens to those up to them that sees allows.
func latentSeen(l *oracle.Layer, sees func(i, j int) bool) []float64 {
	q, kv, width := l.Get("q"), l.Get("kv_b"), l.Nope+l.VDim
	out := make([]float64, l.T*l.Heads*l.VDim)
	for i := range l.T {
		for h := range l.Heads {
			sum, to := 0.0, out[(i*l.Heads+h)*l.VDim:][:l.VDim]
			for j := range i + 1 {
				if !sees(i, j) {
					continue
				}
				product, row := 0.0, kv[(j*l.Heads+h)*width:][:width]
				for c := range l.Nope {
					product += q[(i*l.Heads+h)*l.Nope+c] * row[c]
				}
				weight := math.Exp(product * l.Scale)
				sum += weight
				for c := range to {
					to[c] += weight * row[l.Nope+c]
				}
			}
			for c := range to {
				to[c] /= sum
			}
		}
	}
	return out
}
