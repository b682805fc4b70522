//go:build !race

// These compare the bits of many answers; other tests drive ranks and nodes under the race detector.

package actors

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"krater/actors/engine"
	"krater/kernels/cpu"
	"krater/kernels/machine"
	"krater/stages"
	"krater/stages/compare"
)

// TestRanksAnswerAlike: the same requests have the same answers, with the same log-probabilities
// bit for bit, on one to four ranks of the processor and of simulated devices: with prompts in
// chunks, sequences that are preempted, prefixes from the cache and several batches in flight.
func TestRanksAnswerAlike(t *testing.T) {
	for _, x := range []struct {
		dir   string // "": krater-tiny
		sizes [][]int
	}{
		{"", [][]int{{7}, {4, 3}, {1, 4, 2}, {2, 2, 2, 1}}},
		{"deepseek_v2_lite", [][]int{{3}, {1, 2}, {1, 1, 1}}},
		{"qwen2", [][]int{{3}, {2, 1}, {1, 1, 1}}},
		{"glm_moe_dsa", [][]int{{4}, {2, 2}, {1, 1, 1, 1}}}, // its third layer uses what the second has chosen
		{"qwen4_exp", [][]int{{3}, {2, 1}, {1, 1, 1}}},      // three residual streams
		{"glm5_next", [][]int{{3}, {2, 1}, {1, 1, 1}}},      // three that are mixed
		{"minimax_m3", [][]int{{3}, {1, 1, 1}}},             // each key head chooses its blocks
	} {
		for _, simulated := range []bool{false, true} {
			o := setup{groups: 1, depth: 3, chunk: 9, share: 16, limits: stages.Limits{Tokens: 40, Seqs: 6, Blocks: 22, BlockTokens: 8, Window: 24}}
			if x.dir != "" {
				o.dir = golden(x.dir)
			}
			o = o.defaults()
			l := loadModel(t, o)
			var want [][]engine.Token
			for i, sizes := range x.sizes {
				if testing.Short() && i > 0 && i < len(x.sizes)-1 {
					continue // one rank, and the most
				}
				name := fmt.Sprintf("%s/%v/simulated=%t", x.dir, sizes, simulated)
				h := newHold(6)
				o.wrap = h.wrap
				p := l.over(t, o, l.spread(t, o, sizes, simulated), nil)
				gw := l.open(t, p)
				got := conversation(t, gw, h.release)
				if want == nil {
					want = got
				}
				for i := range got {
					if !slices.EqualFunc(got[i], want[i], sameToken) {
						t.Errorf("%s: answer %d: %v, want %v", name, i, got[i], want[i])
					}
				}
				s := gw.Stats()
				if s.Preemptions == 0 || s.PrefixHits == 0 {
					t.Errorf("%s: %d preemptions, %d tokens from the cache: the test is too easy", name, s.Preemptions, s.PrefixHits)
				}
				kind := "direct"
				if simulated {
					kind = "bounce"
				}
				i := slices.IndexFunc(s.Links, func(l engine.Link) bool { return l.Kind == kind && l.Hops > 0 && l.Bytes > 0 && l.Time > 0 })
				if i >= 0 != (len(sizes) > 1) {
					t.Errorf("%s: links %+v", name, s.Links)
				}
				if links := strings.Count(p.opt.Blueprint.String(), "link["+kind+"]"); links != len(sizes)-1 {
					t.Errorf("%s: %d %s links in %s", name, links, kind, p.opt.Blueprint.String())
				}
			}
		}
	}
}

// TestNodesDoNotChangeABit: whole models through the actors have the same logits,
// bit for bit, on one node and on several, even and uneven, with a pool on each
// and with more or fewer pools; with experts as the files hold them, and with
// integers that were brought to their nodes.
func TestNodesDoNotChangeABit(t *testing.T) {
	type shape struct {
		topology      string
		pools, groups int
	}
	shapes := []shape{{"1x3", 1, 1}, {"2x1", 2, 1}, {"2x2", 2, 3}, {"4x1", 4, 2}, {"4x2", 4, 1}, {"2x2,1x1", 3, 2}, {"1x1,1x3", 2, 1}, {"2x1", 3, 1}, {"4x1", 2, 2}}
	if testing.Short() {
		shapes = shapes[3:6]
	}
	for _, name := range []string{"deepseek_v2_lite", "deepseek_v2", "qwen2"} {
		g, err := compare.ReadGolden(golden(name))
		if err != nil {
			t.Fatal(err)
		}
		for _, bits := range []int{0, 4, 8} {
			if name == "qwen2" && bits > 0 {
				continue // it has no experts
			}
			run := func(nodes []cpu.Node, pools, groups int) [][]uint32 {
				o := setup{dir: golden(name), groups: groups, pools: pools, nodes: nodes, limits: stages.Limits{Tokens: 100}}
				if bits > 0 {
					o.change = integers(t, bits, pools)
				}
				return logits(t, newRig(t, o), g)
			}
			want := run(nil, 1, 1)
			if cpus := machine.Here().CPU.Allowed; len(cpus) > 1 {
				real := []cpu.Node{{CPUs: cpus[:1]}, {CPUs: cpus[1:2]}}
				t.Run(fmt.Sprintf("%s/bits%d/bound threads", name, bits), func(t *testing.T) {
					for i, got := range run(real, 2, 1) {
						if !slices.Equal(got, want[i]) {
							t.Errorf("sequence %d differs", i)
						}
					}
				})
			}
			for _, s := range shapes {
				t.Run(fmt.Sprintf("%s/bits%d/%s/pools%d/groups%d", name, bits, s.topology, s.pools, s.groups), func(t *testing.T) {
					for i, got := range run(fakes(t, s.topology), s.pools, s.groups) {
						if len(got) == 0 || !slices.Equal(got, want[i]) {
							t.Errorf("sequence %d differs", i)
						}
					}
				})
			}
		}
	}
}
