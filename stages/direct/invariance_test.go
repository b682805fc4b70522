package direct_test

import (
	"math"
	"slices"
	"sync"
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/compare"
	"krater/stages/compare/goldens"
	"krater/stages/direct"
	"krater/stages/drive"
	"krater/stages/expert"
	"krater/stages/load"
)

// texts are the golden's prompts, repeated with other beginnings up to n.
func texts(t testing.TB, dir string, n int) [][]int32 {
	t.Helper()
	g, err := compare.ReadGolden(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out [][]int32
	for i := range n {
		p := slices.Clone(g.Prompts[i%len(g.Prompts)].IDs)
		p[0] += int32(i)
		out = append(out, p)
	}
	return out
}

// recorded runs texts together and returns the bits of all their logits.
func recorded(t testing.TB, r drive.Runner, texts [][]int32, chunk int) [][]uint32 {
	t.Helper()
	bits := make([][]uint32, len(texts))
	seqs := make([]*drive.Sequence, len(texts))
	for i, p := range texts {
		seqs[i] = &drive.Sequence{Prompt: p, New: 6, See: func(_ int, row []float32) {
			for _, v := range row {
				bits[i] = append(bits[i], math.Float32bits(v))
			}
		}}
	}
	if err := drive.Run(r, seqs, drive.Options{Chunk: chunk}); err != nil {
		t.Fatal(err)
	}
	return bits
}

// TestBatchedIsBitwiseAlone: who else is in a batch does not change a bit.
func TestBatchedIsBitwiseAlone(t *testing.T) {
	dev := processor(t, 2)
	kinds := []tensor.DType{tensor.F32, tensor.BF16}
	for golden, name := range goldens.Names(t) {
		dir := folder(name)
		for i, kv := range kinds {
			if !turn(golden, i, len(kinds)) {
				continue
			}
			m := open(t, dev, dir, "config.json", load.Options{Limits: limits, KVType: kv})
			all := texts(t, dir, 8)
			const chunk = 9 // small enough that no batch cuts it shorter
			alone := make([][]uint32, len(all))
			for i := range all {
				alone[i] = recorded(t, m.model, all[i:i+1], chunk)[0]
			}
			for _, n := range []int{3, 8} {
				for i, got := range recorded(t, m.model, all[:n], chunk) {
					if !slices.Equal(got, alone[i]) {
						t.Errorf("%s, KV %s: sequence %d of %d differs from the same alone", name, kv, i, n)
					}
				}
			}
		}
	}
}

// TestGroupsAreBitwiseEqual: cutting the model does not change a bit.
func TestGroupsAreBitwiseEqual(t *testing.T) {
	dev := processor(t, 2)
	for _, name := range goldens.Names(t) {
		dir := folder(name)
		cfg, _ := files(t, dir, "config.json")
		var want [][]uint32
		for groups := 1; groups <= min(3, len(cfg.Layers)); groups++ {
			m := open(t, dev, dir, "config.json", load.Options{Limits: limits, Partition: load.Even(len(cfg.Layers), groups)})
			got := recorded(t, m.model, texts(t, dir, 3), 16)
			if want == nil {
				want = got
			}
			for i := range got {
				if !slices.Equal(got[i], want[i]) {
					t.Errorf("%s, %d groups: sequence %d differs from one group", name, groups, i)
				}
			}
		}
	}
}

// pooled is a Runner that deals the experts to pools, each on a stream and a
// goroutine of its own.
type pooled struct {
	m         *direct.Model
	dev       device.Device
	state     *stages.State
	main      device.Stream
	streams   []device.Stream
	partition expert.Partition
}

func (p *pooled) Limits() stages.Limits { return p.m.Limits() }

func (p *pooled) Step(b *stages.Step, probe stages.Probe, read func(*stages.State) error) error {
	if err := p.state.Fill(p.main, b); err != nil {
		return err
	}
	parts := make([][]device.ExpertRows, p.partition.Pools)
	p.m.Parts.Embed.Run(p.main, p.state, probe)
	for _, g := range p.m.Parts.Groups {
		g.Move(p.main, p.state)
		for layer := g.First; layer < g.Last; layer++ {
			g.Attend(p.main, p.state, layer, probe)
			if !g.MoE(layer) {
				continue
			}
			g.Ask(p.main, p.state, layer)
			if err := p.main.Synchronize(); err != nil {
				return err
			}
			p.partition.Divide(parts, g.Work(p.state, layer))
			var pools sync.WaitGroup
			for i := range parts {
				pools.Go(func() { g.Experts(p.streams[i], p.state, layer, parts[i]) })
			}
			g.Shared(p.main, p.state, layer, probe)
			pools.Wait()
			for _, s := range p.streams {
				p.main.Wait(s.Record())
			}
			g.Combine(p.main, p.state, layer, probe)
		}
	}
	p.m.Parts.Head.Run(p.main, p.state, probe)
	if err := p.main.Synchronize(); err != nil {
		return err
	}
	return read(p.state)
}

func newPooled(t testing.TB, dev device.Device, m *opened, partition expert.Partition) *pooled {
	t.Helper()
	p := &pooled{m: m.model, dev: dev, partition: partition}
	var err error
	if p.state, err = stages.NewState(dev, m.cfg, m.model.Limits()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.state.Close)
	if p.main, err = dev.NewStream(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.main.Close)
	for range partition.Pools {
		s, err := dev.NewStream()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		p.streams = append(p.streams, s)
	}
	return p
}

// TestPoolsAreBitwiseEqual: who computes which expert does not change a bit.
func TestPoolsAreBitwiseEqual(t *testing.T) {
	dev := processor(t, 2)
	for golden, name := range mixtures(t) {
		dir := folder(name)
		m := open(t, dev, dir, "config.json", load.Options{Limits: limits})
		all := texts(t, dir, 3)
		want := recorded(t, m.model, all, 16)
		experts := m.cfg.MoE.Experts
		scattered := expert.Even(experts, 3)
		for e := range scattered.Owner {
			scattered.Owner[e] = int32(e * 7 % 3)
		}
		partitions := []expert.Partition{expert.Even(experts, 1), expert.Even(experts, 2), expert.Even(experts, experts), scattered}
		for turned, p := range partitions {
			if !turn(golden, turned, len(partitions)) {
				continue
			}
			for i, got := range recorded(t, newPooled(t, dev, m, p), all, 16) {
				if !slices.Equal(got, want[i]) {
					t.Errorf("%s: %d pools: sequence %d differs", name, p.Pools, i)
				}
			}
		}
	}
}

// TestBatchesInterleave: two batches that take turns between the steps of every
// layer get the same bits as one after the other.
func TestBatchesInterleave(t *testing.T) {
	dev := processor(t, 2)
	dir := folder("deepseek_v2")
	m := open(t, dev, dir, "config.json", load.Options{Limits: limits, Partition: []int{2, 1}})
	batches := make([]*stages.Step, 2)
	want := make([][]float32, 2)
	states := make([]*stages.State, 2)
	s, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range texts(t, dir, 3)[1:] {
		blocks := []int32{0, 1, 2, 3, 4, 5}
		for j := range blocks {
			blocks[j] += int32(10 * i)
		}
		batches[i] = &stages.Step{Tokens: p, Spans: []stages.Span{{Span: device.Span{Len: len(p), Blocks: blocks}, Want: true}}}
		if err := m.model.Step(batches[i], nil, func(st *stages.State) error {
			want[i] = slices.Clone(st.LogitRow(0))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if states[i], err = stages.NewState(dev, m.cfg, m.model.Limits()); err != nil {
			t.Fatal(err)
		}
		defer states[i].Close()
		if err := states[i].Fill(s, batches[i]); err != nil {
			t.Fatal(err)
		}
		m.model.Parts.Embed.Run(s, states[i], nil)
	}
	for _, g := range m.model.Parts.Groups {
		for layer := g.First; layer < g.Last; layer++ {
			for _, step := range []func(st *stages.State){
				func(st *stages.State) { g.Attend(s, st, layer, nil) },
				func(st *stages.State) { g.Ask(s, st, layer); g.Work(st, layer) },
				func(st *stages.State) { g.Experts(s, st, layer, st.Work) },
				func(st *stages.State) { g.Shared(s, st, layer, nil) },
				func(st *stages.State) { g.Combine(s, st, layer, nil) },
			} {
				for _, st := range states {
					step(st)
				}
				if !g.MoE(layer) {
					break
				}
			}
		}
	}
	for i, st := range states {
		m.model.Parts.Head.Run(s, st, nil)
		if !slices.Equal(st.LogitRow(0), want[i]) {
			t.Errorf("batch %d differs from the same alone", i)
		}
	}
}

// choices records the experts of every token, sorted, in the order of layers.
type choices struct{ sets [][]int32 }

func (c *choices) Observe(s device.Stream, _ int, op string, m device.Mat, st *stages.State) {
	if op != "router_ids" {
		return
	}
	for r := range m.Rows {
		set := slices.Clone(m.RowRange(r, r+1).I32s())
		slices.Sort(set)
		c.sets = append(c.sets, set)
	}
}

// TestHalfPrecisionCache bounds what a BF16 KV cache costs. Rounding the cache
// alone must cost less than computing the whole model in bfloat16, whose error
// the goldens' facts state as relative L2 of p17's logits. No
// token may get other experts, since p17's router margins are wide.
func TestHalfPrecisionCache(t *testing.T) {
	dev := processor(t, 2)
	for name, allowed := range map[string]float64{"deepseek_v2_lite": 0.023, "deepseek_v2": 0.020, "qwen2": 0.012} {
		dir := folder(name)
		g, err := compare.ReadGolden(dir)
		if err != nil {
			t.Fatal(err)
		}
		p17 := g.Prompts[slices.IndexFunc(g.Prompts, func(p compare.Prompt) bool { return p.Name == "p17" })].IDs
		var logits [2][]float32
		var experts [2]choices
		moe := 0 // layers
		for i, kv := range []tensor.DType{tensor.F32, tensor.BF16} {
			m := open(t, dev, dir, "config.json", load.Options{Limits: limits, KVType: kv})
			q := &drive.Sequence{Prompt: p17, All: true, See: func(_ int, row []float32) { logits[i] = append(logits[i], row...) }}
			if err := drive.Run(m.model, []*drive.Sequence{q}, drive.Options{Probe: &experts[i]}); err != nil {
				t.Fatal(err)
			}
			for layer := range m.cfg.Layers {
				if i == 0 && m.cfg.MoELayer(layer) {
					moe++
				}
			}
		}
		if !slices.EqualFunc(experts[0].sets, experts[1].sets, slices.Equal) || len(experts[0].sets) != moe*len(p17) {
			t.Errorf("%s: other experts", name)
		}
		var diff, norm float64
		for i, want := range logits[0] {
			d := float64(logits[1][i]) - float64(want)
			diff, norm = diff+d*d, norm+float64(want)*float64(want)
		}
		relative := math.Sqrt(diff / norm)
		t.Logf("%s: relative error %.4f of %.4f allowed", name, relative, allowed)
		if !(relative < allowed) || relative == 0 { // zero: the cache was not BF16
			t.Errorf("%s: relative error %.4f, %.4f allowed", name, relative, allowed)
		}
	}
}

// TestStepDoesNotAllocate: a step in steady state makes no garbage.
func TestStepDoesNotAllocate(t *testing.T) {
	for _, run := range []struct {
		name      string
		threads   int
		kv        tensor.DType
		precision load.Precision
	}{
		{name: "deepseek_v2", threads: 1}, {name: "deepseek_v2", threads: 2}, {name: "qwen2", threads: 1}, {name: "qwen2", threads: 2},
		{"deepseek_v2_lite", 2, tensor.F8E4M3, load.Precision{Experts: tensor.INT4.By(64), Attention: tensor.INT8.By(64), KVB: tensor.INT8.By(64), Shared: tensor.INT4.By(64), Dense: tensor.INT8.By(64), Head: tensor.INT4.By(64)}},
		{"deepseek_v2", 2, tensor.I8, load.Precision{Experts: tensor.INT8.By(32), Attention: tensor.INT4.By(32), KVB: tensor.INT4.By(32), Shared: tensor.INT8.By(32), Dense: tensor.INT4.By(32), Head: tensor.INT8.By(32)}},
		{"qwen2", 2, tensor.I8, load.Precision{Attention: tensor.INT8.By(128), Dense: tensor.INT4.By(128), Head: tensor.INT8.By(128)}},
	} {
		dir, threads := folder(run.name), run.threads
		dev, o := processor(t, threads), load.Options{Limits: limits, Partition: []int{2, 1}, KVType: run.kv, Precision: run.precision}
		if !run.precision.Experts.Zero() {
			o = integers(t, dev, dir, o)
		}
		m := open(t, dev, dir, "config.json", o)
		blocks := []int32{3, 9, 4, 7}
		for _, b := range []*stages.Step{
			{Tokens: make([]int32, 1), Spans: []stages.Span{{Span: device.Span{Len: 1, Pos: 40, Blocks: blocks}, Decode: true, Want: true}}},
			{Tokens: make([]int32, 40), Spans: []stages.Span{
				{Span: device.Span{Len: 1, Pos: 40, Blocks: blocks}, Decode: true, Want: true},
				{Span: device.Span{Row: 1, Len: 39, Pos: 10, Blocks: []int32{10, 11, 12, 13}}, Seq: 1, Want: true}}},
		} {
			var read float32
			see := func(st *stages.State) error { read += st.LogitRow(0)[0]; return nil }
			n := testing.AllocsPerRun(20, func() {
				if err := m.model.Step(b, nil, see); err != nil {
					t.Fatal(err)
				}
			})
			if n != 0 {
				t.Errorf("%s %+v, %d rows, %d threads: %v allocations a step", run.name, run.precision, len(b.Tokens), threads, n)
			}
		}
	}
}
