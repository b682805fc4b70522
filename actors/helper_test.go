package actors

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"krater/actors/engine"
	"krater/actors/placement"
	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/hostsim"
	"krater/scheduler/dispatch"
	"krater/stages/helper"
	"krater/stages/link"
	"krater/stages/load"
)

// helped is a model on the processor or on a simulated device, and a simulated helper with a part of its experts.
type helped struct {
	rank   load.Rank
	place  *placement.Placement // nil on the processor
	helper *hostsim.Device
	help   *Help
}

// withHelper loads a model whose rank has room for a part of the experts; 1: for all. The helper holds half of each layer's, or those that
// the rank lacks.
func (l *loaded) withHelper(t testing.TB, o setup, simulated bool, room float64) *helped {
	t.Helper()
	processor, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	sim := func(name string) *hostsim.Device {
		d, err := hostsim.New(hostsim.Options{CPU: processor, Name: name})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	h := &helped{helper: sim("hostsim:1")}
	var dev load.Device = processor
	opt := load.Options{Limits: o.limits, KVType: o.kv, Partition: load.Even(len(l.cfg.Layers), o.groups)}
	if simulated {
		dev, opt.Routed = sim("hostsim:0"), processor
	}
	parts, err := load.Model(dev, l.cfg, l.set, opt)
	if err != nil {
		t.Fatal(err)
	}
	h.rank = load.Rank{Device: dev, Parts: parts}
	x, err := helper.New(h.helper, processor, parts.Again(), l.halves(room), nil)
	if err != nil {
		t.Fatal(err)
	}
	if simulated {
		h.put(t, processor, room)
	}
	h.help = &Help{Experts: x, Share: 0.5, Least: 5}
	t.Cleanup(func() {
		if h.place != nil {
			h.place.Close()
		}
		x.Close()
		parts.Close()
		if n := h.helper.Streams(); n != 0 {
			t.Errorf("%d streams of the helper are not closed", n)
		}
		if n := h.helper.Memory().Used; n != 0 {
			t.Errorf("%d bytes of the helper are not freed", n)
		}
		processor.Close()
	})
	return h
}

// halves lists half of each layer's experts, or those that a rank with too little room lacks: the hottest are those with the lowest ids.
func (l *loaded) halves(room float64) map[int][]bool {
	holds := map[int][]bool{}
	for layer := range l.cfg.Layers {
		if !l.cfg.MoELayer(layer) {
			continue
		}
		holds[layer] = dispatch.Divide(l.cfg.MoE.Experts, nil, nil, 0.5)
		for e := range holds[layer] {
			if room < 1 {
				holds[layer][e] = float64(e) >= room*float64(l.cfg.MoE.Experts)
			}
		}
	}
	return holds
}

// put places experts on the rank's device.
func (h *helped) put(t testing.TB, host *cpu.Device, room float64) {
	t.Helper()
	o := placement.Options{Prefill: strategy(t, "persistent"), Decode: strategy(t, "persistent")}
	if room < 1 {
		o.Prefill, o.Decode = strategy(t, "hot_cached_static"), strategy(t, "hot_cached_static")
		for _, g := range h.rank.Groups {
			for layer := g.First; layer < g.Last; layer++ {
				if g.MoE(layer) {
					o.Budget += int64(room*float64(h.rank.Config.MoE.Experts)) * int64(g.Bank(layer).ExpertBytes())
				}
			}
		}
	}
	var err error
	if h.place, err = placement.New(h.rank.Device, host, h.rank.Parts, o); err != nil {
		t.Fatal(err)
	}
}

func strategy(t testing.TB, name string) dispatch.Strategy {
	t.Helper()
	s, err := dispatch.Parse(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// start starts a pipeline with the helper.
func (h *helped) start(t testing.TB, l *loaded, o setup, change func(*Options)) *Pipeline {
	t.Helper()
	return l.over(t, o, []load.Rank{h.rank}, func(opt *Options) {
		opt.Help, opt.Placements = h.help, []*placement.Placement{h.place}
		if change != nil {
			change(opt)
		}
	})
}

// helperGoldens are a family with shared experts and one without.
var helperGoldens = []string{"deepseek_v2_lite", "qwen3_moe"}

func helperSetup(name string) setup {
	return setup{dir: golden(name), groups: 1, depth: 2, chunk: 9, share: 16, limits: ranked().limits}.defaults()
}

// TestHelper: with a helper beside the processor or a simulated device, answers have the bits of the processor alone, whether the helper
// has a part of prompts, or of all batches because the rank lacks experts.
func TestHelper(t *testing.T) {
	for _, name := range helperGoldens {
		o := helperSetup(name)
		l := loadModel(t, o)
		want := conversation(t, l.open(t, l.over(t, o, l.placed(), nil)))
		for _, c := range []struct {
			simulated bool
			room      float64
		}{{true, 1}, {false, 1}, {true, 0.5}} {
			if testing.Short() && name != helperGoldens[0] && !(c.simulated && c.room == 1) {
				continue // the nightly has all of them
			}
			t.Run(fmt.Sprintf("%s/simulated %t/room %v", name, c.simulated, c.room), func(t *testing.T) {
				h := l.withHelper(t, o, c.simulated, c.room)
				p := h.start(t, l, o, nil)
				gw := l.open(t, p)
				got := conversation(t, gw)
				for i := range got {
					if !slices.EqualFunc(got[i], want[i], sameToken) {
						t.Errorf("answer %d is %v, want %v", i, got[i], want[i])
					}
				}
				s := gw.Stats()
				if n := s.ExpertsComputed["hostsim:1"]; n == 0 {
					t.Error("the helper has computed nothing")
				}
				if !slices.ContainsFunc(s.Links, func(l engine.Link) bool { return l.Kind == "bounce" && l.Hops > 0 && l.Bytes > 0 }) {
					t.Errorf("links %+v", s.Links)
				}
				if share, least := p.Helper(); c.room == 1 && (share != 0.5 || least != 5) || c.room < 1 && (share <= 0 || least != 0) {
					t.Errorf("the helper has %v of batches of %d rows or more", share, least)
				}
				if c.room < 1 && s.ExpertsComputed["cpu"] != 0 {
					t.Errorf("the host has computed %d experts", s.ExpertsComputed["cpu"])
				}
			})
		}
	}
}

// TestHelperLinkFaults: a link to a helper that loses a step or carries something else costs the batch, and the next is right.
func TestHelperLinkFaults(t *testing.T) {
	o := helperSetup("deepseek_v2_lite")
	l := loadModel(t, o)
	want := conversation(t, l.open(t, l.over(t, o, l.placed(), nil)))
	spoil := func(f *spoiler, what func(to device.Stream, dst []device.Mat)) func(link.Way) (link.Link, bool) {
		return func(w link.Way) (link.Link, bool) {
			l, ok := link.Bounce(w)
			return spoilerLink{l, f, what}, ok
		}
	}
	zeros := func(to device.Stream, dst []device.Mat) {
		for _, m := range dst {
			to.CopyIn(m, make([]byte, m.Bytes()))
		}
	}
	lost, g, stale := &flaky{fails: func(n int64) error { return when(n%29 == 7) }}, &spoiler{}, &spoiler{}
	for name, c := range map[string]struct {
		kinds []link.Kind
		fault *flaky
	}{
		"lost": {[]link.Kind{lost.kind}, lost}, "zeros": {[]link.Kind{spoil(g, zeros), link.Bounce}, &g.flaky},
		"stale": {[]link.Kind{spoil(stale, nil), link.Bounce}, &stale.flaky},
	} {
		h := l.withHelper(t, o, true, 1)
		p := h.start(t, l, o, func(o *Options) { o.links, o.Policy.MaxRetries = c.kinds, 50 })
		c.fault.started.Store(true)
		gw := l.open(t, p)
		for i, got := range conversation(t, gw) {
			if !slices.EqualFunc(got, want[i], sameToken) {
				t.Errorf("%s: answer %d is %v, want %v", name, i, got, want[i])
			}
		}
		faults := uint64(0)
		for _, l := range gw.Stats().Links {
			faults += l.Faults
		}
		if (faults > 0) != (name != "lost") {
			t.Errorf("%s: %d faults", name, faults)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	// One that leaves zeros at the start is named.
	h := l.withHelper(t, o, true, 1)
	opt := l.options(t, o)
	bad := func(w link.Way) (link.Link, bool) {
		return brokenLink{func(to device.Stream, dst []device.Mat) error { zeros(to, dst); return nil }}, true
	}
	opt.Blueprint.Groups, opt.Help, opt.Placements, opt.links = nil, h.help, []*placement.Placement{h.place}, []link.Kind{bad}
	if p, err := Start([]load.Rank{h.rank}, opt); err == nil {
		p.Close()
		t.Error("started over a link that leaves zeros")
	} else if !strings.Contains(err.Error(), "helper hostsim:1") || !strings.Contains(err.Error(), "zeros arrived") {
		t.Error(err)
	}
}

// spoiler is a link that changes what one carry brings, once it is started, or brings nothing.
type spoiler struct{ flaky }

type spoilerLink struct {
	link.Link
	of   *spoiler
	what func(to device.Stream, dst []device.Mat)
}

func (l spoilerLink) Carry(from, to device.Stream, src, dst []device.Mat) error {
	now := l.of.started.Load() && l.of.carries.Add(1) == 11
	if now && l.what == nil {
		return from.Synchronize()
	}
	err := l.Link.Carry(from, to, src, dst)
	if now {
		l.what(to, dst)
	}
	return err
}
