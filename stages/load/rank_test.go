package load_test

import (
	"slices"
	"strings"
	"testing"

	"krater/stages"
	"krater/stages/load"
)

// TestDivide: ranks have the layers they are given, and at least one group each.
func TestDivide(t *testing.T) {
	for _, x := range []struct {
		layers, groups int
		ranks          []int
		want           [][]int // sizes of the groups of each rank
		err            string
	}{
		{4, 1, []int{4}, [][]int{{4}}, ""},
		{4, 3, []int{4}, [][]int{{2, 1, 1}}, ""},
		{4, 9, []int{4}, [][]int{{1, 1, 1, 1}}, ""},
		{4, 1, []int{1, 1, 1, 1}, [][]int{{1}, {1}, {1}, {1}}, ""},
		{4, 3, []int{3, 1}, [][]int{{2, 1}, {1}}, ""},
		{27, 4, []int{9, 9, 9}, [][]int{{5, 4}, {9}, {9}}, ""},
		{27, 27, []int{20, 7}, [][]int{slices.Repeat([]int{1}, 20), slices.Repeat([]int{1}, 7)}, ""},
		{4, 1, nil, nil, "0 ranks of 4 layers"},
		{4, 1, []int{1, 1, 1, 1, 1}, nil, "5 ranks of 4 layers: want 1 to 4"},
		{4, 1, []int{2, 1}, nil, "hold 3, the model has 4"},
		{4, 1, []int{2, 3}, nil, "rank 1 cannot have 3"},
		{4, 1, []int{4, 1}, nil, "rank 0 cannot have 4"},
		{4, 1, []int{0, 4}, nil, "rank 0 cannot have 0"},
		{4, 1, []int{-1, 5}, nil, "rank 0 cannot have -1"},
	} {
		cuts, err := load.Divide(x.layers, x.groups, x.ranks)
		if x.err != "" {
			if err == nil || !strings.Contains(err.Error(), x.err) {
				t.Errorf("%v of %d layers: %v, want %q", x.ranks, x.layers, err, x.err)
			}
			continue
		}
		at := 0
		for i, c := range cuts {
			if c.First != at || !slices.Equal(c.Groups, x.want[i]) || c.Layers() != x.ranks[i] {
				t.Errorf("%v of %d layers in %d groups: rank %d is %+v, want groups %v from layer %d", x.ranks, x.layers, x.groups, i, c, x.want[i], at)
			}
			at += c.Layers()
		}
	}
}

// TestRanks: a rank is loaded with its layers alone, as planned, and all ranks together have the
// model once; a tied head has a table of its own where the embedding is elsewhere.
func TestRanksOfModel(t *testing.T) {
	for _, dir := range planned {
		cfg, ws := openModel(t, dir)
		whole := load.Options{Limits: stages.Limits{Tokens: 40, Seqs: 4, LogitRows: 30, Blocks: 16, BlockTokens: 8}}
		sizes := load.Even(len(cfg.Layers), min(3, len(cfg.Layers)))
		cuts, err := load.Divide(len(cfg.Layers), len(sizes), sizes)
		if err != nil {
			t.Fatal(err)
		}
		sum := int64(0)
		for i, c := range cuts {
			o := whole.On(c)
			needs, err := load.Plan(cfg, o, load.Use{States: 1, Streams: 1, Threads: 1})
			if err != nil {
				t.Fatal(err)
			}
			dev := processor(t, 0)
			p, err := load.Model(dev, cfg, ws, o)
			if err != nil {
				t.Fatal(err)
			}
			if first, last := i == 0, i == len(cuts)-1; (p.Embed != nil) != first || (p.Head != nil) != last {
				t.Errorf("%s, rank %d: embedding %t, head %t", dir, i, p.Embed != nil, p.Head != nil)
			}
			for j, g := range p.Groups {
				if first := c.First + groupLayers(c.Groups[:j]); g.First != first || g.Last != first+c.Groups[j] {
					t.Errorf("%s, rank %d, group %d: layers [%d, %d)", dir, i, j, g.First, g.Last)
				}
			}
			rows, err := stages.NewRows(dev, cfg, p.Limits, p.Head != nil)
			if err != nil {
				t.Fatal(err)
			}
			bound, allocated, _ := sums(needs)
			if !near(bound, p.WeightBytes, 0.01) {
				t.Errorf("%s, rank %d: %d bytes of weights planned, %d bound", dir, i, bound, p.WeightBytes)
			}
			if used := dev.Memory().Used - p.MadeBytes; !near(allocated, used, 0.01) {
				t.Errorf("%s, rank %d: %d bytes planned, %d allocated", dir, i, allocated, used)
			}
			sum += p.WeightBytes
			rows.Close()
			p.Close()
		}
		p, err := load.Model(processor(t, 0), cfg, ws, whole)
		if err != nil {
			t.Fatal(err)
		}
		want := p.WeightBytes
		if cfg.TieEmbed {
			want += int64(p.Embed.Table.Bytes())
		}
		if sum != want {
			t.Errorf("%s: the ranks have %d bytes of weights, the model %d", dir, sum, want)
		}
		p.Close()
		for _, bad := range []load.Cut{{First: len(cfg.Layers), Groups: []int{1}}, {First: 1, Groups: []int{len(cfg.Layers)}}, {First: -1, Groups: []int{1}}} {
			if p, err := load.Model(processor(t, 0), cfg, ws, whole.On(bad)); err == nil {
				p.Close()
				t.Errorf("%s: %+v was loaded", dir, bad)
			}
		}
	}
}

func groupLayers(list []int) (n int) {
	for _, x := range list {
		n += x
	}
	return n
}
