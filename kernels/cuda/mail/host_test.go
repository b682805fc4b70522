package mail

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

var small = Size{MailSize: device.MailSize{Rows: 4, Hidden: 8, TopK: 2, Limit: time.Second}, RowType: tensor.BF16}

func newHost(clear func() error) *Host { return NewHost(small, make([]byte, small.Bytes()), clear) }

// post does what the card does.
func (h *Host) post(round, rows uint32) { atomic.StoreUint64(h.posted, uint64(round)<<32|uint64(rows)) }

func never() bool { return false }

// TestLetters: a letter is seen by all who await it, one that asks nothing holds nobody up
// even if the card is further already, and numbers go on where they were.
func TestLetters(t *testing.T) {
	h := newHost(nil)
	atomic.StoreUint64(h.posted, 7<<32|4) // letters of an earlier life
	h.Begin()
	var wait sync.WaitGroup
	for range 3 {
		wait.Go(func() {
			l, ok := h.Await(0, never)
			if !ok || l.Rows != 3 || len(l.X) != 3*8*2 || len(l.IDs) != 6 || len(l.Weights) != 6 || len(l.Out) != 24 {
				t.Errorf("%v %+v", ok, l)
			}
		})
	}
	h.post(8, 3)
	wait.Wait()
	h.Answer(0)
	if got := atomic.LoadUint32(h.answered); got != 8 {
		t.Errorf("answered %d", got)
	}
	h.post(9, 0)
	if l, ok := h.Await(1, never); !ok || l.Rows != 0 {
		t.Errorf("nothing asked: %v %+v", ok, l)
	}
	h.post(11, 2) // the card did not wait for letter 2
	if l, ok := h.Await(2, never); !ok || l.Rows != 0 {
		t.Errorf("passed: %v %+v", ok, l)
	}
	if l, ok := h.Await(3, never); !ok || l.Rows != 2 {
		t.Errorf("the fourth: %v %+v", ok, l)
	}
	h.Begin() // the step ended there
	h.post(12, 1)
	if l, ok := h.Await(0, never); !ok || l.Rows != 1 {
		t.Errorf("the next step's first: %v %+v", ok, l)
	}
}

// TestNumbersWrap: after four thousand million letters they go on.
func TestNumbersWrap(t *testing.T) {
	h := newHost(nil)
	h.post(0xffffffff, 1)
	h.Begin()
	asked := 0
	if _, ok := h.Await(1, func() bool { asked++; return true }); ok || asked != 1 {
		t.Errorf("%v after %d questions", ok, asked)
	}
	h.post(0, 2)
	if l, ok := h.Await(0, never); !ok || l.Rows != 2 {
		t.Errorf("%v %+v", ok, l)
	}
	h.post(1, 3)
	if l, ok := h.Await(1, never); !ok || l.Rows != 3 {
		t.Errorf("%v %+v", ok, l)
	}
	h.Answer(1)
	if got := atomic.LoadUint32(h.answered); got != 1 {
		t.Errorf("answered %d", got)
	}
}

// TestAwaitStops: who waits in vain asks now and then, not every turn.
func TestAwaitStops(t *testing.T) {
	h := newHost(nil)
	h.Begin()
	begin, asked := time.Now(), 0
	_, ok := h.Await(0, func() bool { asked++; return time.Since(begin) > 5*time.Millisecond })
	if took := time.Since(begin); ok || asked < 2 || asked > int(took/askEvery)+1 {
		t.Errorf("%v: asked %d times in %v", ok, asked, took)
	}
}

// TestLate: the host learns of it, and the next step begins with a card that waits again.
func TestLate(t *testing.T) {
	fault := errors.New("lost")
	cleared, answer := 0, fault
	h := newHost(func() error { cleared++; return answer })
	h.Begin()
	if h.Err() != nil || cleared != 0 {
		t.Fatalf("%v, cleared %d times", h.Err(), cleared)
	}
	atomic.StoreUint32(h.gaveUp, 1)
	if !errors.Is(h.Err(), device.ErrLate) {
		t.Errorf("late: %v", h.Err())
	}
	h.Begin()
	if h.Err() != fault {
		t.Errorf("not cleared: %v", h.Err())
	}
	answer = nil
	h.Begin()
	if h.Err() != nil || cleared != 2 {
		t.Errorf("%v, cleared %d times", h.Err(), cleared)
	}
}
