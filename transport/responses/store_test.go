package responses

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// ended makes a response that has ended, with a history of the given size.
func ended(id string, bytes int) *response {
	r := newResponse(&plan{store: true}, "", "")
	r.id, r.ended, r.history = id, time.Now(), make([]byte, bytes)
	return r
}

func (s *store) keep1(r *response) *response {
	s.put(r)
	s.settle(r)
	return r
}

// state lists what find says of the ids.
func (s *store) state(ids ...string) string {
	out := ""
	for _, id := range ids {
		switch r, err := s.find("", id, false); {
		case r != nil:
			out += id + " "
		default:
			out += err.Code + " "
		}
	}
	return out
}

func TestStoreBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(time.Minute, 3, 1<<20)
		defer s.close()
		running := newResponse(&plan{store: true}, "", "")
		running.id = "run"
		s.put(running)
		for _, id := range []string{"a", "b", "c"} {
			s.keep1(ended(id, 10))
			time.Sleep(time.Second)
		}
		if got := s.state("run", "a", "b", "c", "d"); got != "run response_expired b c response_not_found " {
			t.Errorf("by number: %s", got)
		}
		s.keep1(ended("big", 1<<20-3000))
		if got := s.state("run", "b", "c", "big"); got != "run response_expired c big " {
			t.Errorf("by bytes: %s", got)
		}
		s.keep1(ended("huge", 1<<20))
		if got := s.state("run", "c", "big", "huge"); got != "run response_expired response_expired response_expired " {
			t.Errorf("one that is larger than all: %s", got)
		}
		if s.bytes != 0 || s.ended.Len() != 0 {
			t.Errorf("%d bytes of %d responses are counted", s.bytes, s.ended.Len())
		}
		running.ended = time.Now()
		s.settle(running)
		s.remove(running)
		if got := s.state("run"); got != "response_not_found " || s.bytes != 0 {
			t.Errorf("deleted: %s, %d bytes", got, s.bytes)
		}
	})
}

// TestStoreIsShared: a peer that keeps much loses its own first, by number and by bytes, and of
// what is remembered as expired.
func TestStoreIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		of := func(owner, id string, bytes int) *response {
			r := ended(id, bytes)
			r.owner, r.peer = owner, owner
			return r
		}
		kept := func(s *store) (all string) {
			for _, id := range []string{"a1", "a2", "b1", "b2", "b3", "b4", "b5"} {
				if s.byID[id] != nil {
					all += id + " "
				}
			}
			return all
		}
		s := newStore(time.Minute, 4, 1<<20)
		defer s.close()
		for _, id := range []string{"a1", "a2", "b1", "b2", "b3", "b4", "b5"} {
			s.keep1(of(id[:1], id, 10))
		}
		if got := kept(s); got != "a1 a2 b4 b5 " {
			t.Errorf("by number: %s", got)
		}
		s = newStore(time.Minute, 100, 1<<20)
		defer s.close()
		s.keep1(of("a", "a1", 1<<18))
		for _, id := range []string{"b1", "b2", "b3", "b4"} {
			s.keep1(of("b", id, 1<<18))
		}
		if got := kept(s); got != "a1 b3 b4 " {
			t.Errorf("by bytes: %s", got)
		}
		s.expire(s.byID["a1"])
		for i := range maxTombs + 10 {
			s.keep1(of("b", fmt.Sprint("flood", i), 1))
			s.expire(s.byID[fmt.Sprint("flood", i)])
		}
		if _, err := s.find("a", "a1", false); err.Code != codeExpired || len(s.tombs) != maxTombs {
			t.Errorf("after another's flood of expired ones: %v, %d are remembered", err, len(s.tombs))
		}
		delete(s.tombs, "a1")
		s.own("a", share{tombs: -1})
		if x := s.owned["b"]; len(s.owned) != 1 || x.count != 2 || x.ended != 2 || x.bytes != s.bytes {
			t.Errorf("%v is counted, %d bytes in all", s.owned, s.bytes)
		}
	})
}

// TestMetadataIsWeighed: what a request may fill counts in the store's bound.
func TestMetadataIsWeighed(t *testing.T) {
	plain, _ := ended("a", 10).weigh()
	full := ended("b", 10)
	full.plan.echo.Metadata = map[string]string{}
	for i := range maxMetadata {
		full.plan.echo.Metadata[fmt.Sprint(i)] = strings.Repeat("x", maxMetadataText)
	}
	if n, _ := full.weigh(); n < plain+maxMetadata*maxMetadataText {
		t.Errorf("%d bytes, and %d without metadata", n, plain)
	}
}

// TestStoreAges: the timer frees the memory without anybody asking.
func TestStoreAges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(time.Minute, 100, 1<<20)
		defer s.close()
		pinned := s.keep1(ended("pinned", 10))
		if !s.pin(pinned) {
			t.Fatal("no pin")
		}
		for i := range 5 {
			s.keep1(ended(fmt.Sprint(i), 10))
			time.Sleep(time.Second)
		}
		time.Sleep(55*time.Second - 1)
		synctest.Wait()
		count := func() int {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.byID)
		}
		if n := count(); n != 6 {
			t.Errorf("%d kept just before the first is old", n)
		}
		wait := time.Duration(1)
		for want := 5; want >= 1; want-- {
			time.Sleep(wait)
			synctest.Wait()
			wait = time.Second
			if n := count(); n != want {
				t.Errorf("%d kept, want %d", n, want)
			}
		}
		if got := s.state("pinned"); got != "response_expired " || !s.kept(pinned) {
			t.Errorf("the pinned one is %s", got)
		}
		s.unpin(pinned)
		if s.kept(pinned) || s.bytes != 0 {
			t.Errorf("after the pin it is kept with %d bytes", s.bytes)
		}
	})
}

func TestTombsAreBounded(t *testing.T) {
	s := newStore(time.Minute, 1, 1<<20)
	defer s.close()
	for i := range maxTombs + 10 {
		s.keep1(ended(fmt.Sprint(i), 1))
	}
	if len(s.tombs) != maxTombs || len(s.order) != maxTombs {
		t.Errorf("%d ids are remembered, want %d", len(s.tombs), maxTombs)
	}
	if got := s.state("0", fmt.Sprint(maxTombs)); got != "response_not_found response_expired " {
		t.Errorf("the oldest and a late one are %s", got)
	}
}
