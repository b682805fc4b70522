package actors

import (
	"slices"
	"testing"
	"time"

	"krater/actors/hop"
	"krater/stages/load"
)

// FuzzSegmentFrames sends a segment steps made of any bytes: each is computed or reported as failed, and the segment
// goes on.
func FuzzSegmentFrames(f *testing.F) {
	o := setup{dir: golden("deepseek_v2_lite"), groups: 2, limits: small(2), chunk: 7, share: 16, remote: true, depth: 2}.defaults()
	l := loadModel(f, o)
	ranks := l.spread(f, o, []int{1, len(l.cfg.Layers) - 1}, false)
	var kept []hop.Frame
	g := l.team(f, o, ranks, func(name string, c hop.Conn) hop.Conn {
		return &faultyHop{Conn: c, spoil: func(n int, x *hop.Frame, send func(*hop.Frame) error) error {
			if name == "out0" && (n == 1 || n == 3) {
				kept = append(kept, hop.Frame{Meta: slices.Clone(x.Meta), Rows: [3][]byte{slices.Clone(x.Rows[0]), slices.Clone(x.Rows[1])}})
			}
			return send(x)
		}}
	}, nil)
	if _, err := generate(l.open(f, g.Pipeline), []int32{5, 6, 7}, 5); err != nil {
		f.Fatal(err)
	}
	if err := g.close(); err != nil {
		f.Fatal(err)
	}
	for _, x := range kept {
		f.Add(x.Meta, x.Rows[0], x.Rows[1], []byte(nil), uint8(1))
		f.Add(x.Meta[:len(x.Meta)/2], x.Rows[0], x.Rows[1], []byte(nil), uint8(0))
		f.Add(x.Meta, x.Rows[0][:8], x.Rows[1], x.Rows[1], uint8(0))
	}
	s := newFuzzed(f, l, o, ranks[1:])
	f.Fuzz(func(t *testing.T, meta, hidden, marks, selected []byte, batch uint8) {
		s.step(t, hop.Frame{Kind: hop.Step, Batch: batch % 2, Meta: meta, Rows: [3][]byte{hidden, marks, selected}})
	})
}

// fuzzed is a segment with the other ends of its connections.
type fuzzed struct {
	*Segment
	in, side hop.Conn
	answers  chan hop.Frame
	epoch    uint32
}

func newFuzzed(t testing.TB, l *loaded, o setup, ranks []load.Rank) *fuzzed {
	t.Helper()
	in, a := hop.Pipe("leader", "worker")
	b, out := hop.Pipe("worker", "leader")
	side, c := hop.Pipe("leader", "worker")
	opt := l.options(t, o)
	opt.Blueprint.Groups = nil
	segment, err := StartSegment(ranks, opt, SegmentHops{In: a, Out: b, Side: c})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := segment.Close(); err != nil {
			t.Error(err)
		}
	})
	s := &fuzzed{Segment: segment, in: in, side: side, answers: make(chan hop.Frame, 4)}
	for _, conn := range []hop.Conn{out, side} {
		go func() {
			for f, err := conn.Receive(); err == nil; f, err = conn.Receive() {
				s.answers <- hop.Frame{Kind: f.Kind, Batch: f.Batch, Epoch: f.Epoch}
				f.Release()
			}
		}()
	}
	return s
}

// step sends a frame and expects its answer. A step that failed is given up.
func (s *fuzzed) step(t *testing.T, f hop.Frame) {
	s.epoch++
	f.Epoch, f.ID = s.epoch, uint64(s.epoch)
	if err := s.in.Send(&f); err != nil {
		t.Fatal(err, s.Err())
	}
	if got := s.answer(t, f); got == hop.Failed {
		if err := s.side.Send(&hop.Frame{Kind: hop.Forget, Batch: f.Batch, Epoch: f.Epoch}); err != nil {
			t.Fatal(err, s.Err())
		}
		if got := s.answer(t, f); got != hop.Forgotten {
			t.Fatalf("given up, it answers with %d", got)
		}
	}
}

func (s *fuzzed) answer(t *testing.T, f hop.Frame) hop.Kind {
	select {
	case got := <-s.answers:
		if got.Batch != f.Batch || got.Epoch != f.Epoch {
			t.Fatalf("an answer about %+v", got)
		}
		return got.Kind
	case <-s.Failed():
		t.Fatal(s.Err())
	case <-time.After(time.Minute):
		t.Fatal("no answer")
	}
	return 0
}
