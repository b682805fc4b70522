package actors

import (
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/rs/zerolog"
)

// script is a message that an actor of these tests carries out.
type script func(box *mailbox)

// stage hosts actors that carry out scripts.
type stage struct {
	*library
	t testing.TB
}

func newStage(t testing.TB, workers, mailboxes int) *stage {
	t.Helper()
	h := &library{system: actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return slogLogger(zerolog.Nop()) }))}
	h.workers = newWorkers(workers, mailboxes, &h.wg)
	h.timer = time.NewTimer(time.Hour)
	return &stage{h, t}
}

// actor starts one; every incarnation calls born.
func (s *stage) actor(name string, b affinity, born func()) *mailbox {
	s.t.Helper()
	a := &hosted{mailbox: &mailbox{actor: name, place: s.workers}}
	if b != anyWorker {
		a.own = newOwnThread(b == ownOrWorker, &s.wg)
		a.mailbox.place = a.own
	}
	props := actor.PropsFromProducer(func() actor.Actor {
		if born != nil {
			born()
		}
		return actor.ReceiveFunc(func(c actor.Context) {
			if f, ok := c.Message().(script); ok {
				f(a.mailbox)
			}
		})
	}, actor.WithMailbox(func() actor.Mailbox { return a.mailbox }))
	pid, err := s.system.Root.SpawnNamed(props, name)
	if err != nil {
		s.t.Fatal(err)
	}
	a.pid = pid
	s.actors = append(s.actors, a)
	up := make(chan struct{})
	a.mailbox.post(script(func(*mailbox) { close(up) }), nil)
	<-up
	return a.mailbox
}

func (s *stage) end() {
	s.t.Helper()
	if err := s.halt(); err != nil {
		s.t.Error(err)
	}
}

// rest waits until nobody works on the mailboxes.
func (s *stage) rest() {
	for _, a := range s.actors {
		for busy := true; busy; runtime.Gosched() {
			a.mailbox.mu.Lock()
			busy = a.mailbox.running
			a.mailbox.mu.Unlock()
		}
	}
}

// goroutine is the number of the one that calls.
func goroutine() string {
	buf := make([]byte, 64)
	return strings.Fields(string(buf[:runtime.Stack(buf, false)]))[1]
}

// TestBatchStaysOnItsWorker: a chain of idle members of the crew, and the guest,
// runs on one goroutine; what has an own one does not.
func TestBatchStaysOnItsWorker(t *testing.T) {
	s := newStage(t, 2, 3)
	a, b, c := s.actor("a", anyWorker, nil), s.actor("b", anyWorker, nil), s.actor("c", anyWorker, nil)
	guest, own := s.actor("guest", ownOrWorker, nil), s.actor("own", ownGoroutine, nil)
	for round := range 50 {
		s.rest()
		on := make(chan string, 5)
		a.post(script(func(box *mailbox) {
			on <- goroutine()
			b.post(script(func(box *mailbox) {
				on <- goroutine()
				guest.post(script(func(box *mailbox) {
					on <- goroutine()
					c.post(script(func(box *mailbox) {
						on <- goroutine()
						own.post(script(func(*mailbox) { on <- goroutine() }), box.sender())
					}), box.sender())
				}), box.sender())
			}), box.sender())
		}), nil)
		var seen []string
		for range 5 {
			seen = append(seen, <-on)
		}
		if w := seen[0]; seen[1] != w || seen[2] != w || seen[3] != w || seen[4] == w {
			t.Fatalf("round %d: on goroutines %v", round, seen)
		}
	}
	// From outside, the guest runs at home: it does not wait for a worker.
	hold, held := make(chan struct{}), make(chan struct{}, 2)
	for _, m := range []*mailbox{a, b} {
		m.post(script(func(*mailbox) { held <- struct{}{}; <-hold }), nil)
	}
	<-held
	<-held
	done := make(chan struct{})
	guest.post(script(func(*mailbox) { close(done) }), nil)
	<-done
	close(hold)
	s.end()
}

// TestBusyWorkerDoesNotKeepWork: what a worker wakes second, and what is left in
// the mailbox of the actor that woke another, is run by others, at the same time.
func TestBusyWorkerDoesNotKeepWork(t *testing.T) {
	s := newStage(t, 3, 4)
	a, b, c := s.actor("a", anyWorker, nil), s.actor("b", anyWorker, nil), s.actor("c", anyWorker, nil)
	s.rest()
	meet := func(n int) (script, *sync.WaitGroup) { // all n run at once, or the test hangs
		var wg sync.WaitGroup
		wg.Add(n)
		return func(*mailbox) { wg.Done(); wg.Wait() }, &wg
	}
	first, all := meet(2)
	a.post(script(func(box *mailbox) {
		a.post(first, nil) // a has another message
		b.post(first, box.sender())
	}), nil)
	all.Wait()
	s.rest()
	second, all := meet(3)
	a.post(script(func(box *mailbox) {
		b.post(second, box.sender())
		c.post(second, box.sender())
		a.post(second, nil) // comes after the worker has a mailbox to run next
	}), nil)
	all.Wait()
	s.end()
}

// TestMailboxAfterPanic: the message is lost, those behind it wait for the new
// incarnation, and no other goroutine touches the actor meanwhile.
func TestMailboxAfterPanic(t *testing.T) {
	for _, b := range []affinity{ownGoroutine, anyWorker, ownOrWorker} {
		s := newStage(t, 2, 2)
		born := 0
		m := s.actor("m", b, func() { born++ })
		var got []int
		done := make(chan struct{})
		for i := range 10 {
			m.post(script(func(*mailbox) {
				if i == 3 || i == 7 {
					panic("injected")
				}
				got = append(got, i*10+born)
				if i == 9 {
					close(done)
				}
			}), nil)
		}
		<-done
		if want := []int{1, 11, 21, 42, 52, 62, 83, 93}; !slices.Equal(got, want) {
			t.Errorf("berth %d: %v, want %v", b, got, want)
		}
		s.end()
	}
}

// TestMailboxAfterPanicOnWorker: an actor that fails after it has sent something
// on is made anew although its worker has left for the other one.
func TestMailboxAfterPanicOnWorker(t *testing.T) {
	s := newStage(t, 1, 2)
	var born atomic.Int64
	a, b := s.actor("a", anyWorker, func() { born.Add(1) }), s.actor("b", anyWorker, nil)
	a.post(script(func(box *mailbox) {
		b.post(script(func(*mailbox) {}), box.sender())
		panic("injected")
	}), nil)
	for born.Load() < 2 {
		runtime.Gosched()
	}
	s.end()
}

// TestMailboxOrder: messages of one sender arrive in order, each once, however
// many post.
func TestMailboxOrder(t *testing.T) {
	for _, b := range []affinity{ownGoroutine, anyWorker, ownOrWorker} {
		s := newStage(t, 2, 2)
		m := s.actor("m", b, nil)
		const senders, each = 4, 2000
		next := [senders]int{}
		bad := ""
		var wg, handled sync.WaitGroup
		handled.Add(senders * each)
		for from := range senders {
			wg.Go(func() {
				for i := range each {
					m.post(script(func(*mailbox) {
						if next[from] != i {
							bad = fmt.Sprintf("sender %d: message %d after %d", from, i, next[from]-1)
						}
						next[from]++
						handled.Done()
					}), nil)
				}
			})
		}
		wg.Wait()
		handled.Wait()
		s.end()
		if bad != "" || m.UserMessageCount() != 0 {
			t.Errorf("berth %d: %s, %d left", b, bad, m.UserMessageCount())
		}
	}
}

// TestLateMessageDoesNotBlock: messages to an actor that was stopped, and whose
// goroutine has ended, are lost; their senders go on.
func TestLateMessageDoesNotBlock(t *testing.T) {
	for _, b := range []affinity{ownGoroutine, anyWorker, ownOrWorker} {
		s := newStage(t, 1, 1)
		m := s.actor("m", b, nil)
		if err := s.system.Root.StopFuture(s.actors[0].pid).Wait(); err != nil {
			t.Fatal(err)
		}
		late := script(func(*mailbox) { t.Error("a stopped actor got a message") })
		for range 100 {
			m.post(late, nil)
		}
		s.end()
		for range 100 {
			m.post(late, nil)
			m.PostUserMessage(late)
			m.PostSystemMessage(&actor.Restart{})
		}
	}
}

// TestMailboxAllocates nothing for a message.
func TestMailboxAllocates(t *testing.T) {
	s := newStage(t, 1, 1)
	m := s.actor("m", anyWorker, nil)
	done := make(chan struct{})
	var tick any = script(func(*mailbox) { done <- struct{}{} })
	if n := testing.AllocsPerRun(1000, func() {
		m.post(tick, nil)
		<-done
	}); n > 0 {
		t.Errorf("%.1f allocations a message", n)
	}
	s.end()
}

func TestQueue(t *testing.T) {
	var q queue
	if _, ok := q.pop(); ok {
		t.Error("an empty queue gave something")
	}
	in, out := 0, 0
	for round := range 200 {
		for range round % 23 {
			q.push(in)
			in++
		}
		for range round % 19 {
			if x, ok := q.pop(); ok {
				if x != out {
					t.Fatalf("got %v, want %d", x, out)
				}
				out++
			} else if in != out {
				t.Fatalf("empty with %d of %d", out, in)
			}
		}
	}
	if q.n != in-out || in-out < 20 {
		t.Errorf("%d are left of %d", q.n, in-out)
	}
	for _, x := range q.items[:] {
		if n, ok := x.(int); ok && n < out {
			t.Error("a popped item is kept")
		}
	}
}
