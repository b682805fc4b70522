package hostcall

import (
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"krater/kernels/device"
)

// Host is the host's side of a mailbox: device.HostCalls without Close. Methods are safe for
// concurrent use by the servers of a step. Begin is called while there is none.
type Host struct {
	size     Size
	parts    parts
	memory   []byte
	posted   *uint64
	answered *uint32
	gaveUp   *uint32
	in       tagged        // calls of few rows
	out      []uint64      // the words of answers of few rows
	sums     []float32     // the values of these words
	before   atomic.Uint32 // calls of earlier steps
	clear    func() error

	mu  sync.Mutex
	err error // of clear
}

// NewHost makes the host's side of a mailbox of that size in memory: Bytes of zeros, aligned to 256,
// which a GPU has mapped. clear runs Clear on the GPU and waits for it.
func NewHost(s Size, memory []byte, clear func() error) *Host {
	word := func(at int) unsafe.Pointer { return unsafe.Pointer(&memory[at]) }
	h := &Host{size: s, parts: s.parts(), memory: memory, clear: clear,
		posted: (*uint64)(word(postedAt)), answered: (*uint32)(word(answeredAt)), gaveUp: (*uint32)(word(gaveUpAt))}
	if x, _ := s.few(); x > 0 {
		n := s.taggedWords(x)
		h.in.words, h.in.data = unsafe.Slice((*uint64)(word(h.parts.taggedX)), n), make([]uint32, n)
	}
	if _, out := s.few(); out > 0 {
		h.out, h.sums = unsafe.Slice((*uint64)(word(h.parts.taggedOut)), out*s.Hidden), make([]float32, out*s.Hidden)
	}
	return h
}

// Begin numbers calls from 0 again. The GPU is idle, so it counts on from the call that it posted
// last, whether the step before has come to its end or not.
func (h *Host) Begin() {
	h.before.Store(uint32(atomic.LoadUint64(h.posted) >> 32))
	if atomic.LoadUint32(h.gaveUp) == 0 {
		return
	}
	err := h.clear()
	h.mu.Lock()
	h.err = err
	h.mu.Unlock()
	if err == nil {
		atomic.StoreUint32(h.gaveUp, 0)
	}
}

// Await reads the clock once in turnsPerLook turns of its loop, which take some microseconds, and
// calls stop once in askEvery.
const (
	turnsPerLook = 2048
	askEvery     = 20 * time.Microsecond
)

// Await polls until call n has come, or stop reports true. It looks once more after that: the call
// may have come in the meantime.
func (h *Host) Await(n int, stop func() bool) (device.HostCall, bool) {
	want := h.before.Load() + uint32(n) + 1
	var asked time.Time
	stopped := false
	for turn := 1; ; turn++ {
		p := atomic.LoadUint64(h.posted)
		switch past := int32(uint32(p>>32) - want); {
		case past == 0 && h.whole(want, int(uint32(p))):
			return h.call(int(uint32(p))), true
		case past > 0: // the GPU went on: nothing was requested, or the call has been answered
			return device.HostCall{}, true
		case stopped:
			return device.HostCall{}, false
		}
		if turn%turnsPerLook != 0 {
			continue
		}
		if now := time.Now(); now.Sub(asked) >= askEvery {
			stopped, asked = stop(), now
		}
	}
}

// whole reports whether all of a call has come, not only its number and rows.
func (h *Host) whole(number uint32, rows int) bool {
	few, _ := h.size.few()
	return rows == 0 || rows > few || h.in.read(number, h.size.taggedWords(rows))
}

// call is a call in the mailbox, or its copy where that was made of tagged words.
func (h *Host) call(rows int) device.HostCall {
	if rows == 0 {
		return device.HostCall{}
	}
	p, choices, numbers := &h.parts, rows*h.size.TopK, rows*h.size.Hidden
	ids, weights, x, out := &h.memory[p.ids], &h.memory[p.weights], &h.memory[p.x], &h.memory[p.out]
	fewIn, fewOut := h.size.few()
	if rows <= fewIn {
		at := func(word int) *byte { return (*byte)(unsafe.Pointer(&h.in.data[word])) }
		ids, weights, x = at(0), at(choices), at(2*choices)
	}
	if rows <= fewOut {
		out = (*byte)(unsafe.Pointer(unsafe.SliceData(h.sums)))
	}
	return device.HostCall{
		Rows:    rows,
		X:       unsafe.Slice(x, numbers*h.size.RowType.Size()),
		IDs:     unsafe.Slice((*int32)(unsafe.Pointer(ids)), choices),
		Weights: unsafe.Slice((*float32)(unsafe.Pointer(weights)), choices),
		Out:     unsafe.Slice((*float32)(unsafe.Pointer(out)), h.size.answers(rows)*h.size.Hidden),
	}
}

// Answer sends the values that were written to Out of call n.
func (h *Host) Answer(n int) {
	number := h.before.Load() + uint32(n) + 1
	h.in.forget()
	p := atomic.LoadUint64(h.posted) // still call n, unless the GPU has given it up
	rows := int(uint32(p))
	if _, few := h.size.few(); uint32(p>>32) == number && rows <= few {
		tag(h.out, h.sums[:rows*h.size.Hidden], number)
		return
	}
	atomic.StoreUint32(h.answered, number)
}

// Err is device.ErrLate if the GPU has given up a wait since Begin, or why clear failed.
func (h *Host) Err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return h.err
	}
	if atomic.LoadUint32(h.gaveUp) != 0 {
		return device.ErrLate
	}
	return nil
}
