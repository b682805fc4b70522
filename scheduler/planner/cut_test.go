package planner

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// TestCut: known divisions.
func TestCut(t *testing.T) {
	const mib = 1 << 20
	equal := slices.Repeat([]int64{mib}, 27)
	plenty := Stage{Room: 1 << 40}
	for _, x := range []struct {
		name   string
		layers []int64
		ranks  []Stage
		want   []int
		err    string
	}{
		{"one", equal, []Stage{plenty}, []int{27}, ""},
		{"as equal as possible", equal, []Stage{plenty, plenty}, []int{14, 13}, ""},
		{"by speed", equal, []Stage{{plenty.Room, 200 * mib, 0}, {plenty.Room, 100 * mib, 0}}, []int{18, 9}, ""},
		{"by memory", equal, []Stage{{5 * mib, 200 * mib, 0}, {plenty.Room, 100 * mib, 0}}, []int{5, 22}, ""},
		{"with a head", equal, []Stage{{plenty.Room, 100 * mib, 0.05}, {plenty.Room, 100 * mib, 0}}, []int{11, 16}, ""},
		{"a large layer", []int64{1, 1, 100, 1}, []Stage{plenty, plenty}, []int{2, 2}, ""},
		{"does not fit", equal, []Stage{{5 * mib, 0, 0}, {6 * mib, 0, 0}}, nil, "27 layers of 27.0 MiB in all do not fit 2 ranks with room for 11.0 MiB"},
		{"too many ranks", equal[:1], []Stage{plenty, plenty}, nil, "2 ranks for 1 layers"},
	} {
		got, err := Cut(x.layers, x.ranks)
		if x.err != "" {
			if err == nil || !strings.Contains(err.Error(), x.err) {
				t.Errorf("%s: %v, want %q", x.name, err, x.err)
			}
			continue
		}
		if err != nil || !slices.Equal(got, x.want) {
			t.Errorf("%s: %v, %v, want %v", x.name, got, err, x.want)
		}
	}
}

// TestCutIsBest: no other division has a faster slowest rank.
func TestCutIsBest(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 1))
	for range 300 {
		layers, ranks := make([]int64, 1+r.IntN(7)), make([]Stage, 1+r.IntN(4))
		for i := range layers {
			layers[i] = 1 + r.Int64N(50)
		}
		for i := range ranks {
			ranks[i] = Stage{Room: r.Int64N(200), Rate: 1 + 9*r.Float64(), Before: r.Float64()}
		}
		slowest := func(sizes []int) float64 {
			at, worst := 0, 0.0
			for i, n := range sizes {
				bytes := int64(0)
				for _, b := range layers[at : at+n] {
					bytes += b
				}
				if at += n; bytes > ranks[i].Room {
					return math.Inf(1)
				}
				worst = max(worst, ranks[i].Before+float64(bytes)/ranks[i].Rate)
			}
			return worst
		}
		best := math.Inf(1)
		var try func(sizes []int, left int)
		try = func(sizes []int, left int) {
			if len(sizes) == len(ranks)-1 {
				if left > 0 {
					best = min(best, slowest(append(sizes, left)))
				}
				return
			}
			for n := 1; n <= left; n++ {
				try(append(slices.Clone(sizes), n), left-n)
			}
		}
		try(nil, len(layers))
		got, err := Cut(layers, ranks)
		switch {
		case math.IsInf(best, 1) != (err != nil):
			t.Fatalf("%v over %+v: %v, %v; the best takes %v", layers, ranks, got, err, best)
		case err == nil && math.Abs(slowest(got)-best) > 1e-9:
			t.Fatalf("%v over %+v: %v takes %v, the best %v", layers, ranks, got, slowest(got), best)
		}
	}
}
