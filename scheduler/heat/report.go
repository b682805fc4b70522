package heat

import (
	"encoding/hex"
	"math"
)

// Skew describes how unevenly experts are used.
type Skew struct {
	Experts  int     `json:"experts"`
	Used     int     `json:"used"`    // chosen at all
	Hottest  float64 `json:"hottest"` // share of rows that go to the hottest expert
	Share10  float64 `json:"share_10"`
	Share25  float64 `json:"share_25"`
	Share50  float64 `json:"share_50"`
	Entropy  float64 `json:"entropy_bits"`
	Evenness float64 `json:"evenness"` // Entropy as a part of that of even use
}

// skew is that of a curve over counts.
func (c Curve) skew(counts []uint64) Skew {
	n := len(c) - 1
	s := Skew{Experts: n, Hottest: c[1], Share10: c.Share(0.1), Share25: c.Share(0.25), Share50: c.Share(0.5), Entropy: c.Entropy(), Evenness: 1}
	if n > 1 {
		s.Evenness = s.Entropy / math.Log2(float64(n))
	}
	for _, n := range counts {
		if n > 0 {
			s.Used++
		}
	}
	return s
}

// Report describes a map for people and other programs.
type Report struct {
	Identity string        `json:"identity"` // hexadecimal
	Experts  int           `json:"experts"`
	TopK     int           `json:"top_k"`
	Seen     uint64        `json:"tokens"`
	Layers   []LayerReport `json:"layers"`
	Whole    Skew          `json:"all_layers"`
}

// LayerReport is the part of a Report about one layer.
type LayerReport struct {
	Layer  int32  `json:"layer"`
	Tokens uint64 `json:"tokens"`
	Skew
	Counts []uint64 `json:"counts"` // [experts], by number
}

// Report describes the map. Its counts belong to the map.
func (m *Map) Report() Report {
	r := Report{Identity: hex.EncodeToString(m.Identity[:]), Experts: m.shape.Experts, TopK: m.shape.TopK, Seen: m.Seen(), Whole: m.Whole().skew(m.counts)}
	for i, layer := range m.shape.Layers {
		r.Layers = append(r.Layers, LayerReport{Layer: layer, Tokens: m.tokens[i], Skew: m.Curve(layer).skew(m.row(i)), Counts: m.row(i)})
	}
	return r
}
