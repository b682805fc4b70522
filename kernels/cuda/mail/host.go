package mail

import (
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"krater/kernels/device"
)

// Host is the host's side of a mailbox: device.Mail but for its end. The methods are safe
// for concurrent use by those who serve a step; Begin is called when nobody does.
type Host struct {
	size     Size
	parts    parts
	memory   []byte
	posted   *uint64
	answered *uint32
	gaveUp   *uint32
	in       tagged        // letters of few rows
	out      []uint64      // words of answers of few rows,
	sums     []float32     // and what they are to be
	before   atomic.Uint32 // letters of earlier steps
	clear    func() error

	mu  sync.Mutex
	err error // of clear
}

// NewHost serves a mailbox of that size in memory, Bytes of zeros aligned to 256 that a card
// has mapped, for as long as that stays. clear has the card run Clear, and waits for it.
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

// Begin starts the numbers of letters anew. The card is idle, so what it posted last is
// what it counts from, whether the step before came to its end or not.
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

// Who awaits a letter looks at the clock every so many turns, some microseconds, and asks
// whether to stop so often.
const (
	turnsPerLook = 2048
	askEvery     = 20 * time.Microsecond
)

// Await burns its core until letter n is there, or stop answers true.
func (h *Host) Await(n int, stop func() bool) (device.Letter, bool) {
	want := h.before.Load() + uint32(n) + 1
	var asked time.Time
	for turn := 1; ; turn++ {
		p := atomic.LoadUint64(h.posted)
		switch past := int32(uint32(p>>32) - want); {
		case past == 0 && h.whole(want, int(uint32(p))):
			return h.letter(int(uint32(p))), true
		case past > 0: // the card went on without an answer: nothing was asked, or it has been answered
			return device.Letter{}, true
		}
		if turn%turnsPerLook != 0 {
			continue
		}
		if now := time.Now(); now.Sub(asked) >= askEvery {
			if stop() {
				return device.Letter{}, false
			}
			asked = now
		}
	}
}

// whole reports whether all of a letter is there, not only its number and rows.
func (h *Host) whole(number uint32, rows int) bool {
	few, _ := h.size.few()
	return rows == 0 || rows > few || h.in.read(number, h.size.taggedWords(rows))
}

// letter is what lies in the memory, or has been read from it.
func (h *Host) letter(rows int) device.Letter {
	if rows == 0 {
		return device.Letter{}
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
	return device.Letter{
		Rows:    rows,
		X:       unsafe.Slice(x, numbers*h.size.RowType.Size()),
		IDs:     unsafe.Slice((*int32)(unsafe.Pointer(ids)), choices),
		Weights: unsafe.Slice((*float32)(unsafe.Pointer(weights)), choices),
		Out:     unsafe.Slice((*float32)(unsafe.Pointer(out)), numbers),
	}
}

// Answer sends what was written to letter n's Out.
func (h *Host) Answer(n int) {
	number := h.before.Load() + uint32(n) + 1
	h.in.forget()
	p := atomic.LoadUint64(h.posted) // still letter n, unless the card has given it up
	rows := int(uint32(p))
	if _, few := h.size.few(); uint32(p>>32) == number && rows <= few {
		tag(h.out, h.sums[:rows*h.size.Hidden], number)
		return
	}
	atomic.StoreUint32(h.answered, number)
}

// Err is device.ErrLate if the card has given up a wait since Begin, or why it could not be
// had to ask again.
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
