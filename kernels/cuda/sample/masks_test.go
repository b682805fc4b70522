//go:build cuda

package sample

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
)

// sharedMasks are masks in host memory that a GPU has mapped.
type sharedMasks struct {
	words []uint32
	mat   launch.Mat
	flag  int
}

func newSharedMasks(t *testing.T, c *cudatest.GPU, rows, vocab int) *sharedMasks {
	t.Helper()
	stride, gpu := device.MaskStride(vocab), c.Stream().GPU()
	memory, at, err := gpu.MapHost(4 * rows * stride)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := gpu.FreeHost(memory); err != nil {
			t.Error(err)
		}
	})
	return &sharedMasks{unsafe.Slice((*uint32)(unsafe.Pointer(&memory[0])), rows*stride),
		launch.Mat{At: at, DType: i32, Rows: rows, Cols: stride, Stride: stride}, device.MaskFlag(vocab)}
}

func (m *sharedMasks) row(i int) []uint32 { return m.words[i*m.mat.Stride:][:m.mat.Stride] }

// give writes the mask of a step, or without tokens that there is none.
func (m *sharedMasks) give(row int, number uint32, ids ...int32) {
	mask := m.row(row)
	clear(mask[:m.flag])
	for _, id := range ids {
		mask[id/32] |= 1 << (id % 32)
	}
	atomic.StoreUint32(&mask[m.flag], 2*number+uint32(min(1, len(ids))))
}

// TestMasksComeLater: a row waits for its mask in host memory, and uses the one of its step, in lists and in graphs. A row
// without a mask in the same launch gets its token. A row whose mask does not come, or not in time, gets none.
func TestMasksComeLater(t *testing.T) {
	c := cudatest.Open(t)
	const vocab, rows = 8500, 3 // the second row has no mask
	m := newSharedMasks(t, c, rows, vocab)
	logits := make([]float32, rows*vocab)
	for i := range logits {
		logits[i] = float32(i % 91)
	}
	x, table, out, scratch := c.F32(logits, rows, vocab), c.I32(make([]int32, 2*rows), rows, 2), c.Mat(i32, rows, 1), c.Alloc(Scratch(rows, vocab))
	records := make([]byte, rows*RowBytes)
	for i := range rows {
		(&Row{}).Put(records[i*RowBytes:])
	}
	changes := Changes{Rows: c.Bytes(records), Table: table, IDs: c.I32(make([]int32, rows), rows, 1), Wanted: c.I32([]int32{0, 1, 2}, rows, 1),
		Masks: m.mat}
	step := func(number uint32, limit time.Duration) (ids []int32, late bool) {
		s := c.Stream()
		s.CopyIn(table.At, cudatest.Raw([]int32{-1, int32(number), -1, 0, -1, int32(number)}))
		s.CopyIn(x.At, cudatest.Raw(logits))
		changes.Limit = limit
		Change(&s.List, x, &changes)
		Sample(&s.List, out, x, changes.Rows, launch.Mat{}, launch.Mat{}, scratch)
		c.Sync()
		for _, row := range []int{0, 2} {
			late = late || m.row(row)[m.flag+1] == number
		}
		return cudatest.Download[int32](c, out.At, rows), late
	}
	for number := uint32(1); number < 6; number++ {
		c.Stream().Keep(number > 1) // recorded at the third step, replayed after it
		ids := []int32{8499 - 64*int32(number), 3 + int32(number)}
		go func() {
			time.Sleep(time.Millisecond)
			m.give(2, number, ids[1])
			time.Sleep(time.Millisecond)
			m.give(0, number, ids[0])
		}()
		if got, late := step(number, time.Minute); !slices.Equal(got, []int32{ids[0], 90 - vocab%91, ids[1]}) || late {
			t.Errorf("step %d chose %v, want %v and %v; late %t", number, got, ids[0], ids[1], late)
		}
	}
	m.give(0, 6)
	m.give(2, 6, 77)
	if got, late := step(6, time.Minute); got[0] != AllMasked || got[2] != 77 || late {
		t.Errorf("without a mask: chose %v, late %t", got, late)
	}
	m.give(2, 7, 78)
	begin := time.Now()
	if got, late := step(7, 5*time.Millisecond); got[0] != AllMasked || got[2] != 78 || !late || time.Since(begin) < 5*time.Millisecond {
		t.Errorf("with a mask that is late: chose %v, late %t after %v", got, late, time.Since(begin))
	}
	m.give(0, 8, 5)
	m.give(2, 8, 6)
	if got, late := step(8, time.Minute); got[0] != 5 || got[2] != 6 || late {
		t.Errorf("after it: chose %v, late %t", got, late)
	}
}
