package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"krater/actors/engine"
	"krater/actors/hop"
	"krater/actors/trace"
)

// network is one in memory.
type network struct {
	mu    sync.Mutex
	hops  map[Token]chan hop.Conn
	beats map[Token]chan struct{} // closed when a worker dies
	names map[string]bool         // names that were dialled
}

func newNetwork() *network {
	return &network{hops: map[Token]chan hop.Conn{}, beats: map[Token]chan struct{}{}, names: map[string]bool{}}
}

func (n *network) Expect(ctx context.Context, t Token, _ int) (hop.Conn, error) {
	ch := make(chan hop.Conn, 1)
	n.mu.Lock()
	n.hops[t] = ch
	n.mu.Unlock()
	select {
	case c := <-ch:
		return c, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (n *network) Dial(_ context.Context, _, name string, t Token, _ int) (hop.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.names[name] = true
	ch := n.hops[t]
	if ch == nil {
		return nil, errors.New("not expected")
	}
	delete(n.hops, t)
	a, b := hop.Pipe("dialled", "expected")
	ch <- b
	return a, nil
}

func (n *network) beat(t Token) chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.beats[t] == nil {
		n.beats[t] = make(chan struct{})
	}
	return n.beats[t]
}

func (n *network) Ping(ctx context.Context, t Token, timeout time.Duration, heard func(rtt, offset time.Duration)) error {
	heard(2*time.Millisecond, time.Second)
	select {
	case <-n.beat(t):
		select {
		case <-time.After(timeout):
		case <-ctx.Done():
		}
		return errors.New("silent")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (n *network) Answer(ctx context.Context, t Token, _ time.Duration) error {
	<-ctx.Done()
	close(n.beat(t))
	return ctx.Err()
}

// pipe is a stream of control in memory.
type pipe struct {
	ctx     context.Context
	in, out chan []byte
}

func controls(ctx context.Context) (a, b pipe) {
	x, y := make(chan []byte, 8), make(chan []byte, 8)
	return pipe{ctx, x, y}, pipe{ctx, y, x}
}

func (p pipe) Send(m []byte) error {
	select {
	case p.out <- m:
		return nil
	case <-p.ctx.Done():
		return io.ErrClosedPipe
	}
}

func (p pipe) Receive() ([]byte, error) {
	select {
	case m := <-p.in:
		return m, nil
	case <-p.ctx.Done():
		return nil, io.EOF
	}
}

// side is the model of a member, which notes what is done with it.
type side struct {
	name   string
	layers int
	memory int64 // layers that fit
	print  string
	load   error

	mu     sync.Mutex
	did    []string
	part   Part
	hops   *Hops
	failed *failing
	open   bool // there are requests
}

// failing is something that runs until it is told to fail.
type failing struct {
	done   chan struct{}
	err    error
	record *trace.Registry
	hop    engine.Link
}

func (f *failing) Failed() <-chan struct{} { return f.done }
func (f *failing) Err() error              { return f.err }
func (f *failing) Trace() *trace.Registry  { return f.record }
func (f *failing) Hop() engine.Link        { return f.hop }
func (f *failing) Topology() engine.Topology {
	return engine.Topology{Nodes: []engine.Node{{Name: "keeper", Kind: engine.NodeHop}}}
}

func (f *failing) fail(err error) {
	f.err = err
	close(f.done)
}

func (s *side) note(format string, args ...any) {
	s.mu.Lock()
	s.did = append(s.did, fmt.Sprintf(format, args...))
	s.mu.Unlock()
}

// done returns and forgets what was noted.
func (s *side) done() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := strings.Join(s.did, "; ")
	s.did = nil
	return text
}

func (s *side) FrameBytes() int { return 1 << 20 }

func (s *side) Model() Model { return Model{Name: "m", Fingerprint: s.print} }

// Plan gives every member the layers that fit, the leader first.
func (s *side) Plan(list []Offer) (parts []Part, err error) {
	at := int(s.memory)
	if len(list) == 0 {
		at = s.layers
	}
	at = min(at, s.layers-len(list))
	for i, o := range list {
		n := min(int(o.Memory), s.layers-at-(len(list)-1-i))
		parts = append(parts, Part{First: at, Last: at + n, Sizes: json.RawMessage(`{}`)})
		at += n
	}
	if at < s.layers || len(list) == 0 && int64(s.layers) > s.memory {
		return nil, fmt.Errorf("%d of %d layers fit", at, s.layers)
	}
	return parts, nil
}

func (s *side) Load(context.Context) error {
	s.note("load")
	return s.load
}

func (s *side) Start(h *Hops) (Running, error) {
	if h == nil {
		s.note("start alone")
	} else {
		s.note("start with %d", len(h.Sides))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed, s.hops = &failing{done: make(chan struct{}), record: trace.NewRegistry(4)}, h
	return s.failed, nil
}

func (s *side) Suspend(lost bool)   { s.note("suspend%s", map[bool]string{true: ": lost"}[lost]) }
func (s *side) Abandon(cause error) { s.note("abandon") }
func (s *side) Idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.open
}

// host is a side as a Host.
type host struct{ *side }

func (h host) Open(context.Context, Model) (string, Offer, error) {
	return h.print, Offer{Memory: h.memory}, nil
}

func (h host) Load(_ context.Context, p Part) error {
	if !reflect.DeepEqual(h.part, p) {
		h.note("load %d to %d", p.First, p.Last)
		h.part = p
	}
	return h.load
}

func (h host) Start(hops *Hops) (Segment, error) {
	_, err := h.side.Start(hops)
	return h.failed, err
}

func (h host) Stop() {}

// pass lets time pass, and all that happens then.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// rig is a cluster in memory.
type rig struct {
	t      *testing.T
	net    *network
	engine *side
	leader *Leader
	ended  chan error
	stop   context.CancelFunc
}

func newRig(t *testing.T, workers int, engine *side, replay bool) *rig {
	r := &rig{t: t, net: newNetwork(), engine: engine, ended: make(chan error, 1)}
	r.leader = NewLeader(LeaderOptions{
		Workers: workers, Engine: engine, Network: r.net, Version: "1", Timeout: 2 * time.Second, Replay: replay, ReplayWait: time.Minute, Log: zerolog.Nop(),
	})
	ctx, cancel := context.WithCancel(t.Context())
	r.stop = cancel
	go func() { r.ended <- r.leader.Run(ctx) }()
	return r
}

// joined is a worker of the rig.
type joined struct {
	side *side
	kill context.CancelFunc
	left chan error
}

func (r *rig) join(s *side, version string) *joined {
	ctx, cancel := context.WithCancel(r.t.Context())
	a, b := controls(ctx)
	j := &joined{s, cancel, make(chan error, 2)}
	go func() { j.left <- r.leader.Join(ctx, "cert-"+s.name, a) }()
	go func() {
		err := Work(ctx, b, WorkerOptions{Host: host{s}, Network: r.net, Version: version, Name: s.name, Leader: "leader", Timeout: 2 * time.Second, Log: zerolog.Nop()})
		if errors.Is(err, ErrRefused) {
			j.left <- err
		}
		cancel()
	}()
	return j
}

// end stops everything.
func (r *rig) end(workers ...*joined) {
	r.stop()
	if err := <-r.ended; err != nil {
		r.t.Error(err)
	}
	for _, j := range workers {
		j.kill()
	}
	synctest.Wait()
}

func (r *rig) want(what string, got, want string) {
	r.t.Helper()
	if got != want {
		r.t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// TestServe: the cluster serves when all have joined, each with its layers, connected in a chain.
func TestServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, &side{layers: 9, memory: 3}, true)
		b := r.join(&side{name: "b", memory: 3}, "1")
		synctest.Wait()
		r.want("leader before all have joined", r.engine.done(), "")
		a := r.join(&side{name: "a", memory: 3}, "1")
		pass(time.Second)
		r.want("leader", r.engine.done(), "load; start with 2")
		r.want("a", a.side.done(), "load 3 to 6; start with 0")
		r.want("b", b.side.done(), "load 6 to 9; start with 0")
		for _, hopOf := range [][2]hop.Conn{
			{r.engine.hops.Out, a.side.hops.In}, {a.side.hops.Out, b.side.hops.In}, {b.side.hops.Out, r.engine.hops.In},
			{a.side.hops.Side, r.engine.hops.Sides[0]}, {b.side.hops.Side, r.engine.hops.Sides[1]},
		} {
			if err := hopOf[0].Send(&hop.Frame{Kind: hop.Step, ID: 5}); err != nil {
				t.Fatal(err)
			}
			if f, err := hopOf[1].Receive(); err != nil || f.ID != 5 {
				t.Fatalf("%+v, %v", f, err)
			}
		}
		if !r.net.names["cert-a"] || !r.net.names["leader"] {
			t.Errorf("dialled %v", r.net.names)
		}
		if list := r.leader.Workers(); len(list) != 2 || list[0].Worker != "a" || list[0].Part.Last != 6 || list[0].Offset != time.Second {
			t.Errorf("workers %+v", list)
		}
		r.looks(b.side.failed)
		r.end(a, b)
		r.want("leader at the end", r.engine.done(), "suspend; suspend")
	})
}

// TestLoss: after the loss of a worker the rest serves if the model fits it, else the worker is waited for, and a
// worker that comes when nobody asks takes its part again.
func TestLoss(t *testing.T) {
	for _, x := range []struct {
		name           string
		memory         int64 // of the leader, in layers
		replay         bool
		left, returned string
	}{
		{"rest", 9, true, "suspend: lost; load; start alone", "suspend; load; start with 1"},
		{"wait", 4, true, "suspend: lost", "load; start with 1"},
		{"fail", 9, false, "suspend: lost; abandon; load; start alone", "suspend; load; start with 1"},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, 1, &side{layers: 9, memory: x.memory, open: true}, x.replay)
				a := r.join(&side{name: "a", memory: 5}, "1")
				pass(time.Second)
				r.want("leader", r.engine.done(), "load; start with 1")
				a.kill()
				pass(5 * time.Second)
				r.want("after the loss", r.engine.done(), x.left)
				again := r.join(a.side, "1")
				a.side.done()
				pass(5 * time.Second)
				if x.name != "wait" {
					r.want("while requests are served", r.engine.done(), "")
					r.engine.mu.Lock()
					r.engine.open = false
					r.engine.mu.Unlock()
					pass(5 * time.Second)
				}
				r.want("after its return", r.engine.done(), x.returned)
				r.want("a, which has its part still", a.side.done(), "start with 0")
				r.end(again)
			})
		})
	}
}

// TestReplayWait: requests that no member can take over fail after a time.
func TestReplayWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, &side{layers: 9, memory: 4}, true)
		a := r.join(&side{name: "a", memory: 5}, "1")
		pass(time.Second)
		a.kill()
		pass(59 * time.Second)
		r.want("before", r.engine.done(), "load; start with 1; suspend: lost")
		pass(2 * time.Second)
		r.want("after", r.engine.done(), "abandon")
		r.end()
	})
}

// TestRefused: workers of another version or with other files are told why, and do not come again.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, &side{layers: 9, memory: 4, print: "x"}, true)
		for want, j := range map[string]*joined{
			"it is version 2, the leader is 1":            r.join(&side{name: "a", print: "x"}, "2"),
			"its files of m are others than the leader's": r.join(&side{name: "b", print: "y"}, "1"),
		} {
			errs := []error{<-j.left, <-j.left}
			if !slices.ContainsFunc(errs, func(err error) bool { return errors.Is(err, ErrRefused) && strings.Contains(err.Error(), want) }) {
				t.Errorf("%v, want %q", errs, want)
			}
		}
		r.end()
	})
}

// TestCannotLoad: a worker that cannot load its part is no member any more; the leader's own fault ends it at the start.
func TestCannotLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, &side{layers: 9, memory: 4}, true)
		bad := r.join(&side{name: "a", memory: 5, load: errors.New("no memory")}, "1")
		if err := <-bad.left; err == nil || !strings.Contains(err.Error(), "no memory") {
			t.Errorf("the worker left with %v", err)
		}
		good := r.join(&side{name: "b", memory: 5}, "1")
		pass(5 * time.Second)
		r.want("leader", r.engine.done(), "load; load; start with 1")
		r.end(bad, good)

		r = newRig(t, 1, &side{layers: 9, memory: 4, load: errors.New("no file")}, true)
		a := r.join(&side{name: "a", memory: 5}, "1")
		if err := <-r.ended; err == nil || !strings.Contains(err.Error(), "no file") {
			t.Errorf("the leader ended with %v", err)
		}
		a.kill()
		synctest.Wait()
	})
}

// TestInterrupted: a pipeline that fails while all members live begins anew with them.
func TestInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, &side{layers: 9, memory: 4}, true)
		a := r.join(&side{name: "a", memory: 5}, "1")
		pass(time.Second)
		r.engine.failed.fail(errors.New("a hop is broken"))
		pass(time.Second)
		r.want("leader", r.engine.done(), "load; start with 1; suspend: lost; load; start with 1")
		r.want("a", a.side.done(), "load 4 to 9; start with 0; start with 0")
		a.side.failed.fail(errors.New("its pool is broken"))
		synctest.Wait()
		if _, err := r.engine.hops.In.Receive(); err == nil {
			t.Error("the hops of a part that has ended are open")
		}
		r.end(a)
	})
}

// FuzzReceive: a message of control may be anything.
func FuzzReceive(f *testing.F) {
	for _, m := range []*message{{Hello: &hello{}}, {Open: &open{Beat: NewToken()}}, {Assign: &assign{Part: Part{First: 1, Last: 2, Sizes: json.RawMessage(`{}`)}}}, {Connect: &connect{}}, {Bye: &bye{}}} {
		text, err := json.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		p := pipe{t.Context(), make(chan []byte, 1), nil}
		p.in <- text
		m, err := receive(p)
		if err != nil {
			return
		}
		if _, err := json.Marshal(m); err != nil {
			t.Fatal(err)
		}
	})
}
