package synth

import (
	"context"
	"maps"
	"math"
	"slices"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/direct"
	"krater/stages/drive"
	"krater/stages/load"
	"krater/stages/weights"
	"krater/stages/weights/cache"
)

var limits = stages.Limits{Tokens: 256, Seqs: 2, Blocks: 40, BlockTokens: 32}

func processor(t testing.TB) *cpu.Device {
	t.Helper()
	dev, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	return dev
}

// prompt is n tokens that follow from a seed.
func prompt(n, vocab int, seed uint64) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(random(seed, uint64(i)) % uint64(vocab))
	}
	return ids
}

// greedy runs a prompt and gives the tokens that follow.
func greedy(t testing.TB, dev load.Device, parts *load.Parts, n int) []int32 {
	t.Helper()
	m, err := direct.New(dev, parts)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	s := &drive.Sequence{Prompt: prompt(20, parts.Config.Vocab, 9), New: n}
	s.See = func(_ int, logits []float32) {
		for _, v := range logits {
			if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
				t.Fatalf("a logit is %v", v)
			}
		}
	}
	if err := drive.Run(m, []*drive.Sequence{s}, drive.Options{}); err != nil {
		t.Fatal(err)
	}
	return s.Out
}

// precisions of the tests: everything as it is; a mixture; three bits; all of it INT4.
var precisions = map[string]load.Precision{
	"bf16":  {},
	"mixed": {Experts: tensor.INT4.By(128), Shared: tensor.INT8.By(128), Dense: tensor.INT8.By(128), Head: tensor.INT8.By(128)},
	"q8_0":  {Experts: tensor.Q8_0.By(32), Attention: tensor.Q8_0.By(32), Shared: tensor.INT4.By(32), Dense: tensor.Q8_0.By(32), Head: tensor.INT8.By(32)},
	"int3":  {Experts: tensor.INT3.By(64), Shared: tensor.INT4.By(64), Dense: tensor.INT3.By(64), Head: tensor.INT8.By(64)},
	"int4":  {Experts: tensor.INT4.By(32), Attention: tensor.INT4.By(32), Shared: tensor.INT4.By(32), Dense: tensor.INT4.By(32), Head: tensor.INT4.By(32)},
}

// TestLoad: a model in memory answers, its size is that of the plan, and nothing is
// left afterwards.
func TestLoad(t *testing.T) {
	for i, name := range slices.Sorted(maps.Keys(precisions)) {
		p := precisions[name]
		for j, skew := range []Skew{Uniform, Zipf} {
			if testing.Short() && (i+j)%2 > 0 {
				continue // the next precision has it
			}
			m, dev := small(t, Options{Seed: 1, Skew: skew}), processor(t)
			var done, all int64
			o := load.Options{Limits: limits, KVType: tensor.F32, Precision: p, Partition: []int{2, 2}}
			o.Progress = func(phase string, now, of int64) {
				if phase != "make weights" || now < done || of != all && all != 0 {
					t.Errorf("%s: %s: %d of %d after %d of %d", name, phase, now, of, done, all)
				}
				done, all = now, of
			}
			l, err := m.Load(dev, o, 2)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if done != all || all != l.Parts.WeightBytes {
				t.Errorf("%s: progress ended at %d of %d, %d bytes of weights", name, done, all, l.Parts.WeightBytes)
			}
			needs, err := load.Plan(m.Config, o, load.Use{})
			if err != nil {
				t.Fatal(err)
			}
			var planned int64
			for _, n := range needs {
				if n.Part.Weight() {
					planned += n.Bytes
				}
			}
			if l.Parts.WeightBytes != planned {
				t.Errorf("%s: %d bytes of weights, planned %d", name, l.Parts.WeightBytes, planned)
			}
			if ids := greedy(t, dev, l.Parts, 12); len(ids) != 12 || slices.Max(ids) == slices.Min(ids) {
				t.Errorf("%s: %v", name, ids)
			}
			l.Close()
			if used := dev.Memory().Used; used != 0 {
				t.Errorf("%s: %d bytes left", name, used)
			}
		}
	}
}

// TestLoadOutOfMemory: wherever the budget ends, nothing stays.
func TestLoadOutOfMemory(t *testing.T) {
	m := small(t, Options{})
	for budget := int64(1); budget < 8<<20; budget *= 5 {
		dev, err := cpu.New(cpu.Options{Threads: 1, Budget: budget})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Load(dev, load.Options{Limits: limits, Precision: precisions["int4"]}, 2); err == nil {
			t.Errorf("%d bytes: loaded", budget)
		}
		if used := dev.Memory().Used; used != 0 {
			t.Errorf("%d bytes: %d left", budget, used)
		}
		dev.Close()
	}
}

// counter counts the experts that a router chooses.
type counter struct{ count map[int][]int }

func (c *counter) Observe(_ device.Stream, layer int, what string, m device.Mat, _ *stages.State) {
	if what != "router_ids" {
		return
	}
	for r := range m.Rows {
		for _, id := range m.RowRange(r, r+1).I32s() {
			c.count[layer][id]++
		}
	}
}

// counted is how often the routers of each layer with experts choose each for a text.
func counted(t testing.TB, m *Model, p load.Precision, text []int32) map[int][]int {
	t.Helper()
	dev := processor(t)
	l, err := m.Load(dev, load.Options{Limits: limits, Precision: p}, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d, err := direct.New(dev, l.Parts)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	c := &counter{count: map[int][]int{}}
	for i := range m.Config.Layers {
		if m.Config.MoELayer(i) {
			c.count[i] = make([]int, m.Config.MoE.Experts)
		}
	}
	if err := drive.Run(d, []*drive.Sequence{{Prompt: text}}, drive.Options{Probe: c}); err != nil {
		t.Fatal(err)
	}
	return c.count
}

// shares is the work of the hottest quarter of each layer's experts.
func shares(t testing.TB, m *Model, p load.Precision, tokens int, seed uint64) map[int]float64 {
	t.Helper()
	out := map[int]float64{}
	for i, count := range counted(t, m, p, prompt(tokens, m.Config.Vocab, seed)) {
		out[i] = Hottest(count)
	}
	return out
}

// TestSkew: the hottest quarter does half of the work in every layer, for any
// prompt and precision; with uniform routing it does little more than its share.
func TestSkew(t *testing.T) {
	for name, p := range precisions {
		for _, seed := range []uint64{1, 2} {
			for layer, share := range shares(t, small(t, Options{Seed: seed, Skew: Zipf}), p, 1000, seed) {
				if share < 0.45 || share > 0.60 {
					t.Errorf("%s, seed %d, layer %d: the hottest quarter does %.3f of the work", name, seed, layer, share)
				}
			}
		}
		for layer, share := range shares(t, small(t, Options{Seed: 1}), p, 1000, 1) {
			if share > 0.40 {
				t.Errorf("%s, uniform, layer %d: the hottest quarter does %.3f of the work", name, layer, share)
			}
		}
	}
}

// TestSkewDrifts: in a text about one topic a quarter of the experts does half of the work, and it is not the quarter
// of another topic. Text changes the topic when it should.
func TestSkewDrifts(t *testing.T) {
	m := small(t, Options{Seed: 5, Skew: Zipf, Drift: 500})
	text := prompt(1000, m.Config.Vocab, 1)
	Text(text, 0, 500, m.Config.Vocab)
	for i, id := range text {
		if Topic(int(id)) != i/500 || int(id) >= m.Config.Vocab {
			t.Fatalf("token %d is %d", i, id)
		}
	}
	one, two := counted(t, m, load.Precision{}, text[:500]), counted(t, m, load.Precision{}, text[500:])
	for layer, count := range one {
		order := make([]int, len(count)) // experts, the hottest of the first topic first
		for e := range order {
			order[e] = e
		}
		slices.SortFunc(order, func(a, b int) int { return count[b] - count[a] })
		hot, all := 0, 0
		for i, e := range order {
			if all += two[layer][e]; i < len(order)/4 {
				hot += two[layer][e]
			}
		}
		if a, b := Hottest(count), Hottest(two[layer]); min(a, b) < 0.42 || max(a, b) > 0.62 || float64(hot) > 0.4*float64(all) {
			t.Errorf("layer %d: the hottest quarters do %.3f and %.3f of the work, that of one topic %.3f of another's", layer, a, b, float64(hot)/float64(all))
		}
	}
}

// TestSkewIgnoresThePrompt: the hot experts of two prompts are the same.
func TestSkewIgnoresThePrompt(t *testing.T) {
	m := small(t, Options{Seed: 5, Skew: Zipf})
	order := func(seed uint64) []int {
		count := counted(t, m, load.Precision{}, prompt(1000, 512, seed))
		ids := make([]int, 32)
		for i := range ids {
			ids[i] = i
		}
		slices.SortFunc(ids, func(a, b int) int { return count[3][b] - count[3][a] })
		return ids[:8]
	}
	a, b := order(1), order(2)
	same := 0
	for _, id := range a {
		if slices.Contains(b, id) {
			same++
		}
	}
	if same < 7 {
		t.Errorf("hot experts %v and %v", a, b)
	}
}

// TestFolders: what is written loads, and answers as the same model in memory does.
func TestFolders(t *testing.T) {
	m, dev := small(t, Options{Seed: 6, Skew: Zipf}), processor(t)
	o := load.Options{Limits: limits, KVType: tensor.F32}
	l, err := m.Load(dev, o, 2)
	if err != nil {
		t.Fatal(err)
	}
	want := greedy(t, dev, l.Parts, 16)
	l.Close()
	dir := t.TempDir()
	if err := m.WriteSafetensors(context.Background(), Folder{Dir: dir, Threads: 2, shard: 300_000}); err != nil {
		t.Fatal(err)
	}
	set, err := weights.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	p, err := load.Model(dev, m.Config, set, o)
	if err != nil {
		t.Fatal(err)
	}
	if got := greedy(t, dev, p, 16); !slices.Equal(got, want) {
		t.Errorf("safetensors: %v, in memory %v", got, want)
	}
	p.Close()

	o.Precision = load.Precision{Experts: tensor.INT4.By(64)}
	if l, err = m.Load(dev, o, 2); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	want = greedy(t, dev, l.Parts, 16)
	spec := tensor.INT4.By(64)
	dir = t.TempDir()
	if err := m.WriteCache(context.Background(), Folder{Dir: dir, Threads: 2}, spec); err != nil {
		t.Fatal(err)
	}
	small, err := weights.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer small.Close()
	kept := openCache(t, dev, m, small, dir, spec)
	o.Experts = func(layer int) []device.QExpert { return kept.Experts(tensor.CPU, layer) }
	if p, err = load.Model(dev, m.Config, small, o); err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if got := greedy(t, dev, p, 16); !slices.Equal(got, want) {
		t.Errorf("cache: %v, in memory %v", got, want)
	}
}

// openCache opens the cache of a folder as a start does: it has to be there.
func openCache(t *testing.T, dev device.Device, m *Model, set *weights.Set, dir string, spec tensor.Format) *cache.Cache {
	t.Helper()
	print, err := cache.FingerprintOf(m.JSON, m.Config, set)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := cache.NewPlan(m.Config, spec, cache.Search, print)
	if err != nil {
		t.Fatal(err)
	}
	c, err := cache.Open(context.Background(), dev, cache.Options{Plan: plan, Model: dir, Source: &cache.Weights{Config: m.Config, Set: set, Format: spec, Method: cache.Search},
		Notice: func(line string) { t.Error(line) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if c.Report != nil {
		t.Error("the cache was built anew")
	}
	return c
}

// TestDense: a model without experts, its head tied to the embedding or not, answers
// from memory as from its files, whatever its depth.
func TestDense(t *testing.T) {
	for _, x := range []struct {
		tied   string
		layers int
		bits   int
	}{{"true", 2, 0}, {"true", 24, 0}, {"false", 24, 0}, {"true", 3, 8}, {"false", 3, 4}} {
		config := `{"model_type": "qwen2", "hidden_size": 128, "intermediate_size": 160, "num_hidden_layers": 24, "vocab_size": 300,
			"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
			"tie_word_embeddings": ` + x.tied + `}`
		m, err := FromConfig("dense", []byte(config), Options{Layers: x.layers, Skew: Zipf})
		if err != nil {
			t.Fatal(err)
		}
		dev := processor(t)
		o := load.Options{Limits: limits, KVType: tensor.F32, Precision: load.Precision{Attention: tensor.Integers(x.bits).By(32), Dense: tensor.Integers(x.bits).By(32), Head: tensor.Integers(x.bits).By(32)}}
		l, err := m.Load(dev, o, 2)
		if err != nil {
			t.Fatal(err)
		}
		ids := greedy(t, dev, l.Parts, 16)
		if l.Close(); len(ids) != 16 {
			t.Errorf("%+v: %v", x, ids)
		}
		if x.bits != 0 {
			continue
		}
		dir := t.TempDir()
		if err := m.WriteSafetensors(context.Background(), Folder{Dir: dir}); err != nil {
			t.Fatal(err)
		}
		set, err := weights.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		p, err := load.Model(dev, m.Config, set, o)
		if err != nil {
			t.Fatal(err)
		}
		if got := greedy(t, dev, p, 16); !slices.Equal(got, ids) {
			t.Errorf("%+v: %v from files, %v in memory", x, got, ids)
		}
		p.Close()
		set.Close()
	}
}

// TestHeads: kv_b_proj as integers, a matrix a head and direction.
func TestHeads(t *testing.T) {
	m, dev := small(t, Options{}), processor(t)
	l, err := m.Load(dev, load.Options{Limits: limits, Precision: load.Precision{KVB: tensor.INT8.By(32)}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	row := make([]float32, 64)
	s := &store{m: m, l: l, dev: dev, threads: 1}
	for name, f := range map[string]tensor.Layout{
		"layer.2.kv_b.1.k": {Format: tensor.INT8.By(32), Rows: 64, Cols: 32},
		"layer.2.kv_b.1.v": {Format: tensor.INT8.By(32), Rows: 32, Cols: 64},
	} {
		q, err := s.Matrix(name, f, nil)
		if err != nil {
			t.Fatal(err)
		}
		square := 0.0
		for r := range f.Rows {
			f.Row(row, q.Values.Host()[q.ValueAt:], q.Scales.Host()[q.ScaleAt:], r)
			for _, v := range row[:f.Cols] {
				square += float64(v) * float64(v) / float64(f.Rows*f.Cols)
			}
		}
		// Of 2048 values the spread is within 5/sqrt(2*2048) of 1/sqrt(64).
		if std := math.Sqrt(square); math.Abs(std-0.125) > 0.125*0.1 {
			t.Errorf("%s: spread %.4f, want 0.125", name, std)
		}
	}
}
