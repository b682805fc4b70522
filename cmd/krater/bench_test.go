package main

import (
	"os"
	"path/filepath"
	"testing"
)

// kernelFigures holds the fields of krater bench kernels --json that other programs read.
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

// modelFigures holds the fields of krater bench model --json that other programs read.
type modelFigures struct {
	DecodeTokS  float64 `json:"decode_tok_s"`
	DecodeGBps  float64 `json:"decode_gbps"`
	ReadGBps    float64 `json:"read_gbps"`
	DecodeRatio float64 `json:"decode_ratio"`
	Bytes       int64   `json:"decode_bytes"`
	Decode      struct {
		P50, P90, P99 float64
		P50MS         float64 `json:"p50_ms"`
		P99MS         float64 `json:"p99_ms"`
	} `json:"decode"`
	StepsMS []float64 `json:"steps_ms"`
	Prefill []struct {
		Tokens int     `json:"tokens"`
		TokS   float64 `json:"tok_s"`
	} `json:"prefill"`
	Breakdown []struct {
		Stage string  `json:"stage"`
		MS    float64 `json:"ms"`
	} `json:"breakdown"`
	Context, Batch, Scaling []map[string]any
	Skipped                 []string
}

// benchedModel runs krater bench model on a machine of 1 GiB, where plain reads go over 256 MB; they
// go over 800 MB where there is room.
func benchedModel(t *testing.T, args ...string) modelFigures {
	t.Helper()
	small := goodMachine()
	small.Memory.Available = gib
	o := on(t, small, append([]string{"bench", "model", "--json"}, args...)...)
	if o.status != 0 {
		t.Fatalf("status %d: %s", o.status, o.err)
	}
	return decode[modelFigures](t, o.out)
}

// TestBenchContext: on the processor answers follow short prompts, whatever is asked for.
func TestBenchContext(t *testing.T) {
	refuses(t, 1, []string{"bench", "--context", "100", "--rounds", "1"}, "--context", "16 tokens")
}

// TestBenchModel: all figures of the built-in model, and what does not fit its
// context is named.
func TestBenchModel(t *testing.T) {
	r := benchedModel(t, "--threads", "1", "--decode", "9", "--prefill", "33,100000", "--context", "40",
		"--batch", "1,3", "--scaling", "2", "--prefill-chunk", "20")
	if r.DecodeTokS <= 0 || r.ReadGBps <= 0 || r.DecodeRatio <= 0 || r.Decode.P50MS <= 0 || r.Decode.P99MS < r.Decode.P50MS || len(r.StepsMS) != 9 {
		t.Errorf("%+v", r)
	}
	if r.Bytes < 12_000_000 || r.Bytes > 12_500_000 { // 12.05 MB of weights, and the cache
		t.Errorf("%d bytes a step", r.Bytes)
	}
	sum := 0.0
	stages := map[string]bool{}
	for _, s := range r.Breakdown {
		stages[s.Stage] = true
		sum += s.MS
	}
	for _, s := range []string{"attention", "router", "experts", "shared", "merge", "head", "other"} {
		if !stages[s] {
			t.Errorf("no stage %s: %v", s, stages)
		}
	}
	if sum < r.StepsMS[0]/100 {
		t.Errorf("the stages take %v ms of %v", sum, r.StepsMS)
	}
	if len(r.Prefill) != 1 || r.Prefill[0].Tokens != 33 || r.Prefill[0].TokS <= 0 || len(r.Context) != 1 || len(r.Batch) != 1 || len(r.Scaling) != 2 {
		t.Errorf("%+v %v %v %v", r.Prefill, r.Context, r.Batch, r.Scaling)
	}
	if len(r.Skipped) != 1 || r.Skipped[0] == "" {
		t.Errorf("%q", r.Skipped)
	}
	refuses(t, 1, []string{"bench", "model", "--decode", "100000"}, "--decode", "context")
}

// TestBenchShape: a model of random weights, integers everywhere, made in memory;
// a token reads all matrices but the embedding and the experts it does not take.
func TestBenchShape(t *testing.T) {
	r := benchedModel(t, "--shape", "deepseek-v2-lite", "--layers", "2", "--vocab", "512",
		"--cpu-expert-bits", "4", "--attention-quant", "int4", "--shared-expert-quant", "int4", "--dense-mlp-quant", "int4", "--lm-head-quant", "int4", "--decode", "4", "--prefill", "8", "--context", "8", "--batch", "1")
	// 5 bits at most a weight of 67 M in the dense layer, 23 M in shared and 52 M in
	// routed experts, 25 M in attention, 1 M in the head.
	if least, most := int64(80e6), int64(170e6); r.Bytes < least || r.Bytes > most || r.DecodeTokS <= 0 {
		t.Errorf("%d bytes a step, want %d to %d", r.Bytes, least, most)
	}
}
