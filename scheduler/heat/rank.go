package heat

import (
	"cmp"
	"slices"
)

// Ranked is an expert with its heat and size.
type Ranked struct {
	Key
	// Rate is the share of the layer's tokens that go to the expert.
	Rate float64
	// Bytes is the size of the expert, 0 if it is not known.
	Bytes int64
}

// worth returns the value by which experts are ranked: the rate, per byte if the size is known.
func (r *Ranked) worth() float64 {
	if r.Bytes == 0 {
		return r.Rate
	}
	return r.Rate / float64(r.Bytes)
}

// Rank lists every expert of the model, the hottest first: by Rate, or by Rate per byte if bytes is
// not nil. bytes returns the size of an expert, above 0. Equal experts are ordered by layer and
// number. Layers count alike, however many tokens each has seen.
func (m *Map) Rank(bytes func(Key) int64) []Ranked {
	all := make([]Ranked, 0, len(m.counts))
	for i, layer := range m.shape.Layers {
		for e, n := range m.row(i) {
			r := Ranked{Key: Key{layer, int32(e)}, Rate: float64(n) / float64(max(1, m.tokens[i]))}
			if bytes != nil {
				r.Bytes = bytes(r.Key)
			}
			all = append(all, r)
		}
	}
	slices.SortStableFunc(all, func(a, b Ranked) int { return cmp.Compare(b.worth(), a.worth()) })
	return all
}
