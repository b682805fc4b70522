package api

import (
	"sync"
	"testing"
)

func TestShares(t *testing.T) {
	s := NewShares(8)
	var a []func()
	for range 6 {
		a = append(a, s.Take("a"))
	}
	if a[5] == nil || s.Take("a") != nil || s.Held("a") != 6 {
		t.Errorf("one peer has %d places, want 6", s.Held("a"))
	}
	b, c := s.Take("b"), s.Take("c")
	if b == nil || c == nil || s.Take("b") != nil || s.Take("") != nil {
		t.Error("the rest is not for the others, or there is more than there is")
	}
	for _, release := range append(a, b, c) {
		release()
	}
	if s.q.used != 0 || len(s.q.held) != 0 {
		t.Errorf("%d places are taken at the end, %v", s.q.used, s.q.held)
	}
	for range 8 {
		if s.Take("") == nil {
			t.Error("a single peer cannot have all")
		}
	}
	one := NewShares(1)
	var got sync.WaitGroup
	for range 50 {
		got.Go(func() {
			if release := one.Take("a"); release != nil {
				release()
			}
		})
	}
	got.Wait()
	if one.Take("a") == nil {
		t.Error("the only place is lost")
	}
}
