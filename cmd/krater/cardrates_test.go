package main

import (
	"errors"
	"strings"
	"testing"

	"krater/actors/local/config"
	"krater/bench/cards"
	"krater/bench/meter"
	"krater/cmd/krater/console"
	"krater/scheduler/planner/rates"
)

// TestCardMeter: without a GPU, or with an emulated one, nothing is measured, and the plan goes on
// and says so where that is news.
func TestCardMeter(t *testing.T) {
	c, err := meter.UsualMeter.Card(0, func(string, float64, float64) {})
	switch {
	case err == nil:
		if c.Sources["read_gbps"] != rates.Measured || c.ReadGBps < 50 || c.BusyGBps > c.CopyGBps {
			t.Errorf("%+v", c)
		}
		t.Logf("%+v", c)
		return
	case !errors.Is(err, meter.ErrUnmeasured):
		t.Fatal(err)
	}
	var out, errs strings.Builder
	f := &cpuMeter{fakeMeter{cpu: rates.CPU{Name: "Tried", ReadGBps: 77, Experts: rates.Curve{Peak: 1}}}}
	status := run([]string{"plan", "--shape", "deepseek-v2-lite", "--vram", "8GiB", "--cache-dir", t.TempDir(), "--measure"},
		&console.Env{Out: &out, Err: &errs, Machine: goodMachine, Meter: f})
	if status != 0 {
		t.Fatal(errs.String())
	}
	if told, news := strings.Contains(errs.String(), "no GPU was measured"), errors.Is(err, cards.ErrEmulated) || len(goodMachine().GPUs) > 0; told != news {
		t.Errorf("%v: %s", err, errs.String())
	}
	if strings.Contains(out.String(), "emulated") {
		t.Errorf("a plan for an emulated GPU:\n%s", out.String())
	}
}

// cpuMeter measures GPUs really.
type cpuMeter struct{ fakeMeter }

func (*cpuMeter) Card(index int, tell config.Telling) (rates.Card, error) {
	return meter.UsualMeter.Card(index, tell)
}
