package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"krater/cmd/krater/console"
	"krater/cmd/krater/term"
	"krater/scheduler/planner/rates"
	"krater/transport/server"
)

// TestReadyTellsProgress: while the model is loading /ready says what is being done and how far it is, beside what
// it says anyway.
func TestReadyTellsProgress(t *testing.T) {
	p := term.NewProgress(io.Discard, time.Hour, nil)
	late := newLoadingEngine("krater-tiny", nil, p)
	srv, _ := openDoors(late, server.Options{}, 0, zerolog.Nop())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	defer func() {
		if err := srv.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		<-done
	}()
	ready := func() map[string]any {
		t.Helper()
		res, err := http.Get("http://" + l.Addr().String() + "/ready")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		got := map[string]any{}
		if err := json.NewDecoder(res.Body).Decode(&got); err != nil || res.StatusCode != 503 || res.Header.Get("Retry-After") != "1" {
			t.Fatalf("%v: %d %v %v", err, res.StatusCode, res.Header, got)
		}
		return got
	}
	p.Set("convert experts", term.Bytes, 0, 400)
	for done := int64(100); p.State().PerSecond == 0; { // the clock may be coarse
		p.Set("convert experts", term.Bytes, done, 400)
	}
	got := ready()
	rate, _ := got["rate"].(string)
	left, number := got["left_seconds"].(float64)
	if got["phase"] != "convert experts" || got["share"] != 0.25 || !strings.HasSuffix(rate, "B/s") || !number || left < 0 {
		t.Errorf("got %v", got)
	}
	if e, ok := got["error"].(map[string]any); !ok || e["message"] != "the model is loading" || e["code"] != "unavailable" {
		t.Errorf("got %v", got)
	}
	p.Set("start the pipeline", term.Steps, 0, 0)
	if got := ready(); got["phase"] != "start the pipeline" || got["share"] != 0.0 || got["rate"] != "" || got["left_seconds"] != nil {
		t.Errorf("got %v", got)
	}
}

// TestLogOfProgress: one line with phase, share, rate and time left.
func TestLogOfProgress(t *testing.T) {
	var text bytes.Buffer
	console.LogProgress(zerolog.New(&text))(term.State{Phase: "load weights", Unit: term.Bytes, Done: 1e9, All: 3e9, PerSecond: 5e8})
	if want := `{"level":"info","phase":"load weights","share":0.333,"done":"1.0 GB of 3.0 GB","rate":"500.0 MB/s","left":"4s","message":"loading"}` + "\n"; text.String() != want {
		t.Errorf("got %s", text.String())
	}
}

// TestLoadsShowBars: every phase of a load has one, and it is gone before the answer or the report.
func TestLoadsShowBars(t *testing.T) {
	t.Setenv("NO_COLOR", "1")
	barsAtOnce(t)
	dir := t.TempDir()
	engine := []string{"--threads", "2", "--cache-dir", dir}
	convert := append([]string{"convert", "--model", filepath.Join("..", "..", "testdata", "goldens", "deepseek_v2_lite"), "--precision", "int8"}, engine...)
	short := []string{"--raw", "--ids", "--max-tokens", "1", "--ignore-eos", "hi"}
	barsShown(t, []barred{
		{convert, []string{"convert experts", "load experts", "load weights"}, dir},
		{convert, []string{"check experts", "load experts", "load matrices", "load weights"}, dir},
		{append(convert, "--fake-topology", "2x1"), []string{"place experts"}, dir},
		{slices.Concat([]string{"run", "--device", "hostsim"}, engine, short), []string{"load weights", "place experts"}, "["},
		{append([]string{"bench", "--rounds", "1", "--decode", "2", "--prefill", "2", "--batch", "1"}, engine...), []string{"bench"}, "krater-tiny"},
		{append([]string{"ppl", "--text", "../../README.md", "--bytes", "300"}, engine...), []string{"ppl"}, "perplexity"},
	})
}

// TestSynthShowsBars is TestLoadsShowBars for models that are made: the smallest has 160 MB.
func TestSynthShowsBars(t *testing.T) {
	if testing.Short() {
		t.Skip("a third of a gigabyte of weights: not in the short suite")
	}
	t.Setenv("NO_COLOR", "1")
	barsAtOnce(t)
	dir := t.TempDir()
	barsShown(t, []barred{
		{[]string{"run", "--shape", "deepseek-v2-lite", "--layers", "1", "--vocab", "300", "--threads", "2", "--raw", "--ids", "--max-tokens", "1", "--ignore-eos", "hi"}, []string{"make weights"}, "["},
		{[]string{"synth", "--shape", "deepseek-v2-lite", "--layers", "1", "--vocab", "300", "--as", "safetensors", "--out", filepath.Join(dir, "made")}, []string{"synth"}, "deepseek-v2-lite, 1 layers"},
	})
}

// barred is a command line, the bars that it shows, and what the last line begins with.
type barred struct {
	args, bars []string
	then       string
}

func barsShown(t *testing.T, list []barred) {
	t.Helper()
	for _, c := range list {
		shown := onTerminal(t, c.args...)
		for _, bar := range c.bars {
			if !strings.Contains(shown, bar+" [") {
				t.Errorf("%v: no bar %q: %q", c.args, bar, shown)
			}
		}
		for _, line := range strings.Split(shown, "\n") {
			at := strings.LastIndex(line, "\r")
			if line = strings.TrimSuffix(line, "\r"); at == len(line) {
				at = strings.LastIndex(line, "\r")
			}
			if rest := line[at+1:]; strings.Contains(rest, " %  ") {
				t.Errorf("%v: a bar stays: %q", c.args, rest)
			}
		}
		if !strings.Contains(shown, "\r"+c.then) {
			t.Errorf("%v: %q does not begin a line: %q", c.args, c.then, shown)
		}
	}
}

// TestMeasuringShowsABar on a terminal; elsewhere it is said in one line.
func TestMeasuringShowsABar(t *testing.T) {
	barsAtOnce(t)
	end, tty := openTerminal(t, 100, 30)
	f := &fakeMeter{slow: 150 * time.Millisecond, cpu: rates.CPU{Name: "Tried", Threads: 2, ReadGBps: 77, DecodeShare: 1, Experts: rates.Curve{Peak: 1}, LayerUS: 1}}
	shown := make(chan string)
	go func() {
		data, _ := io.ReadAll(end) // ends with an error when the tty is closed
		shown <- string(data)
	}()
	status := run([]string{"plan", "--shape", "deepseek-v2-lite", "--measure", "--threads", "2", "--cache-dir", t.TempDir()}, &console.Env{In: strings.NewReader(""), Out: io.Discard, Err: tty, Machine: goodMachine, Meter: f})
	tty.Close()
	if got := <-shown; status != 0 || !strings.Contains(got, "measure nothing [#") || !strings.Contains(got, "25 %  1 s of 4 s") {
		t.Errorf("status %d: %q", status, got)
	}
}
