package msg

import (
	"time"

	"krater/actors/engine"
	"krater/scheduler"
	"krater/stages/sample"
)

// Submit brings a request to the schedule actor, which answers once on Reply
// (buffered): nil when the request is queued, else the reason it is not.
type Submit struct {
	ID       uint64
	Prompt   []int32 // token ids, owned by the schedule actor from here on
	MaxNew   int
	Priority int
	Deadline time.Time
	Sampler  *sample.Sequence
	Output   Output
	Reply    chan error
}

// Output is where a request's events go: the stream actor's side of it. It
// never blocks.
type Output interface {
	Queued()
	Started(at time.Time)
	// Ended tells that the sequence will get no more tokens.
	Ended(reason scheduler.Reason, err *engine.Error)
}

// Cancel ends a request: the client left, or its answer is complete.
type Cancel struct{ ID uint64 }

// Failed tells the schedule actor that a batch will not come back whole.
type Failed struct {
	Batch *Batch
	Cause error
}

// Tick lets the schedule actor look at deadlines while nothing else happens.
type Tick struct{}

// Drain ends admission; Done is closed when the last request has ended.
type Drain struct{ Done chan struct{} }
