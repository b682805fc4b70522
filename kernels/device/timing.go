package device

import (
	"math"
	"time"
)

// Timestamp is a point of a stream at which the device reads its clock.
type Timestamp interface {
	// Ago writes to ago[i] the time from list[i], a timestamp of the same device, to this one;
	// it is negative if list[i] came later. NotPassed means that the device is not known to have
	// passed list[i] yet, Never that it has no time and will never have one.
	Ago(list []Timestamp, ago []time.Duration)
	// Release frees what the device keeps for the timestamp, which must not be used any more.
	Release()
}

// What Ago returns for timestamps without a time.
const (
	NotPassed time.Duration = math.MinInt64 + iota
	Never
)

// Clock reads the device's clock at points of a stream.
type Clock interface {
	// Timestamp adds a timestamp after what was enqueued. It is nil if reading the clock would cut
	// what the device could replay as one piece.
	Timestamp() Timestamp
	// WaitTimed is Stream.Wait between two timestamps. Both are nil if there is nothing to wait
	// for.
	WaitTimed(e Event) (from, to Timestamp)
	// Cost returns the time that each timestamp adds to a step if it is read when the step is over. It
	// returns 0 if the time is negligible.
	Cost() time.Duration
}

// TimedKind is the activity of a device during a TimedSpan.
type TimedKind uint8

const (
	CopyIn   TimedKind = iota // a copy to the device
	CopyOut                   // a copy to the host
	CopyWait                  // compute waited for a copy
	Compute                   // routed experts on a stream of their own
)

// TimedSpan is the time between two timestamps.
type TimedSpan struct {
	Kind     TimedKind
	Layer    int   // of the experts; -1: blocks of the KV cache
	Bytes    int64 // copied
	Stalls   bool  // compute waited meanwhile, because the copy was on its stream
	From, To Timestamp
}

// Timing records the timed spans of one step, in the order in which they were enqueued. The methods
// of a nil Timing record nothing. A Timing belongs to one goroutine at a time.
//
// If spans of all layers would cost more than a given share of a step (Next), those of one layer
// in every n are recorded, in turn.
type Timing struct {
	Spans []TimedSpan

	every int // n; 0: all layers
	turn  int // rises with every step
	left  int // spans that were not recorded in this step
}

// take reports whether spans of a layer are recorded.
func (t *Timing) take(layer int) bool {
	if t.every <= 1 || layer < 0 || (layer+t.turn)%t.every == 0 {
		return true
	}
	t.left++
	return false
}

// Next ends a step, given how long the step took and the cost of a timestamp. The timestamps of the
// next step cost no more than a share of it.
func (t *Timing) Next(step, timestamp time.Duration, share float64) {
	cost := 2 * float64(len(t.Spans)+t.left) * float64(timestamp)
	if t.every, t.left = 0, 0; cost > 0 && step > 0 {
		t.every = int(math.Ceil(cost / (share * float64(step))))
	}
	t.turn++
}

// Begin begins a span of a layer (below 0: of none) on s. It is nil if the span is not recorded.
func (t *Timing) Begin(s Stream, layer int) Timestamp {
	if t == nil || !t.take(layer) {
		return nil
	}
	if c := s.Clock(); c != nil {
		return c.Timestamp()
	}
	return nil
}

// End ends the span on s that began at from, unless from is nil, and sets its timestamps.
func (t *Timing) End(s Stream, from Timestamp, span TimedSpan) {
	if from == nil {
		return
	}
	to := s.Clock().Timestamp()
	if to == nil {
		from.Release()
		return
	}
	span.From, span.To = from, to
	t.Spans = append(t.Spans, span)
}

// Wait makes s wait for a copy of a layer's experts, and records a span of that.
func (t *Timing) Wait(s Stream, copied Event, layer int) {
	if t != nil {
		if c := s.Clock(); c != nil && t.take(layer) {
			if from, to := c.WaitTimed(copied); from != nil {
				t.Spans = append(t.Spans, TimedSpan{Kind: CopyWait, Layer: layer, From: from, To: to})
			}
			return
		}
	}
	s.Wait(copied)
}

// Drop releases all spans.
func (t *Timing) Drop() {
	for i := range t.Spans {
		t.Spans[i].Release()
	}
	t.Spans, t.left = t.Spans[:0], 0
}

// Release releases the timestamps of a span.
func (x *TimedSpan) Release() {
	x.From.Release()
	x.To.Release()
}

// PhaseTimer is a stream of a CPU, which can time the phases of routed experts.
type PhaseTimer interface {
	// TimePhases drops the phases and says whether those of the following operators are timed.
	TimePhases(on bool)
	// Phases are the timed phases, in order. They are valid until the next TimePhases.
	Phases() []Phase
}

// Phase is a part of the computation of routed experts for one group of rows: gate and up with the
// activation, or down.
type Phase struct {
	Down     bool
	From, To time.Time
}
