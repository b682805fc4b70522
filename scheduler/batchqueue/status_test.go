package batchqueue

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"
)

// allowed is the table of statuses, written down a second time: what may follow what.
var allowed = map[Status][]Status{
	Validating: {Failed, InProgress, Finalizing, Cancelling},
	InProgress: {Finalizing, Cancelling},
	Finalizing: {Completed, Expired},
	Cancelling: {Cancelled},
}

// TestStep plays random events and holds every step to the table and to what always
// holds.
func TestStep(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	visited := map[Status]int{}
	for range 5000 {
		c := newClock()
		b := Batch{Status: Validating, Created: c.at, Expires: c.at.Add(time.Hour)}
		for range 12 {
			before, e := b, randomEvent(r, &b)
			c.at = c.at.Add(time.Duration(r.IntN(20)) * time.Minute)
			err := b.Step(e, c.at)
			if err != nil {
				if !errors.Is(err, ErrState) || !reflect.DeepEqual(before, b) {
					t.Fatalf("%v changed %+v to %+v with %v", e, before, b, err)
				}
				continue
			}
			if b.Status != before.Status && !slices.Contains(allowed[before.Status], b.Status) {
				t.Fatalf("%v: %s to %s", e, before.Status, b.Status)
			}
			visited[b.Status]++
			checkBatch(t, &b)
		}
	}
	for _, s := range Statuses {
		if visited[s] < 20 && s != Validating {
			t.Errorf("%s was reached %d times only", s, visited[s])
		}
	}
}

func randomEvent(r *rand.Rand, b *Batch) Event {
	kinds := []EventKind{Accept, Reject, Answer, Answer, Answer, Cancel, Expire, Finish}
	e := Event{Kind: kinds[r.IntN(len(kinds))]}
	switch e.Kind {
	case Accept:
		e.Counts = Counts{Total: r.IntN(5), Failed: r.IntN(3)}
	case Reject:
		e.Faults = []Fault{{Code: FaultEmpty}}
	case Answer:
		e.Counts = Counts{Completed: r.IntN(3), Failed: r.IntN(2)}
	case Finish:
		e.Counts, e.Output = b.Counts, "file-1"
	}
	return e
}

func checkBatch(t *testing.T, b *Batch) {
	t.Helper()
	open := b.Counts.Open()
	for what, bad := range map[string]bool{
		"more lines settled than there are":      open < 0,
		"no end although it ended":               b.Status.Ended() && b.EndedAt.IsZero(),
		"an end although it goes on":             !b.Status.Ended() && !b.EndedAt.IsZero(),
		"ended with open lines":                  b.Status.Ended() && open > 0,
		"runs although all is settled":           b.Runs() && open == 0,
		"ends without knowing how":               b.Ending() == (b.End == ""),
		"failed without a fault":                 b.Status == Failed && len(b.Faults) == 0,
		"due although it is ending":              b.Due(b.Expires.Add(time.Hour)) && (b.Ending() || b.Status.Ended()),
		"completed without having been finished": b.Status == Completed && b.Output == "",
	} {
		if bad {
			t.Fatalf("%s: %+v", what, b)
		}
	}
}
