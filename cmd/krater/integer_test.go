package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"krater/stages/ppl"
)

// some is the beginning of the held-out text.
var some = []string{"--text", modelDir + "/heldout.txt", "--bytes", "4096", "--json"}

// TestConvert builds a cache ahead, with a calibration text, and measures that
// later starts use it: the distance from the unquantised model falls.
func TestConvert(t *testing.T) {
	dir := t.TempDir()
	integer := []string{"--cpu-expert-bits", "4", "--group-size", "64", "--cache-dir", dir, "--model", fewLayers(t)}
	text, tokens := some, "2048"
	if testing.Short() {
		text, tokens = []string{"--text", modelDir + "/heldout.txt", "--bytes", "1536", "--json"}, "1024"
	}
	measure := func() ppl.Comparison {
		t.Helper()
		args := append([]string{"ppl", "--against", "bf16"}, append(text, integer...)...)
		return decode[ppl.Comparison](t, answers(t, "", args...))
	}
	plain := measure()
	if !(plain.MeanKL > 0.005) || !(plain.Top1 > 0.8) || plain.Model.Predictions != plain.Reference.Predictions {
		t.Errorf("%+v", plain)
	}
	files, err := filepath.Glob(dir + "/*/experts_cpu_int4_g64.bin")
	if err != nil || len(files) != 1 {
		t.Fatalf("cache files: %v, %v", files, err)
	}
	convert := append([]string{"convert", "--json", "--calibration", modelDir + "/heldout.txt", "--calibration-tokens", tokens, "--gpu-expert-bits", "4"}, integer...)
	for _, found := range []bool{false, true} {
		r := decode[struct {
			Path, Method string
			Bytes        int64
			Found        bool
			GPUPath      string `json:"gpu_path"`
			GPUFound     bool   `json:"gpu_found"`
		}](t, answers(t, "", convert...))
		if info, err := os.Stat(files[0]); err != nil || r.Path != files[0] || r.Bytes != info.Size() || r.Found != found || r.Method != "feedback" ||
			filepath.Base(r.GPUPath) != "experts_gpu_int4_g64.bin" || r.GPUFound != found {
			t.Errorf("%+v, %v", r, err)
		}
	}
	if better := measure(); !(better.MeanKL < 0.9*plain.MeanKL) {
		t.Errorf("KL %.5f with a calibrated cache, %.5f before", better.MeanKL, plain.MeanKL)
	}
	// A damaged file is named and made anew, by the method that needs no text.
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(files[0], data, 0o644); err != nil {
		t.Fatal(err)
	}
	o := krater(t, "", append([]string{"ppl", "--against", "bf16"}, append(text, integer...)...)...)
	if o.status != 0 || !strings.Contains(o.err, "not used") {
		t.Fatalf("status %d: %s", o.status, o.err)
	}
	if again := decode[ppl.Comparison](t, o.out); again.MeanKL != plain.MeanKL {
		t.Errorf("KL %v after the repair, %v at first", again.MeanKL, plain.MeanKL)
	}
	if now, err := os.ReadFile(files[0]); err != nil || bytes.Equal(now, data) {
		t.Errorf("the damaged file is still there, %v", err)
	}
}

// TestConvertMatrices: matrices that are no experts are made once.
func TestConvertMatrices(t *testing.T) {
	dir := t.TempDir()
	for i := range 3 {
		r := decode[converted](t, answers(t, "", "convert", "--json", "--lm-head-quant", "int8", "--attention-quant", "int4", "--cache-dir", dir))
		if made := r.MatricesMade > 0; made != (i == 0) || r.MatrixBytes == 0 || r.Path != "" {
			t.Errorf("time %d: %+v", i, r)
		}
		if i == 1 { // a damaged file does not stay
			if err := os.Truncate(r.MatrixPath, 5000); err != nil {
				t.Fatal(err)
			}
			o := krater(t, "", "run", "--ids", "--max-tokens", "3", "--lm-head-quant", "int8", "--attention-quant", "int4", "--cache-dir", dir, "Hello")
			if o.status != 0 || !strings.Contains(o.err, "not used") {
				t.Errorf("status %d: %s", o.status, o.err)
			}
		}
	}
}

// TestConvertRefuses: what there is nothing to do for, and what lacks a text.
func TestConvertRefuses(t *testing.T) {
	for want, args := range map[string][]string{
		"nothing to convert":         {},
		"--calibration FILE":         {"--cpu-expert-bits", "4", "--method", "feedback"},
		"--calibration-tokens 1":     {"--cpu-expert-bits", "4", "--calibration-tokens", "1"},
		"remove the flags of single": {"--precision", "int4", "--cpu-expert-bits", "8"},
	} {
		if o := krater(t, "", append([]string{"convert"}, args...)...); o.status != 1 || !strings.Contains(o.err, want) {
			t.Errorf("%v: status %d: %s", args, o.status, o.err)
		}
	}
}

// TestPrecision: with every part in integers the model answers, the plan agrees with the load, and the
// divergence from the model as its files hold it is in the range expected of the precision.
func TestPrecision(t *testing.T) {
	dir := t.TempDir()
	cases := []struct {
		args   []string
		lo, hi float64 // of the mean KL divergence
	}{
		{[]string{"--cpu-expert-bits", "4", "--attention-quant", "int8", "--shared-expert-quant", "int4", "--layer-groups", "2", "--cache-load", "copy"}, 0.01, 0.3},
		{nil, 0, 1e-9},
		{[]string{"--cpu-expert-bits", "8"}, 1e-5, 0.01},
		{[]string{"--attention-quant", "int8"}, 1e-5, 0.01},
		{[]string{"--shared-expert-quant", "int8"}, 1e-6, 0.01},
		{[]string{"--dense-mlp-quant", "int4", "--group-size", "row"}, 1e-6, 0.3},
		{[]string{"--lm-head-quant", "int8", "--group-size", "32"}, 1e-6, 0.01},
		{[]string{"--precision", "q8_0"}, 1e-5, 0.01},
	}
	if testing.Short() {
		cases = cases[:2]
	}
	for _, x := range cases {
		args := append([]string{"ppl", "--against", "bf16", "--kv-dtype", "f32", "--cache-dir", dir}, append(some, x.args...)...)
		r := decode[ppl.Comparison](t, answers(t, "", args...))
		if !(r.MeanKL >= x.lo && r.MeanKL <= x.hi) {
			t.Errorf("%v: KL %.6f, want %g to %g", x.args, r.MeanKL, x.lo, x.hi)
		}
	}
}
