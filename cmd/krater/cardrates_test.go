package main

import (
	"errors"
	"math"
	"strings"
	"testing"

	"krater/bench/cards"
	"krater/cmd/krater/console"
	"krater/scheduler/planner/rates"
)

// pointsOf are those that a card of rates c gives, whose launches hide nothing.
func pointsOf(c rates.Card) *cards.Points {
	p := &cards.Points{
		Card: c.Name, Memory: int64(c.MemoryGiB * (1 << 30)), ReadGBps: c.ReadGBps, TFLOPs: c.TFLOPS,
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
	piece := func(bytes, gbps float64) cards.Piece { return cards.Piece{Bytes: bytes, US: c.CopyUS + bytes/gbps/1e3} }
	p.Copies = [2]cards.Piece{piece(65536, c.CopyGBps), piece(4.4e6, c.CopyGBps)}
	p.Busy = piece(4.4e6, c.BusyGBps)
	return p
}

// TestCardOf: what a card was measured to do gives the rates it has, marked as measured,
// and what was not is assumed.
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
	if _, err := cardOf(&cards.Points{Card: "nothing"}); err == nil || errors.Is(err, errUnmeasured) {
		t.Errorf("a card of no figures: %v", err)
	}
	p := pointsOf(card)
	p.Emulated = true
	if _, err := cardOf(p); !errors.Is(err, errUnmeasured) {
		t.Errorf("an emulated card: %v", err)
	}
}

// TestCardMeter: without a card, or with an emulated one, nothing is measured, and the plan
// goes on and says so where that is news.
func TestCardMeter(t *testing.T) {
	c, err := usualMeter.Card(0, func(string, float64, float64) {})
	switch {
	case err == nil:
		if c.Sources["read_gbps"] != rates.Measured || c.ReadGBps < 50 || c.BusyGBps > c.CopyGBps {
			t.Errorf("%+v", c)
		}
		t.Logf("%+v", c)
		return
	case !errors.Is(err, errUnmeasured):
		t.Fatal(err)
	}
	var out, errs strings.Builder
	f := &cpuMeter{fakeMeter{cpu: rates.CPU{Name: "Tried", ReadGBps: 77, Experts: rates.Curve{Peak: 1}}}}
	status := run([]string{"plan", "--shape", "deepseek-v2-lite", "--vram", "8GiB", "--cache-dir", t.TempDir(), "--measure"},
		&console.Env{Out: &out, Err: &errs, Machine: goodMachine, Meter: f})
	if status != 0 {
		t.Fatal(errs.String())
	}
	if told, news := strings.Contains(errs.String(), "no card was measured"), errors.Is(err, cards.ErrEmulated) || len(goodMachine().GPUs) > 0; told != news {
		t.Errorf("%v: %s", err, errs.String())
	}
	if strings.Contains(out.String(), "emulated") {
		t.Errorf("a plan for an emulated card:\n%s", out.String())
	}
}

// cpuMeter measures cards really.
type cpuMeter struct{ fakeMeter }

func (*cpuMeter) Card(index int, tell console.Telling) (rates.Card, error) {
	return usualMeter.Card(index, tell)
}
