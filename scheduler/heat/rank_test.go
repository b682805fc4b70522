package heat

import (
	"encoding/json"
	"math"
	"slices"
	"testing"
)

// TestRank against a search for the hottest that is left.
func TestRank(t *testing.T) {
	m := random(t, 1, 500)
	// Layer 5 has seen half as many tokens: its experts count double.
	m.tokens[2], m.tokens[0] = 250, 500
	for e := range m.row(2) {
		m.row(2)[e] /= 2
	}
	size := func(k Key) int64 { return 100 + 900*int64(k.Layer) }
	for name, bytes := range map[string]func(Key) int64{"by rate": nil, "by byte": size} {
		worth := func(k Key) float64 {
			w := float64(m.Counts(k.Layer)[k.Expert]) / float64(m.Tokens(k.Layer))
			if bytes != nil {
				w /= float64(bytes(k))
			}
			return w
		}
		ranked := m.Rank(bytes)
		left := map[Key]bool{}
		for _, layer := range shape.Layers {
			for e := range shape.Experts {
				left[Key{layer, int32(e)}] = true
			}
		}
		if len(ranked) != len(left) {
			t.Fatalf("%s: %d of %d experts", name, len(ranked), len(left))
		}
		for i, r := range ranked {
			if !left[r.Key] {
				t.Fatalf("%s: %v comes twice", name, r.Key)
			}
			for k := range left {
				if w := worth(k); w > worth(r.Key) || w == worth(r.Key) && (k.Layer < r.Layer || k.Layer == r.Layer && k.Expert < r.Expert) {
					t.Fatalf("%s: place %d has %v of worth %v, %v is worth %v", name, i, r.Key, worth(r.Key), k, w)
				}
			}
			delete(left, r.Key)
		}
	}
	if a, b := m.Rank(nil), m.Rank(size); a[0].Key == b[0].Key {
		t.Errorf("the dear %v is first either way", a[0].Key)
	}
	cold, _ := New(model, shape)
	for i, r := range cold.Rank(nil) {
		if want := (Key{shape.Layers[i/8], int32(i % 8)}); r.Key != want || r.Rate != 0 {
			t.Fatalf("without counts place %d has %+v", i, r)
		}
	}
}

// TestCurve: shares of a layer whose numbers are easy, between whole experts too.
func TestCurve(t *testing.T) {
	m, _ := New(model, Shape{Layers: []int32{0, 1, 2}, Experts: 4, TopK: 1})
	m.Add(0, 8, []uint64{1, 4, 0, 3})
	m.Add(1, 80, []uint64{20, 20, 20, 20})
	c := m.Curve(0)
	if want := (Curve{0, 0.5, 0.875, 1, 1}); !slices.Equal(c, want) {
		t.Errorf("%v, want %v", c, want)
	}
	for part, want := range map[float64]float64{-1: 0, 0: 0, 0.125: 0.25, 0.25: 0.5, 0.5: 0.875, 0.625: 0.9375, 1: 1, 2: 1} {
		if got := c.Share(part); math.Abs(got-want) > 1e-15 {
			t.Errorf("the hottest %v do %v, want %v", part, got, want)
		}
	}
	if want := 0.5 + 3.0/8*math.Log2(8.0/3) + 3.0/8; math.Abs(c.Entropy()-want) > 1e-12 {
		t.Errorf("entropy %v, want %v", c.Entropy(), want)
	}
	for layer := int32(1); layer < 3; layer++ { // even, and without counts
		if c := m.Curve(layer); !slices.Equal(c, Curve{0, 0.25, 0.5, 0.75, 1}) || math.Abs(c.Entropy()-2) > 1e-12 {
			t.Errorf("layer %d: %v", layer, c)
		}
	}
	if m.Curve(3) != nil {
		t.Error("a curve of a layer that has no experts")
	}
	// Layer 1 has seen ten times as many tokens and counts no more for it.
	whole := m.Whole()
	for n, want := range []float64{0, 0.5 / 3, 0.875 / 3, 1.125 / 3, 1.375 / 3} {
		if math.Abs(whole[n]-want) > 1e-12 {
			t.Errorf("the %d hottest of all do %v, want %v", n, whole[n], want)
		}
	}
	if len(whole) != 13 || whole[12] != 1 {
		t.Errorf("%v", whole)
	}
}

func TestReport(t *testing.T) {
	m := random(t, 3, 400)
	data, err := json.Marshal(m.Report())
	if err != nil {
		t.Fatal(err)
	}
	var r struct {
		Identity string
		Experts  int
		TopK     int `json:"top_k"`
		Tokens   uint64
		Layers   []struct {
			Layer          int32
			Tokens         uint64
			Used           int
			Share25        float64 `json:"share_25"`
			Bits, Evenness float64
			EntropyBits    float64 `json:"entropy_bits"`
			Counts         []uint64
		}
		All struct{ Experts int } `json:"all_layers"`
	}
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Identity) != 64 || r.Identity[:6] != "010203" || r.Experts != 8 || r.TopK != 2 || r.Tokens != 400 || len(r.Layers) != 3 || r.All.Experts != 24 {
		t.Errorf("%s", data)
	}
	for i, l := range r.Layers {
		used := 0
		for _, n := range m.row(i) {
			if n > 0 {
				used++
			}
		}
		if l.Layer != shape.Layers[i] || l.Tokens != 400 || !slices.Equal(l.Counts, m.row(i)) || l.Used != used ||
			l.Share25 != m.Curve(l.Layer)[2] || math.Abs(l.Evenness*3-l.EntropyBits) > 1e-12 {
			t.Errorf("layer %d: %+v", l.Layer, l)
		}
	}
	empty, _ := New(model, shape)
	if r := empty.Report(); r.Whole.Used != 0 || r.Layers[0].Used != 0 || r.Seen != 0 {
		t.Errorf("without counts: %+v", r)
	}
}
