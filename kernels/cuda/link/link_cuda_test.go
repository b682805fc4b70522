//go:build cuda

package link

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/tensor"
	"krater/scheduler/dispatch"
)

// want does the work of Pick and lists that of Bring, by dispatch.Brought.
func want(ids, where, terms []int32) (now, list []int32) {
	rows := make([]int32, len(where))
	for _, e := range ids {
		if e >= 0 && int(e) < len(where) && where[e] < 0 {
			rows[e]++
		}
	}
	var work []dispatch.Rows
	var host []int32
	for e, n := range rows {
		if n > 0 {
			host = append(host, int32(len(work)))
			work = append(work, dispatch.Rows{Expert: int32(e), Rows: n})
		}
	}
	slots := terms[1:]
	if i := slices.IndexFunc(slots, func(s int32) bool { return s < 0 }); i >= 0 {
		slots = slots[:i]
	}
	now = slices.Clone(where)
	brought, _ := dispatch.Brought(nil, host, work, int(terms[0]), len(slots))
	for i, w := range brought {
		now[work[w].Expert] = slots[i]
		list = append(list, work[w].Expert, slots[i])
	}
	return now, list
}

// TestLink: the GPU chooses the experts that dispatch.Brought chooses, and copies them to their slots, from
// host memory, and nothing else.
func TestLink(t *testing.T) {
	c := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(1, 2))
	for _, x := range []struct{ rows, topK, experts, most, width, share int }{
		{1, 2, 5, 1, 4, 128}, {1, 6, 64, 3, 1028, 96}, {3, 4, 32, 8, 8200, 64}, {16, 6, 64, 18, 260, 100}, {9, 8, 300, 40, 12, 256}, {2, 4, 32, 4, 64, 0},
	} {
		slots := x.experts/4 + x.most
		ids, where, terms := make([]int32, x.rows*x.topK), make([]int32, x.experts), make([]int32, 1+x.most)
		for i := range ids {
			ids[i] = int32(rng.IntN(x.experts+2) - 1) // none and too large ones, too
		}
		for e := range where {
			if where[e] = -1; rng.IntN(4) == 0 {
				where[e] = int32(e % (x.experts / 4))
			}
		}
		terms[0] = int32(x.share)
		for i := range x.most {
			if terms[1+i] = int32(slots - 1 - i); x.most > 2 && i == x.most-1 {
				terms[1+i] = -1
			}
		}
		now, list := want(ids, where, terms)
		memory, at, err := c.MapHost(4 * x.experts * x.width)
		if err != nil {
			t.Fatal(err)
		}
		values := cudatest.Normal(rng, x.experts*x.width)
		copy(memory, cudatest.Raw(values))
		from := launch.Mat{At: at, DType: tensor.F32, Rows: x.experts, Cols: x.width, Stride: x.width}
		room := cudatest.Normal(rng, slots*x.width)
		to := c.F32(room, slots, x.width)
		gotNow, gotList := c.I32(make([]int32, x.experts), 1, x.experts), c.I32(make([]int32, 2*x.most), 1, 2*x.most)
		first, marks := from.ColRange(0, x.width/8*4), make([]int32, slots)
		for i := range terms[1:] { // as a lost step leaves them
			if s := terms[1+i]; s >= 0 {
				marks[s] = int32(i % 3)
			}
		}
		coming := c.I32(marks, 1, slots)
		idMat, whereMat, termMat := c.I32(ids, x.rows, x.topK), c.I32(where, 1, x.experts), c.I32(terms, 1, 1+x.most)
		c.Run(func(l *launch.List) {
			Pick(l, gotNow, gotList, coming, idMat, whereMat, termMat)
			Bring(l, to, from, first, gotList, coming)
		})
		if got := cudatest.Download[int32](c, gotNow.At, x.experts); !slices.Equal(got, now) {
			t.Errorf("%+v: experts at %v, want %v", x, got, now)
		}
		if n := len(list); n < 2*x.most {
			list = append(list, -1)
		}
		if got := cudatest.Download[int32](c, gotList.At, 2*x.most)[:len(list)]; !slices.Equal(got, list) {
			t.Errorf("%+v: list %v, want %v", x, got, list)
		}
		if got := cudatest.Download[int32](c, coming.At, slots); slices.ContainsFunc(got, func(m int32) bool { return m != 0 }) {
			t.Errorf("%+v: marks %v are left", x, got)
		}
		for i := 0; i+1 < len(list); i += 2 {
			copy(room[int(list[i+1])*x.width:][:x.width], values[int(list[i])*x.width:][:x.width])
		}
		if got := cudatest.Download[float32](c, to.At, len(room)); !slices.Equal(got, room) {
			t.Errorf("%+v: slots differ", x)
		}
		if err := c.FreeHost(memory); err != nil {
			t.Error(err)
		}
	}
}

// TestLinkRate measures copies of experts by the kernel and by the copy engine.
func TestLinkRate(t *testing.T) {
	c := cudatest.Open(t)
	if c.Emulated() {
		t.Skip("the emulator's times mean nothing")
	}
	const experts = 64
	for _, width := range []int{16 << 10, 256 << 10, 1115136} {
		memory, err := syscall.Mmap(-1, 0, 4*experts*width, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
		if err != nil {
			t.Fatal(err)
		}
		release, err := c.Pin(memory)
		if err != nil {
			t.Fatal(err)
		}
		at, ok := c.Mapped(memory)
		if !ok {
			t.Fatal("kernels cannot read pinned memory")
		}
		from := launch.Mat{At: at, DType: tensor.F32, Rows: experts, Cols: width, Stride: width}
		to, coming := c.Mat(tensor.F32, experts, width), c.I32(make([]int32, experts), 1, experts)
		for _, n := range []int{1, 2, 4} {
			list := make([]int32, 2*n)
			for i := range n {
				list[2*i], list[2*i+1] = int32(7*i+3), int32(i)
			}
			l := c.I32(list, 1, 2*n)
			line := fmt.Sprintf("%d experts of %d bytes: by a kernel", n, 4*width)
			const times = 50
			for _, blocks := range []int{4, 8, 16, 32, 64, 128} {
				best := time.Duration(1 << 62)
				for range 3 {
					c.Sync()
					begun := time.Now()
					c.Run(func(q *launch.List) {
						for range times {
							Bring(q, to, from, from.ColRange(0, width/3/4*4), l, coming)
							q.Ops[len(q.Ops)-1].Config.Grid.X = uint32(blocks)
						}
					})
					c.Sync()
					best = min(best, time.Since(begun))
				}
				line += fmt.Sprintf(", %d blocks %.1f us", blocks, float64(best.Microseconds())/times)
			}
			best := time.Duration(1 << 62)
			for range 3 {
				c.Sync()
				begun := time.Now()
				for range times {
					for i := range n {
						c.Stream().CopyIn(to.At+launch.Ptr(4*i*width), memory[4*(7*i+3)*width:][:4*width])
					}
				}
				c.Sync()
				best = min(best, time.Since(begun))
			}
			t.Logf("%s; by the copy engine %.1f us", line, float64(best.Microseconds())/times)
		}
		if err := errors.Join(release(), syscall.Munmap(memory)); err != nil {
			t.Error(err)
		}
	}
}
