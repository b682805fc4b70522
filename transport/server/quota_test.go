package server

import (
	"context"
	"math/rand/v2"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

// TestQuota: what one peer waits for does not hold another up, a peer's own requests keep their
// order, and what needs much is not overtaken for ever.
func TestQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQuota(8)
		var mu sync.Mutex
		var got []string
		ask := func(name, peer string, n int64) {
			go func() {
				if q.wait(t.Context(), peer, n) {
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
		q.give("b", 2)
		want() // nobody overtakes b2, which needs 4 of the 2
		q.give("a", 6)
		want("a2") // nobody holds anything: the first comes first
		q.give("a", 6)
		want("a3", "b2", "c1") // then those that hold least
		q.give("c", 3)
		want("b3")
		q.give("a", 1)
		q.give("b", 5)
		if q.used != 0 || len(q.held) != 0 || len(q.line) != 0 {
			t.Errorf("at the end %+v", q)
		}
	})
}

// TestQuotaGivesUp: who leaves while it waits takes nothing, and no longer stands in the way.
func TestQuotaGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQuota(8)
		if !q.wait(t.Context(), "", 5) {
			t.Fatal("the first waits")
		}
		ctx, leave := context.WithCancel(t.Context())
		var got sync.WaitGroup
		got.Go(func() {
			if q.wait(ctx, "", 6) {
				t.Error("there is no room for 6")
			}
		})
		synctest.Wait()
		got.Go(func() {
			if !q.wait(t.Context(), "", 3) {
				t.Error("there was room for 3")
			}
		})
		synctest.Wait()
		leave()
		got.Wait()
		q.give("", 5)
		q.give("", 3)
		if q.used != 0 || len(q.held) != 0 || len(q.line) != 0 {
			t.Errorf("at the end %+v", q)
		}
	})
}

// TestQuotaIsKept: in any order of events no more is given than there is.
func TestQuotaIsKept(t *testing.T) {
	q := newQuota(100)
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
				if q.wait(ctx, peer, n) {
					q.mu.Lock()
					if q.used > q.most || q.held[peer] > q.share(peer) {
						t.Errorf("%+v", q)
					}
					q.mu.Unlock()
					q.give(peer, n)
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

// TestPeer: limits are counted for a key where there are several, else for an address.
func TestPeer(t *testing.T) {
	a, b := HashKey("first-key"), HashKey("second-key")
	for _, c := range []struct {
		keys         []KeyHash
		remote, want string
	}{
		{nil, "127.0.0.1:1", ""}, {nil, "[::1]:1", ""}, {nil, "[::ffff:127.0.0.1]:1", ""}, {nil, "pipe", ""},
		{nil, "192.0.2.7:1", "192.0.2.7"}, {nil, "[::ffff:192.0.2.7]:1", "192.0.2.7"},
		{nil, "[2001:db8:1:2:3::4]:1", "2001:db8:1:2::/64"}, {nil, "[fe80::1%eth0]:1", "fe80::/64"},
		{[]KeyHash{a}, "192.0.2.7:1", ""},
		{[]KeyHash{a, b}, "192.0.2.7:1", "key"}, {[]KeyHash{a, b}, "127.0.0.1:1", "key"},
	} {
		s := New(nil, Options{Keys: c.keys})
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = c.remote
		r.Header.Set("X-Api-Key", "first-key")
		got, want := s.Peer(r), c.want
		if want == "key" {
			want = s.Owner(r)
		}
		if got != want {
			t.Errorf("%d keys, %s: %q, want %q", len(c.keys), c.remote, got, want)
		}
	}
}
