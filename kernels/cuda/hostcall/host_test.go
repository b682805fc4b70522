package hostcall

import (
	"encoding/binary"
	"errors"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// Calls of up to 4 rows of small are tagged. Calls of wide are not, and neither are its answers.
var (
	small = Size{HostCallSize: device.HostCallSize{Rows: 4, Hidden: 8, TopK: 2, Limit: time.Second}, RowType: tensor.BF16}
	wide  = Size{HostCallSize: device.HostCallSize{Rows: 4, Hidden: 4096, TopK: 2, Limit: time.Second}, RowType: tensor.BF16}
)

func newHost(s Size, clear func() error) *Host { return NewHost(s, make([]byte, s.Bytes()), clear) }

// say publishes a call, as the GPU does.
func (h *Host) say(round, rows uint32) { atomic.StoreUint64(h.posted, uint64(round)<<32|uint64(rows)) }

// word writes a tagged word of a call: its place.
func (h *Host) word(i int, round uint32) {
	atomic.StoreUint64(&h.in.words[i], uint64(round)<<32|uint64(i))
}

// post writes a whole call, as the GPU does.
func (h *Host) post(round, rows uint32) {
	if few, _ := h.size.few(); int(rows) <= few {
		for i := range h.size.taggedWords(int(rows)) {
			h.word(i, round)
		}
	}
	h.say(round, rows)
}

func never() bool { return false }

// TestHostCalls: every goroutine that awaits a call sees it, a call that requests nothing delays
// none of them even if the GPU is already further, and numbers continue.
func TestHostCalls(t *testing.T) {
	for _, size := range []Size{small, wide} {
		h := newHost(size, nil)
		atomic.StoreUint64(h.posted, 7<<32|4) // calls of an earlier step
		h.Begin()
		var wait sync.WaitGroup
		for range 3 {
			wait.Go(func() {
				l, ok := h.Await(0, never)
				if !ok || l.Rows != 3 || len(l.X) != 3*size.Hidden*2 || len(l.IDs) != 6 || len(l.Weights) != 6 || len(l.Out) != 3*size.Hidden {
					t.Errorf("%v %+v", ok, l)
				}
			})
		}
		h.post(8, 3)
		wait.Wait()
		h.post(9, 0)
		if l, ok := h.Await(1, never); !ok || l.Rows != 0 {
			t.Errorf("nothing asked: %v %+v", ok, l)
		}
		h.post(11, 2) // the GPU did not wait for call 2
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
}

// TestWordsInAnyOrder: a call has arrived with its last word, whichever that is, and its parts
// have the values of the words.
func TestWordsInAnyOrder(t *testing.T) {
	const rows = 3
	h := newHost(small, nil)
	words := small.taggedWords(rows)
	for last := range words {
		h.post(uint32(last)*2+1, 4) // the words of the previous call are still there
		h.Begin()
		number := uint32(last)*2 + 2
		for i := range words {
			if i != last {
				h.word(i, number)
			}
		}
		h.say(number, rows)
		asked := 0
		if _, ok := h.Await(0, func() bool { asked++; return true }); ok || asked != 1 {
			t.Fatalf("without word %d: %v after %d questions", last, ok, asked)
		}
		h.word(last, number)
		l, ok := h.Await(0, never)
		if !ok || l.Rows != rows {
			t.Fatalf("with word %d: %v %+v", last, ok, l)
		}
		for i := range l.IDs {
			if int(l.IDs[i]) != i || int(math.Float32bits(l.Weights[i])) != len(l.IDs)+i {
				t.Fatalf("choice %d: %d with %v", i, l.IDs[i], l.Weights[i])
			}
		}
		for i := range len(l.X) / 4 {
			if got := binary.LittleEndian.Uint32(l.X[4*i:]); int(got) != 2*len(l.IDs)+i {
				t.Fatalf("word %d of x: %d", i, got)
			}
		}
	}
}

// TestReadersTogether: several goroutines that await calls whose words arrive one by one find
// them complete.
func TestReadersTogether(t *testing.T) {
	const calls, rows = 20, 4
	h := newHost(small, nil)
	h.Begin()
	var wait sync.WaitGroup
	var seen [calls]atomic.Int32
	for range 3 {
		wait.Go(func() {
			for n := range calls {
				l, ok := h.Await(n, never)
				if !ok || l.Rows != rows || int(l.IDs[1]) != 1 || binary.LittleEndian.Uint32(l.X[len(l.X)-4:]) != uint32(small.taggedWords(rows)-1) {
					t.Errorf("call %d: %v %+v", n, ok, l)
				}
				seen[n].Add(1)
			}
		})
	}
	for n := range calls {
		h.say(uint32(n)+1, rows)
		for i := range small.taggedWords(rows) {
			h.word(i, uint32(n)+1)
		}
		for seen[n].Load() < 3 {
			runtime.Gosched()
		}
	}
	wait.Wait()
}

// TestAnswers: every word of an answer of few rows has the call's number; a larger answer is
// followed by a flag that has it. The values are where the GPU reads them. The answer to a call
// that the GPU has given up is not written over the next call's.
func TestAnswers(t *testing.T) {
	h := newHost(small, nil)
	h.Begin()
	h.post(1, 3)
	l, _ := h.Await(0, never)
	for i := range l.Out {
		l.Out[i] = float32(i)
	}
	h.Answer(0)
	for i := range 4 * small.Hidden {
		want := uint64(1)<<32 | uint64(math.Float32bits(float32(i)))
		if i >= 3*small.Hidden {
			want = 0
		}
		if h.out[i] != want {
			t.Fatalf("word %d: %x, want %x", i, h.out[i], want)
		}
	}
	h.post(2, 3)
	h.Answer(0)
	if got := h.out[0]; got>>32 != 1 {
		t.Errorf("too late: %x", got)
	}
	h = newHost(wide, nil)
	h.Begin()
	h.post(1, 2)
	l, _ = h.Await(0, never)
	if &l.Out[0] != (*float32)(unsafe.Pointer(&h.memory[h.parts.out])) || len(h.out) != 0 {
		t.Error("the answer of a call of many rows is not where the GPU looks")
	}
	h.Answer(0)
	if got := atomic.LoadUint32(h.answered); got != 1 {
		t.Errorf("answered %d", got)
	}
}

// TestNumbersWrap: numbers continue after 2^32 calls.
func TestNumbersWrap(t *testing.T) {
	h := newHost(small, nil)
	h.say(0xfffffffe, 1)
	h.Begin()
	h.post(0xffffffff, 4)
	if l, ok := h.Await(0, never); !ok || l.Rows != 4 {
		t.Errorf("%v %+v", ok, l)
	}
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
	if got := h.out[0]; got>>32 != 1 {
		t.Errorf("answered %x", got)
	}
}

// TestAwaitStops: a wait without an answer calls stop now and then, not every turn.
func TestAwaitStops(t *testing.T) {
	h := newHost(small, nil)
	h.Begin()
	begin, asked := time.Now(), 0
	_, ok := h.Await(0, func() bool { asked++; return time.Since(begin) > 5*time.Millisecond })
	if took := time.Since(begin); ok || asked < 2 || asked > int(took/askEvery)+1 {
		t.Errorf("%v: asked %d times in %v", ok, asked, took)
	}
}

// TestComesBeforeStop: a call that comes after the last look and before stop reports true has come.
func TestComesBeforeStop(t *testing.T) {
	h := newHost(small, nil)
	h.Begin()
	l, ok := h.Await(1, func() bool {
		h.post(1, 0)
		h.post(2, 3)
		return true
	})
	if !ok || l.Rows != 3 {
		t.Errorf("%v %+v", ok, l)
	}
}

// TestLate: the host learns that an answer was late, and in the next step the GPU waits again.
func TestLate(t *testing.T) {
	fault := errors.New("lost")
	cleared, answer := 0, fault
	h := newHost(small, func() error { cleared++; return answer })
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
