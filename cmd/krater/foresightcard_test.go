//go:build cuda

package main

import (
	"strings"
	"testing"

	"krater/actors/local/predict"
	"krater/kernels/cuda"
	"krater/kernels/machine"
	"krater/scheduler/planner/rates"
)

// TestForesightOnCard: a GPU whose rates were kept gets what is predicted for it, and answers as
// one does that nothing is known of; each says so in a line.
func TestForesightOnCard(t *testing.T) {
	c := cardFor(t, cuda.Options{})
	name, memory := c.Describe(), c.Capacity()
	c.Close()
	dir := t.TempDir()
	ask := func() outcome {
		t.Helper()
		o := krater(t, "", "run", "--device", "cuda", "--rows", "f32", "--threads", "2", "--vram", "512MiB", "--expert-vram", "7MiB", "--kv-cache", "4MiB",
			"--prefill-chunk", "64", "--temperature", "0", "--max-tokens", "4", "--cache-dir", dir, "--no-measure", "Hello")
		if o.status != 0 {
			t.Fatal(o.err)
		}
		return o
	}
	plain := ask()
	if _, known := rates.Known(name); !known && !strings.Contains(plain.err, "the rates of the GPU "+name+" are unknown") {
		t.Errorf("%s", plain.err)
	}
	card, _ := rates.Named("rtx-4090")
	card.Name, card.MemoryGiB = name, float64(memory)/(1<<30)
	if err := predict.KeepRates(dir, rates.File{Machine: predict.Identity(machine.Here(), 2), Card: &card}); err != nil {
		t.Fatal(err)
	}
	told := ask()
	if !strings.Contains(told.err, "predicted for "+name+" (measured on this machine)") || !strings.Contains(told.err, "krater: strategies: prefill ") {
		t.Errorf("%s", told.err)
	}
	if told.out != plain.out {
		t.Errorf("%q, with other strategies %q", told.out, plain.out)
	}
}
