package main

import (
	"strings"
	"testing"

	"krater/actors/local/config"
	"krater/actors/local/predict"
	"krater/bench/meter"
	"krater/cmd/krater/cmdline"
	"krater/cmd/krater/console"
	"krater/scheduler/planner/rates"
)

// TestMeasuresOnce: the first start on a card measures what is not kept of the machine, in one
// line; later starts take that. What cannot be measured keeps nobody from going on.
func TestMeasuresOnce(t *testing.T) {
	const mine = "NVIDIA Mine"
	card, _ := rates.Named("rtx-4090")
	card.Name = "as another program calls it"
	cpu := rates.CPU{Name: "Tried", Threads: 2, ReadGBps: 77, DecodeShare: 1, Experts: rates.Curve{Peak: 1}, LayerUS: 1}
	f := &fakeMeter{cpu: cpu, card: &card}
	dir, memory, lent := t.TempDir(), int64(24<<30), 0
	apart := func(work func()) {
		lent++
		work()
	}
	start := func(with *fakeMeter, name string, args ...string) (*rates.File, string) {
		t.Helper()
		var c cli
		if _, _, err := cmdline.Parse(&c, append([]string{"run", "--device", "cuda", "--threads", "2", "--cache-dir", dir, "hi"}, args...)); err != nil {
			t.Fatal(err)
		}
		var told strings.Builder
		got := predict.MeasureOnce(&c.Run.Options, roomyMachine(), with, console.ReportOn(&console.Env{Err: &told}), config.RankFacts{Name: name, Capacity: memory}, 4, apart)
		return got, told.String()
	}
	if got, told := start(f, mine, "--no-measure"); got != nil || told != "" || f.threads != 0 {
		t.Errorf("--no-measure: %+v, %s", got, told)
	}
	// Emulated, or with its memory in use: nothing is measured, nothing kept.
	if got, told := start(&fakeMeter{cpu: cpu}, mine); got != nil || !strings.Contains(told, meter.ErrUnmeasured.Error()) {
		t.Errorf("%+v, %s", got, told)
	}
	got, told := start(f, mine)
	if got == nil || got.Card == nil || got.CPU == nil || got.Card.Name != mine || got.CPU.ReadGBps != 77 || f.threads != 2 || f.bits != 4 {
		t.Fatalf("%+v: %s", got, told)
	}
	if lent != 2 {
		t.Errorf("the card was lent %d times", lent)
	}
	if strings.Count(told, "\n") != 1 || !strings.Contains(told, "measuring "+mine) || !strings.Contains(told, "--no-measure") {
		t.Errorf("%q", told)
	}
	for _, args := range [][]string{nil, {"--no-measure"}} {
		if got, told := start(&fakeMeter{}, mine, args...); told != "" || got == nil || got.CPU == nil || got.CPU.ReadGBps != 77 || got.Card.Name != mine {
			t.Errorf("later, %v: %+v, %q", args, got, told)
		}
	}
	if lent != 2 {
		t.Error("the card was lent for what is kept")
	}
	// Another card is measured, and one of more memory; the processors are not again.
	f.threads = 0
	memory *= 2
	if got, told := start(f, mine); got == nil || got.Card.MemoryGiB != 48 || !strings.Contains(told, "measuring") || f.threads != 0 {
		t.Errorf("%+v: %s", got, told)
	}
	if _, told := start(&fakeMeter{}, mine); told != "" {
		t.Error(told)
	}
	if got, _ := start(f, "NVIDIA Other"); got == nil || got.Card.Name != "NVIDIA Other" || got.CPU.ReadGBps != 77 || f.threads != 0 {
		t.Errorf("%+v, %d", got, f.threads)
	}
	older := roomyMachine()
	newer := roomyMachine()
	newer.Driver = "580.1"
	if predict.Identity(older, 2) == predict.Identity(newer, 2) {
		t.Error("rates of another driver are taken")
	}
	// Other threads, another machine as far as rates go.
	if got, _ := start(&fakeMeter{}, mine, "--threads", "3"); got != nil {
		t.Errorf("%+v", got)
	}
}

// TestForesightMeasures: a plan for an open card asks who measures, where a strategy is left open
// and not all experts fit.
func TestForesightMeasures(t *testing.T) {
	card, _ := rates.Named("rtx-4090")
	card.Name = "NVIDIA Mine"
	asked := 0
	for _, x := range []struct {
		memory int64
		flags  string
		want   int
	}{
		{6 * gib, "", 1},
		{6 * gib, "--prefill-strategy chunked --decode-strategy lru", 0},
		{80 * gib, "", 0},
	} {
		asked = 0
		look, _ := lookedWithin(t, "deepseek-v2-lite", config.Case{Rank: config.RankFacts{Name: card.Name, Memory: x.memory}, Measure: func(int) *rates.File {
			asked++
			return &rates.File{Card: &card}
		}}, append(strings.Fields(x.flags), "--cache-dir", t.TempDir())...)
		if asked != x.want {
			t.Errorf("%d bytes, %s: asked %d times", x.memory, x.flags, asked)
		}
		if x.want > 0 && !strings.Contains(look.Foreseen.Line, "predicted for NVIDIA Mine (measured on this machine)") {
			t.Errorf("%s", look.Foreseen.Line)
		}
	}
}
