package actors

import (
	"fmt"
	"slices"
	"testing"

	"krater/actors/engine"
	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/attention"
	"krater/stages/load"
	"krater/stages/model"
)

// recurrent is a mixer for tests that keeps states of every kind: a sum over all tokens, the
// token before, as the tail of a convolution of two, and a ring of the newest tokens. It adds all
// of them to what grouped-query attention computes, or with alone stands in its place and has no
// rows in blocks.
type recurrent struct {
	model.GQA
	hidden int
	alone  bool
}

// ringRows is the size of the ring: it does not divide a block, a chunk or a piece.
const ringRows = 3

func (m recurrent) State() []model.State {
	list := []model.State{
		{Kind: model.Recurrent, Width: m.hidden, Rows: 1}, {Kind: model.Recurrent, Width: m.hidden, Rows: 1},
		{Kind: model.Ring, Width: m.hidden, Group: m.hidden, Rows: ringRows},
	}
	if m.alone {
		return list
	}
	return append(list, m.GQA.State()...)
}

var _ = attention.Register(func(m recurrent, b attention.Binder) attention.Block {
	x, err := attention.Bind(m.GQA, b)
	if err != nil {
		panic(err)
	}
	return &recurrentBlock{m, x}
})

type recurrentBlock struct {
	recurrent
	rows attention.Block
}

func (b *recurrentBlock) New(dev device.Device, lim stages.Limits, tables attention.Tables) (attention.Stage, error) {
	rows, err := b.rows.New(dev, lim, tables)
	return &recurrentStage{rows, b.recurrent}, err
}

type recurrentStage struct {
	attention.Stage
	recurrent
}

func (x *recurrentStage) Run(p *stages.Program, st *stages.State, b attention.Block, kept []device.KV, layer int) {
	sum, tail, ring := kept[0], kept[1], kept[2]
	if x.alone {
		p.CopyRows(st.Delta, st.Normed)
	} else {
		x.Stage.Run(p, st, b.(*recurrentBlock).rows, kept[3:], layer)
	}
	row := func(m device.Mat, i int) device.Mat { return m.RowRange(i, i+1) }
	for _, spans := range [][]device.Span{st.Prefill, st.Decode} {
		for _, sp := range spans {
			for i := range sp.Len {
				in, out, pos := row(st.Normed, sp.Row+i), row(st.Delta, sp.Row+i), sp.Pos+i
				p.Add(out, row(tail.Mat, sp.Slot))
				p.CopyRows(row(tail.Mat, sp.Slot), in)
				p.Add(row(sum.Mat, sp.Slot), in)
				p.Add(out, row(sum.Mat, sp.Slot))
				p.CopyRows(row(ring.Mat, sp.Slot*ringRows+pos%ringRows), in)
				for back := range min(ringRows, pos+1) {
					p.Add(out, row(ring.Mat, sp.Slot*ringRows+(pos-back)%ringRows))
				}
			}
		}
	}
}

// withStates gives the layers of a model of three mixers that keep states, in one of them nothing
// else.
func withStates(_ *cpu.Device, l *loaded, _ *load.Options) {
	for i := range l.cfg.Layers {
		a := l.cfg.Layers[i].Mixer.(model.GQA)
		l.cfg.Layers[i].Mixer = recurrent{a, l.cfg.Hidden, i == 1}
	}
}

// TestStatesAnswerAlike: with states of sequences beside the KV cache requests have the same
// answers, bit for bit, whether their prompts are computed in chunks of any size, begin with a
// prefix from the cache or are computed anew after a preemption: on one rank and on two, of the
// processor and of simulated devices.
func TestStatesAnswerAlike(t *testing.T) {
	var want [][]engine.Token
	for _, x := range []struct {
		chunk     int
		sizes     []int
		simulated bool
		policy    Policy
		blocks    int
	}{
		{chunk: 64, sizes: []int{3}, policy: Policy{NoReuse: true}, blocks: 200}, // each alone from its first token
		{chunk: 1, sizes: []int{3}, blocks: 14},
		{chunk: 7, sizes: []int{3}, blocks: 14},
		{chunk: 64, sizes: []int{3}, blocks: 14, simulated: true},
		{chunk: 7, sizes: []int{2, 1}, blocks: 14},
		{chunk: 64, sizes: []int{1, 2}, blocks: 14, simulated: true},
	} {
		name := fmt.Sprintf("chunks of %d, layers %v, simulated %t", x.chunk, x.sizes, x.simulated)
		o := setup{dir: golden("qwen2"), depth: 3, chunk: x.chunk, share: 64, change: withStates,
			limits: stages.Limits{Tokens: 80, Seqs: 6, Blocks: x.blocks, BlockTokens: 8, Window: 24, Snapshots: 24}}.defaults()
		h := newHold(6)
		o.wrap = h.wrap
		l := loadModel(t, o)
		p := l.over(t, o, l.spread(t, o, x.sizes, x.simulated), func(opt *Options) {
			opt.Policy.NoReuse = x.policy.NoReuse
		})
		gw := l.open(t, p)
		got := conversation(t, gw, h.release)
		s := gw.Stats()
		if want == nil {
			want = got
			if s.Preemptions+s.PrefixHits > 0 {
				t.Fatalf("%s: %d preemptions, %d tokens from the cache where there should be none", name, s.Preemptions, s.PrefixHits)
			}
			continue
		}
		for i := range got {
			if !slices.EqualFunc(got[i], want[i], sameToken) {
				t.Errorf("%s: answer %d: %v, want %v", name, i, got[i], want[i])
			}
		}
		if s.Preemptions == 0 || s.PrefixHits == 0 {
			t.Errorf("%s: %d preemptions, %d tokens from the cache: the test is too easy", name, s.Preemptions, s.PrefixHits)
		}
	}
}

// TestStatesArePlanned: the memory of states is part of the plan, to the byte.
func TestStatesArePlanned(t *testing.T) {
	var used, planned [2]int64
	for i, change := range []func(*cpu.Device, *loaded, *load.Options){nil, withStates} {
		o := setup{dir: golden("qwen2"), kv: tensor.I8, simulated: true, change: change, limits: small(3)}.defaults()
		l := loadModel(t, o)
		used[i] = l.dev.Memory().Used
		needs, err := load.Plan(l.cfg, load.Options{Limits: o.limits, KVType: o.kv}, load.Use{})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range needs {
			if n.Part.Allocated() {
				planned[i] += n.Bytes
			}
		}
	}
	if used[1]-used[0] != planned[1]-planned[0] || used[0] == used[1] {
		t.Errorf("states take %d bytes more, planned are %d", used[1]-used[0], planned[1]-planned[0])
	}
}
