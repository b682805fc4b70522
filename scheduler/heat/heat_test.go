package heat

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

var (
	model = Identity{1, 2, 3}
	shape = Shape{Layers: []int32{1, 2, 5}, Experts: 8, TopK: 2}
)

// random is a map of tokens tokens a layer that go to different experts each, skewed
// by layer.
func random(t testing.TB, seed uint64, tokens int) *Map {
	t.Helper()
	m, err := New(model, shape)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(seed, 1))
	for i, layer := range shape.Layers {
		counts := make([]uint64, shape.Experts)
		for range tokens {
			first := r.IntN(1 + r.IntN(shape.Experts-i))
			counts[first]++
			counts[(first+1+r.IntN(shape.Experts-1))%shape.Experts]++
		}
		if err := m.Add(layer, uint64(tokens), counts); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func TestShapes(t *testing.T) {
	for _, bad := range []Shape{
		{}, {Layers: []int32{1}}, {Layers: []int32{1}, Experts: 4}, {Layers: []int32{1}, Experts: 4, TopK: 5},
		{Experts: 4, TopK: 1}, {Layers: []int32{-1}, Experts: 4, TopK: 1}, {Layers: []int32{2, 2}, Experts: 4, TopK: 1},
		{Layers: []int32{0, 1}, Experts: expertsMost + 1, TopK: 1}, {Layers: make([]int32, layersMost+1), Experts: 1, TopK: 1},
		{Layers: slices.Repeat([]int32{1}, 17), Experts: expertsMost, TopK: 1},
	} {
		if m, err := New(model, bad); m != nil || !errors.Is(err, ErrShape) {
			t.Errorf("%d layers of %d experts, %d a token: %v", len(bad.Layers), bad.Experts, bad.TopK, err)
		}
	}
	layers := []int32{3}
	m, err := New(model, Shape{Layers: layers, Experts: 1, TopK: 1})
	if err != nil {
		t.Fatal(err)
	}
	layers[0] = 4
	if m.Counts(3) == nil || m.Counts(4) != nil || m.Tokens(4) != 0 {
		t.Error("the map follows the caller's layers")
	}
}

// TestAdd: counts equal the counts of a plain table, and invalid rows change nothing.
func TestAdd(t *testing.T) {
	m, r := random(t, 1, 0), rand.New(rand.NewPCG(2, 3))
	want, tokens := map[Key]uint64{}, map[int32]uint64{}
	for range 200 {
		layer, n := shape.Layers[r.IntN(3)], uint64(r.IntN(50))
		counts := make([]uint64, shape.Experts)
		for e := range counts {
			counts[e] = r.Uint64N(n + 1)
			want[Key{layer, int32(e)}] += counts[e]
		}
		tokens[layer] += n
		if err := m.Add(layer, n, counts); err != nil {
			t.Fatal(err)
		}
		for _, bad := range []struct {
			layer  int32
			tokens uint64
			counts []uint64
			err    error
		}{
			{3, 9, make([]uint64, 8), ErrShape}, {1, 9, make([]uint64, 7), ErrShape}, {1, 9, nil, ErrShape},
			{2, 1, []uint64{0, 0, 0, 0, 0, 0, 0, 2}, ErrCounts}, {5, countMost + 1, make([]uint64, 8), ErrCounts},
		} {
			if err := m.Add(bad.layer, bad.tokens, bad.counts); !errors.Is(err, bad.err) {
				t.Fatalf("%+v: %v", bad, err)
			}
		}
	}
	check(t, m, want, tokens)
	most := uint64(0)
	for _, n := range tokens {
		most = max(most, n)
	}
	if m.Seen() != most {
		t.Errorf("%d tokens seen, want %d", m.Seen(), most)
	}
}

func check(t *testing.T, m *Map, want map[Key]uint64, tokens map[int32]uint64) {
	t.Helper()
	for _, layer := range shape.Layers {
		if m.Tokens(layer) != tokens[layer] {
			t.Errorf("layer %d: %d tokens, want %d", layer, m.Tokens(layer), tokens[layer])
		}
		for e, n := range m.Counts(layer) {
			if n != want[Key{layer, int32(e)}] {
				t.Errorf("expert %d of layer %d: %d, want %d", e, layer, n, want[Key{layer, int32(e)}])
			}
		}
	}
}

// TestMergeAndSince undo each other, and only maps of one model meet.
func TestMergeAndSince(t *testing.T) {
	a, b := random(t, 1, 100), random(t, 2, 37)
	sum := a.Clone()
	if err := sum.Merge(b); err != nil {
		t.Fatal(err)
	}
	for i := range sum.counts {
		if sum.counts[i] != a.counts[i]+b.counts[i] {
			t.Fatalf("%d and %d give %d", a.counts[i], b.counts[i], sum.counts[i])
		}
	}
	back, err := sum.Since(a)
	if err != nil || !slices.Equal(back.counts, b.counts) || !slices.Equal(back.tokens, b.tokens) {
		t.Errorf("%v: %+v, want %+v", err, back, b)
	}
	if _, err := a.Since(sum); !errors.Is(err, ErrCounts) {
		t.Errorf("before itself: %v", err)
	}
	other := random(t, 3, 9)
	other.Identity[31] = 1
	narrow, _ := New(model, Shape{Layers: shape.Layers, Experts: 8, TopK: 1})
	short, _ := New(model, Shape{Layers: shape.Layers[:2], Experts: 8, TopK: 2})
	for _, o := range []*Map{other, narrow, short} {
		before := a.Clone()
		if err := a.Merge(o); !errors.Is(err, ErrOther) || !slices.Equal(a.counts, before.counts) {
			t.Errorf("merged with another model's: %v", err)
		}
		if _, err := a.Since(o); !errors.Is(err, ErrOther) {
			t.Errorf("since another model's: %v", err)
		}
	}
	full := random(t, 4, 0)
	if err := full.Add(5, countMost, make([]uint64, 8)); err != nil {
		t.Fatal(err)
	}
	if before := full.Clone(); !errors.Is(full.Merge(a), ErrCounts) || !slices.Equal(full.tokens, before.tokens) {
		t.Error("more was counted than can be")
	}
}

// TestDecay keeps shares to a token's rounding, and a map that can be saved.
func TestDecay(t *testing.T) {
	for _, keep := range []float64{0, 0.1, 0.5, 0.999, 1} {
		m := random(t, 5, 10_000)
		before := m.Clone()
		if err := m.Decay(keep); err != nil {
			t.Fatal(err)
		}
		for i, n := range m.counts {
			if got, want := float64(n), float64(before.counts[i])*keep; math.Abs(got-want) > 0.5 || n > m.tokens[i/8] {
				t.Fatalf("keep %v: %v of %d is %d", keep, want, before.counts[i], n)
			}
		}
	}
	m := random(t, 6, 3)
	for range 40 { // every rounding there is
		m.Decay(0.7)
		for i, n := range m.counts {
			if n > m.tokens[i/8] {
				t.Fatalf("%d of %d tokens", n, m.tokens[i/8])
			}
		}
	}
	for _, bad := range []float64{-0.1, 1.1, math.NaN(), math.Inf(1)} {
		if err := m.Decay(bad); !errors.Is(err, ErrCounts) {
			t.Errorf("keep %v: %v", bad, err)
		}
	}
}
