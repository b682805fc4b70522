package api

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

// TestQuota: what one peer waits for does not hold another up, a peer's own requests keep their
// order, and what needs much is not overtaken for ever.
func TestQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQuota(8)
		var mu sync.Mutex
		var got []string
		ask := func(name, peer string, n int64) {
			go func() {
				if q.Wait(t.Context(), peer, n) {
					mu.Lock()
					defer mu.Unlock()
					got = append(got, name)
				}
			}()
			synctest.Wait()
		}
		want := func(names ...string) {
			t.Helper()
			synctest.Wait()
			slices.Sort(got)
			if !slices.Equal(got, names) {
				t.Fatalf("%v have what they want, not %v", got, names)
			}
			got = nil
		}
		ask("a1", "a", 6)
		ask("a2", "a", 6)
		ask("a3", "a", 1)
		want("a1") // three quarters are its share
		ask("b1", "b", 2)
		want("b1") // though a waits
		ask("b2", "b", 4)
		ask("c1", "c", 3)
		ask("b3", "b", 1)
		q.Give("b", 2)
		want() // nobody overtakes b2, which needs 4 of the 2
		q.Give("a", 6)
		want("a2") // nobody holds anything: the first comes first
		q.Give("a", 6)
		want("a3", "b2", "c1") // then those that hold least
		q.Give("c", 3)
		want("b3")
		q.Give("a", 1)
		q.Give("b", 5)
		if q.used != 0 || len(q.held) != 0 || len(q.line) != 0 {
			t.Errorf("at the end %+v", q)
		}
	})
}

// TestQuotaGivesUp: who leaves while it waits takes nothing, and no longer stands in the way.
func TestQuotaGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQuota(8)
		if !q.Wait(t.Context(), "", 5) {
			t.Fatal("the first waits")
		}
		ctx, leave := context.WithCancel(t.Context())
		var got sync.WaitGroup
		got.Go(func() {
			if q.Wait(ctx, "", 6) {
				t.Error("there is no room for 6")
			}
		})
		synctest.Wait()
		got.Go(func() {
			if !q.Wait(t.Context(), "", 3) {
				t.Error("there was room for 3")
			}
		})
		synctest.Wait()
		leave()
		got.Wait()
		q.Give("", 5)
		q.Give("", 3)
		if q.used != 0 || len(q.held) != 0 || len(q.line) != 0 {
			t.Errorf("at the end %+v", q)
		}
	})
}

// TestQuotaIsKept: in any order of events no more is given than there is.
func TestQuotaIsKept(t *testing.T) {
	q := NewQuota(100)
	var all sync.WaitGroup
	for g := range 16 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(g)))
			peer := string(rune('a' + g%3))
			for range 300 {
				ctx, leave := context.WithCancel(t.Context())
				if r.IntN(4) == 0 {
					go leave()
				}
				n := 1 + r.Int64N(75)
				if q.Wait(ctx, peer, n) {
					q.mu.Lock()
					if q.used > q.most || q.held[peer] > q.Share(peer) {
						t.Errorf("%+v", q)
					}
					q.mu.Unlock()
					q.Give(peer, n)
				}
				leave()
			}
		})
	}
	all.Wait()
	if q.used != 0 || len(q.held) != 0 || len(q.line) != 0 {
		t.Errorf("at the end %+v", q)
	}
}
