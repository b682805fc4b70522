package learn

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// memory carries out moves.
type memory struct {
	in    []bool
	slots int
	held  int
}

func (m *memory) step(t *testing.T, l *Learner, most int, movable func(int32) bool) []Move {
	t.Helper()
	list := l.Moves(nil, most, m.slots-m.held, func(e int32) bool { return m.in[e] }, movable)
	if len(list) > most {
		t.Fatalf("%d moves, at most %d", len(list), most)
	}
	for _, v := range list {
		if v.Evict >= 0 {
			if !m.in[v.Evict] || !movable(v.Evict) {
				t.Fatalf("expert %d is evicted: there %v, movable %v", v.Evict, m.in[v.Evict], movable(v.Evict))
			}
			m.in[v.Evict] = false
			m.held--
		}
		if m.in[v.Load] || m.held == m.slots {
			t.Fatalf("expert %d is loaded: there %v, %d slots of %d held", v.Load, m.in[v.Load], m.held, m.slots)
		}
		m.in[v.Load] = true
		m.held++
	}
	return list
}

// TestMoves: whatever is chosen, moves are possible and within their bounds, and the memory fills with what was chosen.
func TestMoves(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	for range 200 {
		experts := 1 + r.IntN(40)
		m := &memory{in: make([]bool, experts), slots: r.IntN(experts + 2)}
		m.slots = min(m.slots, experts)
		l, err := New(experts, m.slots, Options{Doubt: 0.01 + r.Float64(), Every: 1 + r.IntN(5)})
		if err != nil {
			t.Fatal(err)
		}
		for range 100 {
			var chosen []int32
			for range 1 + r.IntN(6) {
				chosen = append(chosen, int32(r.IntN(experts)))
			}
			l.Note(1+r.IntN(3), chosen)
			fixed := r.IntN(4)
			m.step(t, l, r.IntN(5), func(e int32) bool { return int(e)%4 != fixed })
		}
		if m.slots > 0 && m.held == 0 {
			t.Fatalf("nothing in %d slots of %d experts", m.slots, experts)
		}
	}
}

// TestChange: when other experts are chosen than before, they are in the memory within some tokens; and while the same are chosen
// with equal shares, nothing moves.
func TestChange(t *testing.T) {
	const experts, slots, layers = 64, 16, 8
	m := &memory{in: make([]bool, experts), slots: slots}
	l, err := New(experts, slots, Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(8, 1))
	any := func(int32) bool { return true }
	run := func(first, tokens int) (moves int) {
		for range tokens {
			var chosen []int32
			for range layers {
				chosen = append(chosen, int32(first+r.IntN(slots)))
			}
			l.Note(1, chosen)
			moves += len(m.step(t, l, 2, any))
		}
		return moves
	}
	has := func(first int) (n int) {
		for _, in := range m.in[first:][:slots] {
			if in {
				n++
			}
		}
		return n
	}
	run(0, 2000)
	if n := has(0); n != slots {
		t.Fatalf("%d of %d experts are there", n, slots)
	}
	run(32, 64)
	if n := has(32); n < slots-2 {
		t.Errorf("64 tokens after a change %d of %d experts are there", n, slots)
	}
	run(32, 100)
	if n := run(32, 1000); n > 0 || has(32) != slots {
		t.Errorf("%d moves without a change, %d experts there", n, has(32))
	}
}

// TestExpect: what is expected is worth a place before anything was chosen and keeps it while choices are as expected.
func TestExpect(t *testing.T) {
	const experts, slots = 40, 10
	m := &memory{in: make([]bool, experts), slots: slots}
	l, err := New(experts, slots, Options{})
	if err != nil {
		t.Fatal(err)
	}
	expected := make([]float64, experts)
	for e := range expected {
		expected[e] = float64(e%4) / 15 // four choices a token
	}
	l.Expect(expected)
	m.step(t, l, experts, func(int32) bool { return true })
	moved, r := 0, rand.New(rand.NewPCG(7, 7))
	for range 400 {
		var chosen []int32
		for range 4 {
			chosen = append(chosen, int32(r.IntN(10)*4+[]int{1, 2, 2, 3, 3, 3}[r.IntN(6)]))
		}
		l.Note(1, chosen)
		moved += len(m.step(t, l, 4, func(int32) bool { return true }))
	}
	for e := range int32(experts) {
		if m.in[e] != (e%4 == 3) {
			t.Errorf("expert %d: %v", e, m.in[e])
		}
	}
	if moved > 0 {
		t.Errorf("%d moves", moved)
	}
}

// TestLongRun: weights that grow with every token stay finite, and so do the shares of experts.
func TestLongRun(t *testing.T) {
	l, err := New(4, 2, Options{Horizons: []float64{0.5, 100}})
	if err != nil {
		t.Fatal(err)
	}
	for range 10_000 {
		l.Note(1, []int32{1, 2})
	}
	for i := range l.horizons {
		h := &l.horizons[i]
		if share := h.score[1] / h.weight; !(share > 0.3) || share > 200 || h.score[1] != h.score[2] || h.score[0] != 0 {
			t.Errorf("horizon %d: %v at a weight of %v", i, h.score, h.weight)
		}
	}
	if _, err := New(0, 1, Options{}); err == nil {
		t.Error("no experts")
	}
	if _, err := New(4, 1, Options{Horizons: []float64{0}}); err == nil {
		t.Error("a horizon of nothing")
	}
}

// TestNthLargest against sorting.
func TestNthLargest(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 9))
	for range 500 {
		list := make([]float64, 1+r.IntN(30))
		for i := range list {
			list[i] = float64(r.IntN(8))
		}
		n := 1 + r.IntN(len(list))
		sorted := slices.Sorted(slices.Values(list))
		if got, want := nthLargest(slices.Clone(list), n), sorted[len(sorted)-n]; got != want {
			t.Fatalf("%v: number %d is %v, want %v", list, n, got, want)
		}
	}
}

// BenchmarkStep is a token of Qwen3-30B-A3B's shape: what a learner takes of a step.
func BenchmarkStep(b *testing.B) {
	const layers, experts, topK = 48, 128, 8
	l, err := New(layers*experts, layers*experts/4, Options{})
	if err != nil {
		b.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 1))
	var tokens [64][]int32
	for i := range tokens {
		for layer := range layers {
			for range topK {
				tokens[i] = append(tokens[i], int32(layer*experts+int(float64(experts)*r.Float64()*r.Float64())))
			}
		}
	}
	in := make([]bool, layers*experts)
	held, n := 0, 0
	var list []Move
	for b.Loop() {
		l.Note(1, tokens[n%64])
		n++
		list = l.Moves(list[:0], 38, layers*experts/4-held, func(e int32) bool { return in[e] }, func(int32) bool { return true })
		for _, v := range list {
			if v.Evict >= 0 {
				in[v.Evict] = false
				held--
			}
			in[v.Load] = true
			held++
		}
	}
}
