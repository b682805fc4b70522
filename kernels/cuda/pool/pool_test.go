package pool

import (
	"errors"
	"math/rand/v2"
	"testing"
)

var errFull = errors.New("full")

// source counts its allocations; addresses never repeat.
type source struct {
	next, limit, used uint64
	sizes             map[uint64]int64
}

func (s *source) Alloc(n int64) (uint64, error) {
	if s.used+uint64(n) > s.limit {
		return 0, errFull
	}
	s.next += 1 << 32
	s.used += uint64(n)
	s.sizes[s.next] = n
	return s.next, nil
}

func (s *source) Free(at uint64) error {
	n, ok := s.sizes[at]
	if !ok {
		return errors.New("freed twice")
	}
	delete(s.sizes, at)
	s.used -= uint64(n)
	return nil
}

// TestBuffersDoNotMeet: random allocations and frees. No two live buffers overlap, each lies
// within an allocation of the source, and nothing is left at the end.
func TestBuffersDoNotMeet(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		src := &source{limit: 1 << 32, sizes: map[uint64]int64{}}
		p := New(src)
		live := map[uint64]int64{}
		var list []uint64
		for range 2000 {
			if len(list) > 0 && rng.IntN(100) < 45 {
				i := rng.IntN(len(list))
				at := list[i]
				list[i] = list[len(list)-1]
				list = list[:len(list)-1]
				delete(live, at)
				if err := p.Free(at); err != nil {
					t.Fatal(err)
				}
				continue
			}
			n := int64(1) << rng.IntN(24)
			n += rng.Int64N(n)
			at, err := p.Alloc(n)
			if err != nil {
				t.Fatal(err)
			}
			if at%Align != 0 {
				t.Fatalf("buffer at %#x", at)
			}
			inside := false
			for start, size := range src.sizes {
				inside = inside || at >= start && at+uint64(n) <= start+uint64(size)
			}
			if !inside {
				t.Fatalf("%#x + %d lies in nothing the source gave", at, n)
			}
			for other, size := range live {
				if at < other+uint64(size) && other < at+uint64(n) {
					t.Fatalf("%#x + %d meets %#x + %d", at, n, other, size)
				}
			}
			live[at] = n
			list = append(list, at)
		}
		for _, at := range list {
			if err := p.Free(at); err != nil {
				t.Fatal(err)
			}
		}
		if src.used != 0 || p.Held() != 0 {
			t.Fatalf("%d bytes left, the pool says %d", src.used, p.Held())
		}
	}
}

// TestRefusals: a refused allocation costs nothing; an unknown address is no buffer.
func TestRefusals(t *testing.T) {
	src := &source{limit: ChunkBytes, sizes: map[uint64]int64{}}
	p := New(src)
	if _, err := p.Alloc(2 * ChunkBytes); !errors.Is(err, errFull) {
		t.Fatal(err)
	}
	at, err := p.Alloc(0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Alloc(Large); !errors.Is(err, errFull) {
		t.Fatal(err)
	}
	for _, bad := range []uint64{0, at + Align, at + 1} {
		if p.Free(bad) == nil {
			t.Errorf("%#x was freed", bad)
		}
	}
	if err := p.Free(at); err != nil {
		t.Fatal(err)
	}
	if p.Free(at) == nil {
		t.Error("freed twice")
	}
	if _, err := p.Alloc(-1); err == nil {
		t.Error("-1 bytes")
	}
	if _, err := p.Alloc(Large); err != nil {
		t.Error(err)
	}
	if err := p.Close(); err != nil || src.used != 0 {
		t.Errorf("%v, %d bytes left", err, src.used)
	}
}

func TestExactGivesJustWhatIsAskedFor(t *testing.T) {
	s := &sizes{}
	p := NewExact(s)
	for _, n := range []int64{0, 1, 100, 1 << 23} {
		at, err := p.Alloc(n)
		if err != nil || s.last != max(n, 1) || p.Held() != p.Takes(n) {
			t.Fatalf("%d bytes: asked for %d, holds %d: %v", n, s.last, p.Held(), err)
		}
		if err := p.Free(at); err != nil || s.open != 0 {
			t.Fatalf("%d bytes: %v, %d open", n, err, s.open)
		}
	}
}

// sizes is a source that records the requested sizes.
type sizes struct {
	last int64
	open int
}

func (s *sizes) Alloc(n int64) (uint64, error) {
	s.last, s.open = n, s.open+1
	return 1 << 20, nil
}

func (s *sizes) Free(uint64) error {
	s.open--
	return nil
}
