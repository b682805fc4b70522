package actors

import (
	"log/slog"
	"sync"
	"testing"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/rs/zerolog"
)

// TestLateMessageDoesNotBlock: messages to an actor that was stopped, and whose
// goroutine has ended, are lost; their senders go on.
func TestLateMessageDoesNotBlock(t *testing.T) {
	system := actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return slogLogger(zerolog.Nop()) }))
	var wg sync.WaitGroup
	runner := newResident(&wg)
	mailbox := actor.Unbounded()()
	got := make(chan any, 1)
	pid := system.Root.Spawn(actor.PropsFromFunc(func(c actor.Context) {
		if n, ok := c.Message().(int); ok {
			got <- n
		}
	}, actor.WithDispatcher(runner), actor.WithMailbox(func() actor.Mailbox { return mailbox })))
	system.Root.Send(pid, 1)
	if n := <-got; n != 1 {
		t.Fatalf("got %v", n)
	}
	if err := system.Root.StopFuture(pid).Wait(); err != nil {
		t.Fatal(err)
	}
	// Some senders look up the actor before it is gone and post afterwards.
	for range 3 * residentBacklog {
		mailbox.PostUserMessage(2)
	}
	runner.close()
	wg.Wait()
	for range 3 * residentBacklog {
		mailbox.PostUserMessage(3)
		system.Root.Send(pid, 3)
	}
	if len(got) != 0 {
		t.Error("a stopped actor got a message")
	}
}

// TestResidentRunsInOrder: whatever is scheduled runs one after another, in
// order.
func TestResidentRunsInOrder(t *testing.T) {
	var wg sync.WaitGroup
	r := newResident(&wg)
	var order []int
	for i := range 100 {
		r.Schedule(func() { order = append(order, i) })
	}
	r.close()
	wg.Wait()
	for i, n := range order {
		if n != i {
			t.Fatalf("run %d was %d", i, n)
		}
	}
	if len(order) != 100 {
		t.Errorf("%d runs of 100", len(order))
	}
}
