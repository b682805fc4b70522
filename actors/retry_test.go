package actors

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"krater/actors/engine"
	"krater/actors/msg"
	"krater/kernels/device"
	"krater/stages"
	"krater/stages/link"
)

// flaky makes links whose chosen carries fail, after they are started: carries are counted over
// all links from then on.
type flaky struct {
	started atomic.Bool
	carries atomic.Int64
	fails   func(carry int64) error
}

// flakyLink is one of them. Its rows arrive all the same, late or twice for all that is known.
type flakyLink struct {
	link.Link
	of *flaky
}

func (f *flaky) kind(w link.Way) (link.Link, bool) {
	l, ok := link.Bounce(w)
	return flakyLink{l, f}, ok
}

func (l flakyLink) Carry(from, to device.Stream, src, dst []device.Mat) error {
	err := l.Link.Carry(from, to, src, dst)
	if l.of.started.Load() && err == nil {
		err = l.of.fails(l.of.carries.Add(1))
	}
	return err
}

// ranked is a setup of two ranks with room for several batches.
func ranked() setup {
	return setup{dir: golden("deepseek_v2_lite"), groups: 1, depth: 2, chunk: 9, share: 16,
		limits: stages.Limits{Tokens: 40, Seqs: 6, Blocks: 26, BlockTokens: 8}}.defaults()
}

var errCable = errors.New("the cable is out")

// TestLostStepsAreRepeated: a step that a link loses is repeated, and no answer is another one,
// whichever step it is: prompt or decode, the first or one of several in a row. A link that is
// down for good fails the requests, which are told of it.
func TestLostStepsAreRepeated(t *testing.T) {
	for _, simulated := range []bool{false, true} {
		o := ranked()
		l := loadModel(t, o)
		ranks := l.spread(t, o, []int{2, 1}, simulated)
		run := func(fails func(carry int64) error) [][]engine.Token {
			f := &flaky{fails: fails}
			p := l.over(t, o, ranks, func(o *Options) { o.links, o.Policy.MaxRetries = []link.Kind{f.kind}, 50 })
			f.started.Store(true)
			gw := l.open(t, p)
			got := conversation(t, gw)
			for range 2 { // the pipeline is idle, and its figures are published
				if err := p.Step(&stages.Step{}, nil, nil); !errors.Is(err, stages.ErrBatch) {
					t.Errorf("a step without rows: %v", err)
				}
			}
			s := gw.Stats()
			if s.Running != 0 || s.KVBlocksUsed != 0 {
				t.Errorf("%d requests, %d blocks are left", s.Running, s.KVBlocksUsed)
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			return got
		}
		want := run(func(int64) error { return nil })
		for name, fails := range map[string]func(carry int64) error{
			"the first":     func(n int64) error { return when(n == 1) },
			"one of 17":     func(n int64) error { return when(n%17 == 5) },
			"two in a row":  func(n int64) error { return when(n == 30 || n == 31) },
			"in the middle": func(n int64) error { return when(n == 40) },
		} {
			if testing.Short() && simulated == (name == "one of 17" || name == "in the middle") {
				continue // the other ranks lose them
			}
			got := run(fails)
			for i := range got {
				if !slices.EqualFunc(got[i], want[i], sameToken) {
					t.Errorf("simulated %t, %s lost: answer %d is %v, want %v", simulated, name, i, got[i], want[i])
				}
			}
		}
		f := &flaky{fails: func(int64) error { return errCable }}
		p := l.over(t, o, ranks, func(o *Options) { o.links = []link.Kind{f.kind} })
		gw := l.open(t, p)
		f.started.Store(true)
		if _, err := generate(gw, []int32{70, 71}, 3); err == nil {
			t.Error("a request was answered over a link that is down")
		}
		if n := f.carries.Load(); n != 1+linkRetries {
			t.Errorf("%d attempts, want %d", n, 1+linkRetries)
		}
		f.fails = func(int64) error { return nil }
		if _, err := generate(gw, []int32{70, 71}, 3); err != nil {
			t.Errorf("after the link is back: %v", err)
		}
	}
}

func when(fails bool) error {
	if fails {
		return errCable
	}
	return nil
}

// TestOldRepliesAreDropped: the reply of a step is lost, which is repeated, and comes when the
// batch is in use again, any number of times: nothing but the repeated step counts.
func TestOldRepliesAreDropped(t *testing.T) {
	o := ranked()
	l := loadModel(t, o)
	ranks := l.spread(t, o, []int{1, 2}, false)
	want := conversation(t, l.open(t, l.over(t, o, ranks, nil)))
	var mu sync.Mutex
	var late []*msg.Reply
	samples, lost := 0, 0
	p := l.over(t, o, ranks, func(o *Options) {
		o.Policy.MaxRetries = 50
		o.wrap = func(actor string, n node) node {
			if actor != "sample" {
				return n
			}
			return hook{n, func(c *turn, m any) {
				mu.Lock()
				defer mu.Unlock()
				b := m.(*msg.Batch)
				for _, r := range late {
					if r.Batch == b { // it is in use again
						again := *r
						c.send(c.routes.schedule, &again)
					}
				}
				if samples++; samples%23 == 3 && lost < 6 {
					lost++
					late = append(late, msg.NewReply(b))
					panic(errors.New("the reply is lost"))
				}
			}}
		}
	})
	got := conversation(t, l.open(t, p))
	for i := range got {
		if !slices.EqualFunc(got[i], want[i], sameToken) {
			t.Errorf("answer %d is %v, want %v", i, got[i], want[i])
		}
	}
	if lost != 6 {
		t.Errorf("%d replies were lost", lost)
	}
}

// TestBrokenLinksAreNotUsed: a pipeline does not start over a link that leaves zeros or what it
// carried before, and starts with another kind where there is one.
func TestBrokenLinksAreNotUsed(t *testing.T) {
	o := ranked()
	l := loadModel(t, o)
	ranks := l.spread(t, o, []int{2, 1}, true)
	want := conversation(t, l.open(t, l.over(t, o, ranks, nil)))
	for name, carry := range map[string]func(to device.Stream, dst []device.Mat) error{
		"zeros arrived": func(to device.Stream, dst []device.Mat) error {
			for _, m := range dst {
				to.CopyIn(m, make([]byte, m.Bytes()))
			}
			return nil
		},
		"nothing arrived": func(device.Stream, []device.Mat) error { return nil },
	} {
		bad := func(link.Way) (link.Link, bool) { return brokenLink{carry}, true }
		opt := l.options(t, o)
		opt.Blueprint.Groups, opt.links = nil, []link.Kind{bad}
		p, err := Start(ranks, opt)
		if err == nil {
			p.Close()
			t.Errorf("%s: started", name)
		} else if !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "rank 0 to rank 1") {
			t.Errorf("%s: %v", name, err)
		}
		p = l.over(t, o, ranks, func(o *Options) { o.links = []link.Kind{bad, link.Bounce} })
		if route := p.opt.Blueprint.String(); !strings.Contains(route, "link[bounce]") {
			t.Errorf("%s: %s", name, route)
		}
		for i, got := range conversation(t, l.open(t, p)) {
			if !slices.EqualFunc(got, want[i], sameToken) {
				t.Errorf("%s: answer %d is %v, want %v", name, i, got, want[i])
			}
		}
	}
}

type brokenLink struct {
	carry func(to device.Stream, dst []device.Mat) error
}

func (brokenLink) Name() string { return "broken" }

func (brokenLink) Close() {}

func (brokenLink) Flight() *link.Flight { return nil }

func (b brokenLink) Carry(_, to device.Stream, _, dst []device.Mat) error { return b.carry(to, dst) }
