package actors

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"krater/actors/engine"
	"krater/actors/msg"
	"krater/kernels/device"
	"krater/scheduler/heat"
	"krater/stages"
	"krater/stages/direct"
	"krater/stages/drive"
	"krater/stages/model"
	"krater/stages/route"
)

// routerOf is a model of which only the router's shape is known.
func routerOf(layers, dense, experts, topK int) *model.Config {
	cfg := &model.Config{}
	cfg.Stack(layers, nil, func(i int) (model.Mixer, model.FFN) {
		if i < dense {
			return nil, model.Dense{}
		}
		return nil, model.MoE{Experts: experts, Router: device.Router{TopK: topK}}
	})
	return cfg
}

// routed draws the work of a layer: each row goes to topK different experts.
func routed(r *rand.Rand, rows, experts, topK int) []device.ExpertRows {
	assign := make([][]int32, experts)
	for row := range rows {
		for k, e := range r.Perm(experts)[:topK] {
			assign[e] = append(assign[e], int32(row*topK+k))
		}
	}
	var work []device.ExpertRows
	for e, a := range assign {
		if len(a) > 0 {
			work = append(work, device.ExpertRows{Expert: int32(e), Assign: a})
		}
	}
	return work
}

// TestHeatIsExact: a pipeline of any shape counts the same choices while it serves as a probe that
// runs the same rows through the same stages, one sequence after another.
func TestHeatIsExact(t *testing.T) {
	const answer = 9
	prompts := make([][]int32, 5)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range prompts {
		for range 3 + 30*i {
			prompts[i] = append(prompts[i], int32(5+r.IntN(8000)))
		}
	}
	var want *route.Counter
	for _, c := range []struct {
		groups, pools, depth, chunk int
		inline                      time.Duration
	}{{1, 1, 1, 64, 1 << 40}, {3, 2, 3, 7, 0}, {2, 1, 2, 64, 0}} {
		o := setup{groups: c.groups, pools: c.pools, depth: c.depth, chunk: c.chunk, share: 16, inline: c.inline,
			limits: stages.Limits{Tokens: 80, Seqs: 4, Blocks: 160, BlockTokens: 16}}
		rig := newRig(t, o)
		if want == nil {
			d, err := direct.New(rig.dev, rig.bound)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			want = route.NewCounter(len(rig.cfg.Layers), rig.cfg.MoE.Experts)
			for _, p := range prompts {
				if err := drive.Run(d, []*drive.Sequence{{Prompt: p, New: answer}}, drive.Options{Probe: want}); err != nil || want.Err != nil {
					t.Fatal(err, want.Err)
				}
			}
		}
		gw := rig.gateway(t)
		var open []engine.Stream
		for _, p := range prompts {
			st, err := gw.Submit(context.Background(), greedy(p, answer))
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, st)
		}
		for _, st := range open {
			if _, err := everything(st); err != nil {
				t.Fatal(err)
			}
		}
		id := heat.Identity{7}
		m := rig.Heat(id)
		if s := m.Shape(); m.Identity != id || s.TopK != 4 || s.Experts != 32 || !slices.Equal(s.Layers, []int32{1, 2, 3, 4, 5, 6}) {
			t.Fatalf("%+v of %v", s, m.Identity)
		}
		for _, layer := range m.Shape().Layers {
			if m.Tokens(layer) != want.Tokens[layer] || !slices.Equal(m.Counts(layer), want.Counts[layer]) {
				t.Errorf("%+v, layer %d: %d tokens %v, want %d %v", c, layer, m.Tokens(layer), m.Counts(layer), want.Tokens[layer], want.Counts[layer])
			}
		}
	}
}

// TestHeatWhileItIsRead: copies taken at any time hold together, and nothing is lost.
func TestHeatWhileItIsRead(t *testing.T) {
	const layers, experts, topK, visits = 4, 16, 3, 2000
	h := newHeatMeter(routerOf(layers+1, 1, experts, topK), 1, nil)
	var groups, readers sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		readers.Go(func() {
			var before *heat.Map
			for more := true; more; {
				select {
				case <-stop:
					more = false // one more, of everything
				default:
				}
				m := h.snapshot(heat.Identity{})
				for _, l := range m.Shape().Layers {
					var sum uint64
					for _, n := range m.Counts(l) {
						sum += n
					}
					if sum != topK*m.Tokens(l) {
						t.Errorf("layer %d: %d rows of %d tokens", l, sum, m.Tokens(l))
						return
					}
				}
				if before != nil {
					if _, err := m.Since(before); err != nil {
						t.Error(err)
						return
					}
				}
				before = m
			}
		})
	}
	want := make([]uint64, layers+1)
	for l := 1; l <= layers; l++ {
		r := rand.New(rand.NewPCG(uint64(l), 1))
		groups.Go(func() {
			for id := range uint64(visits) {
				rows := 1 + r.IntN(3)
				want[l] += uint64(rows)
				h.observe(routedStep{id: id}, l, rows, routed(r, rows, experts, topK))
			}
		})
	}
	groups.Wait()
	close(stop)
	readers.Wait()
	m := h.snapshot(heat.Identity{})
	for l := int32(1); l <= layers; l++ {
		if m.Tokens(l) != want[l] {
			t.Errorf("layer %d: %d tokens, want %d", l, m.Tokens(l), want[l])
		}
	}
}

// TestHeatSample: one of eight batches is counted, in all layers. The shares equal the shares
// over all batches, even if the work repeats every eight batches.
func TestHeatSample(t *testing.T) {
	const experts, topK, batches, every = 16, 2, 80_000, 8
	cfg := routerOf(3, 1, experts, topK)
	all, some, bare := newHeatMeter(cfg, 1, nil), newHeatMeter(cfg, every, nil), newHeatMeter(cfg, 0, nil)
	r := rand.New(rand.NewPCG(3, 4))
	for id := range uint64(batches) {
		// Every eighth batch, and only these, uses the last half of the experts.
		work := routed(r, 1, experts/2, topK)
		if id%every == 0 {
			for j := range work {
				work[j].Expert += experts / 2
			}
		}
		for layer := 1; layer < 3; layer++ {
			all.observe(routedStep{id: id}, layer, 1, work)
			some.observe(routedStep{id: id}, layer, 1, work)
			bare.observe(routedStep{id: id}, layer, 1, work)
		}
	}
	a, s, b := all.snapshot(heat.Identity{}), some.snapshot(heat.Identity{}), bare.snapshot(heat.Identity{})
	if a.Tokens(1) != batches {
		t.Fatalf("%d of %d batches without sampling", a.Tokens(1), batches)
	}
	if s.Tokens(1) != s.Tokens(2) || !slices.Equal(s.Counts(1), s.Counts(2)) {
		t.Error("the layers counted other batches")
	}
	if !slices.Equal(b.Counts(1), s.Counts(1)) {
		t.Errorf("one of %d is not what is counted unless something else is asked for", every)
	}
	// Six standard deviations of what a fair coin would give.
	near := func(what string, n uint64, of, p float64) {
		if d := math.Abs(float64(n) - of*p); d > 6*math.Sqrt(of*p*(1-p)) {
			t.Errorf("%s: %d, want about %.0f", what, n, of*p)
		}
	}
	near("batches", s.Tokens(1), batches, 1.0/every)
	for e, n := range s.Counts(1) {
		near(fmt.Sprintf("expert %d", e), n, float64(s.Tokens(1)), float64(a.Counts(1)[e])/batches)
	}
}

// TestHeatOff: nothing is counted below 0 and without experts.
func TestHeatOff(t *testing.T) {
	if newHeatMeter(routerOf(3, 1, 4, 2), -1, nil) != nil || newHeatMeter(routerOf(2, 2, 0, 0), 1, nil) != nil {
		t.Error("there is a meter")
	}
	off, r := &Pipeline{}, &rank{findsExperts: true}
	off.heat.observe(routedStep{id: 0}, 1, 1, nil)
	if off.Heat(heat.Identity{}) != nil || r.keeps(off.heat, &msg.Batch{Local: &msg.Local{Stream: noStream{}}}) {
		t.Error("a pipeline without a meter counts")
	}
}

// noStream is the stream of a batch that nobody computes.
type noStream struct{ device.AcceleratorStream }

// TestHeatKept: what a device keeps to itself is fetched for the sample alone, where its
// batches have streams of their own and it finds the experts by itself.
func TestHeatKept(t *testing.T) {
	h, r := newHeatMeter(routerOf(2, 0, 4, 2), 8, nil), &rank{findsExperts: true}
	kept := 0
	for id := range uint64(800) {
		b := &msg.Batch{ID: id, Local: &msg.Local{Stream: noStream{}}}
		if r.keeps(h, b) != h.counts(id) {
			t.Fatalf("batch %d: kept is %v", id, r.keeps(h, b))
		}
		if r.keeps(h, b) {
			kept++
		}
		r.findsExperts = false
		if r.keeps(h, b) || r.keeps(h, &msg.Batch{ID: id, Local: new(msg.Local)}) {
			t.Fatalf("batch %d: a split counts it too", id)
		}
		r.findsExperts = true
		if r.keeps(h, &msg.Batch{ID: id, Local: new(msg.Local)}) {
			t.Fatalf("batch %d has no stream", id)
		}
	}
	if kept < 50 || kept > 150 {
		t.Errorf("%d of 800 batches are kept", kept)
	}
}
