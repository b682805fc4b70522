package placement_test

import (
	"io/fs"
	"os"
	"slices"
	"testing"

	"krater/actors/placement"
	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/hostsim"
	"krater/kernels/tensor"
	"krater/models"
	"krater/scheduler/dispatch"
	"krater/stages"
	"krater/stages/direct"
	"krater/stages/drive"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/offload"
	"krater/stages/synth"
	"krater/stages/weights"
	"krater/stages/weights/quant"
	"krater/stages/weights/scaled"
)

var (
	_ load.Device  = (*hostsim.Device)(nil)
	_ drive.Runner = (*placement.Model)(nil)
)

const golden = "../../testdata/goldens/deepseek_v2_lite"

// limits fit what the tests run.
var limits = stages.Limits{Tokens: 96, Seqs: 8, LogitRows: 96, Blocks: 80, BlockTokens: 16}

// source is a model's files.
type source struct {
	cfg  *model.Config
	set  *weights.Set
	made *synth.Model // instead of set: its weights are made
}

// open reads a model, krater-tiny for "".
func open(t testing.TB, dir string) *source {
	t.Helper()
	var (
		files fs.FS
		s     source
		err   error
	)
	if dir == "" {
		m, err := models.Default()
		if err != nil {
			t.Skip(err) // built without it
		}
		files = m
		s.set, err = weights.FromBytes(m.Weights())
		if err != nil {
			t.Fatal(err)
		}
	} else {
		files = os.DirFS(dir)
		if s.set, err = scaled.Open(dir); err != nil {
			t.Fatal(err)
		}
	}
	data, err := fs.ReadFile(files, "config.json")
	if err != nil {
		t.Fatal(err)
	}
	if s.cfg, err = model.Parse(data); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.set.Close(); err != nil {
			t.Error(err)
		}
	})
	return &s
}

// processor is the host.
func processor(t testing.TB) *cpu.Device {
	t.Helper()
	d, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// simulated is a device over the host. All its memory must be freed and its streams closed.
func simulated(t testing.TB, o hostsim.Options) *hostsim.Device {
	t.Helper()
	d, err := hostsim.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if used := d.Memory().Used; used != 0 {
			t.Errorf("%d bytes are still in use", used)
		}
		if n := d.Streams(); n != 0 {
			t.Errorf("%d streams are not closed", n)
		}
	})
	return d
}

// on loads a model with everything on dev.
func (s *source) on(t testing.TB, dev load.Device, o load.Options) *load.Parts {
	t.Helper()
	parts, err := load.Model(dev, s.cfg, s.set, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(parts.Close)
	return parts
}

// plain runs parts on dev.
func plain(t testing.TB, dev load.Device, parts *load.Parts) drive.Runner {
	t.Helper()
	m, err := direct.New(dev, parts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// placed runs a model with its experts placed.
func (s *source) placed(t testing.TB, dev load.Device, host *cpu.Device, lo load.Options, po placement.Options) drive.Runner {
	t.Helper()
	parts, p, err := placement.Load(dev, host, s.cfg, s.set, lo, po)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(parts.Close)
	t.Cleanup(p.Close)
	m, err := placement.NewModel(dev, host, parts, p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// quantised gives the routed experts as integers in the host's memory.
func (s *source) quantised(t testing.TB, host device.Device, f tensor.Format) func(layer int) []device.QExpert {
	t.Helper()
	matrix := func(rows, cols int, names ...string) device.QMat {
		var x []float32
		for _, name := range names {
			w, ok := s.set.Tensor(name)
			if !ok {
				t.Fatal(name)
			}
			part := make([]float32, rows*cols/len(names))
			if err := tensor.Widen(part, w.DType, w.Data); err != nil {
				t.Fatal(err)
			}
			x = append(x, part...)
		}
		q, err := quant.Quantize(x, rows, cols, f, quant.Options{Method: quant.Absmax})
		if err != nil {
			t.Fatal(err)
		}
		var bufs []device.Buffer
		w, err := load.Upload(host, q, &bufs)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(bufs[0].Free)
		return w
	}
	layers := map[int][]device.QExpert{}
	for layer := range s.cfg.Layers {
		if !s.cfg.MoELayer(layer) {
			continue
		}
		for e := range s.cfg.MoE.Experts {
			n := s.cfg.ExpertNames(layer, e)
			f, h := s.cfg.MoE.FF, s.cfg.Hidden
			layers[layer] = append(layers[layer], device.QExpert{W13: matrix(2*f, h, n.Gate, n.Up), W2: matrix(h, f, n.Down)})
		}
	}
	return func(layer int) []device.QExpert { return layers[layer] }
}

// heat is made-up counts of every layer that has experts; other seeds, other counts.
func (s *source) heat(seed int) (heat [][]uint32) {
	for layer := range s.cfg.Layers {
		if !s.cfg.MoELayer(layer) {
			continue
		}
		counts := make([]uint32, s.cfg.MoE.Experts)
		for e := range counts {
			counts[e] = uint32((e*7 + layer*5 + seed) % 11)
		}
		heat = append(heat, counts)
	}
	return heat
}

// slotBytes is the size of an expert on the device.
func (s *source) slotBytes(t testing.TB, host *cpu.Device, o load.Options) int64 {
	t.Helper()
	d := simulated(t, hostsim.Options{CPU: host})
	o.Routed = host
	x, err := offload.New(d, host, s.on(t, d, o))
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	return int64(x.SlotBytes())
}

// strategy finds one by name.
func strategy(t testing.TB, name string) dispatch.Strategy {
	t.Helper()
	s, err := dispatch.Parse(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// answer holds the result of a run: tokens and the bits of every logit.
type answer struct {
	tokens [][]int32
	logits []float32
}

// ask runs three prompts of the model's vocabulary in small chunks.
func ask(t testing.TB, r drive.Runner, vocab, chunk, tokens int) answer {
	t.Helper()
	var a answer
	var seqs []*drive.Sequence
	for i, n := range []int{13, 1, 30} {
		q := &drive.Sequence{New: tokens, See: func(_ int, logits []float32) { a.logits = append(a.logits, logits...) }}
		for j := range n {
			q.Prompt = append(q.Prompt, int32((7+31*i+17*j)%vocab))
		}
		seqs = append(seqs, q)
	}
	if err := drive.Run(r, seqs, drive.Options{Chunk: chunk}); err != nil {
		t.Fatal(err)
	}
	for _, q := range seqs {
		a.tokens = append(a.tokens, slices.Clone(q.Out))
	}
	return a
}

// equal holds got to the bits of want.
func equal(t *testing.T, want, got answer) {
	t.Helper()
	if len(want.logits) == 0 || len(want.tokens[0]) == 0 {
		t.Fatal("the reference is empty")
	}
	for i := range want.tokens {
		if !slices.Equal(want.tokens[i], got.tokens[i]) {
			t.Errorf("sequence %d: tokens %v, want %v", i, got.tokens[i], want.tokens[i])
		}
	}
	if !slices.Equal(want.logits, got.logits) {
		t.Error("logits have other bits")
	}
}
