package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"krater/cmd/krater/benches"
	"krater/scheduler/dispatch"
)

// TestBenchStrategies: the table has all strategies, and each copies, hits and takes as it is designed to.
func TestBenchStrategies(t *testing.T) {
	budgets := []string{fmt.Sprint(96 * expertTiny), fmt.Sprint(192 * expertTiny)}
	if testing.Short() {
		budgets = budgets[:1]
	}
	args := []string{"bench", "strategies", "--prefill", "301,330,5000", "--decode", "6", "--prefill-chunk", "128", "--budgets", strings.Join(budgets, ",")}
	var r benches.StrategiesReport
	if err := json.Unmarshal([]byte(answers(t, "", append(args, "--json")...)), &r); err != nil {
		t.Fatal(err)
	}
	all := dispatch.All()
	if len(r.Strategies) != len(budgets)*len(all) || r.Experts != 192 || r.ExpertBytes != expertTiny || len(r.Skipped) != 1 {
		t.Fatalf("%d results, %d experts of %d bytes, skipped %v", len(r.Strategies), r.Experts, r.ExpertBytes, r.Skipped)
	}
	const model = 192 * expertTiny
	for i, x := range r.Strategies {
		if x.Strategy != all[i%len(all)].Name() || len(x.Prefill) != 2 || x.OnRank > x.Budget || x.KVTokens < 1 || x.VRAM < x.OnRank {
			t.Errorf("%+v", x)
		}
		whole := x.Budget == model
		if (x.Runs != x.Strategy) != (x.Strategy == "persistent" && !whole) {
			t.Errorf("%s runs as %s: %v", x.Strategy, x.Runs, x.Falls)
		}
		for _, p := range append(x.Prefill, x.Decode) {
			if p.MS <= 0 || p.TokensPerS <= 0 || p.HitRate < 0 || p.HitRate > 1 {
				t.Errorf("%s: %+v", x.Strategy, p)
			}
		}
		copied, d := x.Prefill[1].Copied, x.Decode
		bad := false
		switch {
		case x.Strategy == "cpu_only":
			bad = copied+d.Copied != 0 || d.HostShare != 1 || x.OnRank != 0
		case x.Strategy == "chunked": // three pieces, each of which goes through all layers
			bad = copied != 3*model || d.Copied != 6*model || d.HitRate != 0
		case whole && (x.Strategy == "active_only" || x.Strategy == "lru"): // what no prompt has chosen yet
			bad = copied+d.Copied > model/5 || x.Prefill[1].HitRate < 0.8
		case whole:
			bad = copied+d.Copied != 0 || x.Prefill[1].HitRate != 1 || x.OnRank > model
		case x.Strategy == "layer_grouped" || x.Strategy == "persistent": // once, however many pieces
			bad = copied == 0 || copied > model || d.HostShare != 0
		case x.Strategy == "hot_cached_static":
			bad = copied+d.Copied != 0 || d.HostShare <= 0 || d.HitRate <= 0.4
		case x.Strategy == "learned": // it tries a few copies in the middle of steps
			bad = copied != 0 || d.Copied > 6*6*expertTiny || d.HostShare <= 0 || d.HitRate <= 0.4
		default:
			bad = copied == 0 || d.Copied == 0 || d.HostShare != 0 || d.HitRate <= 0.3
		}
		if bad {
			t.Errorf("%d bytes: %+v", x.Budget, x)
		}
	}
	text := answers(t, "", append(args[:len(args)-1:len(args)-1], budgets[0], "--only", "persistent,layer_grouped:3,layer_grouped/hot_cached_static")...)
	for _, want := range []string{"strategy", "prefill 330 tok/s", "KV tokens", "\nlayer_grouped:3 ", "\nlayer_grouped/hot_cached_static ", "9 MiB for experts: 50 % of them", "persistent runs as layer_grouped:5", "skipped: --prefill 5000"} {
		if !strings.Contains(text, want) {
			t.Errorf("nothing of %q in\n%s", want, text)
		}
	}
	for want, args := range map[string][]string{
		"--only: no such strategy": {"--only", "best"}, "must be above 0": {"--copy-rate", "0"}, "runs every strategy": {"--decode-strategy", "lru"}, "--decode 1": {"--decode", "1"},
		"--prefill 0": {"--prefill", "0"}, "need --shape": {"--layers", "2"}, "has no routed experts": {"--shape", "qwen2.5-7b", "--layers", "1", "--vocab", "64"},
	} {
		if o := krater(t, "", append([]string{"bench", "strategies"}, args...)...); o.status != 1 || !strings.Contains(o.err, want) {
			t.Errorf("%v: status %d: %s", args, o.status, o.err)
		}
	}
}

// TestBenchStrategiesStreams: several streams through the actors in virtual time, in one
// micro-batch and in two: both sides are as busy as before, and on rates under which either
// has something to do two are faster.
func TestBenchStrategiesStreams(t *testing.T) {
	args := []string{"bench", "strategies", "--prefill", "20", "--decode", "4", "--prefill-chunk", "64", "--streams", "4", "--only", "cpu_only,hot_cached_static",
		"--compute-rate", "0.1", "--launch-us", "0", "--copy-us", "0.1", "--host-compute", "0.04", "--host-memory", "1000000"}
	var r benches.StrategiesReport
	if err := json.Unmarshal([]byte(answers(t, "", append(args, "--json")...)), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Strategies) != 2 {
		t.Fatalf("%+v", r.Strategies)
	}
	for _, x := range r.Strategies {
		if len(x.Together) != 2 {
			t.Fatalf("%s: %+v", x.Strategy, x.Together)
		}
		one, two := x.Together[0], x.Together[1]
		if one.MicroBatches != 1 || two.MicroBatches != 2 || one.Streams != 4 || min(one.RankBusy, one.HostBusy) <= 0 || max(two.RankBusy, two.HostBusy) > 1.001 {
			t.Errorf("%s: %+v", x.Strategy, x.Together)
		}
		if two.TokensPerS < 1.1*one.TokensPerS || two.RankBusy < one.RankBusy {
			t.Errorf("%s: two micro-batches %+v, one %+v", x.Strategy, two, one)
		}
	}
	if text := answers(t, "", append(args, "--no-heat")...); !strings.Contains(text, "4 streams in 2 tok/s") || !strings.Contains(text, "heat not counted") || !strings.Contains(text, "50 % of them") {
		t.Error(text)
	}
	for want, more := range map[string][]string{"--streams -1": {"--streams=-1"}, "measures one and two": {"--micro-batches", "2"}} {
		if o := krater(t, "", append([]string{"bench", "strategies"}, more...)...); o.status != 1 || !strings.Contains(o.err, want) {
			t.Errorf("%v: status %d: %s", more, o.status, o.err)
		}
	}
}

// TestBenchStrategiesWindows: strategies that are measured in turn see the same texts, so that the one that copies
// everything it lacks hits more often than the one whose set stays, and each has as many windows as were asked for.
func TestBenchStrategiesWindows(t *testing.T) {
	args := []string{"bench", "strategies", "--decode", "8", "--streams", "2", "--windows", "2", "--heat-tokens", "40", "--only", "layer_grouped/hot_cached_static,lru"}
	var r benches.StrategiesReport
	if err := json.Unmarshal([]byte(answers(t, "", append(args, "--json")...)), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Strategies) != 2 || len(r.Strategies[0].Windows) != 2 || len(r.Strategies[1].Windows) != 2 {
		t.Fatalf("%+v", r.Strategies)
	}
	for i := range 2 {
		stays, copies := r.Strategies[0].Windows[i], r.Strategies[1].Windows[i]
		if stays.TokensPerS <= 0 || stays.Copies != 0 || stays.HostShare <= 0 || copies.Copies <= 0 || copies.HostShare != 0 || copies.HitRate <= stays.HitRate {
			t.Errorf("window %d: %+v, %+v", i, stays, copies)
		}
	}
	if text := answers(t, "", args...); !strings.Contains(text, "medians of 2 windows in turn") {
		t.Error(text)
	}
	if o := krater(t, "", "bench", "strategies", "--windows", "1001"); o.status != 1 || !strings.Contains(o.err, "--windows 1001") {
		t.Errorf("status %d: %s", o.status, o.err)
	}
}
