package device

import (
	"math"
	"time"
)

// Moment is a point of a stream at which its device looks at its clock.
type Moment interface {
	// Ago tells how long before this moment the device passed others of its own, below 0 for
	// those that came later: NotPassed for what it is not known to have passed yet, Never for
	// what it never will have, or does not tell. It writes ago[i] for list[i].
	Ago(list []Moment, ago []time.Duration)
	// Release gives back what the device keeps for it. The moment is of no use then.
	Release()
}

// What Ago tells of moments without a time.
const (
	NotPassed time.Duration = math.MinInt64 + iota
	Never
)

// Clock is a device's clock, as a stream reads it.
type Clock interface {
	// Moment is the point behind what was enqueued; nil where reading the clock would cut what
	// the device could replay as one piece.
	Moment() Moment
	// WaitTimed is Stream.Wait between two moments; both are nil where nothing has to be
	// waited for.
	WaitTimed(e Event) (from, to Moment)
	// Cost is how much longer a step takes for each moment in it, whose time is read when the
	// step is over; 0 where that is not worth counting.
	Cost() time.Duration
}

// LapKind is what a device did in a Lap.
type LapKind uint8

const (
	CopyIn   LapKind = iota // a copy to the device
	CopyOut                 // one to the host
	CopyWait                // compute stood still until a copy was there
	Compute                 // routed experts, where they have a stream of their own
)

// Lap is a stretch of a device's time.
type Lap struct {
	Kind     LapKind
	Layer    int   // whose experts it is about; -1: blocks of the KV cache
	Bytes    int64 // copied
	Stalls   bool  // a copy on the stream of compute, which stood still as long
	From, To Moment
}

// Laps are what the device takes the time of in one step, in the order in which it was
// enqueued. On a nil Laps everything does what it would without. It belongs to one goroutine
// at a time.
//
// Where the laps of all layers would cost more of a step than they may (Next), those of one
// layer in so many are taken, of others in the next step.
type Laps struct {
	List []Lap

	every int // layers; 0: of all
	turn  int // which of them
	left  int // laps not taken for that
}

// take reports whether laps about a layer are taken.
func (l *Laps) take(layer int) bool {
	if l.every <= 1 || layer < 0 || (layer+l.turn)%l.every == 0 {
		return true
	}
	l.left++
	return false
}

// Next tells what a step took whose laps are those of now, and what each of their moments cost:
// those of the next step then cost no more than a share of it.
func (l *Laps) Next(step, moment time.Duration, share float64) {
	cost := 2 * float64(len(l.List)+l.left) * float64(moment)
	if l.every, l.left = 0, 0; cost > 0 && step > 0 {
		l.every = int(math.Ceil(cost / (share * float64(step))))
	}
	l.turn++
}

// Begin is where a lap on s begins that is about a layer (below 0: about none), nil where
// nobody takes the time.
func (l *Laps) Begin(s Stream, layer int) Moment {
	if l == nil || !l.take(layer) {
		return nil
	}
	if c := s.Clock(); c != nil {
		return c.Moment()
	}
	return nil
}

// End ends a lap on s that began at from; without that there is none. Its moments are filled
// in.
func (l *Laps) End(s Stream, from Moment, lap Lap) {
	if from == nil {
		return
	}
	to := s.Clock().Moment()
	if to == nil {
		from.Release()
		return
	}
	lap.From, lap.To = from, to
	l.List = append(l.List, lap)
}

// Wait has s wait for a copy of a layer's experts.
func (l *Laps) Wait(s Stream, copied Event, layer int) {
	if l != nil {
		if c := s.Clock(); c != nil && l.take(layer) {
			if from, to := c.WaitTimed(copied); from != nil {
				l.List = append(l.List, Lap{Kind: CopyWait, Layer: layer, From: from, To: to})
			}
			return
		}
	}
	s.Wait(copied)
}

// Drop forgets all laps.
func (l *Laps) Drop() {
	for i := range l.List {
		l.List[i].Release()
	}
	l.List, l.left = l.List[:0], 0
}

// Release gives the moments of a lap back.
func (x *Lap) Release() {
	x.From.Release()
	x.To.Release()
}

// PhaseTimer is a stream of a device that computes as it is told and can tell the phases of
// routed experts.
type PhaseTimer interface {
	// TimePhases says whether those of the operators to come are timed, and forgets what was.
	TimePhases(on bool)
	// Phases are those that were timed, in order. They hold until the next TimePhases.
	Phases() []Phase
}

// Phase is a stretch of the computing of routed experts: gate and up with the activation, or
// Down, of one group of rows.
type Phase struct {
	Down     bool
	From, To time.Time
}
