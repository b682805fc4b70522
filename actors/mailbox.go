package actors

import (
	"sync"

	"github.com/asynkron/protoactor-go/actor"
)

// address is where an actor is reached; it survives the restart of its actor.
type address interface {
	name() string
	// post puts m into the actor's mailbox and never waits. from is the worker
	// that posts, or nil.
	post(m any, from *worker)
}

// mailbox is an actor.Mailbox: unbounded, system messages first, suspended between a failure and
// the restart. Credits bound its length.
//
// Unlike the library's it knows the sender: the worker that woke an idle actor can run it
// (dispatcher.go), and nothing is allocated for a message.
type mailbox struct {
	actor   string
	place   place
	invoker actor.MessageInvoker

	mu        sync.Mutex
	system    queue
	user      queue
	running   bool // a goroutine works on it, or is going to
	suspended bool

	worker *worker // that runs it now, or nil; used by the goroutine that runs the mailbox
}

// place finds a goroutine for a mailbox that has work.
type place interface {
	run(m *mailbox, from *worker)
}

func (m *mailbox) name() string { return m.actor }

// post implements address.
func (m *mailbox) post(x any, from *worker) {
	m.mu.Lock()
	m.user.push(x)
	wake := !m.running && !m.suspended
	m.running = m.running || wake
	m.mu.Unlock()
	if wake {
		m.place.run(m, from)
	}
}

// PostUserMessage implements actor.Mailbox.
func (m *mailbox) PostUserMessage(x any) { m.post(x, nil) }

// PostSystemMessage implements actor.Mailbox.
func (m *mailbox) PostSystemMessage(x any) {
	m.mu.Lock()
	m.system.push(x)
	wake := !m.running
	m.running = true
	m.mu.Unlock()
	if wake {
		m.place.run(m, nil)
	}
}

// RegisterHandlers implements actor.Mailbox. The place stands for the dispatcher.
func (m *mailbox) RegisterHandlers(invoker actor.MessageInvoker, _ actor.Dispatcher) {
	m.invoker = invoker
}

// Start implements actor.Mailbox.
func (m *mailbox) Start() {}

// waiting reports whether a message is there, for an actor that works between messages. A nil
// mailbox, in tests without an actor system, never has one.
func (m *mailbox) waiting() bool {
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.user.n > 0 || m.system.n > 0
}

// UserMessageCount implements actor.Mailbox.
func (m *mailbox) UserMessageCount() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.user.n
}

// process works until the mailbox is empty or suspended, or until the worker has another mailbox to
// run next: the rest is then for another goroutine. The place calls it.
func (m *mailbox) process() {
	for {
		x, system, ok := m.next()
		if !ok {
			return
		}
		m.invoke(x, system)
		if w := m.worker; w != nil && w.next != nil {
			if m.rest() {
				m.place.run(m, w)
			}
			return
		}
	}
}

// rest reports whether there is more to do; if not, no goroutine works on the mailbox any more.
func (m *mailbox) rest() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running = m.system.n > 0 || m.user.n > 0 && !m.suspended
	return m.running
}

// next takes a message, or notes that no goroutine works on the mailbox any more.
func (m *mailbox) next() (x any, system, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if x, ok = m.system.pop(); ok {
		switch x.(type) {
		case *actor.SuspendMailbox:
			m.suspended = true
		case *actor.ResumeMailbox:
			m.suspended = false
		}
		return x, true, true
	}
	if !m.suspended {
		x, ok = m.user.pop()
	}
	m.running = ok
	return x, false, ok
}

// invoke handles one message. A panic goes to the supervisor.
func (m *mailbox) invoke(x any, system bool) {
	defer func() {
		if r := recover(); r != nil {
			m.invoker.EscalateFailure(r, x)
		}
	}()
	if !system {
		m.invoker.InvokeUserMessage(x)
		return
	}
	switch x.(type) {
	case *actor.SuspendMailbox, *actor.ResumeMailbox:
	default:
		m.invoker.InvokeSystemMessage(x)
	}
}

// sender returns the worker that runs the actor, or nil, for what the actor sends. The actor calls it.
func (m *mailbox) sender() *worker {
	if m == nil {
		return nil
	}
	return m.worker
}

// queue is a ring that grows.
type queue struct {
	items []any // a power of two long
	head  int   // of the oldest
	n     int
}

func (q *queue) push(x any) {
	if q.n == len(q.items) {
		grown := make([]any, max(16, 2*len(q.items)))
		for i := range q.n {
			grown[i] = q.items[(q.head+i)&(len(q.items)-1)]
		}
		q.items, q.head = grown, 0
	}
	q.items[(q.head+q.n)&(len(q.items)-1)] = x
	q.n++
}

func (q *queue) pop() (any, bool) {
	if q.n == 0 {
		return nil, false
	}
	x := q.items[q.head]
	q.items[q.head] = nil
	q.head = (q.head + 1) & (len(q.items) - 1)
	q.n--
	return x, true
}
