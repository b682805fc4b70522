package traces

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"krater/actors/trace"
	"krater/cmd/krater/console"
)

// TestTraceShowGolden: the picture of a step, letter by letter, and in colours.
func TestTraceShowGolden(t *testing.T) {
	tracks := []trace.Track{
		{Name: "schedule", Events: []trace.Event{{Batch: 7, Kind: trace.Schedule, Layer: -1, Started: 0, Ended: 10_000}, {Batch: 7, Kind: trace.Schedule, Layer: -1, Enqueued: 95_000, Started: 95_000, Ended: 100_000}}},
		{Name: "pool0", Events: []trace.Event{{Batch: 7, Kind: trace.Experts, Layer: 1, Enqueued: 31_000, Started: 40_000, Ended: 80_000}}},
		{Name: "group0", Events: []trace.Event{{Batch: 7, Kind: trace.Group, Layer: -1, Enqueued: 10_000, Started: 10_000, Ended: 30_000}, {Batch: 7, Kind: trace.Group, Layer: 1, Enqueued: 80_000, Started: 80_000, Ended: 95_000}}},
		{Name: "split0", Events: []trace.Event{{Batch: 7, Kind: trace.Split, Layer: 1, Enqueued: 30_000, Started: 30_000, Ended: 31_000}}},
		{Name: "other", Events: []trace.Event{{Batch: 6, Kind: trace.Head, Layer: -1, Started: -5000, Ended: -10}}},
	}
	var buf bytes.Buffer
	if err := trace.WriteChrome(&buf, tracks, nil); err != nil {
		t.Fatal(err)
	}
	file := write(t, "trace.json", buf.String())
	got := shown(t, showCmd{File: file, Steps: 1, Width: 60})
	const want = `Step 7: 100.0 us

           |0.0 us             |50.0 us
schedule   ssss                                  ss  15.0 %
group0         LLLLLLLL                    LLLLLL    35.0 %
split0                 d                              1.0 %
pool0                      XXXXXXXXXXXXXXXX          40.0 %
           s scheduler L layers d split X experts

Where the time went, 100.0 us per step:
  pool0       40.0 %  ################
  group0      35.0 %  ##############
  schedule    15.0 %  ######
  waiting      9.0 %  ####
  split0       1.0 %  #

The longest waits:
     85.0 us  schedule   waiting for credit: step 7 was at pool0
     50.0 us  group0     waiting for the experts of layer 1, at pool0
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	figures := figuresOf(t, shown(t, showCmd{File: file, Steps: 1, JSON: true}))
	if figures.NS != 100_000 || !slices.Equal(figures.Steps, []uint64{7}) || len(figures.Lanes) != 4 || figures.Lanes[1] != (timeOf{"group0", 35_000, 0.35}) ||
		len(figures.Path) != 5 || figures.Path[0] != (timeOf{"pool0", 40_000, 0.4}) || figures.Waits[0] != (waitFor{"schedule", 85_000, "waiting for credit: step 7 was at pool0"}) {
		t.Errorf("as JSON: %+v", figures)
	}
	for want, c := range map[string]showCmd{
		"--steps":    {File: file},
		"trace file": {File: write(t, "no.json", "[]"), Steps: 3},
	} {
		if err := c.Run(&console.Env{Out: io.Discard}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", c, err, want)
		}
	}
	if got := shown(t, showCmd{File: write(t, "empty.json", `{"traceEvents":[]}`), Steps: 3}); got != "The recording contains no step.\n" {
		t.Errorf("of nothing it says %q", got)
	}
	if got := shown(t, showCmd{File: write(t, "none.json", `{"traceEvents":[]}`), Steps: 3, JSON: true}); strings.Contains(got, "null") || len(figuresOf(t, got).Steps) != 0 {
		t.Errorf("of nothing it says %q", got)
	}
}

// shown returns the output of a command.
func shown(t *testing.T, c showCmd) string {
	t.Helper()
	var out bytes.Buffer
	if err := c.Run(&console.Env{Out: &out}); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// figuresOf reads what --json prints.
func figuresOf(t *testing.T, text string) (s stretch) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// write makes a file of a test.
func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

// FuzzRecording: whatever a server sends gives tracks or an error.
func FuzzRecording(f *testing.F) {
	f.Add([]byte("[\"host\"]\n[\"a\",[0,\"group\",1,0,2,3,4,1,-1,0,0,0,0,0]]\n"))
	f.Add([]byte("[]\n[\"a\"]\n[1]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		tracks, _, err := readRecording(bytes.NewReader(data))
		if err == nil && trace.WriteChrome(&bytes.Buffer{}, tracks, nil) != nil {
			t.Error("tracks cannot be written")
		}
	})
}
