package responses

import (
	"testing"

	"krater/actors/engine"
)

// BenchmarkDelta is the door's own work for one token: take it from the engine, hand it to a
// follower and encode its frame.
func BenchmarkDelta(b *testing.B) {
	r := newResponse(&plan{generate: true}, "", "")
	r.begin()
	f := r.follow(-1, make(chan struct{}, 1))
	buf := make([]byte, 0, 512) // as the writer of a connection has it from its pool
	b.ReportAllocs()
	for b.Loop() {
		r.apply(engine.Event{Kind: engine.Tokens, Text: " lighthouse"})
		for {
			ev, ok := f.take()
			if !ok {
				break
			}
			frame := ev.appendTo(buf, "lane")
			b.SetBytes(int64(len(frame)))
		}
	}
}
