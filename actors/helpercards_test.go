//go:build cuda

package actors

import (
	"slices"
	"testing"
	"time"

	"krater/actors/engine"
	"krater/actors/placement"
	"krater/kernels/cpu"
	"krater/kernels/cuda"
	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/driver"
	"krater/stages/helper"
	"krater/stages/load"
)

// cardsWithHelper loads the model on a GPU, and a part of its experts on another one.
func (l *loaded) cardsWithHelper(t *testing.T, o setup) *helped {
	t.Helper()
	if err := driver.Available(); err != nil {
		t.Skip(err)
	}
	host, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	var devs [2]*cuda.Device
	for i := range devs {
		if devs[i], err = cuda.Open(cuda.Options{Index: i, Budget: 1 << 30, F32: true}); err != nil && i > 0 {
			t.Skip(err)
		} else if err != nil {
			t.Fatal(err)
		}
	}
	parts, err := load.Model(devs[0], l.cfg, l.set, load.Options{Limits: o.limits, KVType: o.kv, Routed: host})
	if err != nil {
		t.Fatal(err)
	}
	h := &helped{rank: load.Rank{Device: devs[0], Parts: parts}}
	again := parts.Again()
	if h.place, err = placement.New(devs[0], host, parts, placement.Options{Prefill: strategy(t, "persistent"), Decode: strategy(t, "persistent")}); err != nil {
		t.Fatal(err)
	}
	x, err := helper.New(devs[1], host, again, l.halves(1), nil)
	if err != nil {
		t.Fatal(err)
	}
	h.help = &Help{Experts: x, Share: 0.5, Least: 3}
	t.Cleanup(func() {
		x.Close()
		h.place.Close()
		parts.Close()
		for _, d := range devs {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
		host.Close()
	})
	return h
}

// chunks asks for an answer to a prompt of several chunks, which follow each other, beside those of few.
func chunks(t *testing.T, gw *Gateway) [][]engine.Token {
	t.Helper()
	prompt := make([]int32, 25)
	for i := range prompt {
		prompt[i] = int32(100 + i*i%57)
	}
	st, err := gw.Submit(t.Context(), greedy(prompt, 3))
	if err != nil {
		t.Fatal(err)
	}
	all := few(t, gw)
	return append(all, tokens(t, st))
}

// TestHelperOnCards: a helper on a second GPU gives the tokens of the processor, for a family with shared experts and one without. Copies that do not come, or
// bring something else, are noticed at the start or in service. A step that they spoil is repeated.
func TestHelperOnCards(t *testing.T) {
	for _, name := range helperGoldens {
		o := helperSetup(name)
		o.limits.Tokens, o.limits.Blocks = 12, 8
		l := loadModel(t, o)
		want := chunks(t, l.open(t, l.over(t, o, l.placed(), nil)))
		for _, c := range []struct {
			fault, start, service string
			links                 []string
			faults                bool
		}{
			{"none", "", "", []string{"peer"}, false},
			{"late", "", "late", []string{"peer"}, false},
			{"zeros from the start", "zeros", "zeros", []string{"bounce"}, false},
			{"zeros", "", "zeros:3", []string{"peer", "bounce"}, true},
			{"no copies", "", "stale:2", []string{"peer", "bounce"}, true},
			{"copies that hang", "", "hang:3", []string{"peer", "bounce"}, true},
			{"copies back that hang", "", "hang:4", []string{"peer", "bounce"}, true},
		} {
			if name != helperGoldens[0] && c.fault != "none" || testing.Short() && c.service != "" && c.service != "hang:4" {
				continue // the nightly has all of them
			}
			t.Run(name+"/"+c.fault, func(t *testing.T) {
				if c.start != "" {
					cudatest.Peer(t, c.start)
				}
				p := l.cardsWithHelper(t, o).start(t, l, o, func(o *Options) { o.hopDeadline = time.Second / 5 })
				if c.service != "" {
					cudatest.Peer(t, c.service)
					defer cudatest.Peer(t, "") // ends copies that hang
				}
				gw := l.open(t, p)
				for i, got := range chunks(t, gw) {
					if !slices.EqualFunc(got, want[i], func(a, b engine.Token) bool { return a.ID == b.ID }) {
						t.Errorf("answer %d is %v, want %v", i, got, want[i])
					}
				}
				s := gw.Stats()
				var used []string
				faults := uint64(0)
				for _, link := range s.Links {
					if faults += link.Faults; link.Hops > 0 {
						used = append(used, link.Kind)
					}
				}
				if !slices.Equal(used, c.links) || (faults > 0) != c.faults || s.ExpertsComputed["cuda:1"] == 0 {
					t.Errorf("%d faults, links %+v, %d experts of the helper", faults, s.Links, s.ExpertsComputed["cuda:1"])
				}
			})
		}
	}
}
