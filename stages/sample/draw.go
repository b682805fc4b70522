package sample

import (
	"math"
	"slices"
)

// scored is a token with its logit or its weight.
type scored struct {
	w  float64
	id int32
}

// before returns the order of preference: the larger one, then the smaller id. No two tokens are
// equal in it.
func (a scored) before(b scored) bool { return a.w > b.w || a.w == b.w && a.id < b.id }

// draw picks a token at random. u in [0, 1) is the point of the cumulative distribution over the
// tokens that top_k, top_p and min_p leave, by rising id. This order makes the choice reproducible,
// however the filters work. largest is the largest logit of the row.
//
// Each filter keeps the first tokens in the order of preference, so each is a selection, never a
// sort of the vocabulary.
func (p *Params) draw(row []float32, largest float32, u float64, s *scratch) int32 {
	pool, total := p.weigh(row, largest, s)
	if p.TopP == 1 && p.MinP == 0 {
		// Whole blocks are stepped over by their sums.
		target, sum := u*total, 0.0
		for i, block := range s.sums {
			if sum+block > target || i == len(s.sums)-1 {
				return pick(pool[i*blockLen:min(len(pool), (i+1)*blockLen)], target-sum)
			}
			sum += block
		}
	}
	if p.TopP < 1 {
		pool = s.topP(pool, p.TopP, total)
	}
	total = 0
	kept := pool[:0]
	for _, c := range pool {
		if c.w >= p.MinP {
			kept = append(kept, c)
			total += c.w
		}
	}
	return pick(kept, u*total)
}

// pick returns the token at which the sum of weights exceeds target; the last one with a weight if
// rounding made target too large.
func pick(pool []scored, target float64) int32 {
	sum, last := 0.0, pool[0].id
	for _, c := range pool {
		if sum += c.w; sum > target {
			return c.id
		}
		if c.w > 0 {
			last = c.id
		}
	}
	return last
}

// blockLen is the number of weights that share a sum.
const blockLen = 256

// weigh returns the weights of the tokens that top_k keeps, by rising id, and their sum; s.sums has
// the sum of each blockLen of them. A weight is exp((logit - largest) / temperature): in [0, 1],
// and 1 for the best token.
func (p *Params) weigh(row []float32, largest float32, s *scratch) (pool []scored, total float64) {
	pool = slices.Grow(s.pool[:0], len(row))[:len(row)]
	n := 0
	if p.TopK > 0 && p.TopK < len(row) {
		edge := last(s.topK(row, p.TopK))
		for i, x := range row {
			// Nearly all tokens fail the first test; the ids of equal logits decide.
			if w := float64(x); w >= edge.w && !edge.before(scored{w, int32(i)}) {
				pool[n] = scored{w, int32(i)}
				n++
			}
		}
	} else {
		for i, x := range row {
			pool[i] = scored{float64(x), int32(i)}
		}
		n = len(row)
	}
	s.pool, s.sums = pool[:n], s.sums[:0]
	scale, top := 1/p.Temperature, float64(largest)
	for block := range slices.Chunk(s.pool, blockLen) {
		sum := 0.0
		for i := range block {
			w := exp((block[i].w - top) * scale)
			block[i].w = w
			sum += w
		}
		s.sums = append(s.sums, sum)
		total += sum
	}
	return s.pool, total
}

// last returns the least preferred of a list.
func last(list []scored) scored {
	edge := list[0]
	for _, c := range list[1:] {
		if edge.before(c) {
			edge = c
		}
	}
	return edge
}

// The exponential function of this package: 2^(k/64) from a table times a polynomial on |r| <=
// ln2/128. Its relative error is below 1e-12, for what matters of a distribution (x > -30) below
// 5e-14, and it takes a fraction of math.Exp's time, which counts for a whole vocabulary.
const expSteps = 64

var expTable = func() (t [expSteps]uint64) {
	for i := range t {
		t[i] = math.Float64bits(math.Exp2(float64(i) / expSteps))
	}
	return t
}()

// exp is e^x for x <= 0; below -700 it is 0.
func exp(x float64) float64 {
	if !(x > -700) {
		return 0
	}
	// Adding 1.5 * 2^52 rounds to a whole number k and leaves it in the low bits.
	t := x*(expSteps/math.Ln2) + 0x1.8p52
	k := math.Float64bits(t)
	r := x - (t-0x1.8p52)*(math.Ln2/expSteps)
	poly := 1 + r*(1+r*(0.5+r*(1.0/6+r*(1.0/24))))
	// k = 64 m + j with 0 <= j < 64; m goes to the exponent.
	return math.Float64frombits(expTable[k%expSteps]+k/expSteps<<52) * poly
}
