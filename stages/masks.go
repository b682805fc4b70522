package stages

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// maskLimit is how long a device waits for a mask, so that a host that hangs causes an error and not a GPU that waits forever. Masks take
// milliseconds; a loaded machine may let a thread wait for seconds.
const maskLimit = 30 * time.Second

// masks are the masks of a step's draws, in host memory that the device reads: device.LogitChanges. The host writes them while the device
// computes, so a step is sent before its masks are known.
type masks struct {
	dev    device.Mat // [LogitRows, device.MaskStride(V)] I32
	host   []uint32   // the same
	flag   int        // the word of a row that is its flag
	number uint32     // of the step's masks
}

func newMasks(a device.Accelerator, rows, vocab int) (m masks, err error) {
	stride := device.MaskStride(vocab)
	buf, bytes, err := a.AllocShared(4 * rows * stride)
	if err != nil {
		return m, fmt.Errorf("%d masks of %d tokens: %w", rows, vocab, err)
	}
	return masks{
		dev:  device.Mat{Buf: buf, DType: tensor.I32, Rows: rows, Cols: stride, Stride: stride},
		host: unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(bytes))), rows*stride), flag: device.MaskFlag(vocab),
	}, nil
}

func (m *masks) free() {
	if m.dev.Buf != nil {
		m.dev.Buf.Free()
	}
	*m = masks{}
}

// next is the number of the next step's masks: 31 bits, and not 0.
func (m *masks) next() uint32 {
	m.number = m.number%(1<<31-1) + 1
	return m.number
}

// row is the mask of a draw, with the words behind it.
func (m *masks) row(i int) []uint32 { return m.host[i*m.dev.Stride:][:m.dev.Stride] }

// Later reports whether some draws have their masks later: see GiveMask.
func (st *State) Later() bool {
	return slices.ContainsFunc(st.draws(), func(d device.Draw) bool { return d.Later })
}

// GiveMask gives the device the mask of a draw, which may wait for it. With nil no token may come. Each draw that has its mask Later needs
// one call of GiveMask or NoMasks, else the device waits for a long time.
func (st *State) GiveMask(i int, mask []uint32) {
	row, flag := st.masks.row(i), 2*st.masks.number
	if mask != nil {
		copy(row[:st.masks.flag], mask)
		flag++
	}
	atomic.StoreUint32(&row[st.masks.flag], flag)
}

// NoMasks ends the waits for masks of a step that nobody wants any more. Another goroutine may give masks meanwhile.
func (st *State) NoMasks() {
	for i := range st.draws() {
		flag := &st.masks.row(i)[st.masks.flag]
		if old := atomic.LoadUint32(flag); old/2 != st.masks.number {
			atomic.CompareAndSwapUint32(flag, old, 2*st.masks.number)
		}
	}
}

// MasksLate reports whether the device has given up a wait for a mask in the step, which has ended.
func (st *State) MasksLate() bool {
	for i := range st.draws() {
		if atomic.LoadUint32(&st.masks.row(i)[st.masks.flag+1]) == st.masks.number {
			return true
		}
	}
	return false
}
