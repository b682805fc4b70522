package sample

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestPhilox has the published known answers of philox4x32-10.
func TestPhilox(t *testing.T) {
	const f = 0xffffffff
	tests := []struct {
		counter [4]uint32
		key     [2]uint32
		want    [4]uint32
	}{
		{[4]uint32{}, [2]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{[4]uint32{f, f, f, f}, [2]uint32{f, f}, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0},
			[4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	}
	for _, tt := range tests {
		if got := philox(tt.counter, tt.key); got != tt.want {
			t.Errorf("%08x %08x: %08x, want %08x", tt.counter, tt.key, got, tt.want)
		}
	}
}

// TestUniform: in [0, 1), all 53 bits used, seed and place both matter.
func TestUniform(t *testing.T) {
	seen := map[float64]bool{}
	var or, and uint64 = 0, 1<<53 - 1
	for i := range uint64(2000) {
		for _, u := range []float64{uniform(i, 0), uniform(0, i+1), uniform((i+1)<<32, 1), uniform(1, (i+1)<<32)} {
			if u < 0 || u >= 1 || seen[u] {
				t.Fatalf("%v (again: %v)", u, seen[u])
			}
			seen[u] = true
			or, and = or|uint64(u*0x1p53), and&uint64(u*0x1p53)
		}
	}
	if or != 1<<53-1 || and != 0 {
		t.Errorf("bits that never change: %x %x", or, and)
	}
}

// TestExp holds the exponential function to math.Exp over its whole range.
func TestExp(t *testing.T) {
	if exp(0) != 1 || exp(-700.1) != 0 || exp(math.Inf(-1)) != 0 {
		t.Errorf("exp(0) = %v, exp(-700.1) = %v", exp(0), exp(-700.1))
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 50_000 {
		x := -700 * math.Pow(r.Float64(), 4)
		limit := 1e-12
		if x > -30 {
			limit = 5e-14
		}
		if got, want := exp(x), math.Exp(x); math.Abs(got-want) > limit*want {
			t.Fatalf("exp(%v) = %v, want %v: off by %g", x, got, want, (got-want)/want)
		}
	}
}

// TestArgmax tries every length around the unrolled loop and every place.
func TestArgmax(t *testing.T) {
	for n := 1; n < 40; n++ {
		x := make([]float32, n)
		for at := range x {
			for i := range x {
				x[i] = -5
			}
			x[at] = -4
			if at+2 < n {
				x[at+2] = -4 // the first of two wins
			}
			if got, err := argmax(x); err != nil || got != int32(at) {
				t.Fatalf("length %d: %d, %v; want %d", n, got, err, at)
			}
		}
	}
}

// TestTopK and the selections below compare with a sort, on values with many ties.
func TestTopK(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	var s scratch
	for range 2000 {
		n := 1 + r.IntN(400)
		row := randomRow(r, n)
		k := 1 + r.IntN(n)
		all := make([]scored, n)
		for i, x := range row {
			all[i] = scored{float64(x), int32(i)}
		}
		slices.SortFunc(all, compare)
		got := slices.Clone(s.topK(row, k))
		slices.SortFunc(got, compare)
		if !slices.Equal(got, all[:k]) {
			t.Fatalf("%d of %d:\n%v, want\n%v", k, n, got, all[:k])
		}
	}
}

func compare(a, b scored) int {
	switch {
	case a.before(b):
		return -1
	case b.before(a):
		return 1
	}
	return 0
}

func TestCrossing(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	for range 3000 {
		n := 1 + r.IntN(300)
		list := make([]scored, n)
		total := 0.0
		for i := range list {
			// Small whole numbers: sums are exact in any order.
			list[i] = scored{float64(r.IntN(1 + r.IntN(20))), int32(i)}
			total += list[i].w
		}
		need := math.Floor(r.Float64() * (total + 1))
		sorted := slices.Clone(list)
		slices.SortFunc(sorted, compare)
		want, sum := sorted[n-1], 0.0
		for _, c := range sorted {
			if sum += c.w; sum >= need {
				want = c
				break
			}
		}
		if got := crossing(list, need); got != want {
			t.Fatalf("%v of %v: %v, want %v", need, total, got, want)
		}
	}
}

// TestSelectionTime: no pattern of logits makes a selection quadratic.
func TestSelectionTime(t *testing.T) {
	const n = 100_000
	patterns := map[string]func(i int) float64{
		"rising":   func(i int) float64 { return float64(i) },
		"falling":  func(i int) float64 { return float64(-i) },
		"equal":    func(int) float64 { return 1 },
		"sawtooth": func(i int) float64 { return float64(i % 977) },
		"organ":    func(i int) float64 { return float64(min(i, n-i)) },
		"two":      func(i int) float64 { return float64(i & 1) },
	}
	for name, f := range patterns {
		list := make([]scored, n)
		for i := range list {
			list[i] = scored{f(i), int32(i)}
		}
		steps, a, k := 0, list, n/2
		for len(a) > 16 {
			steps += len(a)
			if m := split(a); m > k {
				a = a[:m]
			} else if m == k {
				break
			} else {
				a, k = a[m:], k-m
			}
		}
		if steps > 8*n {
			t.Errorf("%s: %d elements visited for %d", name, steps, n)
		}
	}
}
