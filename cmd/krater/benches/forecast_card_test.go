package benches

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"testing"

	"krater/actors/local/config"
	"krater/actors/local/predict"
	"krater/cmd/krater/cmdline"
	"krater/scheduler/planner"
	"krater/scheduler/planner/forecast"
	"krater/scheduler/planner/rates"
	"krater/stages/source"
	"krater/stages/synth"
)

// TestForecastOnCard holds what is predicted for an H100 beside 16 processors, half of a
// core each, to what krater bench strategies measured there (bench/results): every strategy
// with every budget, prompts, decode of one stream and, where they were timed while all
// generate, of several; within 15 % in tok/s.
//
// The processors differed by a fifth between the machines of the file, so theirs are the rates at
// which cpu_only is met, of the same budget; what they do of a part of the experts is predicted.
func TestForecastOnCard(t *testing.T) {
	// Groups of six layers, 8,192 tokens: 143 ms as four prompts, 155 ms as one.
	exceptions := map[string]float64{"4 GiB, persistent, prompt of 8192": 0.20}
	rep := measuredStrategies(t)
	cpus := map[int64]rates.CPU{}
	for _, x := range rep.Strategies {
		if x.Strategy == config.CPUOnly {
			cpus[x.Budget] = cpuLike(t, rep, &x)
		}
	}
	compared := 0
	for _, x := range rep.Strategies {
		cpu, ok := cpus[x.Budget]
		if !ok {
			continue
		}
		f := foretold(t, rep, &x, cpu)
		check := func(what string, got, want float64) {
			name := fmt.Sprintf("%s, %s, %s", bytesText(x.Budget), x.Strategy, what)
			off := 0.15
			if e, ok := exceptions[name]; ok {
				off = e
			}
			t.Logf("%s: %.4g tok/s predicted, %.4g measured", name, got, want)
			if compared++; !(math.Abs(got/want-1) <= off) {
				t.Errorf("%s: %.2f of what was measured", name, got/want)
			}
		}
		for i, p := range x.Prefill {
			check(fmt.Sprintf("prompt of %d", p.Tokens), f.Prefill.Prefill.Points[i].PerSecond, p.TokensPerS)
		}
		check("decode", f.Decode.Decode.Points[0].PerSecond, x.Decode.TokensPerS)
		for _, p := range x.Together {
			if p.MicroBatches == 1 && p.Tokens > 0 {
				check(planner.Count(p.Streams, "stream"), f.Decode.Decode.Points[1].PerSecond, p.TokensPerS)
			}
		}
	}
	if compared < 60 {
		t.Errorf("%d figures compared", compared)
	}
}

// measuredStrategies is the file of what an H100 did.
func measuredStrategies(t *testing.T) *StrategiesReport {
	t.Helper()
	data, err := os.ReadFile("../../../bench/results/h100-strategies.json")
	if err != nil {
		t.Fatal(err)
	}
	r := new(StrategiesReport)
	if err := json.Unmarshal(data, r); err != nil {
		t.Fatal(err)
	}
	return r
}

// cpuLike is processors as they were when cpu_only was measured.
func cpuLike(t *testing.T, rep *StrategiesReport, x *strategyResult) rates.CPU {
	t.Helper()
	cpu := rates.AssumedCPU("Xeon", 16, 1, rates.Matrix)
	for range 8 {
		f := foretold(t, rep, x, cpu)
		off := 1.0 // the prompts' geometric mean
		for i, p := range x.Prefill {
			off *= math.Pow(p.TokensPerS/f.Prefill.Prefill.Points[i].PerSecond, 1/float64(len(x.Prefill)))
		}
		cpu.Experts.Peak *= off
		cpu.DecodeShare *= x.Decode.TokensPerS / f.Decode.Decode.Points[0].PerSecond
	}
	if each := cpu.Experts.Peak / 16; each < 0.2 || each > 0.4 {
		t.Fatalf("processors of %.3g TOP/s a thread", each)
	}
	return cpu
}

// foretold is the forecast of a strategy with its budget, for both phases.
func foretold(t *testing.T, rep *StrategiesReport, x *strategyResult, cpu rates.CPU) *forecast.Forecast {
	t.Helper()
	m, err := synth.New(rep.Model, synth.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w := forecast.Work{Batches: []int{1, 8}, Streams: 1, Context: 32}
	pass := 1
	for _, p := range x.Prefill {
		w.Lengths = append(w.Lengths, p.Tokens)
		pass = max(pass, p.Tokens)
	}
	if x.Prompts != nil {
		pass = max(pass, x.Prompts.Tokens)
	}
	if len(x.Together) > 0 {
		w.Batches[1] = x.Together[0].Streams
	}
	var c struct {
		Run struct{ config.Options } `cmd:""`
	}
	if _, _, err := cmdline.Parse(&c, []string{"run", "--attention-quant", "int8", "--kv-dtype", "fp8", "--expert-vram", fmt.Sprint(x.Budget),
		"--prefill-pass", fmt.Sprint(pass), "--prefill-strategy", x.Runs, "--decode-strategy", x.Runs}); err != nil {
		t.Fatal(err)
	}
	card, ok := rates.Known(rep.Card)
	if !ok {
		t.Fatalf("nothing is known of %s", rep.Card)
	}
	k, err := predict.NewCase(source.Sizes{Config: m.Config}, &c.Run.Options, rates.Rates{Card: card, CPU: cpu}, 80<<30, 0, "zipf", w)
	if err != nil {
		t.Fatal(err)
	}
	f, err := forecast.New(*k)
	if err != nil || f.Prefill == nil {
		t.Fatalf("%s: %v", x.Runs, err)
	}
	return f
}
