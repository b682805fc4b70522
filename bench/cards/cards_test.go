package cards

import (
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"krater/kernels/cuda/bin"
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// h200 is the GPU on which the record was measured.
var h200 = launch.GPU{Name: "NVIDIA H200", SMs: 132, Hopper: true, SharedMax: 227 << 10}

func sources(t *testing.T) *Sources {
	t.Helper()
	text, err := os.ReadFile("../../kernels/cuda/bin/MANIFEST")
	if err != nil {
		t.Fatal(err)
	}
	m, err := bin.ParseManifest(text)
	if err != nil {
		t.Fatal(err)
	}
	if text, err = os.ReadFile("../../kernels/cuda/bin/RESOURCES"); err != nil {
		t.Fatal(err)
	}
	rows, err := bin.ParseResources(text)
	if err != nil {
		t.Fatal(err)
	}
	return NewSources(m, rows)
}

// TestEveryCaseCanBeBuilt: names differ, every case launches something, and its kernels are among
// the compiled ones, on a GPU with Hopper's build and on one without.
func TestEveryCaseCanBeBuilt(t *testing.T) {
	built := sources(t)
	older, least := h200, h200
	older.Hopper, older.SharedMax = false, 163<<10
	least.Hopper, least.SharedMax = false, 99<<10 // compute capability 8.6, 8.9 and 12.0
	for _, sizes := range []Sizes{V2Lite(), Qwen3(), Heads64(), Qwen3Next(), Native(), Small()} {
		seen := map[string]bool{}
		for _, c := range Table(sizes) {
			if seen[c.Name()] {
				t.Errorf("two cases are named %s", c.Name())
			}
			seen[c.Name()] = true
			if c.Bytes <= 0 || c.Rotate <= 0 || c.copies() < 1 {
				t.Errorf("%s: %g bytes, %d rotated in %d copies", c.Name(), c.Bytes, c.Rotate, c.copies())
			}
			for _, gpu := range []launch.GPU{h200, older, least} {
				kernels := c.Kernels(gpu)
				if n := c.shared(gpu); n > gpu.SharedMax {
					t.Errorf("%s: a block has %d bytes of shared memory, the GPU %d", c.Name(), n, gpu.SharedMax)
				}
				if len(kernels) == 0 {
					t.Errorf("%s launches nothing", c.Name())
				}
				if _, err := built.Hash(kernels); err != nil {
					t.Errorf("%s: %v", c.Name(), err)
				}
			}
		}
	}
}

// records returns the reports of the GPU, by model.
var records = map[string]string{"v2-lite": "../results/h200-kernels.json", "qwen3-30b-a3b": "../results/h200-kernels-qwen3.json", "heads-64": "../results/h200-kernels-heads64.json",
	"qwen3-next-80b-a3b": "../results/h200-kernels-qwen3next.json", "native": "../results/h200-kernels-native.json"}

// unproven returns the names of the cases that have no recorded pass for the current sources.
func unproven(rep *Report, table []*Case, built *Sources) (out []string, err error) {
	rows := map[string]*Row{}
	for i := range rep.Rows {
		rows[rep.Rows[i].name()] = &rep.Rows[i]
	}
	for _, c := range table {
		kernels := c.Kernels(h200)
		hash, err := built.Hash(kernels)
		if err != nil {
			return nil, err
		}
		r := rows[c.Name()]
		switch {
		case r == nil:
			out = append(out, c.Name()+": never measured")
		case !r.Pass:
			out = append(out, c.Name()+": did not pass: "+r.Fault)
		case r.Source != hash || strings.Join(r.Kernels, " ") != strings.Join(kernels, " "):
			out = append(out, c.Name()+": measured with other kernels ("+r.Source+", now "+hash+")")
		}
	}
	return out, nil
}

// TestKernelsAreProven fails for kernels whose current sources have not run on a GPU.
func TestKernelsAreProven(t *testing.T) {
	for model, sizes := range Models() {
		record := records[model]
		text, err := os.ReadFile(record)
		if errors.Is(err, fs.ErrNotExist) {
			t.Logf("no GPU has been measured at the sizes of %s yet", model)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		var rep Report
		if err := json.Unmarshal(text, &rep); err != nil {
			t.Fatal(err)
		}
		list, err := unproven(&rep, Table(sizes), sources(t))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range list {
			t.Errorf("unproven: %s (krater bench kernels --device cuda --model %s --record %s)", name, model, record)
		}
	}
}

// TestUnprovenIsFound tests that check itself.
func TestUnprovenIsFound(t *testing.T) {
	built, table := sources(t), Table(Small())[:3]
	whole := func() *Report {
		rep := &Report{}
		for _, c := range table {
			k := c.Kernels(h200)
			hash, err := built.Hash(k)
			if err != nil {
				t.Fatal(err)
			}
			rep.Rows = append(rep.Rows, Row{Op: c.Op, Shape: c.Shape, DType: c.DType, Kernels: k, Source: hash, Pass: true})
		}
		return rep
	}
	for name, spoil := range map[string]func(r *Report){
		"":                func(*Report) {},
		"never measured":  func(r *Report) { r.Rows = r.Rows[1:] },
		"did not pass":    func(r *Report) { r.Rows[1].Pass = false },
		"other kernels (": func(r *Report) { r.Rows[2].Source = "0" },
		"with other":      func(r *Report) { r.Rows[2].Kernels = r.Rows[2].Kernels[:len(r.Rows[2].Kernels)-1] },
	} {
		rep := whole()
		spoil(rep)
		list, err := unproven(rep, table, built)
		if err != nil {
			t.Fatal(err)
		}
		if name == "" && len(list) > 0 || name != "" && (len(list) != 1 || !strings.Contains(list[0], name)) {
			t.Errorf("%q: %v", name, list)
		}
	}
}

func TestJudge(t *testing.T) {
	c := &Case{Rel: 0.01, Abs: 0.1}
	nan := 0.0
	nan /= nan
	for _, x := range []struct {
		s    Sample
		fine bool
	}{
		{Sample{10, 10, 1}, true}, {Sample{10.19, 10, 1}, true}, {Sample{10.21, 10, 1}, false},
		{Sample{nan, 10, 1}, false}, {Sample{0, nan, 1}, false}, {Sample{0.2, 0, 1}, false},
	} {
		if _, fault := c.judge([]Sample{{1, 1, 1}, x.s}); (fault == "") != x.fine {
			t.Errorf("%+v: %q", x.s, fault)
		}
	}
	if _, fault := c.judge(nil); fault == "" {
		t.Error("no samples at all passed")
	}
}

// filled is an arena without a GPU. It keeps the host's copies.
type filled struct{ plan }

func (f *filled) put(n, _ int, fill func([]byte)) (launch.Ptr, int64, []byte) {
	at, step, _ := f.plan.put(n, 1, nil)
	b := make([]byte, n)
	if fill != nil {
		fill(b)
	}
	return at, step, b
}

// TestChecksRefuseWhatWasNotComputed: every case fails if its outputs are still poisoned, or all
// zero.
func TestChecksRefuseWhatWasNotComputed(t *testing.T) {
	for _, c := range Table(Small()) {
		for _, value := range []float64{math.NaN(), 0} {
			d := &desk{gpu: h200, arena: &filled{}, rng: rand.New(rand.NewPCG(3, 4)), copies: 1}
			samples := c.build(d).check(func(m launch.Mat) []float64 {
				out := make([]float64, m.Rows*m.Cols)
				for i := range out {
					out[i] = value
				}
				return out
			})
			if _, fault := c.judge(samples); fault == "" {
				t.Errorf("%s accepts outputs of %g", c.Name(), value)
			}
		}
	}
}

// TestParallel: each part is computed once.
func TestParallel(t *testing.T) {
	for _, n := range []int{0, 1, 2, 1000} {
		count := make([]int, n)
		parallel(n, func(i int) { count[i]++ })
		for i, c := range count {
			if c != 1 {
				t.Errorf("part %d of %d: computed %d times", i, n, c)
			}
		}
	}
}

// TestNothingStaysInTheCache: between two launches over the same data, enough other data is read
// to evict it from a cache of 50 MB, wherever that fits into a GPU.
func TestNothingStaysInTheCache(t *testing.T) {
	const cache = 50 << 20
	for _, c := range Table(V2Lite()) {
		n := c.copies()
		if between := (n - 1) * c.Rotate; between < 2*cache && c.Rotate < 2*cache && n < 19 {
			t.Errorf("%s: %d copies of %d bytes", c.Name(), n, c.Rotate)
		}
		if all := n * max(c.Rotate, c.Size); all > copiesBytes+c.Size {
			t.Errorf("%s: %d copies take %d bytes", c.Name(), n, all)
		}
	}
}

// rounded computes what kernels of prompts make of a head: keys, values and weights are rounded to
// BF16, and so is the result.
func rounded(in *cached, q data, row, head int, p device.GQA) []float64 {
	bf16 := func(x float64) float64 { return float64(tensor.BF16ToF32(tensor.F32ToBF16(float32(x)))) }
	d, kv := p.HeadDim, head/(p.Heads/p.KVHeads)
	query := q.row(row)[head*d:][:d]
	keys := *in
	keys.rounded = true
	weight, top := make([]float64, row+1), math.Inf(-1)
	for i := range weight {
		weight[i], _ = dot(query, keys.values(in.slot(0, i), kv*d, d))
		weight[i] *= float64(p.Scale)
		top = max(top, weight[i])
	}
	out, sum := make([]float64, d), 0.0
	for i := range weight {
		w := math.Exp(weight[i] - top)
		sum += w
		for j, v := range keys.values(in.slot(0, i), (p.KVHeads+kv)*d, d) {
			out[j] += bf16(w) * v
		}
	}
	for j := range out {
		out[j] = bf16(out[j] / sum)
	}
	return out
}

// TestRoundedKeys: prompts over an INT8 cache pass with what the kernels round, in a case where
// unrounded keys give other weights.
func TestRoundedKeys(t *testing.T) {
	p, h := device.GQA{Heads: 8, KVHeads: 1, HeadDim: 64, Scale: 0.125, BlockTokens: 64}, history{1, 512, 0}
	c := &Case{Rel: relMLA, Abs: absMLA}
	d := &desk{arena: &filled{}, rng: rand.New(rand.NewPCG(1, 13)), copies: 1}
	q := d.numbers(tensor.BF16, h.rows, p.Heads*p.HeadDim, unit)
	in := d.cached(h, tensor.I8, p.Width(), p.HeadDim, p.BlockTokens, false)
	for _, in.rounded = range []bool{false, true} {
		worst := 0.0
		var fault string
		for head := range p.Heads {
			want, scale := attendedBy(in, q, h.rows-1, head, h, p, math.Inf(-1))
			got := rounded(in, q, h.rows-1, head, p)
			samples := make([]Sample, len(want))
			for i := range want {
				samples[i] = Sample{got[i], want[i], scale}
			}
			e, f := c.judge(samples)
			worst, fault = max(worst, e), cmp.Or(fault, f)
		}
		if (fault == "") != in.rounded || in.rounded && worst > absMLA/3 {
			t.Errorf("keys rounded %t: off by %.4f, %s", in.rounded, worst, fault)
		}
	}
}
