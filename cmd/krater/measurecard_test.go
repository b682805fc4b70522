//go:build cuda

package main

import (
	"strings"
	"testing"

	"krater/actors/local/config"
	"krater/actors/local/predict"
	"krater/bench/cards"
	"krater/bench/meter"
	"krater/cmd/krater/cmdline"
	"krater/cmd/krater/console"
	"krater/kernels/cuda"
	"krater/kernels/machine"
	"krater/kernels/tensor"
	"krater/scheduler/planner/rates"
)

// smallMeter measures a GPU by as little as can be, and says that it is one like another.
type smallMeter struct{ asked int }

// CPU implements meter.
func (m *smallMeter) CPU(threads int, _ tensor.Format, _ int64, _ config.Telling) (rates.CPU, error) {
	return rates.CPU{Name: "tried", Threads: threads, ReadGBps: 50, DecodeShare: 1, Experts: rates.Curve{Peak: 1}, LayerUS: 1}, nil
}

// Card implements meter.
func (m *smallMeter) Card(index int, tell config.Telling) (rates.Card, error) {
	m.asked++
	p, err := cards.Measure(cards.Options{Index: index, Seed: 1, Small: true, Step: func(done, all int) { tell("the GPU", float64(done), float64(all)) }})
	if err != nil {
		return rates.Card{}, err
	}
	c, _ := rates.Named("rtx-4090")
	c.MemoryGiB = float64(p.Memory) / (1 << 30)
	return c, nil
}

// TestStartMeasuresCard: a start measures its GPU in a context of its own, while it has not opened
// it itself, goes on with it, and the next start takes what was kept. One that cannot be measured
// is gone on with as well.
func TestStartMeasuresCard(t *testing.T) {
	c := cardFor(t, cuda.Options{})
	name := c.Describe()
	c.Close()
	dir, m := t.TempDir(), &smallMeter{}
	start := func(with predict.Meter) string {
		t.Helper()
		var c cli
		ctx, file, err := cmdline.Parse(&c, []string{"run", "--device", "cuda", "--rows", "f32", "--threads", "2", "--vram", "512MiB", "--expert-vram", "7MiB", "--kv-cache", "4MiB",
			"--prefill-chunk", "64", "--temperature", "0", "--max-tokens", "4", "--cache-dir", dir, "Hello"})
		if err != nil {
			t.Fatal(err)
		}
		var out, told strings.Builder
		e := &console.Env{In: strings.NewReader(""), Out: &out, Err: &told, Ctx: ctx, File: file, Meter: with, Machine: machine.Here}
		if err := c.Run.Run(e); err != nil || out.Len() == 0 {
			t.Fatalf("%v: %q\n%s", err, out.String(), told.String())
		}
		return told.String()
	}
	if told := start(meter.UsualMeter); strings.HasPrefix(name, "Krater emulated") && !strings.Contains(told, cards.ErrEmulated.Error()) {
		t.Errorf("%s", told)
	}
	if told := start(m); m.asked == 1 && !strings.Contains(told, "predicted for "+name+" (measured on this machine)") {
		t.Errorf("%s", told)
	}
	if told := start(&fakeMeter{}); strings.Contains(told, "measuring") || !strings.Contains(told, "(measured on this machine)") {
		t.Errorf("%s", told)
	}
	if strings.HasPrefix(name, "Krater emulated") && m.asked != 1 {
		t.Errorf("measured %d times", m.asked)
	}
}
