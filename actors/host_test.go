package actors

import (
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
)

// calls is an invoker of messages that are functions.
type calls struct{ actor.MessageInvoker }

func (calls) InvokeUserMessage(f any) { f.(func())() }

// member is an actor of the crew that does f.
func member(h *library, f func()) {
	m := &mailbox{actor: "member", place: h.workers, invoker: calls{}}
	m.PostUserMessage(f)
}

// TestAheadHasWorkers: a pipeline that runs ahead has a worker for every batch in flight.
// One that waits for the device must leave the next batch to another, or the device is idle
// from the end of a step until that batch has come through the actors.
func TestAheadHasWorkers(t *testing.T) {
	l := loadModel(t, setup{}.defaults())
	for _, ahead := range []bool{false, true} {
		opt := l.options(t, setup{}.defaults())
		p, _, err := prepare(l.placed(), opt)
		if err != nil {
			t.Fatal(err)
		}
		p.scheduler.Ahead = ahead
		h := newLibrary(p)
		p.host = h
		batches := p.scheduler.Depth()
		if want := opt.Blueprint.MicroBatches; ahead && batches != 2*want || !ahead && batches != want {
			t.Fatalf("ahead %v: %d batches in flight, %d without", ahead, batches, want)
		}
		busy, free := make(chan struct{}), make(chan struct{})
		for range batches - 1 { // all but one wait
			member(h, func() { busy <- struct{}{}; <-free })
			<-busy
		}
		went := make(chan struct{})
		member(h, func() { close(went) })
		select {
		case <-went:
		case <-time.After(5 * time.Second):
			t.Errorf("ahead %v: %d of %d workers wait, and nobody is left", ahead, batches-1, batches)
		}
		close(free)
		h.workers.close()
		h.wg.Wait()
	}
}
