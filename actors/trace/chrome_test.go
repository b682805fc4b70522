package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/chrome.json; read the diff before committing it")

// step is a batch that passes two groups, with a request that waited for it.
func step() []Track {
	return []Track{
		{"group:0", []Event{
			{Batch: 7, Enqueued: 1_500, Started: 2_000, Ended: 62_345, Epoch: 1, Rows: 9, Layer: -1, Kind: Group},
			{Batch: 7, Started: 3_000, Ended: 9_999, Epoch: 1, Rows: 9, Layer: 0, Kind: Split, Parts: 2},
			{Batch: 8, Enqueued: 60_000, Started: 62_400, Ended: 99_000, Epoch: 1, Rows: 1, Layer: -1, Lane: 1, Kind: Group, Device: 1, Bytes: 4096, Others: 7},
		}},
		{"group:1", []Event{
			{Batch: 7, Enqueued: 62_350, Started: 63_001, Ended: 120_000, Epoch: 1, Rows: 9, Layer: -1, Kind: Group},
		}},
		{"gateway", []Event{
			{Request: 3, Started: 90, Ended: 400, Rows: 8, Layer: -1, Kind: Gateway}, {Request: 4, Started: 95, Ended: 500, Rows: 9, Layer: -1, Kind: Gateway},
		}},
		{"pool0", []Event{
			{Batch: 9, Started: 200_000, Ended: 205_500, Epoch: 1, Rows: 8, Layer: 3, Kind: Experts, Gathered: 1_000, Computed: 5_000},
		}},
		{"quote \" and \x01 ünïcode", nil},
		{"schedule", []Event{
			{Batch: 7, Request: 3, Enqueued: 100, Started: 1_400, Ended: 130_000, Rows: 8, Layer: -1, Kind: Request},
			{Request: 3, Enqueued: 100, Started: 1_400, Ended: 62_000, Rows: 5, Layer: -1, Kind: Prefill},
			{Started: 5, Ended: 7, Layer: -1, Kind: Control},
		}},
	}
}

func TestChromeGolden(t *testing.T) {
	var buf bytes.Buffer
	if err := WriteChrome(&buf, step(), []string{"host", "cuda:0"}); err != nil {
		t.Fatal(err)
	}
	const name = "testdata/chrome.json"
	if *rewrite {
		if err := os.WriteFile(name, buf.Bytes(), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(buf.Bytes(), want) {
		t.Fatalf("got:\n%s\nwant:\n%s", &buf, want)
	}
}

// TestChromeReads reads the file back as a viewer would.
func TestChromeReads(t *testing.T) {
	var buf bytes.Buffer
	if err := WriteChrome(&buf, step(), []string{"host", "cuda:0"}); err != nil {
		t.Fatal(err)
	}
	var file struct {
		TraceEvents []struct {
			Ph, Name, Cat string
			Pid, Tid, ID  int
			Ts, Dur       float64
			Args          map[string]any
		}
	}
	if err := json.Unmarshal(buf.Bytes(), &file); err != nil {
		t.Fatalf("%v in\n%s", err, &buf)
	}
	phases := ""
	threads := map[int]string{}
	for _, e := range file.TraceEvents {
		phases += e.Ph
		if e.Ph == "M" && e.Name == "thread_name" {
			threads[e.Tid] = e.Args["name"].(string)
		}
		if e.Ph == "X" && e.Name == "group" && threads[e.Tid] == "group:1" {
			if e.Ts != 63.001 || e.Dur != 56.999 || e.Args["wait_us"] != 0.651 || e.Args["batch"] != 7.0 || e.Args["rows"] != 9.0 {
				t.Errorf("slice of group:1: %+v", e)
			}
		}
	}
	// Batch 7 is in three slices: an arrow begins, goes on, ends. Batch 8 is in one.
	if want := "MMMMMMMXbebebbeebeXsXtXXfX"; phases != want {
		t.Errorf("phases %q, want %q", phases, want)
	}
	if threads[6] != "quote \" and \x01 ünïcode" {
		t.Errorf("thread 6 is called %q", threads[6])
	}
}

func TestChromeReportsWriteErrors(t *testing.T) {
	broken := errors.New("disk full")
	if err := WriteChrome(failing{broken}, step(), []string{"host", "cuda:0"}); !errors.Is(err, broken) {
		t.Fatalf("WriteChrome = %v, want %v", err, broken)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestChromeEmpty(t *testing.T) {
	var buf strings.Builder
	if err := WriteChrome(&buf, nil, nil); err != nil || !json.Valid([]byte(buf.String())) {
		t.Fatalf("%v: %s", err, buf.String())
	}
}

func BenchmarkChrome(b *testing.B) {
	var t Track
	for n := range uint64(4096) {
		t.Events = append(t.Events, numbered(n))
	}
	for b.Loop() {
		if err := WriteChrome(io.Discard, []Track{t}, nil); err != nil {
			b.Fatal(err)
		}
	}
}
