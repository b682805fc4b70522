package calibration_test

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/calibration"
	"krater/stages/direct"
	"krater/stages/drive"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/weights"
)

const dir = "../../testdata/goldens/deepseek_v2"

// recorder keeps what the collector sees, and passes it on.
type recorder struct {
	*calibration.Collector
	x   map[int][][]float32 // layer -> rows
	ids map[int][][]int32
}

func (r *recorder) Observe(s device.Stream, layer int, op string, m device.Mat, st *stages.State) {
	r.Collector.Observe(s, layer, op, m, st)
	switch op {
	case "post_norm":
		for t := range m.Rows {
			r.x[layer] = append(r.x[layer], append([]float32(nil), m.RowRange(t, t+1).F32s()...))
		}
	case "router_ids":
		for t := range m.Rows {
			r.ids[layer] = append(r.ids[layer], append([]int32(nil), m.RowRange(t, t+1).I32s()...))
		}
	}
}

// collect runs a text of n tokens in chunks.
func collect(t *testing.T, n, from, to int) (*recorder, *model.Config, *weights.Set) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := model.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	set, err := weights.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { set.Close() })
	dev, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	parts, err := load.Model(dev, cfg, set, load.Options{Limits: stages.Limits{Tokens: 8, Seqs: 1, Blocks: 8, BlockTokens: 16}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(parts.Close)
	m, err := direct.New(dev, parts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	c, err := calibration.New(cfg, set, from, to)
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{Collector: c, x: map[int][][]float32{}, ids: map[int][][]int32{}}
	text := make([]int32, n)
	for i := range text {
		text[i] = int32((7 + i*31) % cfg.Vocab)
	}
	if n > 0 {
		if err := drive.Run(m, []*drive.Sequence{{Prompt: text}}, drive.Options{Probe: r}); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	return r, cfg, set
}

// wide is a tensor's values.
func wide(t *testing.T, set *weights.Set, name string) []float32 {
	t.Helper()
	x, ok := set.Tensor(name)
	if !ok {
		t.Fatalf("no tensor %s", name)
	}
	out := make([]float32, len(x.Data)/x.DType.Size())
	if err := tensor.Widen(out, x.DType, x.Data); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestCollector holds the diagonals of every expert against their definition in
// float64: what it saw itself, and the share it borrows from its layer.
func TestCollector(t *testing.T) {
	r, cfg, set := collect(t, 40, 0, cfgLayers)
	if _, _, ok := r.Expert(0, 0); ok {
		t.Error("a dense layer has experts")
	}
	for layer := 1; layer < len(cfg.Layers); layer++ {
		k, n := cfg.MoE.Router.TopK, float64(len(r.x[layer]))
		if n != 40 {
			t.Fatalf("layer %d: %v rows seen", layer, n)
		}
		wantIn := make([][]float64, cfg.MoE.Experts)
		wantMid := make([][]float64, cfg.MoE.Experts)
		count := make([]int, cfg.MoE.Experts)
		all, allMid := make([]float64, cfg.Hidden), make([]float64, cfg.MoE.FF)
		for e := range wantIn {
			names := cfg.ExpertNames(layer, e)
			gate, up := wide(t, set, names.Gate), wide(t, set, names.Up)
			wantIn[e], wantMid[e] = make([]float64, cfg.Hidden), make([]float64, cfg.MoE.FF)
			for row, ids := range r.ids[layer] {
				for _, id := range ids {
					if int(id) != e {
						continue
					}
					count[e]++
					x := r.x[layer][row]
					for i, v := range x {
						wantIn[e][i] += float64(v) * float64(v)
					}
					for i := range wantMid[e] {
						var g, u float64
						for j, v := range x {
							g += float64(v) * float64(gate[i*len(x)+j])
							u += float64(v) * float64(up[i*len(x)+j])
						}
						m := g / (1 + math.Exp(-g)) * u
						wantMid[e][i] += m * m
						allMid[i] += m * m
					}
				}
			}
		}
		for _, x := range r.x[layer] {
			for i, v := range x {
				all[i] += float64(v) * float64(v)
			}
		}
		for e := range wantIn {
			in, mid, ok := r.Expert(layer, e)
			if !ok || in.Count != count[e] || mid.Count != count[e] {
				t.Fatalf("layer %d expert %d: %v, %d and %d inputs, want %d", layer, e, ok, in.Count, mid.Count, count[e])
			}
			for i, v := range in.Diagonal() {
				near(t, "in", float64(v), wantIn[e][i]+32/n*all[i])
			}
			for i, v := range mid.Diagonal() {
				near(t, "mid", float64(v), wantMid[e][i]+32/(n*float64(k))*allMid[i])
			}
		}
	}
}

const cfgLayers = 3

// near compares squares of float32 sums of a hundred products.
func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-4*want+1e-12 {
		t.Fatalf("%s: %g, want %g", what, got, want)
	}
}

func TestOnlyChosenLayers(t *testing.T) {
	r, cfg, set := collect(t, 10, 2, 3)
	if _, _, ok := r.Expert(1, 0); ok {
		t.Error("layer 1 was collected")
	}
	if _, _, ok := r.Expert(2, 0); !ok {
		t.Error("layer 2 was not collected")
	}
	for _, x := range [][2]int{{-1, 2}, {2, 2}, {0, 4}} {
		if _, err := calibration.New(cfg, set, x[0], x[1]); err == nil {
			t.Errorf("layers %v passed", x)
		}
	}
	empty, _, _ := collect(t, 0, 0, 3)
	if _, _, ok := empty.Expert(1, 0); ok {
		t.Error("statistics without a text")
	}
}
