package heat

import (
	"math/bits"
	"slices"
)

// Scaled are the counts as strategies take them, [layer][expert], nil where there is no map or it
// has seen nothing. Counts beyond 32 bits lose their last ones, all alike.
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
