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
