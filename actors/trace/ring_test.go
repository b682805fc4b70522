package trace

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

// numbered is an event whose fields all follow from its number, so that a torn
// one shows: it waits 1 ns and runs for 2.
func numbered(n uint64) Event {
	t := int64(n)*10 + 1
	return Event{Batch: n, Request: ^n, Enqueued: t, Started: t + 1, Ended: t + 3, Epoch: uint32(n), Rows: uint32(n) * 3, Layer: int16(n), Parts: uint16(n), Kind: Kind(n % uint64(Request))}
}

// TestReadAgainstSlice: a lone reader gets exactly the newest events of a plain
// slice, at least as many as the ring was made for.
func TestReadAgainstSlice(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 3))
		keep := 1 + rng.IntN(2000)
		r := newRing("a", keep)
		var all []Event
		var total Totals
		next := uint64(0)
		for range 60 {
			for range rng.IntN(500) {
				e := numbered(uint64(len(all)))
				r.Record(&e)
				all = append(all, e)
				total.Count, total.Wait, total.Run = total.Count+1, total.Wait+1, total.Run+2
			}
			if got := r.Totals(); got != total {
				t.Fatalf("seed %d: totals %+v, want %+v", seed, got, total)
			}
			whole, end := r.Read(nil, 0)
			if end != uint64(len(all)) || len(whole) < min(keep, len(all)) || !slices.Equal(whole, all[len(all)-len(whole):]) {
				t.Fatalf("seed %d: %d of %d events up to %d, kept %d", seed, len(whole), len(all), end, keep)
			}
			if rng.IntN(3) > 0 {
				continue
			}
			got, to := r.Read(nil, next)
			lost := int(to-next) - len(got)
			if want := max(0, len(all)-len(whole)-int(next)); to != uint64(len(all)) || lost != want || !slices.Equal(got, all[int(next)+lost:]) {
				t.Fatalf("seed %d: read from %d gave %d up to %d, %d lost, want %d", seed, next, len(got), to, lost, want)
			}
			next = to
			if more, again := r.Read(got[:0], next); len(more) != 0 || again != next {
				t.Fatalf("seed %d: %d events from nowhere, next %d after %d", seed, len(more), again, next)
			}
		}
	}
}

// TestPinnedBlocks: a block that a reader holds is passed over; when all but the
// full one are held, events are dropped and still counted, and the reader sees
// how many.
func TestPinnedBlocks(t *testing.T) {
	r := newRing("a", 1)
	n := uint64(0)
	record := func(count int) {
		for range count {
			e := numbered(n)
			r.Record(&e)
			n++
		}
	}
	record(blocksMin * blockEvents)
	const full = blocksMin - 1
	if r.blocks[0].pin(1) || r.blocks[0].pins.Load() != 0 {
		t.Fatal("a block was pinned by a number that is not its own")
	}
	for i := range full {
		if !r.blocks[i].pin(r.blocks[i].first.Load()) {
			t.Fatalf("block %d is not to be pinned", i)
		}
	}
	record(10) // nowhere to go
	got, next := r.Read(nil, 0)
	if len(got) != blocksMin*blockEvents || next != uint64(len(got)) || got[0] != numbered(0) {
		t.Fatalf("%d events up to %d with all blocks held", len(got), next)
	}
	r.blocks[2].unpin()
	record(5)
	r.blocks[0].unpin()
	r.blocks[1].unpin()
	got, end := r.Read(nil, next)
	if want := []Event{numbered(n - 5), numbered(n - 4), numbered(n - 3), numbered(n - 2), numbered(n - 1)}; !slices.Equal(got, want) {
		t.Fatalf("after the drop: %+v", got)
	}
	if lost := end - next - uint64(len(got)); lost != 10 {
		t.Fatalf("%d lost, want 10", lost)
	}
	if got := r.Totals(); got != (Totals{Count: n, Wait: time.Duration(n), Run: time.Duration(2 * n)}) {
		t.Fatalf("totals %+v after %d", got, n)
	}
}

// TestReadersBesideTheWriter runs under the race detector: events are whole and
// in order, totals belong to one instant and never go back.
func TestReadersBesideTheWriter(t *testing.T) {
	const total = 20_000
	r := newRing("a", 600)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for reader := range 3 {
		wg.Go(func() {
			var events []Event
			next, count := uint64(0), uint64(0)
			for {
				stopped := false
				select {
				case <-stop:
					stopped = true
				default:
				}
				from := next
				if reader == 2 {
					from = 0
				}
				events, next = r.Read(events[:0], from)
				last := int64(from) - 1
				for _, e := range events {
					if e != numbered(e.Batch) || int64(e.Batch) <= last {
						t.Errorf("event %+v after number %d", e, last)
						return
					}
					last = int64(e.Batch)
				}
				if len(events) > 0 && uint64(last)+1 != next {
					t.Errorf("next is %d after event %d", next, last)
					return
				}
				sum := r.Totals()
				if sum.Count < count || uint64(sum.Wait) != sum.Count || uint64(sum.Run) != 2*sum.Count {
					t.Errorf("totals %+v after count %d", sum, count)
					return
				}
				count = sum.Count
				if stopped {
					if count != total {
						t.Errorf("%d events in the end, want %d", count, total)
					}
					return
				}
			}
		})
	}
	for n := range uint64(total) {
		e := numbered(n)
		r.Record(&e)
		if n%200 == 0 {
			runtime.Gosched() // give the readers a turn on one processor too
		}
	}
	close(stop)
	wg.Wait()
}

func TestRecordAllocatesNothing(t *testing.T) {
	r := newRing("a", 1000)
	e := numbered(1)
	if n := testing.AllocsPerRun(5000, func() { r.Record(&e) }); n != 0 {
		t.Fatalf("%v allocations an event", n)
	}
	var none *Ring
	none.Record(&e) // an actor without a trace
}

func TestNow(t *testing.T) {
	a := Now()
	b := Now()
	if a <= 0 || b < a {
		t.Fatalf("%d, then %d", a, b)
	}
	if d := time.Since(Wall(b)); d < 0 || d > time.Minute {
		t.Fatalf("Wall is %v off", d)
	}
}

func BenchmarkRecord(b *testing.B) {
	r := newRing("a", 4096)
	e := numbered(5)
	b.ReportAllocs()
	for b.Loop() {
		r.Record(&e)
	}
}

func BenchmarkNow(b *testing.B) {
	for b.Loop() {
		Now()
	}
}

func BenchmarkSnapshot4096(b *testing.B) {
	r := newRing("a", 4096)
	for n := range uint64(5000) {
		e := numbered(n)
		r.Record(&e)
	}
	var events []Event
	for b.Loop() {
		events, _ = r.Read(events[:0], 0)
	}
}

// TestRingKept: what was lost is told by the oldest event that is still there.
func TestRingKept(t *testing.T) {
	r := newRing("x", 1)
	for i := range int64(blockEvents * blocksMin) {
		r.Record(&Event{Started: i + 1, Ended: i + 1})
		if got := r.Kept(); got != 0 {
			t.Fatalf("after %d events, all of which are there: %d", i+1, got)
		}
	}
	for i := range int64(2 * blockEvents) {
		r.Record(&Event{Started: 1e6 + i, Ended: 1e6 + i})
		events, _ := r.Read(nil, 0)
		if got := r.Kept(); got != events[0].Ended || got == 0 {
			t.Fatalf("%d, the oldest event ended at %d", got, events[0].Ended)
		}
	}
}
