package kvblocks

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestOrder(t *testing.T) {
	a := New(5)
	first, ok := a.Alloc(nil, 3)
	if want := []int32{0, 1, 2}; !ok || !slices.Equal(first, want) {
		t.Fatalf("a new allocator gave %v %v, want %v", first, ok, want)
	}
	second, _ := a.Alloc(nil, 1)
	a.Free(second)
	a.Free(first)
	all, ok := a.Alloc([]int32{9}, 5)
	if want := []int32{9, 0, 1, 2, 3, 4}; !ok || !slices.Equal(all, want) {
		t.Fatalf("after free: %v %v, want %v", all, ok, want)
	}
}

func TestTooManyTakesNone(t *testing.T) {
	a := New(3)
	for _, n := range []int{4, -1} {
		got, ok := a.Alloc([]int32{7}, n)
		if ok || !slices.Equal(got, []int32{7}) {
			t.Fatalf("Alloc(%d) of 3 = %v %v", n, got, ok)
		}
		if a.Used() != 0 {
			t.Fatalf("a refused Alloc(%d) holds %d blocks", n, a.Used())
		}
	}
	if got, ok := a.Alloc(nil, 0); !ok || len(got) != 0 {
		t.Fatalf("Alloc(0) = %v %v", got, ok)
	}
}

func TestWrongFreePanics(t *testing.T) {
	cases := []struct {
		name string
		free []int32
		want string
	}{
		{"twice in one call", []int32{1, 1}, "block 1, which is not held"},
		{"never handed out", []int32{3}, "block 3, which is not held"},
		{"no such block", []int32{4}, "block 4, there are 4"},
		{"negative", []int32{-1}, "block -1, there are 4"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			a := New(4)
			a.Alloc(nil, 2)
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, c.want) {
					t.Fatalf("panic %q, want one with %q", got, c.want)
				}
			}()
			a.Free(c.free)
		})
	}
}

// TestRandom holds the allocator against a map of who holds what.
func TestRandom(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		total := rng.IntN(40)
		a := New(total)
		owner := map[int32]int{} // id -> holder
		holders := map[int][]int32{}
		var order []int
		for step := range 200 {
			if rng.IntN(2) == 0 {
				n := rng.IntN(12)
				got, ok := a.Alloc(nil, n)
				if ok != (n <= total-len(owner)) {
					t.Fatalf("seed %d step %d: Alloc(%d) ok %v with %d of %d used", seed, step, n, ok, len(owner), total)
				}
				if !ok {
					continue
				}
				if len(got) != n {
					t.Fatalf("seed %d step %d: Alloc(%d) gave %v", seed, step, n, got)
				}
				for _, id := range got {
					if _, taken := owner[id]; taken || id < 0 || int(id) >= total {
						t.Fatalf("seed %d step %d: block %d given out twice or foreign", seed, step, id)
					}
					owner[id] = step
				}
				holders[step] = got
				order = append(order, step)
			} else if len(order) > 0 {
				i := rng.IntN(len(order))
				h := order[i]
				order = slices.Delete(order, i, i+1)
				a.Free(holders[h])
				for _, id := range holders[h] {
					delete(owner, id)
				}
				delete(holders, h)
			}
			if err := a.Check(); err != nil || a.Used() != len(owner) || a.Total() != total {
				t.Fatalf("seed %d step %d: used %d of %d, want %d of %d: %v", seed, step, a.Used(), a.Total(), len(owner), total, err)
			}
		}
	}
}

func TestCheckFindsDamage(t *testing.T) {
	damage := map[string]func(*Allocator){
		"twice on the free list": func(a *Allocator) { a.free[0] = a.free[1] },
		"held and free":          func(a *Allocator) { a.held[a.free[0]] = true },
		"neither held nor free":  func(a *Allocator) { a.free = a.free[1:] },
		"holds block 9":          func(a *Allocator) { a.free[0] = 9 },
	}
	for want, hurt := range damage {
		a := New(4)
		hurt(a)
		if err := a.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Check = %v, want %q", err, want)
		}
	}
}

func BenchmarkAllocFree(b *testing.B) {
	a := New(4096)
	buf := make([]int32, 0, 64)
	b.ReportAllocs()
	for b.Loop() {
		buf, _ = a.Alloc(buf[:0], 64)
		a.Free(buf)
	}
}
