package trace

import (
	"slices"
	"sync"
	"testing"
)

func TestRegistry(t *testing.T) {
	g := NewRegistry(10)
	names := []string{"head", "embed", "group:0", "pool:1", "group:1"}
	var wg sync.WaitGroup
	for _, name := range slices.Concat(names, names) {
		wg.Go(func() { g.Ring(name) })
	}
	wg.Wait()
	var got []string
	for _, r := range g.Rings() {
		got = append(got, r.Name())
		if g.Ring(r.Name()) != r {
			t.Errorf("%s has two rings", r.Name())
		}
	}
	if want := []string{"embed", "group:0", "group:1", "head", "pool:1"}; !slices.Equal(got, want) {
		t.Fatalf("rings %v, want %v", got, want)
	}
}

func TestSnapshotSince(t *testing.T) {
	g := NewRegistry(10)
	for n := range uint64(5) {
		e := numbered(n)
		g.Ring("a").Record(&e)
	}
	g.Ring("b")
	tracks := g.Snapshot(numbered(3).Ended)
	if len(tracks) != 2 || tracks[0].Name != "a" || tracks[1].Name != "b" || len(tracks[1].Events) != 0 {
		t.Fatalf("tracks %+v", tracks)
	}
	if want := []Event{numbered(3), numbered(4)}; !slices.Equal(tracks[0].Events, want) {
		t.Fatalf("events %+v, want %+v", tracks[0].Events, want)
	}
}

func TestKindNames(t *testing.T) {
	seen := map[string]bool{}
	for k := range kinds {
		if k.String() == "" || seen[k.String()] {
			t.Errorf("kind %d is called %q", k, k)
		}
		seen[k.String()] = true
	}
	if kinds.String() != "invalid" {
		t.Errorf("no kind is called %q", kinds)
	}
}

// TestDetail: one batch in eight is noted, and stands for the others; all are while
// a page watches.
func TestDetail(t *testing.T) {
	g := NewRegistry(10)
	noted, stand := 0, 0
	const batches = 80_000
	for id := range uint64(batches) {
		if yes, others := g.Detail(id); yes {
			noted++
			stand += 1 + int(others)
		}
	}
	if noted < batches/8*9/10 || noted > batches/8*11/10 || stand != 8*noted {
		t.Errorf("%d of %d batches are noted and stand for %d", noted, batches, stand)
	}
	one, two := g.Watch(), g.Watch()
	one()
	for id := range uint64(100) {
		if yes, others := g.Detail(id); !yes || others != 0 {
			t.Fatalf("watched, batch %d: %v, %d", id, yes, others)
		}
	}
	two()
	if yes, _ := g.Detail(1); yes {
		t.Error("batch 1 is noted though nobody watches any more")
	}
}

// TestOthersCount: totals have what an event stands for.
func TestOthersCount(t *testing.T) {
	r := newRing("a", 10)
	r.Record(&Event{Enqueued: 10, Started: 12, Ended: 15, Bytes: 100, Others: 7})
	r.Record(&Event{Started: 20, Ended: 21, Bytes: 1})
	r.Record(&Event{Kind: Request, Enqueued: 1, Started: 20, Ended: 9000})
	r.Record(&Event{Kind: Prefill, Enqueued: 1, Started: 20, Ended: 9000})
	if got, want := r.Totals(), (Totals{Count: 9, Wait: 16, Run: 25, Bytes: 801}); got != want {
		t.Errorf("totals %+v, want %+v", got, want)
	}
}

func TestDevices(t *testing.T) {
	g := NewRegistry(10)
	a, b := g.Device("cuda:0"), g.Device("cpu")
	if a == b || a == 0 || g.Device("cuda:0") != a || g.Device("host") != 0 {
		t.Errorf("numbers %d and %d", a, b)
	}
	if got := g.Devices(); !slices.Equal(got, []string{"host", "cuda:0", "cpu"}) {
		t.Errorf("devices %v", got)
	}
}
