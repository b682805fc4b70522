package meter

import (
	"errors"
	"math"
	"strings"
	"testing"

	"krater/bench/cards"
	"krater/bench/kernels"
	"krater/kernels/tensor"
	"krater/scheduler/planner/rates"
)

// TestCPURates turns a report of kernels into a curve that goes through both of its rates.
func TestCPURates(t *testing.T) {
	rep := &kernels.Report{ReadGBps: 40, Kernels: []kernels.Kernel{
		{Name: "layer_one_int4_g128", Threads: 2, Bytes: 1e6, GBps: 18}, {Name: "layer_int4_g128", Threads: 2, Bytes: 6e6, GBps: 30.857142857142858},
		{Name: "experts_int4_g128_m4", Threads: 2, Bytes: 6e6, GBps: 20, GOPS: 500}, {Name: "experts_int4_g128_m96", Threads: 2, Bytes: 6e6, GBps: 2, GOPS: 800},
		{Name: "layer_one_int8", Threads: 2, Bytes: 2e6, GBps: 39}, {Name: "layer_int8", Threads: 2, Bytes: 12e6, GBps: 38},
		{Name: "experts_int8_m4", Threads: 2, Bytes: 12e6, GBps: 30, GOPS: 700}, {Name: "experts_int8_m96", Threads: 2, Bytes: 12e6, GBps: 3, GOPS: 650},
	}}
	c, err := cpuOf(rep, "x", 2, tensor.INT4.By(128))
	// One expert takes 55.6 us, five more 138.9: 36 GB/s and 27.8 us.
	if err != nil || c.ReadGBps != 40 || math.Abs(c.DecodeShare-0.9) > 1e-9 || math.Abs(c.LayerUS-1e6/36e3) > 1e-6 || c.Sources["layer_us"] != rates.Measured {
		t.Fatalf("%+v, %v", c, err)
	}
	// Without the constant time: 500 of 272.2 us instead of 300, 800 of 2972.2 instead of 3000.
	if few, many := c.Experts.At(4), c.Experts.At(96); math.Abs(few/(500e9*300/(300-c.LayerUS))-1) > 1e-9 || math.Abs(many/(800e9*3000/(3000-c.LayerUS))-1) > 1e-9 {
		t.Errorf("%g and %g", few, many)
	}
	// Experts of one row are as fast as memory, and the curve is not slower.
	rep.Kernels[2].GOPS = 150
	if c, err = cpuOf(rep, "x", 2, tensor.INT4.By(128)); err != nil || c.Experts.At(1) < 36e9*150/20/4-1 {
		t.Errorf("%g, %v", c.Experts.At(1), err)
	}
	if c, err = cpuOf(rep, "x", 2, tensor.INT8.By(128)); err != nil || c.Experts != (rates.Curve{Peak: 0.7}) || c.DecodeShare != 0.95 || c.Sources["layer_us"] != rates.Assumed { // one expert is as fast
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := cpuOf(rep, "x", 3, tensor.INT4.By(128)); err == nil || !strings.Contains(err.Error(), "layer_one_int4_g128") {
		t.Errorf("%v", err)
	}
}

// TestKernelMeter really measures, a little.
func TestKernelMeter(t *testing.T) {
	if testing.Short() {
		t.Skip("measures for a second")
	}
	c, err := KernelMeter{Seconds: 0.2, Bytes: 64 << 20}.CPU(1, tensor.INT4.By(128), 0, nil)
	if err != nil || c.ReadGBps <= 0 || c.Experts.Peak <= 0 {
		t.Fatalf("%+v, %v", c, err)
	}
	if err := (&rates.Rates{CPU: c}).Check(); err != nil {
		t.Error(err)
	}
}

// pointsOf returns the points of a GPU of rates c, whose launches hide nothing.
func pointsOf(c rates.Card) *cards.Points {
	p := &cards.Points{
		GPU: c.Name, Memory: int64(c.MemoryGiB * (1 << 30)), ReadGBps: c.ReadGBps, TFLOPs: c.TFLOPS,
		LaunchUS: c.LaunchUS, NodeUS: c.NodeUS, RoundUS: c.SyncUS,
	}
	memory := func(bytes, share float64, launches int) cards.Speed {
		return cards.Speed{Rows: 1, Bytes: bytes, Launches: launches, US: float64(launches)*c.NodeUS + bytes/(share*c.ReadGBps)/1e3}
	}
	p.Few = []cards.Speed{memory(30e6, c.WeightShare*0.9, 5), memory(200e6, c.WeightShare*1.1, 5)}
	p.KV = memory(60e6, c.KVShare, 3)
	curve := func(k rates.Curve, few, many float64) (out [2]cards.Speed) {
		for i, m := range []float64{few, many} {
			flops := 1e9 * m
			out[i] = cards.Speed{Rows: m, Flops: flops, Launches: 4, US: 4*c.NodeUS + flops/k.At(m)*1e6}
		}
		return out
	}
	p.Dense, p.Experts, p.Attention = curve(c.Dense, 512, 8192), curve(c.Experts, 48, 768), curve(c.Attention, 512, 8192)
	p.Heads = map[int][2]cards.Speed{64: curve(c.Heads64, 512, 8192), 128: curve(c.Heads128, 512, 8192), 256: curve(c.Heads256, 512, 8192), 512: curve(c.Heads512, 512, 8192)}
	piece := func(bytes, gbps float64) cards.Piece { return cards.Piece{Bytes: bytes, US: c.CopyUS + bytes/gbps/1e3} }
	p.Copies = [2]cards.Piece{piece(65536, c.CopyGBps), piece(4.4e6, c.CopyGBps)}
	p.Busy = piece(4.4e6, c.BusyGBps)
	return p
}

// TestCardOf: what a GPU was measured to do gives the rates it has, marked as measured, and what
// was not is assumed.
func TestCardOf(t *testing.T) {
	for _, name := range []string{"h100", "rtx-4090", "l4"} {
		want, _ := rates.Named(name)
		got, err := cardOf(pointsOf(want))
		if err != nil {
			t.Fatal(err)
		}
		if got.Name != want.Name {
			t.Errorf("%q, want %q", got.Name, want.Name)
		}
		for field, x := range map[string][2]float64{
			"memory_gib": {got.MemoryGiB, want.MemoryGiB}, "read_gbps": {got.ReadGBps, want.ReadGBps}, "tflops": {got.TFLOPS, want.TFLOPS},
			"weight_share": {got.WeightShare, want.WeightShare}, "kv_share": {got.KVShare, want.KVShare},
			"dense.peak": {got.Dense.Peak, want.Dense.Peak}, "dense.half_rows": {got.Dense.Half, want.Dense.Half},
			"experts.peak": {got.Experts.Peak, want.Experts.Peak}, "experts.half_rows": {got.Experts.Half, want.Experts.Half},
			"heads_64.peak": {got.Heads64.Peak, want.Heads64.Peak}, "heads_512.half_rows": {got.Heads512.Half, want.Heads512.Half},
			"heads_128.peak": {got.Heads128.Peak, want.Heads128.Peak}, "heads_256.peak": {got.Heads256.Peak, want.Heads256.Peak},
			"attention.peak": {got.Attention.Peak, want.Attention.Peak}, "attention.half_rows": {got.Attention.Half, want.Attention.Half},
			"launch_us": {got.LaunchUS, want.LaunchUS}, "node_us": {got.NodeUS, want.NodeUS}, "sync_us": {got.SyncUS, want.SyncUS},
			"copy_gbps": {got.CopyGBps, want.CopyGBps}, "copy_us": {got.CopyUS, want.CopyUS}, "busy_copy_gbps": {got.BusyGBps, want.BusyGBps},
		} {
			if math.Abs(x[0]/x[1]-1) > 1e-6 || got.Sources[field] != rates.Measured {
				t.Errorf("%s, %s: %g (%s), want %g", name, field, x[0], got.Sources[field], x[1])
			}
		}
		for _, field := range []string{"memory_gbps", "link_gbps", "launches", "flag_us", "flag_gbps"} {
			if got.Sources[field] != rates.Assumed {
				t.Errorf("%s is %q", field, got.Sources[field])
			}
		}
	}
}

// TestNoisyCards: no noise makes rates that are refused, or that cannot be.
func TestNoisyCards(t *testing.T) {
	card, _ := rates.Named("h100")
	for name, spoil := range map[string]func(*cards.Points){
		"copies beside work are faster":    func(p *cards.Points) { p.Busy.US = p.Copies[1].US / 2 },
		"and take no time at all":          func(p *cards.Points) { p.Busy.US = 1e-3 },
		"small copies take longer":         func(p *cards.Points) { p.Copies[0].US = 2 * p.Copies[1].US },
		"and nothing besides":              func(p *cards.Points) { p.Copies[0].US = 0 },
		"few rows are faster than many":    func(p *cards.Points) { p.Dense[0].US /= 100 },
		"rates grow faster than rows":      func(p *cards.Points) { p.Experts[0].US *= 1000 },
		"launches take longer than work":   func(p *cards.Points) { p.NodeUS = 1e4 },
		"weights are read faster than all": func(p *cards.Points) { p.ReadGBps /= 3 },
	} {
		p := pointsOf(card)
		spoil(p)
		c, err := cardOf(p)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if c.BusyGBps > c.CopyGBps || c.CopyUS < 0 || c.WeightShare > 1 || c.Dense.Half < 0 || c.Experts.Half > p.Experts[1].Rows {
			t.Errorf("%s: %+v", name, c)
		}
	}
	if _, err := cardOf(&cards.Points{GPU: "nothing"}); err == nil || errors.Is(err, ErrUnmeasured) {
		t.Errorf("a GPU without figures: %v", err)
	}
	p := pointsOf(card)
	p.Emulated = true
	if _, err := cardOf(p); !errors.Is(err, ErrUnmeasured) {
		t.Errorf("an emulated GPU: %v", err)
	}
}
