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
	before   atomic.Uint32 // letters of earlier steps
	clear    func() error

	mu  sync.Mutex
	err error // of clear
}

// NewHost serves a mailbox of that size in memory, Bytes of zeros aligned to 256 that a card
// has mapped, for as long as that stays. clear has the card run Clear, and waits for it.
func NewHost(s Size, memory []byte, clear func() error) *Host {
	word := func(at int) unsafe.Pointer { return unsafe.Pointer(&memory[at]) }
	return &Host{size: s, parts: s.parts(), memory: memory, clear: clear,
		posted: (*uint64)(word(postedAt)), answered: (*uint32)(word(answeredAt)), gaveUp: (*uint32)(word(gaveUpAt))}
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
		case past == 0:
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

// letter is what lies in the memory.
func (h *Host) letter(rows int) device.Letter {
	if rows == 0 {
		return device.Letter{}
	}
	p, choices, numbers := &h.parts, rows*h.size.TopK, rows*h.size.Hidden
	return device.Letter{
		Rows:    rows,
		X:       h.memory[p.x:][: numbers*h.size.RowType.Size() : numbers*h.size.RowType.Size()],
		IDs:     unsafe.Slice((*int32)(unsafe.Pointer(&h.memory[p.ids])), choices),
		Weights: unsafe.Slice((*float32)(unsafe.Pointer(&h.memory[p.weights])), choices),
		Out:     unsafe.Slice((*float32)(unsafe.Pointer(&h.memory[p.out])), numbers),
	}
}

// Answer sends what was written to letter n's Out.
func (h *Host) Answer(n int) { atomic.StoreUint32(h.answered, h.before.Load()+uint32(n)+1) }

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
