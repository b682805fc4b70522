package model

import "math"

// parseRope reads the rotary settings of both config styles and makes the
// frequencies. scale is the factor on the softmax scale: YaRN's
// mscale(mscale_all_dim) squared, else 1.
func parseRope(f fields, dim, context int) (r *RopeConfig, scale float64) {
	r = &RopeConfig{Dim: dim, CosSinScale: 1}
	// One object holds the scaling; transformers 5 also puts the base there.
	name := "rope_scaling"
	if f.has("rope_parameters") {
		name = "rope_parameters"
		if f.has("rope_scaling") && string(f.raw["rope_scaling"]) != string(f.raw["rope_parameters"]) {
			f.fail("rope_scaling", "given together with rope_parameters")
		}
	}
	p, scaled := f.object(name)
	r.Theta = ropeTheta(f, p, scaled)
	kind := "default"
	if scaled {
		kind = ropeKind(p)
	}
	r.InvFreq = inverseFrequencies(dim, r.Theta)
	switch kind {
	case "linear":
		factor := p.float("factor", 1, maxRopeFactor)
		for i := range r.InvFreq {
			r.InvFreq[i] /= factor
		}
	case "llama3":
		l := parseLlama3(p)
		if l.original > float64(context) {
			f.clash("max_position_embeddings", []string{name + ".original_max_position_embeddings"}, "%d is less than the original %g", context, l.original)
		}
		l.scaleFrequencies(r.InvFreq)
	case "yarn":
		y := parseYarn(p)
		if y.original > float64(context) {
			f.clash("max_position_embeddings", []string{name + ".original_max_position_embeddings"}, "%d is less than the original %g", context, y.original)
		}
		y.scaleFrequencies(r)
		r.CosSinScale = y.cosSin
		m := yarnMscale(y.factor, y.mscaleAllDim)
		return r, m * m
	}
	return r, 1
}

// partialRotary reads how many values of a head are rotated, the first ones: partial_rotary_factor,
// which transformers 5 writes into rope_parameters too, or without it def of the head.
func partialRotary(f fields, headDim int, def float64) int {
	const name = "partial_rotary_factor"
	factor := f.floatOr(name, def, 1e-3, 1)
	if p, ok := f.object("rope_parameters"); ok && p.has(name) {
		if inner := p.float(name, 1e-3, 1); f.has(name) && inner != factor {
			f.clash(name, []string{"rope_parameters." + name}, "%g contradicts rope_parameters.%s %g", factor, name, inner)
		} else {
			factor = inner
		}
	}
	dim := int(float64(headDim) * factor)
	if dim < 2 || dim%2 != 0 {
		f.clash(name, []string{"head_dim"}, "%g of heads of %d are %d values: rotation needs pairs", factor, headDim, dim)
		return 2 // harmless
	}
	return dim
}

// maxRopeFactor bounds context extension.
const maxRopeFactor = 1e4

// ropeTheta returns the base, from either place; twice only with equal values.
func ropeTheta(f, p fields, scaled bool) float64 {
	const lo, hi = 1.001, 1e12
	if !scaled || !p.has("rope_theta") {
		return f.float("rope_theta", lo, hi)
	}
	theta := p.float("rope_theta", lo, hi)
	if f.floatOr("rope_theta", theta, lo, hi) != theta {
		f.fail("rope_theta", "contradicts %srope_theta", p.path)
	}
	return theta
}

// ropeKind returns the scaling method: "type" in old files, "rope_type" in new ones.
func ropeKind(p fields) string {
	name := "rope_type"
	if !p.has(name) {
		name = "type"
	}
	if !p.require(name) {
		return "default"
	}
	kind := p.oneOf(name, "default", "default", "linear", "llama3", "yarn")
	if p.bad(name) {
		return kind
	}
	if old := p.stringOr("type", kind); old != kind {
		p.fail("type", "%q contradicts rope_type %q", clip(old), kind)
	}
	for _, only := range ropeOnly {
		if kind != only.kind && p.has(only.field) {
			p.fail(only.field, "has a meaning for %s only, not for %s", only.kind, kind)
		}
	}
	return kind
}

// ropeOnly are the fields that one scaling method has.
var ropeOnly = []struct{ kind, field string }{
	{"yarn", "mscale"}, {"yarn", "mscale_all_dim"}, {"yarn", "beta_fast"}, {"yarn", "beta_slow"},
	{"llama3", "low_freq_factor"}, {"llama3", "high_freq_factor"},
}

// inverseFrequencies is theta^(-2i/dim), i < dim/2.
func inverseFrequencies(dim int, theta float64) []float64 {
	inv := make([]float64, dim/2)
	for i := range inv {
		inv[i] = math.Pow(theta, -float64(2*i)/float64(dim))
	}
	return inv
}

// llama3 holds the parameters of Llama 3's scaling (arXiv 2407.21783, section 3.4.3).
type llama3 struct {
	factor    float64 // context extension
	original  float64 // original_max_position_embeddings, tokens
	low, high float64 // low_freq_factor, high_freq_factor: turns over the original context
}

func parseLlama3(p fields) llama3 {
	l := llama3{
		factor:   p.float("factor", 1, maxRopeFactor),
		original: float64(p.int("original_max_position_embeddings", 1, maxContext)),
		low:      p.float("low_freq_factor", 1e-3, 1e6),
		high:     p.float("high_freq_factor", 1e-3, 1e6),
	}
	if l.high <= l.low {
		p.clash("high_freq_factor", []string{"low_freq_factor"}, "%g is not more than low_freq_factor %g", l.high, l.low)
		l.high = l.low + 1 // harmless
	}
	return l
}

// scaleFrequencies keeps what makes more than high turns over the original context, divides what
// makes fewer than low by the factor, and goes over linearly between the two.
func (l llama3) scaleFrequencies(inv []float64) {
	for i, f := range inv {
		turns := l.original * f / (2 * math.Pi)
		kept := min(max((turns-l.low)/(l.high-l.low), 0), 1)
		inv[i] = f*kept + f/l.factor*(1-kept)
	}
}

// yarn holds the parameters of YaRN (arXiv 2309.00071).
type yarn struct {
	factor       float64 // context extension
	original     float64 // original_max_position_embeddings, tokens
	fast, slow   float64 // beta_fast, beta_slow: turns over the original context
	mscaleAllDim float64
	truncate     bool // round the ramp's ends to whole dimensions
	cosSin       float64
}

func parseYarn(p fields) yarn {
	y := yarn{
		factor:       p.float("factor", 1, maxRopeFactor),
		original:     float64(p.int("original_max_position_embeddings", 1, maxContext)),
		fast:         p.floatOr("beta_fast", 32, 1e-3, 1e6),
		slow:         p.floatOr("beta_slow", 1, 1e-3, 1e6),
		mscaleAllDim: p.floatOr("mscale_all_dim", 0, 0, 100),
		truncate:     p.boolOr("truncate", true),
	}
	if y.fast < y.slow {
		p.clash("beta_fast", []string{"beta_slow"}, "%g is less than beta_slow %g", y.fast, y.slow)
	}
	mscale := p.floatOr("mscale", 1, 0, 100)
	y.cosSin = p.floatOr("attention_factor", yarnMscale(y.factor, mscale)/yarnMscale(y.factor, y.mscaleAllDim), 1e-3, 1e3)
	return y
}

// yarnMscale returns the attention temperature for a context extended by factor.
func yarnMscale(factor, mscale float64) float64 {
	if factor <= 1 {
		return 1
	}
	return 0.1*mscale*math.Log(factor) + 1
}

// scaleFrequencies keeps the fast dimensions (more than beta_fast turns over
// the original context), divides the slow ones (fewer than beta_slow turns) by
// the factor, and goes over linearly between the two.
func (y yarn) scaleFrequencies(r *RopeConfig) {
	dim := float64(r.Dim)
	// at is the dimension that makes the given number of turns.
	at := func(turns float64) float64 {
		return dim * math.Log(y.original/(turns*2*math.Pi)) / (2 * math.Log(r.Theta))
	}
	low, high := at(y.fast), at(y.slow)
	if y.truncate {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, dim-1)
	if low == high {
		high += 0.001 // a step instead of a division by zero
	}
	for i, inv := range r.InvFreq {
		slow := min(max((float64(i)-low)/(high-low), 0), 1)
		r.InvFreq[i] = inv/y.factor*slow + inv*(1-slow)
	}
}
