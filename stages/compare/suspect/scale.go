package suspect

import (
	"fmt"

	"krater/stages/oracle"
)

// scaleTokensMin is the number of tokens needed to fit one scale per row of the weight: with one
// token it would explain anything.
const scaleTokensMin = 4

// tryScales looks for what can be measured rather than guessed about a product: a scale of the
// whole weight, one for each of its rows, or a bias.
func (l *layer) tryScales(f *Finding, op, who string, before float64, target []float64) {
	p, ok := l.Product(op)
	what := l.Short(l.Tensor(p.Role))
	if op == "router_weights" {
		what, ok = "routed_scaling_factor", true
	}
	if !ok {
		return
	}
	y := l.Define(op)
	if len(y) == 0 || len(y) != len(target) {
		return
	}
	add := func(what string, v []float64) { f.consider(op, who, what, before, distance(v, target)) }
	by := fitted(y, target)
	add(fmt.Sprintf("%s times %.4g: a scale missing or applied twice", what, by), scaled(y, by))
	if op == "router_weights" || l.T < scaleTokensMin {
		return
	}
	rows, column, want := make([]float64, len(y)), make([]float64, l.T), make([]float64, l.T)
	for o := range p.Out {
		for t := range l.T {
			column[t], want[t] = y[t*p.Out+o], target[t*p.Out+o]
		}
		by := fitted(column, want)
		for t := range l.T {
			rows[t*p.Out+o] = by * column[t]
		}
	}
	add(what+" with other scales of its rows", rows)
	bias := make([]float64, p.Out)
	for i := range y {
		bias[i%p.Out] += (target[i] - y[i]) / float64(l.T)
	}
	add("the same vector is added to every row: a bias that the files do not have, or a missing one", oracle.Sum(y, bias))
}

// fitted returns the number that takes y closest to target.
func fitted(y, target []float64) float64 {
	norm := oracle.Dot(y, y)
	if norm == 0 {
		return 0
	}
	return oracle.Dot(y, target) / norm
}
