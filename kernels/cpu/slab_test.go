package cpu

import (
	"math/rand/v2"
	"sync"
	"testing"
	"unsafe"
)

// TestSlabs: pieces of any size are zeroed, aligned, apart from one another, and all memory goes
// back.
func TestSlabs(t *testing.T) {
	var s slabs
	var wait sync.WaitGroup
	for w := range 4 {
		wait.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 1))
			type piece struct {
				b    []byte
				free func()
			}
			var held []piece
			for range 200 {
				b, free, err := s.take(1 + r.IntN(slabMost>>r.IntN(12)))
				if err != nil {
					t.Error(err)
					return
				}
				if uintptr(unsafe.Pointer(&b[0]))%slabUnit != 0 || b[0] != 0 || b[len(b)-1] != 0 || cap(b) != len(b) {
					t.Errorf("piece of %d bytes at %p", len(b), b)
				}
				b[0], b[len(b)-1] = byte(w+1), byte(w+1)
				held = append(held, piece{b, free})
				for len(held) > r.IntN(9) {
					i := r.IntN(len(held))
					if p := held[i]; p.b[0] != byte(w+1) || p.b[len(p.b)-1] != byte(w+1) {
						t.Error("a piece was written by another goroutine")
					}
					held[i].free()
					held = append(held[:i], held[i+1:]...)
				}
			}
			for _, p := range held {
				p.free()
			}
		})
	}
	wait.Wait()
	if s.open != nil && s.open.live != 0 {
		t.Errorf("%d pieces of the last slab live", s.open.live)
	}
}

// TestMapMemory: large mappings start at a huge page and end where they should.
func TestMapMemory(t *testing.T) {
	for _, n := range []int{1, 4096, 2<<20 - 1, 2 << 20, 2<<20 + 1, 5 << 20, 64 << 20} {
		b, err := mapMemory(n)
		if err != nil {
			t.Fatal(err)
		}
		if len(b) != n || n >= 2<<20 && uintptr(unsafe.Pointer(&b[0]))%(2<<20) != 0 {
			t.Errorf("%d bytes: %d at %p", n, len(b), b)
		}
		b[0], b[n-1] = 1, 1
		unmapMemory(b)
	}
}
