package actors

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"krater/actors/engine"
	"krater/actors/hop"
	"krater/actors/trace"
	"krater/stages"
	"krater/stages/compare"
	"krater/stages/compare/goldens"
	"krater/stages/load"
)

// team is a leader's pipeline and the segments of its workers, in one process.
type team struct {
	*Pipeline
	segments    []*Segment
	leave, come atomic.Int64 // calls of Options.Turn
}

// team starts a pipeline over the first rank whose others are segments, with a hop between any two. wire may put
// something around a hop's sending end; nil: nothing.
func (l *loaded) team(t testing.TB, o setup, ranks []load.Rank, wire func(name string, c hop.Conn) hop.Conn, change func(*Options)) *team {
	t.Helper()
	if wire == nil {
		wire = func(_ string, c hop.Conn) hop.Conn { return c }
	}
	g := &team{}
	remote := &Remote{}
	name := func(i int) string {
		if i == 0 || i == len(ranks) {
			return "leader"
		}
		return fmt.Sprintf("worker%d", i)
	}
	var hops []SegmentHops
	out, in := hop.Pipe(name(0), name(1))
	remote.Out = wire("out0", out)
	for i := 1; i < len(ranks); i++ {
		next, after := hop.Pipe(name(i), name(i+1))
		side, theirs := hop.Pipe("leader", name(i))
		remote.Sides = append(remote.Sides, wire(fmt.Sprintf("side%d", i-1), side))
		hops = append(hops, SegmentHops{In: in, Out: wire(fmt.Sprintf("out%d", i), next), Side: wire(fmt.Sprintf("answer%d", i-1), theirs)})
		in = after
	}
	remote.In = in
	opt := l.options(t, o)
	opt.Blueprint.Groups, opt.Remote = nil, remote
	opt.Turn = func(here bool) {
		if here {
			g.come.Add(1)
		} else {
			g.leave.Add(1)
		}
	}
	if change != nil {
		change(&opt)
	}
	for i, h := range hops {
		s, err := StartSegment(ranks[i+1:i+2], opt, h)
		if err != nil {
			t.Fatal(err)
		}
		g.segments = append(g.segments, s)
		remote.Workers = append(remote.Workers, Worker{Name: name(i + 1), Topology: s.Topology(), Hop: s.Hop, Ask: func(from map[string]uint64, detail bool) (*trace.Told, error) {
			if detail {
				s.Trace().WatchFor(time.Second)
			}
			return s.Trace().Tell(from, 1<<16), nil
		}})
	}
	var err error
	if g.Pipeline, err = Start(ranks[:1], opt); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.close(); err != nil {
			t.Errorf("closing: %v", err)
		}
	})
	return g
}

func (g *team) close() error {
	err := g.Pipeline.Close()
	for _, s := range g.segments {
		err = errors.Join(err, s.Close())
	}
	if errors.Is(err, errFatal) {
		return nil
	}
	return err
}

// TestSegmentsAnswer: answers of all kinds have the bits of one process, also where a team follows another or a
// pipeline of one process. The hops are counted and in the trace.
func TestSegmentsAnswer(t *testing.T) {
	for _, c := range []struct {
		dir       string
		simulated bool
	}{{"deepseek_v2_lite", false}, {"deepseek_v2_lite", true}, {"qwen3_next", false}} {
		o := setup{dir: golden(c.dir), groups: 3, limits: stages.Limits{Tokens: 64, Seqs: 5, LogitRows: 64, Blocks: 60, BlockTokens: 8}, chunk: 16, share: 16, depth: 2}.defaults()
		l := loadModel(t, o)
		list, sizes := kinds(false), []int{1, 1, len(l.cfg.Layers) - 2}
		alone := l.over(t, o, l.spread(t, o, sizes, c.simulated), nil)
		gw := l.open(t, alone)
		want := all(t, gw, list)
		o.remote = true
		ranks := l.spread(t, o, sizes, c.simulated)
		var behind atomic.Int64 // steps with rows of a prompt of which others are in flight
		first := l.team(t, o, ranks, func(_ string, conn hop.Conn) hop.Conn {
			return &faultyHop{Conn: conn, spoil: func(_ int, f *hop.Frame, send func(*hop.Frame) error) error {
				if f.Follows != 0 {
					behind.Add(1)
				}
				return send(f)
			}}
		}, nil)
		same(t, all(t, l.open(t, first.Pipeline), list), want)
		if follows := c.dir != "qwen3_next"; follows != (behind.Load() > 0) {
			t.Errorf("%s: %d frames of steps that follow others", c.dir, behind.Load())
		}
		if err := first.close(); err != nil {
			t.Error(err)
		}
		suspended := alone.Suspend()
		second := l.team(t, o, ranks, nil, func(opt *Options) { opt.Before = alone })
		second.Adopt(suspended)
		same(t, all(t, gw, list), want)
		for _, kind := range []string{"rank0 to rank1", "rank1 to rank2", "rank2 to rank0"} {
			i := slices.IndexFunc(gw.Stats().Links, func(x engine.Link) bool { return x.Kind == kind })
			if i < 0 || gw.Stats().Links[i].Hops == 0 || gw.Stats().Links[i].Bytes == 0 || gw.Stats().Links[i].Faults != 0 {
				t.Errorf("links %+v", gw.Stats().Links)
			}
		}
		if a, b := second.leave.Load(), second.come.Load(); a == 0 || b == 0 {
			t.Errorf("batches left %d times and came %d times", a, b)
		}
		gw.Trace().Refresh()
		for _, actor := range []string{"out", "rank1/keeper", "rank1/out", "rank2/keeper", "rank2/out", "in"} {
			events, _ := gw.Trace().Ring(actor).Read(nil, 0)
			if !slices.ContainsFunc(events, func(e trace.Event) bool { return e.Batch > 0 && e.Bytes > 0 }) {
				t.Errorf("%s: no event of %d has a batch and its bytes", actor, len(events))
			}
		}
		passes(t, gw)
	}
}

// passes checks that the critical path of the last steps goes over all ranks, in order, and that each hop is a wait in it.
func passes(t *testing.T, gw *Gateway) {
	t.Helper()
	tracks, _ := gw.Trace().Steps(4, math.MaxInt)
	for _, batch := range trace.Whole(tracks) {
		var way []string
		for _, p := range trace.Path(tracks, batch) {
			process, _ := trace.Process(tracks[p.Track].Name)
			if n := len(way); n == 0 || way[n-1] != process {
				way = append(way, process)
			}
			if last := tracks[p.Track].Events[p.Event]; p.Hop && (last.Kind != trace.Hop || p.From != last.Enqueued || p.To != last.Started) {
				t.Errorf("a hop %+v of %+v", p, last)
			}
		}
		if !slices.Equal(way, []string{"", "rank1", "rank2", ""}) {
			t.Errorf("step %d passes %q", batch, way)
		}
	}
}

// TestSegmentsKeepBits: over segments every golden has the greedy ids of one process. A golden takes one number of
// members in turn, or all with KRATER_GOLDENS=all.
func TestSegmentsKeepBits(t *testing.T) {
	turn := 0
	goldens.Each(t, func(t *testing.T, f goldens.Folder) {
		if turn++; testing.Short() && turn%8 != 0 && !goldens.Everything() {
			t.Skip("the short suite has some")
		}
		g, err := compare.ReadGolden(f.Dir)
		if err != nil {
			t.Fatal(err)
		}
		for i, sizes := range [][]int{{1, 1}, {1, 1, 1}, {1, 2}, {1, 1, 1, 1}} {
			simulated := (turn+i)%2 == 0
			o := setup{dir: f.Dir, groups: len(sizes), chunk: 7, share: 16, remote: true, depth: 2}.defaults()
			l := loadModel(t, o)
			layers := len(l.cfg.Layers)
			if l.cfg.PerLayer > 0 || layers < len(sizes) || i != turn%4 && !goldens.Everything() && layers > 2 {
				continue
			}
			sizes := slices.Clone(sizes)
			for n := len(sizes) - 1; sum(sizes) < layers; {
				sizes[n]++
			}
			if sum(sizes) > layers {
				continue
			}
			t.Run(fmt.Sprintf("%v simulated %t", sizes, simulated), func(t *testing.T) {
				p := l.team(t, o, l.spread(t, o, sizes, simulated), nil, nil)
				gw := l.open(t, p.Pipeline)
				errs := make(chan error)
				for _, prompt := range g.Prompts {
					go func() {
						ids, err := generate(gw, prompt.IDs, len(prompt.Greedy))
						if err == nil && !slices.Equal(ids, prompt.Greedy) {
							err = fmt.Errorf("%s: %v, want %v", prompt.Name, ids, prompt.Greedy)
						}
						errs <- err
					}()
				}
				for range g.Prompts {
					if err := <-errs; err != nil {
						t.Error(err)
					}
				}
				rest(t, &rig{Pipeline: p.Pipeline, loaded: l}, gw)
			})
		}
	})
}

func sum(list []int) (n int) {
	for _, x := range list {
		n += x
	}
	return n
}
