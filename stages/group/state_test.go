package group

import (
	"slices"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/attention"
	"krater/stages/model"
)

// keeping is a mixer that keeps a ring and a recurrent state, and computes nothing.
type keeping struct{ model.GQA }

func (keeping) State() []model.State {
	return []model.State{{Kind: model.Ring, Width: 64, Group: 32, Rows: 3}, {Kind: model.Recurrent, Width: 5, Rows: 2}}
}

func (keeping) New(device.Device, stages.Limits, attention.Tables) (attention.Stage, error) {
	return idle{}, nil
}

type idle struct{}

func (idle) Run(*stages.Program, *stages.State, attention.Block, []device.KV, int) {}
func (idle) Close()                                                                {}

// keepingGroup is a group of two layers without weights, with a state of a step.
func keepingGroup(t *testing.T) (g *Group, st *stages.State, s device.Stream) {
	dev, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	cfg := &model.Config{Hidden: 4, Vocab: 4, MaxContext: 64}
	cfg.Stack(2, nil, func(int) (model.Mixer, model.FFN) { return keeping{}, model.Dense{FF: 4} })
	lim, err := stages.Limits{Tokens: 4, Seqs: 3, Blocks: 2, BlockTokens: 4, Snapshots: 2}.For(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if g, err = New(dev, cfg, lim, tensor.I8, 0, []Layer{{Attention: keeping{}}, {Attention: keeping{}}}, nil, nil); err != nil {
		t.Fatal(err)
	}
	if st, err = stages.NewState(dev, cfg, lim); err != nil {
		t.Fatal(err)
	}
	if s, err = dev.NewStream(); err != nil {
		t.Fatal(err)
	}
	if n := g.KVBytes(); n != 4*cfg.SequenceBytes(tensor.I8) {
		t.Errorf("%d bytes of running states, of a sequence %d", n, cfg.SequenceBytes(tensor.I8))
	}
	t.Cleanup(func() {
		st.Close()
		g.Close()
		dev.Close()
	})
	return g, st, s
}

// TestMoveStates: whole states of sequences are copied to snapshots and back, with their scales,
// in every layer, and nothing else changes; a sequence that begins has zeros.
func TestMoveStates(t *testing.T) {
	g, st, s := keepingGroup(t)
	var mats []device.Mat // of all states but for the zeros
	var rows []int
	var want [][]byte
	mark := byte(0)
	for i := range g.states {
		x := &g.states[i]
		for _, m := range []device.Mat{x.running.Mat, x.running.Scales, x.snapshots.Mat, x.snapshots.Scales} {
			if m.Zero() {
				continue
			}
			b := m.Buf.Host()[:m.Bytes()]
			if n := m.Rows / x.Rows; n == 3+1 {
				b = b[:len(b)/n*3]
			}
			for j := range b {
				mark++
				b[j] = mark
			}
			mats, rows, want = append(mats, m), append(rows, x.Rows*m.Bytes()/m.Rows), append(want, slices.Clone(b))
		}
	}
	if len(mats) != 2*6 {
		t.Fatalf("%d matrices", len(mats))
	}
	part := func(i, at int) []byte { return want[i][at*rows[i] : (at+1)*rows[i]] }
	for i := 0; i < len(mats); i += 6 { // rings, their scales, their snapshots, and the scales of those; the other state
		for _, x := range [][2]int{{i, i + 2}, {i + 1, i + 3}, {i + 4, i + 5}} {
			copy(part(x[1], 1), part(x[0], 2))
			copy(part(x[0], 0), part(x[1], 0))
		}
		clear(part(i+4, 1))
	}
	if err := st.Fill(s, &stages.Step{
		Tokens: []int32{1, 2}, Moves: []stages.Move{{Kind: stages.SaveState, From: 2, To: 1}, {Kind: stages.LoadState, From: 0, To: 0}},
		Spans: []stages.Span{
			{Span: device.Span{Slot: 2, Len: 1, Pos: 4, Blocks: []int32{0, 1}}},
			{Span: device.Span{Slot: 1, Row: 1, Len: 1, Blocks: []int32{0}}},
		},
	}); err != nil {
		t.Fatal(err)
	}
	g.Move(s, st)
	if err := s.Synchronize(); err != nil {
		t.Fatal(err)
	}
	for i, m := range mats {
		if got := m.Buf.Host()[:len(want[i])]; !slices.Equal(got, want[i]) {
			t.Errorf("matrix %d: %v, want %v", i, got, want[i])
		}
	}
}

// TestSlots: where states are kept by slot, no two sequences of a step share one.
func TestSlots(t *testing.T) {
	cfg := &model.Config{Hidden: 4, Vocab: 4, MaxContext: 64}
	cfg.Stack(1, nil, func(int) (model.Mixer, model.FFN) { return keeping{}, model.Dense{FF: 4} })
	lim, err := stages.Limits{Tokens: 4, Seqs: 3, Blocks: 2, BlockTokens: 4}.For(cfg)
	if err != nil || lim.Snapshots != 3 {
		t.Fatalf("%+v, %v", lim, err)
	}
	step := stages.NewStep(cfg, lim)
	for slot, ok := range map[int]bool{0: true, 2: true, 1: false, 3: false, -1: false} {
		err := step.Fill(&stages.Step{Tokens: []int32{1, 2}, Spans: []stages.Span{
			{Span: device.Span{Slot: 1, Len: 1, Blocks: []int32{0}}}, {Span: device.Span{Slot: slot, Row: 1, Len: 1, Blocks: []int32{1}}},
		}})
		if (err == nil) != ok {
			t.Errorf("slots 1 and %d: %v", slot, err)
		}
	}
}
