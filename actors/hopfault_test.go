package actors

import (
	"errors"
	"net"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"krater/actors/engine"
	"krater/actors/hop"
)

// faultyHop is the sending end of a hop that does something to some frames.
type faultyHop struct {
	hop.Conn
	spoil func(n int, f *hop.Frame, send func(*hop.Frame) error) error // of the n-th step, from 1

	mu    sync.Mutex
	steps int
}

func (c *faultyHop) Send(f *hop.Frame) error {
	c.mu.Lock()
	n := 0
	if f.Kind == hop.Step {
		c.steps++
		n = c.steps
	}
	c.mu.Unlock()
	return c.spoil(n, f, c.Conn.Send)
}

// faultDeadline is more than a step takes on a machine that does much else.
const faultDeadline = 500 * time.Millisecond

// spoilt are things that may happen to a frame with a step.
var spoilt = []struct {
	name  string
	late  bool
	spoil func(f *hop.Frame, send func(*hop.Frame) error) error
}{
	{"lost", true, func(*hop.Frame, func(*hop.Frame) error) error { return nil }},
	{"late", true, func(f *hop.Frame, send func(*hop.Frame) error) error {
		own := *f
		own.Meta = slices.Clone(f.Meta)
		for i, r := range f.Rows {
			own.Rows[i] = slices.Clone(r)
		}
		time.AfterFunc(faultDeadline*3/2, func() { _ = send(&own) })
		return nil
	}},
	{"doubled", false, func(f *hop.Frame, send func(*hop.Frame) error) error { return errors.Join(send(f), send(f)) }},
	{"truncated", false, func(f *hop.Frame, send func(*hop.Frame) error) error {
		own := *f
		own.Rows[0] = own.Rows[0][:len(own.Rows[0])-4]
		return send(&own)
	}},
	{"without marks", false, func(f *hop.Frame, send func(*hop.Frame) error) error {
		own := *f
		own.Rows[1] = nil
		return send(&own)
	}},
	{"cut step", false, func(f *hop.Frame, send func(*hop.Frame) error) error {
		own := *f
		own.Meta = own.Meta[:len(own.Meta)/2]
		return send(&own)
	}},
}

// TestHopFaults: whatever happens to a frame on any hop, answers are the same, and no worker is lost.
func TestHopFaults(t *testing.T) {
	o := setup{dir: golden("deepseek_v2_lite"), groups: 3, limits: small(4), chunk: 7, share: 16, remote: true, depth: 2, retries: 9}.defaults()
	l := loadModel(t, o)
	ranks := l.spread(t, o, []int{1, 1, len(l.cfg.Layers) - 2}, false)
	list := kinds(false)[:5]
	want := all(t, l.open(t, l.team(t, o, ranks, nil, nil).Pipeline), list)
	for _, c := range spoilt {
		for _, at := range []string{"out0", "out1", "out2"} {
			if testing.Short() && c.name != "doubled" && c.name != "truncated" && at != "out1" {
				continue
			}
			t.Run(c.name+" "+at, func(t *testing.T) {
				hits := atomic.Int32{}
				g := l.team(t, o, ranks, func(name string, conn hop.Conn) hop.Conn {
					if name != at {
						return conn
					}
					return &faultyHop{Conn: conn, spoil: func(n int, f *hop.Frame, send func(*hop.Frame) error) error {
						if n < 5 || !c.late && len(f.Rows[0]) == 0 || f.Meta == nil && c.name == "cut step" || hits.Add(1) > 1 {
							return send(f) // also those back to the leader that have no wanted rows
						}
						return c.spoil(f, send)
					}}
				}, func(opt *Options) {
					if c.late {
						opt.Remote.Deadline = faultDeadline
					}
				})
				got := all(t, l.open(t, g.Pipeline), list)
				same(t, got, want)
				if err := g.Err(); err != nil {
					t.Error(err)
				}
				if hits.Load() == 0 && c.name != "cut step" {
					t.Error("no frame was touched")
				}
			})
		}
	}
}

// same compares answers.
func same(t *testing.T, got, want []told) {
	t.Helper()
	for i := range want {
		if want[i].Last.Kind != engine.Done || !reflect.DeepEqual(got[i], want[i]) {
			t.Errorf("answer %d ended with %v after %q and %d tokens, want %q and %d", i, got[i].Last, got[i].Text, len(got[i].Tokens), want[i].Text, len(want[i].Tokens))
		}
	}
}

// TestLostWorker: a worker that dies in any phase, or falls silent, is reported as a lost rank, and a new team
// answers what was asked.
func TestLostWorker(t *testing.T) {
	o := setup{dir: golden("deepseek_v2_lite"), groups: 3, limits: small(4), chunk: 7, share: 16, remote: true, depth: 2}.defaults()
	l := loadModel(t, o)
	ranks := l.spread(t, o, []int{1, 1, len(l.cfg.Layers) - 2}, false)
	list := kinds(false)[:5]
	want := all(t, l.open(t, l.team(t, o, ranks, nil, nil).Pipeline), list)
	for _, c := range []struct {
		name   string
		silent bool // nothing comes any more, and the connection stays
		at     []string
		rank   int
	}{
		{"sending out0", false, []string{"out0"}, 1}, {"sending out1", false, []string{"out1"}, 0}, {"sending out2", false, []string{"out2"}, 2},
		{"the side", false, []string{"answer1"}, 2}, {"silent steps", true, []string{"out1"}, 2},
		{"silent worker", true, []string{"out1", "answer0"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var ended atomic.Bool
			wire := func(name string, conn hop.Conn) hop.Conn {
				if !slices.Contains(c.at, name) {
					return conn
				}
				return &faultyHop{Conn: conn, spoil: func(n int, f *hop.Frame, send func(*hop.Frame) error) error {
					if ended.Load() || n > 0 && n < 9 {
						return send(f)
					}
					if c.silent {
						return nil
					}
					conn.Close()
					return net.ErrClosed
				}}
			}
			change := func(opt *Options) {
				if opt.Replay = true; c.silent {
					opt.Remote.Deadline = faultDeadline
				}
			}
			g := l.team(t, o, ranks, wire, change)
			if slices.Contains(c.at, "answer1") { // it says nothing while all is well
				g.peers.list[len(g.peers.list)-1].Close()
			}
			gw := l.open(t, g.Pipeline)
			done := make(chan []told)
			go func() { done <- all(t, gw, list) }()
			<-g.Failed()
			if lost, ok := errors.AsType[*RankError](g.Err()); !ok || c.rank != 0 && lost.Rank != c.rank {
				t.Errorf("failed with %v, want rank %d", g.Err(), c.rank)
			}
			suspended := g.Suspend()
			if err := g.close(); err != nil {
				t.Error(err)
			}
			ended.Store(true)
			next := l.team(t, o, ranks, nil, func(opt *Options) { change(opt); opt.Before, opt.Remote.Deadline = g.Pipeline, 0 })
			next.Adopt(suspended)
			same(t, <-done, want)
		})
	}
}
