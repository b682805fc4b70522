package heat

import (
	"math/bits"
	"slices"
)

// Scaled returns the counts in the form that strategies take, [layer][expert], nil if there is no map or it
// has no counts. If a count needs more than 32 bits, all counts lose the same number of low bits.
func (m *Map) Scaled() [][]uint32 {
	if m == nil || m.Seen() == 0 {
		return nil
	}
	layers, most := m.Shape().Layers, uint64(0)
	for _, l := range layers {
		most = max(most, slices.Max(m.Counts(l)))
	}
	shift := max(0, bits.Len64(most)-32)
	out := make([][]uint32, len(layers))
	for i, l := range layers {
		for _, n := range m.Counts(l) {
			out[i] = append(out[i], uint32(n>>shift))
		}
	}
	return out
}
