package device

import (
	"slices"
	"testing"
	"time"
)

// clock is a stream that counts its timestamps and waits.
type clock struct {
	Stream
	looked, waited int
}

type tick struct{ released *int }

func (tick) Ago([]Timestamp, []time.Duration) {}
func (m tick) Release()                       { *m.released++ }

func (c *clock) Clock() Clock { return c }

func (c *clock) Timestamp() Timestamp {
	c.looked++
	return tick{new(int)}
}

func (c *clock) WaitTimed(Event) (from, to Timestamp) {
	c.waited++
	return c.Timestamp(), c.Timestamp()
}
func (c *clock) Wait(Event)          { c.waited++ }
func (c *clock) Cost() time.Duration { return time.Microsecond }

// TestSpansAreThinned: spans of all layers are recorded if they cost no more than their share, else
// spans of one layer in every n, in turn. All copies are waited for, and copies of blocks of the KV
// cache are always timed.
func TestSpansAreThinned(t *testing.T) {
	const layers = 24
	for _, c := range []struct {
		step  time.Duration
		share float64
		every int
	}{
		{0, 0.01, 1}, // not told
		{20 * time.Millisecond, 0.01, 1},
		{196 * 50 * time.Microsecond, 0.02, 1}, // exactly as much as it may
		{196 * 50 * time.Microsecond, 0.01, 2},
		{time.Millisecond, 0.01, 20},
		{time.Microsecond, 0.01, 19600},
		{time.Microsecond, 196, 1},
	} {
		var l Timing
		seen := map[int]int{}
		for step := range 21 {
			s := &clock{}
			for layer := range layers {
				l.Wait(s, nil, layer)
				l.End(s, l.Begin(s, layer), TimedSpan{Kind: CopyIn, Layer: layer})
			}
			l.End(s, l.Begin(s, -1), TimedSpan{Kind: CopyOut, Layer: -1})
			if s.waited != layers || s.looked != 2*len(l.Spans) {
				t.Fatalf("%v: %d waits, %d looks at the clock for %d spans", c, s.waited, s.looked, len(l.Spans))
			}
			if blocks := slices.ContainsFunc(l.Spans, func(x TimedSpan) bool { return x.Layer < 0 }); !blocks {
				t.Errorf("%v: no span of blocks", c)
			}
			timed := len(l.Spans) / 2
			most := (layers + c.every - 1) / c.every
			if step == 0 && timed != layers || step > 0 && timed > most || step > 0 && c.every < layers && timed < layers/c.every {
				t.Errorf("%v, step %d: spans of %d layers, want %d or one less", c, step, timed, most)
			}
			for _, x := range l.Spans {
				if step > 0 {
					seen[x.Layer]++
				}
			}
			l.Next(c.step, 2*time.Microsecond, c.share)
			l.Spans = l.Spans[:0]
		}
		for layer := range layers {
			if c.every <= 20 && seen[layer] == 0 {
				t.Errorf("%v: layer %d never had its turn", c, layer)
			}
		}
	}
	var none *Timing
	if s := (&clock{}); none.Begin(s, 1) != nil || s.looked != 0 {
		t.Error("nobody takes the time, and the clock is looked at")
	}
}
