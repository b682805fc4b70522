package arena

import (
	"slices"
	"testing"
)

// TestLayout: whatever the sizes, blocks that are open and slots that hold experts share no byte, every
// block lies in its cache, and all slots are different.
func TestLayout(t *testing.T) {
	for _, l := range []Layout{
		{Step: 100, Plain: 3, Blocks: 50, Least: 7, Caches: []int{10, 10, 10}},
		{Step: 64, Plain: 0, Blocks: 33, Least: 1, Caches: []int{7, 64, 100}},
		{Step: 1 << 12, Plain: 5, Blocks: 9, Least: 9, Caches: []int{48}},
		{Step: 10, Plain: 1, Blocks: 4, Least: 2, Caches: []int{1000, 3}},
	} {
		if err := l.check(); err != nil {
			t.Fatal(err)
		}
		a := &Arena{Layout: l, Slots: l.Shared(), at: l.Plain}
		var at []int
		for i, bytes := range l.Caches {
			if i == 1 {
				if _, err := a.Cache(bytes + 1); err == nil {
					t.Error("a cache with other blocks")
				}
			}
			x, err := a.Cache(bytes)
			if err != nil {
				t.Fatal(err)
			}
			at = append(at, x)
		}
		if _, err := a.Cache(1); err == nil || a.at != l.Steps() {
			t.Errorf("%+v: %d of %d steps, one more cache: %v", l, a.at, l.Steps(), err)
		}
		if own := l.Bytes() - int64(l.Plain+len(a.Slots))*int64(l.Step); own != l.Own() {
			t.Errorf("%+v: %d bytes of its own, want %d", l, l.Own(), own)
		}
		for n := range len(a.Slots) + 1 {
			open := a.Open(n)
			if open < l.Least || open > l.Blocks || a.For(open) > n || n > 0 && open < a.Open(n-1) {
				t.Errorf("%+v: %d blocks with %d slots, which takes %d", l, open, n, a.For(open))
			}
			for k, s := range a.Slots {
				from, to := s.At*l.Step, (s.At+1)*l.Step
				if from < l.Plain*l.Step || to > int(l.Bytes()) || slices.ContainsFunc(a.Slots[:k], func(o Shared) bool { return o.At == s.At }) {
					t.Errorf("%+v: slot at %d", l, s.At)
				}
				for i, bytes := range l.Caches {
					if end := at[i] + open*bytes; k >= n && at[i] < to && end > from {
						t.Errorf("%+v: %d blocks of cache %d end at %d, in the slot from %d to %d", l, open, i, end, from, to)
					}
				}
			}
		}
		for blocks := range l.Blocks + 1 {
			if open := a.Open(a.For(blocks)); open < blocks {
				t.Errorf("%+v: %d blocks where %d are wanted", l, open, blocks)
			}
		}
	}
	for _, l := range []Layout{{}, {Step: 1, Blocks: 1, Least: 2, Caches: []int{1}}, {Step: 1, Blocks: 2, Least: 1}, {Step: 1, Blocks: 1, Least: 1, Caches: []int{0}}} {
		if _, err := New(nil, l); err == nil {
			t.Errorf("%+v", l)
		}
	}
}
