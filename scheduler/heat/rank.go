package heat

import (
	"cmp"
	"slices"
)

// Ranked is an expert with what it is worth.
type Ranked struct {
	Key
	// Rate is the share of its layer's tokens that go to it.
	Rate float64
	// Bytes is what it takes, 0 if nobody said.
	Bytes int64
}

// worth is what places are given by.
func (r *Ranked) worth() float64 {
	if r.Bytes == 0 {
		return r.Rate
	}
	return r.Rate / float64(r.Bytes)
}

// Rank lists every expert of the model, the hottest first: by Rate, or where bytes
// says what experts take (all above 0), by Rate for each byte. Equal ones come by
// layer and number. Layers count alike, however many tokens each has seen.
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
