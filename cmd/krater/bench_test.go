package main

import (
	"os"
	"path/filepath"
	"testing"
)

// kernelFigures is what other programs read of krater bench kernels --json.
type kernelFigures struct {
	ReadGBps float64 `json:"read_gbps"`
	CPU      string  `json:"cpu"`
	Revision string  `json:"revision"`
	Kernels  []struct {
		Name    string   `json:"name"`
		Threads int      `json:"threads"`
		GBps    *float64 `json:"gbps"`
		Ratio   *float64 `json:"ratio"`
		GOPS    *float64 `json:"gops"`
	} `json:"kernels"`
}

// TestBenchKernels: every kernel for each number of threads, and a picture.
func TestBenchKernels(t *testing.T) {
	picture := filepath.Join(t.TempDir(), "kernels.svg")
	r := decode[kernelFigures](t, answers(t, "", "bench", "kernels", "--json", "--threads", "2,1,2", "--seconds", "0.01", "--size", "100MB", "--rows", "3", "--plot", picture))
	if r.ReadGBps <= 0 || r.CPU == "" || r.Revision == "" {
		t.Errorf("%+v", r)
	}
	seen := map[string]int{}
	for _, k := range r.Kernels {
		seen[k.Name] += k.Threads
		if k.GBps == nil || *k.GBps <= 0 || k.Ratio == nil || *k.Ratio <= 0 {
			t.Errorf("%+v", k)
		}
	}
	for _, name := range []string{"gemv_int4_g32", "gemv_int4_g64", "gemv_int4_g128", "gemv_int8", "gemm_int4_g128_m3"} {
		if seen[name] != 1+2 {
			t.Errorf("%s is not there once for each number of threads: %v", name, seen)
		}
	}
	if info, err := os.Stat(picture); err != nil || info.Size() < 1000 {
		t.Errorf("%v %v", info, err)
	}
}
