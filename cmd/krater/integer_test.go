package main

import (
	"os"
	"strings"
	"testing"

	"krater/stages/ppl"
)

// some is the beginning of the held-out text.
var some = []string{"--text", modelDir + "/heldout.txt", "--bytes", "4096", "--json"}

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
		"nothing to convert":        {},
		"--calibration FILE":        {"--cpu-expert-bits", "4", "--method", "feedback"},
		"--calibration-tokens 1":    {"--cpu-expert-bits", "4", "--calibration-tokens", "1"},
		"leave the flags of single": {"--precision", "int4", "--cpu-expert-bits", "8"},
	} {
		if o := krater(t, "", append([]string{"convert"}, args...)...); o.status != 1 || !strings.Contains(o.err, want) {
			t.Errorf("%v: status %d: %s", args, o.status, o.err)
		}
	}
}

// TestPrecision: every part in integers answers, planned as it is loaded, and the
// distance from the model as its files hold it is what such a precision costs.
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
