package trace

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
)

// TestRosterAgainstMap: what is remembered is the newest end of what was noted.
func TestRosterAgainstMap(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var r Roster
	if r.Last(3) != nil || r.Riders(1) != nil || r.Of(1) != nil {
		t.Fatal("an empty roster knows something")
	}
	all := map[uint64][]Rider{}
	var order []uint64
	for n := range 3 * rosterBatches {
		var riders []Rider
		for range rng.IntN(60) {
			riders = append(riders, Rider{Request: uint64(1 + rng.IntN(200)), Rows: uint32(1 + rng.IntN(9)), Decode: rng.IntN(2) == 0})
		}
		id := uint64(n)*7 + 1
		r.Note(id, riders)
		all[id] = riders
		order = append(order, id)
	}
	last := r.Last(len(order))
	if len(last) < rosterRiders/60 || len(last) > rosterBatches || !slices.Equal(last, order[len(order)-len(last):]) {
		t.Fatalf("%d of %d batches are remembered", len(last), len(order))
	}
	if few := r.Last(3); !slices.Equal(few, order[len(order)-3:]) {
		t.Errorf("the last three are %v", few)
	}
	for _, id := range last {
		if got := r.Riders(id); !slices.Equal(got, all[id]) {
			t.Fatalf("batch %d had %v, want %v", id, got, all[id])
		}
	}
	if got := r.Riders(order[0]); got != nil {
		t.Errorf("the first batch had %v", got)
	}
	var want []uint64
	for _, id := range last {
		if slices.ContainsFunc(all[id], func(x Rider) bool { return x.Request == 17 }) {
			want = append(want, id)
		}
	}
	if got := r.Of(17); !slices.Equal(got, want) || len(want) == 0 {
		t.Errorf("request 17 was in %v, want %v", got, want)
	}
}

// TestRosterOfACrowd: a batch of more requests than there is room for is cut.
func TestRosterOfACrowd(t *testing.T) {
	var r Roster
	crowd := make([]Rider, rosterRiders+5)
	for i := range crowd {
		crowd[i].Request = uint64(i)
	}
	r.Note(1, crowd[:10])
	r.Note(2, crowd)
	if got := r.Riders(2); !slices.Equal(got, crowd[:rosterRiders]) {
		t.Errorf("%d riders", len(got))
	}
	if r.Riders(1) != nil {
		t.Error("a batch is remembered whose riders are gone")
	}
}

// TestRosterBesideReaders runs under the race detector.
func TestRosterBesideReaders(t *testing.T) {
	var r Roster
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := range uint64(2000) {
			r.Note(n, []Rider{{Request: n}, {Request: n}})
		}
	})
	wg.Go(func() {
		for range 200 {
			for _, id := range r.Last(20) {
				if riders := r.Riders(id); len(riders) > 0 && (len(riders) != 2 || riders[0].Request != id || riders[1].Request != id) {
					t.Errorf("batch %d had %v", id, riders)
				}
			}
		}
	})
	wg.Wait()
}

func TestNoteAllocatesNothing(t *testing.T) {
	var r Roster
	riders := make([]Rider, 64)
	r.Note(0, riders)
	if n := testing.AllocsPerRun(1000, func() { r.Note(1, riders) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkNote(b *testing.B) {
	var r Roster
	for n, riders := range map[string][]Rider{"1 request": make([]Rider, 1), "64 requests": make([]Rider, 64)} {
		b.Run(n, func(b *testing.B) {
			for b.Loop() {
				r.Note(1, riders)
			}
		})
	}
}
