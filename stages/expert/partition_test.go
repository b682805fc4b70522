package expert

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestSpread(t *testing.T) {
	for _, x := range []struct {
		experts int
		weights []int
		owner   []int32
	}{
		{7, []int{1, 1, 1}, []int32{0, 1, 2, 0, 1, 2, 0}},
		{10, []int{8, 8, 4}, []int32{0, 1, 2, 0, 1, 0, 1, 2, 0, 1}},
		{5, []int{3, 2}, []int32{0, 1, 0, 1, 0}},
		{3, []int{5}, []int32{0, 0, 0}},
		{2, []int{1, 1, 1}, []int32{0, 1}},
		{3, []int{0, 2}, []int32{1, 1, 1}},
		{0, []int{1, 1}, []int32{}},
	} {
		p := Spread(x.experts, x.weights)
		if !slices.Equal(p.Owner, x.owner) || p.Pools != len(x.weights) || p.Check(x.experts) != nil {
			t.Errorf("%d experts by %v: %+v", x.experts, x.weights, p)
		}
	}
	if got := Spread(256, []int{8, 8, 4}).Counts(); !slices.Equal(got, []int{103, 102, 51}) {
		t.Errorf("256 experts by 8, 8, 4: %v", got)
	}
}

// TestSpreadIsInProportion for all experts and for every stretch of neighbours,
// as a router picks them: within one expert a pool of the whole, within two of
// a stretch.
func TestSpreadIsInProportion(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		weights, total := make([]int, 1+r.IntN(8)), 0
		for i := range weights {
			weights[i] = 1 + r.IntN(64)
			total += weights[i]
		}
		experts := 1 + r.IntN(256)
		p := Spread(experts, weights)
		if err := p.Check(experts); err != nil {
			t.Fatal(err)
		}
		from := r.IntN(experts)
		to := from + 1 + r.IntN(experts-from)
		stretch := make([]int, len(weights))
		for _, pool := range p.Owner[from:to] {
			stretch[pool]++
		}
		for i, n := range p.Counts() {
			if fair := float64(experts*weights[i]) / float64(total); float64(n) <= fair-1 || float64(n) >= fair+1 {
				t.Fatalf("%d experts by %v: pool %d has %d", experts, weights, i, n)
			}
			fair := float64(n*(to-from)) / float64(experts)
			if got := float64(stretch[i]); got < fair-2 || got > fair+2 {
				t.Fatalf("%d experts by %v: pool %d has %d of [%d, %d)", experts, weights, i, stretch[i], from, to)
			}
		}
	}
}

// TestSpreadSharesRouterGroups: DeepSeek-V3 takes a token's 8 experts from 4 of
// 8 groups of 32 neighbours. Whichever groups they are, each of two nodes has
// half of their experts.
func TestSpreadSharesRouterGroups(t *testing.T) {
	p := Spread(256, []int{16, 16})
	for group := range 8 {
		n := 0
		for _, pool := range p.Owner[32*group : 32*group+32] {
			n += int(pool)
		}
		if n != 16 {
			t.Errorf("group %d has %d of 32 experts on node 1", group, n)
		}
	}
}
