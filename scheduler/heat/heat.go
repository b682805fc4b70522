// Package heat counts how often the router of each layer chose each expert, and ranks experts by
// their worth on a fast device. It holds data only: actors count, and scheduler/dispatch
// decides. A Map is not safe for concurrent use.
package heat

import (
	"encoding/hex"
	"fmt"
	"math"
	"slices"
)

// Bounds of a shape, above any model there is, and of its cells (layers x experts),
// which bound a file to 8 MiB and a little.
const (
	layersMost  = 1 << 12
	expertsMost = 1 << 16
	cellsMost   = 1 << 20
	// countMost is the largest count that float64 and JSON readers represent exactly.
	countMost = 1 << 53
)

// Identity is a digest of everything that decides a model's routing. Maps with different identities
// say nothing about each other.
type Identity [32]byte

// String returns the first 16 hexadecimal digits.
func (id Identity) String() string { return hex.EncodeToString(id[:8]) }

// Key is one expert of the model.
type Key struct{ Layer, Expert int32 }

// Shape holds the dimensions of a map.
type Shape struct {
	Layers  []int32 // the model's layers that have experts, rising
	Experts int     // experts of each layer
	TopK    int     // experts that each token goes to
}

func (s *Shape) check() error {
	if n := len(s.Layers); n < 1 || n > layersMost || s.Experts < 1 || s.Experts > expertsMost || n*s.Experts > cellsMost ||
		s.TopK < 1 || s.TopK > s.Experts {
		return fmt.Errorf("%w: %d layers of %d experts, %d a token", ErrShape, len(s.Layers), s.Experts, s.TopK)
	}
	for i, l := range s.Layers {
		if l < 0 || i > 0 && l <= s.Layers[i-1] {
			return fmt.Errorf("%w: layers %v do not rise", ErrShape, s.Layers)
		}
	}
	return nil
}

func (s *Shape) equal(o *Shape) bool {
	return s.Experts == o.Experts && s.TopK == o.TopK && slices.Equal(s.Layers, o.Layers)
}

// Map holds the counts of a model. An expert's count never exceeds the number of
// tokens that its layer has seen. Their quotient is the share of the tokens that
// chose the expert.
type Map struct {
	Identity Identity

	shape  Shape
	tokens []uint64 // [layers] that the layer's router has seen
	counts []uint64 // [layers, experts] of them that went to the expert
}

// New makes a map without counts. The layers are copied.
func New(id Identity, s Shape) (*Map, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	s.Layers = slices.Clone(s.Layers)
	return &Map{Identity: id, shape: s, tokens: make([]uint64, len(s.Layers)), counts: make([]uint64, len(s.Layers)*s.Experts)}, nil
}

// Shape returns the dimensions of the map. Its Layers must not be changed.
func (m *Map) Shape() Shape { return m.shape }

// Clone returns a copy of the map.
func (m *Map) Clone() *Map {
	c := *m
	c.shape.Layers, c.tokens, c.counts = slices.Clone(m.shape.Layers), slices.Clone(m.tokens), slices.Clone(m.counts)
	return &c
}

// index returns the place of a layer of the model, -1 where it has no experts.
func (m *Map) index(layer int32) int {
	i, ok := slices.BinarySearch(m.shape.Layers, layer)
	if !ok {
		return -1
	}
	return i
}

// row returns the counts of the i-th layer.
func (m *Map) row(i int) []uint64 { return m.counts[i*m.shape.Experts : (i+1)*m.shape.Experts] }

// Tokens returns the number of tokens that a layer of the model has seen, 0 if it has no experts.
func (m *Map) Tokens(layer int32) uint64 {
	if i := m.index(layer); i >= 0 {
		return m.tokens[i]
	}
	return 0
}

// Seen returns the tokens of the layer that has seen most: layers differ where only a
// sample of steps was counted.
func (m *Map) Seen() uint64 { return slices.Max(m.tokens) }

// Counts returns the counts of a layer's experts [experts], nil if it has none. They belong
// to the map and are read-only.
func (m *Map) Counts(layer int32) []uint64 {
	if i := m.index(layer); i >= 0 {
		return m.row(i)
	}
	return nil
}

// Add adds the number of tokens that a layer's router has seen, and the number of
// them that went to each expert. After an error (ErrShape, ErrCounts) nothing has
// changed.
func (m *Map) Add(layer int32, tokens uint64, counts []uint64) error {
	i := m.index(layer)
	if i < 0 || len(counts) != m.shape.Experts {
		return fmt.Errorf("%w: %d counts of layer %d", ErrShape, len(counts), layer)
	}
	if tokens > countMost-m.tokens[i] {
		return fmt.Errorf("%w: %d tokens and %d of layer %d", ErrCounts, m.tokens[i], tokens, layer)
	}
	for e, n := range counts {
		if n > tokens {
			return fmt.Errorf("%w: expert %d of layer %d: %d of %d tokens", ErrCounts, e, layer, n, tokens)
		}
	}
	m.tokens[i] += tokens
	row := m.row(i)
	for e, n := range counts {
		row[e] += n
	}
	return nil
}

// Merge adds the counts of another map of the same model (else ErrOther). After an
// error nothing has changed.
func (m *Map) Merge(o *Map) error {
	if err := m.Same(o); err != nil {
		return err
	}
	for i, n := range o.tokens {
		if n > countMost-m.tokens[i] {
			return fmt.Errorf("%w: %d tokens and %d of layer %d", ErrCounts, m.tokens[i], n, m.shape.Layers[i])
		}
	}
	for i, n := range o.tokens {
		m.tokens[i] += n
	}
	for i, n := range o.counts {
		m.counts[i] += n
	}
	return nil
}

// Same returns ErrOther unless the map is of the same model.
func (m *Map) Same(o *Map) error {
	if m.Identity != o.Identity {
		return fmt.Errorf("%w: %s, not %s", ErrOther, o.Identity, m.Identity)
	}
	if !m.shape.equal(&o.shape) {
		return fmt.Errorf("%w: %d layers of %d experts, %d a token; not %d of %d, %d", ErrOther,
			len(o.shape.Layers), o.shape.Experts, o.shape.TopK, len(m.shape.Layers), m.shape.Experts, m.shape.TopK)
	}
	return nil
}

// Since returns the counts since an earlier copy of the map was made. It returns ErrCounts if earlier
// is not such a copy.
func (m *Map) Since(earlier *Map) (*Map, error) {
	if err := m.Same(earlier); err != nil {
		return nil, err
	}
	d := m.Clone()
	for i, n := range earlier.tokens {
		if n > d.tokens[i] {
			return nil, fmt.Errorf("%w: layer %d had seen more tokens before", ErrCounts, m.shape.Layers[i])
		}
		d.tokens[i] -= n
	}
	for i, n := range earlier.counts {
		if n > d.counts[i] || d.counts[i]-n > d.tokens[i/m.shape.Experts] {
			return nil, fmt.Errorf("%w: expert %d of layer %d was counted otherwise before", ErrCounts, i%m.shape.Experts, m.shape.Layers[i/m.shape.Experts])
		}
		d.counts[i] -= n
	}
	return d, nil
}

// Decay multiplies all counts by keep (0 to 1, else ErrCounts), so that later counts weigh more. Shares
// stay the same, except for rounding to whole tokens.
func (m *Map) Decay(keep float64) error {
	if !(keep >= 0 && keep <= 1) {
		return fmt.Errorf("%w: a decay to %v of what was", ErrCounts, keep)
	}
	for _, list := range [][]uint64{m.tokens, m.counts} {
		for i, n := range list {
			list[i] = uint64(math.RoundToEven(float64(n) * keep)) // monotone: counts stay within tokens
		}
	}
	return nil
}
