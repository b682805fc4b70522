package direct_test

import (
	"slices"
	"testing"

	"krater/kernels/device"
	"krater/stages"
	"krater/stages/compare/goldens"
	"krater/stages/direct"
	"krater/stages/drive"
	"krater/stages/load"
)

// parted takes batches through a model part by part: all pieces of a batch through the
// layers of one before any goes on.
type parted struct {
	*direct.Model
	stream device.Stream
	state  *stages.State
	parts  []int
	order  [][2]int // window and layer of the last step
}

func (p *parted) Step(b *stages.Step, probe stages.Probe, read func(*stages.State) error) error {
	s, st := p.stream, p.state
	if err := st.Fill(s, b); err != nil {
		return err
	}
	p.Parts.Embed.Run(s, st, probe)
	p.order = p.order[:0]
	for _, g := range p.Parts.Groups {
		g.Move(s, st)
		for w, ok := g.Walk(st, p.parts), true; ok; ok = g.Next(s, st, &w) {
			p.order = append(p.order, [2]int{w.Window, w.Layer})
			if g.Attend(s, st, w.Layer, probe); !g.MoE(w.Layer) {
				continue
			}
			g.Ask(s, st, w.Layer)
			if err := s.Synchronize(); err != nil {
				return err
			}
			g.Experts(s, st, w.Layer, g.Work(st, w.Layer))
			g.Shared(s, st, w.Layer, probe)
			g.Combine(s, st, w.Layer, probe)
		}
	}
	p.Parts.Head.Run(s, st, probe)
	if err := s.Synchronize(); err != nil {
		return err
	}
	return read(st)
}

// TestWindowsAreBitwiseEqual: neither the pieces in which layers take a batch nor the
// parts of the model that all pieces pass together change a bit.
func TestWindowsAreBitwiseEqual(t *testing.T) {
	dev := processor(t, 2)
	windows := []int{1, 7, 16, 1000}
	for golden, name := range goldens.Names(t) {
		dir := folder(name)
		want := recorded(t, open(t, dev, dir, "config.json", load.Options{Limits: limits}).model, texts(t, dir, 5), 32)
		for i, window := range windows {
			if !turn(golden, i, len(windows)) {
				continue
			}
			lim := limits
			lim.Window = window
			m := open(t, dev, dir, "config.json", load.Options{Limits: lim, Partition: halves(t, dir)})
			st, err := stages.NewState(dev, m.model.Parts.Config, m.model.Parts.Limits)
			if err != nil {
				t.Fatal(err)
			}
			s, err := dev.NewStream()
			if err != nil {
				t.Fatal(err)
			}
			for what, r := range map[string]drive.Runner{
				"whole": m.model, "two parts": &parted{Model: m.model, stream: s, state: st, parts: []int{0, 1}},
				"three parts": &parted{Model: m.model, stream: s, state: st, parts: []int{0, 1, 2}},
			} {
				for i, got := range recorded(t, r, texts(t, dir, 5), 32) {
					if !slices.Equal(got, want[i]) {
						t.Errorf("%s in pieces of %d, %s: sequence %d has other bits", name, window, what, i)
					}
				}
			}
			st.Close()
			s.Close()
		}
	}
}

// TestWalk is the order of pieces and layers.
func TestWalk(t *testing.T) {
	dev := processor(t, 2)
	lim := limits
	lim.Window = 3
	m := open(t, dev, folder("deepseek_v2_lite"), "config.json", load.Options{Limits: lim, Partition: []int{1, 2}})
	st, err := stages.NewState(dev, m.model.Parts.Config, m.model.Parts.Limits)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	s, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		rows  int
		parts []int
		want  [][2]int
	}{
		{3, nil, [][2]int{{0, 0}, {0, 1}, {0, 2}}},
		{3, []int{0, 2}, [][2]int{{0, 0}, {0, 1}, {0, 2}}},
		{7, nil, [][2]int{{0, 0}, {1, 0}, {2, 0}, {0, 1}, {0, 2}, {1, 1}, {1, 2}, {2, 1}, {2, 2}}},
		{4, []int{0, 2}, [][2]int{{0, 0}, {1, 0}, {0, 1}, {1, 1}, {0, 2}, {1, 2}}},
	} {
		p := &parted{Model: m.model, stream: s, state: st, parts: c.parts}
		b := &stages.Step{Tokens: make([]int32, c.rows), Spans: []stages.Span{{Want: true, Span: device.Span{Len: c.rows, Blocks: []int32{1}}}}}
		if err := p.Step(b, nil, func(*stages.State) error { return nil }); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(p.order, c.want) || st.T != c.rows || st.Total() != c.rows {
			t.Errorf("%d rows, parts %v: %v and %d rows in the end, want %v", c.rows, c.parts, p.order, st.T, c.want)
		}
	}
}
