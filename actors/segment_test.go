package actors

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"krater/actors/hop"
	"krater/stages/compare"
	"krater/stages/compare/goldens"
	"krater/stages/load"
)

// team is a leader's pipeline and the segments of its workers, in one process.
type team struct {
	*Pipeline
	segments []*Segment
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
	if change != nil {
		change(&opt)
	}
	for i, h := range hops {
		s, err := StartSegment(ranks[i+1:i+2], opt, h)
		if err != nil {
			t.Fatal(err)
		}
		g.segments = append(g.segments, s)
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

// TestSegmentsKeepBits: over segments every golden has the greedy ids of one process, and a conversation with
// log-probabilities has its bits. A golden takes one number of members in turn, or all with KRATER_GOLDENS=all.
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
