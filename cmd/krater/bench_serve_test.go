package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"krater/bench/serve"
)

// TestBenchServe: the command against a server with the built-in model, through
// every door: figures, files, tables.
func TestBenchServe(t *testing.T) {
	s := open(t)
	dir := t.TempDir()
	picture, records, kept := filepath.Join(dir, "load.svg"), filepath.Join(dir, "load.jsonl"), filepath.Join(dir, "load.json")
	r := decode[serve.Report](t, answers(t, "", "bench", "serve", "--url", s.base, "--door", "completions,chat,websocket", "--concurrency", "1,3",
		"--requests", "6", "--prompt", "uniform:24:60", "--answer", "5", "--prefix", "10", "--goodput", "e2el:1h", "--json", "--plot", picture, "--out", records))
	if len(r.Points) != 6 {
		t.Fatalf("%d points", len(r.Points))
	}
	for _, p := range r.Points {
		if p.Outcomes[serve.OK] != 6 || p.PromptsOff != 0 || p.AnswerTokens != 30 || p.TTFT.N != 6 || p.ITL.N < 1 || p.GoodShare != 1 || p.AnswerTokS <= 0 {
			t.Errorf("%+v", p)
		}
	}
	// The three doors had their loads at the same time. A client has its last token a moment
	// before the server has let go of the request.
	if d := r.Points[0].Server; d == nil || d.Answer != 90 || d.After.Waiting != 0 {
		t.Errorf("%+v", d)
	}
	for end := time.Now().Add(patience); s.metrics()["krater:num_requests_running"] != 0 || s.metrics()["krater:kv_cache_usage_perc"] != 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the load is over, and the server has not let go of it: %v", s.metrics())
		}
	}
	data, err := os.ReadFile(records)
	if err != nil {
		t.Fatal(err)
	}
	lines := slices.Collect(strings.Lines(string(data)))
	if len(lines) != 36 {
		t.Fatalf("%d records", len(lines))
	}
	for _, line := range lines {
		var rec serve.Record
		if err := json.Unmarshal([]byte(line), &rec); err != nil || rec.Outcome != serve.OK || rec.Answer != 5 || rec.TTFT <= 0 || rec.E2E < rec.TTFT {
			t.Errorf("%v: %s", err, line)
		}
	}
	if svg, err := os.ReadFile(picture); err != nil || !strings.Contains(string(svg), "Time between tokens") {
		t.Errorf("%v", err)
	}
	text := answers(t, "", "bench", "serve", "--url", s.base, "--sweep", "40,80", "--arrival", "gamma", "--requests", "8", "--prompt", "30", "--answer", "3", "--greedy", "--logprobs", "--json-file", kept)
	for _, words := range []string{"open loop, gamma arrivals of shape 0.25", "completions, 40 requests/s", "completions, 80 requests/s", "Throughput", "What the server reports"} {
		if !strings.Contains(text, words) {
			t.Errorf("no %q in\n%s", words, text)
		}
	}
	if data, err = os.ReadFile(kept); err != nil {
		t.Fatal(err)
	}
	var again serve.Report
	if err := json.Unmarshal(data, &again); err != nil || len(again.Points) != 2 || again.Points[1].Rate != 80 {
		t.Errorf("%v: %s", err, data)
	}
}

// TestBenchServeSoak is a soak of a moment; make soak has a longer one.
func TestBenchServeSoak(t *testing.T) {
	s := open(t)
	text := answers(t, "", "bench", "serve", "--url", s.base, "--door", "completions,websocket", "--soak", "2s", "--sample", "100ms", "--concurrency", "2",
		"--prompt", "30", "--answer", "uniform:2:16", "--disconnect", "0.4", "--cancel", "0.3", "--leak-size", "1000")
	for _, words := range []string{"nothing leaked", "resident memory grows by", "disconnected", "cancelled"} {
		if !strings.Contains(text, words) {
			t.Errorf("no %q in\n%s", words, text)
		}
	}
}

// TestBenchServeLeak: with bounds that nothing keeps, memory leaks, and the exit
// status says so.
func TestBenchServeLeak(t *testing.T) {
	s := open(t)
	o := krater(t, "", "bench", "serve", "--url", s.base, "--soak", "2s", "--sample", "100ms", "--prompt", "30", "--answer", "8", "--leak=-1e12", "--leak-size=-1e12")
	if o.status != 1 || !strings.Contains(o.out, "LEAK") || !strings.Contains(o.out, "memory grows by") {
		t.Errorf("status %d\n%s%s", o.status, o.out, o.err)
	}
}

// TestBenchServeRefuses what it cannot measure, before anything is asked.
func TestBenchServeRefuses(t *testing.T) {
	for _, c := range [][]string{
		{"--rate", "1", "--concurrency", "2"}, {"--rate=-1"}, {"--concurrency", "0"}, {"--soak", "1s", "--requests", "3"}, {"--soak=-1s"},
		{"--soak", "1s", "--sweep", "1,2"}, {"--plot", "x.gif"},
	} {
		refuses(t, 1, append([]string{"bench", "serve"}, c...))
	}
	refuses(t, 2, []string{"bench", "serve", "--prompt", "normal:3"}, "lognormal")
	refuses(t, 2, []string{"bench", "serve", "--goodput", "ttfb:3s"}, "tpot")
	refuses(t, 1, []string{"bench", "serve", "--url", "http://127.0.0.1:1"}, "refused")
	s := open(t)
	refuses(t, 1, []string{"bench", "serve", "--url", s.base, "--door", "window"}, "completions", "websocket")
	refuses(t, 1, []string{"bench", "serve", "--url", s.base, "--prefix", "100000"}, "prefix", "context")
}
