package suspect

import "fmt"

// scaleTokensMin is how many tokens a scale a row of the weight is fitted to: with one it
// would explain anything.
const scaleTokensMin = 4

// tryScales looks for what can be measured rather than guessed about a product: a scale of
// the whole weight, one for each of its rows, or a bias.
func (l *layer) tryScales(f *Finding, op, who string, before float64, target []float32) {
	p, ok := l.product(op)
	what := short(p.weight)
	if op == "router_weights" {
		what, ok = "routed_scaling_factor", true
	}
	if !ok {
		return
	}
	y := l.define(op)
	if len(y) == 0 || len(y) != len(target) {
		return
	}
	add := func(what string, v []float32) {
		f.Tried++
		if after := distance(v, target); explains(before, after) {
			f.Suspects = append(f.Suspects, Suspect{Op: op, Who: who, What: what, Before: finite(before), After: after})
		}
	}
	by := fitted(y, target)
	add(fmt.Sprintf("%s times %.4g: a scale missing or applied twice", what, by), scaled(y, by))
	if op == "router_weights" || l.t < scaleTokensMin {
		return
	}
	rows, column, want := make([]float32, len(y)), make([]float32, l.t), make([]float32, l.t)
	for o := range p.out {
		for t := range l.t {
			column[t], want[t] = y[t*p.out+o], target[t*p.out+o]
		}
		by := fitted(column, want)
		for t := range l.t {
			rows[t*p.out+o] = float32(by * float64(column[t]))
		}
	}
	add(what+" with other scales of its rows", rows)
	bias := make([]float32, p.out)
	for i := range y {
		bias[i%p.out] += (target[i] - y[i]) / float32(l.t)
	}
	add("the same added to every row: a bias that the files do not have, or that is left out", sum(y, bias))
}

// fitted is the number that takes y closest to target.
func fitted(y, target []float32) float64 {
	norm := dot(y, y)
	if norm == 0 {
		return 0
	}
	return dot(y, target) / norm
}
