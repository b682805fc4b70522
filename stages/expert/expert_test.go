package expert

import (
	"math/rand/v2"
	"slices"
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/internal/hosttest"
)

// routed is a state whose router chose ids [t*k] of e experts.
func routed(ids []int32, k, e int) *stages.State {
	m := device.NewMat(hosttest.Buffer(make([]byte, 4*len(ids))), tensor.I32, len(ids)/k, k)
	copy(m.I32s(), ids)
	return &stages.State{Rows: &stages.Rows{T: len(ids) / k, RouterIDs: m, Assign: make([]int32, len(ids)), Counts: make([]int32, e)}}
}

// choices draws k different experts for each of t tokens, some experts often.
func choices(r *rand.Rand, t, k, e int) []int32 {
	ids := make([]int32, 0, t*k)
	for range t {
		perm := r.Perm(e)
		if r.IntN(2) == 0 {
			slices.Sort(perm[:k])
		}
		for _, x := range perm[:k] {
			ids = append(ids, int32(x))
		}
	}
	return ids
}

func TestSplitMatchesMap(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		tokens, e := 1+r.IntN(20), 1+r.IntN(12)
		k := 1 + r.IntN(e)
		ids := choices(r, tokens, k, e)
		want := map[int32][]int32{}
		for a, x := range ids {
			want[x] = append(want[x], int32(a))
		}
		work := Split(routed(ids, k, e))
		last := int32(-1)
		for _, w := range work {
			if w.Expert <= last || !slices.Equal(w.Assign, want[w.Expert]) {
				t.Fatalf("ids %v: expert %d after %d has %v, want %v", ids, w.Expert, last, w.Assign, want[w.Expert])
			}
			last = w.Expert
			delete(want, w.Expert)
		}
		if len(want) > 0 {
			t.Fatalf("ids %v: nothing for %v", ids, want)
		}
	}
}

func TestSplitDoesNotAllocate(t *testing.T) {
	st := routed(choices(rand.New(rand.NewPCG(3, 4)), 64, 4, 16), 4, 16)
	Split(st)
	if n := testing.AllocsPerRun(100, func() { Split(st) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestDivideLosesNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 100 {
		e, pools := 1+r.IntN(16), 1+r.IntN(5)
		k := 1 + r.IntN(e)
		p := Even(e, pools)
		if r.IntN(2) == 0 {
			for i := range p.Owner {
				p.Owner[i] = int32(r.IntN(pools))
			}
		}
		if err := p.Check(e); err != nil {
			t.Fatal(err)
		}
		work := Split(routed(choices(r, 1+r.IntN(9), k, e), k, e))
		parts := make([][]device.ExpertRows, pools)
		p.Divide(parts, work)
		n := 0
		for i, part := range parts {
			for _, w := range part {
				if p.Owner[w.Expert] != int32(i) {
					t.Fatalf("expert %d in pool %d, owner %d", w.Expert, i, p.Owner[w.Expert])
				}
				n++
			}
		}
		if n != len(work) {
			t.Fatalf("%d of %d experts dealt", n, len(work))
		}
	}
}

func TestPartitionIsChecked(t *testing.T) {
	for _, bad := range []Partition{{}, {Pools: 1, Owner: []int32{0}}, {Pools: 2, Owner: []int32{0, 2}}, {Pools: 1, Owner: []int32{0, -1}}, {Pools: 1, Owner: []int32{0, 0}, Nodes: []int{0, 1}}} {
		if bad.Check(2) == nil {
			t.Errorf("%+v passed", bad)
		}
	}
}
