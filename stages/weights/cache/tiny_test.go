//go:build unix

package cache

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"krater/kernels/tensor"
	"krater/stages/internal/hosttest"
	"krater/stages/model"
	"krater/stages/weights"
	"krater/stages/weights/quant"
)

const tiny = "../../../models/krater-tiny"

// opened model of a folder.
func tinyModel(t testing.TB) ([]byte, *model.Config, *weights.Set) {
	t.Helper()
	config := read(t, filepath.Join(tiny, "config.json"))
	cfg, err := model.Parse(config)
	if err != nil {
		t.Fatal(err)
	}
	set, err := weights.Open(tiny)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { set.Close() })
	return config, cfg, set
}

// TestTinyModel builds the default model's cache and compares every expert with
// its own tensors quantised one by one.
func TestTinyModel(t *testing.T) {
	config, cfg, set := tinyModel(t)
	method, plain := Search, quant.Search
	if testing.Short() {
		method, plain = Absmax, quant.Absmax // a search takes a minute under the race detector
	}
	for _, bits := range []int{4, 8} {
		format := tensor.Integers(bits).By(64)
		print, err := FingerprintOf(config, cfg, set)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := NewPlan(cfg, format, method, print)
		if err != nil {
			t.Fatal(err)
		}
		o := Options{Plan: plan, Dir: t.TempDir(), Source: &Weights{Config: cfg, Set: set, Format: format, Method: method}}
		c, err := Open(context.Background(), hosttest.Device{}, o)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("INT%d: %d bytes of experts' %d", bits, c.Bytes, 6*32*3*256*64*2)
		for _, layer := range plan.Layers {
			for e, x := range c.Experts(tensor.CPU, layer) {
				n := cfg.ExpertNames(layer, e)
				for i, name := range []string{n.Gate, n.Up, n.Down} {
					src, _ := set.Tensor(name)
					w := make([]float32, src.Shape[0]*src.Shape[1])
					if err := tensor.Widen(w, src.DType, src.Data); err != nil {
						t.Fatal(err)
					}
					want, err := quant.Quantize(w, src.Shape[0], src.Shape[1], format, quant.Options{Method: plain})
					if err != nil {
						t.Fatal(err)
					}
					q, first := x.W13, i*cfg.MoE.FF
					if i == 2 {
						q, first = x.W2, 0
					}
					got, wide := make([]float32, want.Cols), make([]float32, want.Cols)
					for r := range want.Rows {
						q.Row(got, q.Values.Host()[q.ValueAt:], q.Scales.Host()[q.ScaleAt:], first+r)
						want.Row(wide, r)
						if !slices.Equal(got, wide) {
							t.Fatalf("%s row %d differs", name, r)
						}
					}
				}
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestFingerprint: equal for equal input, another for another config or weight.
func TestFingerprint(t *testing.T) {
	config, cfg, set := tinyModel(t)
	print := func(config []byte, set *weights.Set) Fingerprint {
		f, err := FingerprintOf(config, cfg, set)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	first := print(config, set)
	if print(config, set) != first {
		t.Error("not the same twice")
	}
	if print(append(bytes.Clone(config), ' '), set) == first {
		t.Error("does not cover config.json")
	}
	files := map[string][]byte{}
	list, err := os.ReadDir(tiny)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range list {
		if x.IsDir() { // a start of the model has left its cache there
			continue
		}
		files[x.Name()] = read(t, filepath.Join(tiny, x.Name()))
	}
	again, err := weights.FromBytes(files)
	if err != nil {
		t.Fatal(err)
	}
	if print(config, again) != first {
		t.Error("an embedded copy differs from the folder")
	}
	for _, name := range []string{cfg.ExpertNames(1, 0).Gate, cfg.ExpertNames(6, 31).Down} {
		x, _ := again.Tensor(name)
		x.Data[len(x.Data)/2] ^= 1
		if print(config, again) == first {
			t.Errorf("does not cover %s", name)
		}
		x.Data[len(x.Data)/2] ^= 1
	}
	if _, err := FingerprintOf(config, mixtures(9, cfg.Hidden, cfg.MoE.Experts, cfg.MoE.FF), set); err == nil {
		t.Error("a missing tensor passed")
	}
}

// TestStatsNeeded: calibrated methods without a calibration are refused.
func TestStatsNeeded(t *testing.T) {
	_, cfg, set := tinyModel(t)
	w := &Weights{Config: cfg, Set: set, Format: tensor.INT4.By(64), Method: Feedback}
	if _, _, err := w.Expert(1, 0); err == nil {
		t.Error("no calibration")
	}
	w.Stats = func(int, int) (in, mid *quant.Hessian, ok bool) { return nil, nil, false }
	if _, _, err := w.Expert(1, 0); err == nil {
		t.Error("a text that does not reach the layer")
	}
	ones := func(n int) *quant.Hessian {
		h := quant.NewHessian(n)
		h.Add(slices.Repeat([]float32{1}, n))
		return h
	}
	w.Stats = func(int, int) (in, mid *quant.Hessian, ok bool) { return ones(cfg.Hidden), ones(cfg.MoE.FF), true }
	for _, w.Method = range []Method{Absmax, Search, Weighted, Feedback} {
		if _, _, err := w.Expert(1, 0); err != nil {
			t.Errorf("%s: %v", w.Method, err)
		}
	}
	if _, _, err := w.Expert(0, 0); err == nil {
		t.Error("a dense layer has experts")
	}
}

// TestBoundedMemory: a build's heap does not grow with experts or layers. Floats
// of one expert, its integers and its packed form are 4 + 1 + 0.5 bytes a weight;
// garbage may double it.
func TestBoundedMemory(t *testing.T) {
	_, cfg, set := tinyModel(t)
	format := tensor.INT4.By(64)
	plan, err := NewPlan(cfg, format, Absmax, Fingerprint{})
	if err != nil {
		t.Fatal(err)
	}
	var most, before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	o := Options{Plan: plan, Dir: t.TempDir(), Source: &Weights{Config: cfg, Set: set, Format: format, Method: Absmax, Threads: 1}}
	o.onStep = func(string) {
		runtime.GC()
		var now runtime.MemStats
		runtime.ReadMemStats(&now)
		most.HeapAlloc = max(most.HeapAlloc, now.HeapAlloc)
	}
	if _, err := Build(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	expert := uint64(3 * cfg.Hidden * cfg.MoE.FF)
	grown := most.HeapAlloc - min(most.HeapAlloc, before.HeapAlloc)
	t.Logf("%.2f bytes a weight of one expert", float64(grown)/float64(expert))
	if grown > 2*6*expert+1<<18 {
		t.Errorf("%d bytes on the heap, an expert has %d weights", grown, expert)
	}
}
