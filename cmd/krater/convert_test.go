//go:build !race

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"krater/stages/ppl"
)

// TestConvert builds a cache ahead, with a calibration text, and measures that
// later starts use it: the distance from the unquantised model falls.
// Error feedback is arithmetic on one row after the other: four minutes of it under the
// race detector, which sees the same goroutines in stages/weights/quant.
func TestConvert(t *testing.T) {
	dir := t.TempDir()
	integer := []string{"--cpu-expert-bits", "4", "--group-size", "64", "--cache-dir", dir}
	measure := func() ppl.Comparison {
		t.Helper()
		args := append([]string{"ppl", "--against", "bf16"}, append(some, integer...)...)
		return decode[ppl.Comparison](t, answers(t, "", args...))
	}
	plain := measure()
	if !(plain.MeanKL > 0.005) || !(plain.Top1 > 0.8) || plain.Model.Predictions != plain.Reference.Predictions {
		t.Errorf("%+v", plain)
	}
	files, err := filepath.Glob(dir + "/*/experts_cpu_4_g64.bin")
	if err != nil || len(files) != 1 {
		t.Fatalf("cache files: %v, %v", files, err)
	}
	convert := append([]string{"convert", "--json", "--calibration", modelDir + "/heldout.txt", "--calibration-tokens", "2048", "--gpu-expert-bits", "4"}, integer...)
	for _, found := range []bool{false, true} {
		r := decode[struct {
			Path, Method string
			Bytes        int64
			Found        bool
			GPUPath      string `json:"gpu_path"`
			GPUFound     bool   `json:"gpu_found"`
		}](t, answers(t, "", convert...))
		if info, err := os.Stat(files[0]); err != nil || r.Path != files[0] || r.Bytes != info.Size() || r.Found != found || r.Method != "feedback" ||
			filepath.Base(r.GPUPath) != "experts_gpu_4_g64.bin" || r.GPUFound != found {
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
	o := krater(t, "", append([]string{"ppl", "--against", "bf16"}, append(some, integer...)...)...)
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
