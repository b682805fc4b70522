package template

import (
	"bufio"
	"encoding/json"
	"os"
	"testing"
	"time"
)

// TestProbes compares small templates with what Python's Jinja2 makes of them, with and without
// marks. testdata/probes.py writes the file.
func TestProbes(t *testing.T) {
	f, err := os.Open("testdata/probes.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	lines.Scan()
	head, err := Decode(lines.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	vars := head.AsDict().Data["vars"].AsDict()
	now := func() time.Time { return time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC) }
	n := 0
	for ; lines.Scan(); n++ {
		var p struct{ Template, Expected, Error string }
		if err := json.Unmarshal(lines.Bytes(), &p); err != nil {
			t.Fatal(err)
		}
		data, marked := valuesOf(vars), valuesOf(Mark(head).AsDict().Data["vars"].AsDict())
		prog, err := Compile(p.Template)
		if err != nil {
			if p.Error == "" {
				t.Errorf("%s: %v, Python renders %q", p.Template, err, p.Expected)
			}
			continue
		}
		got, err := prog.Run(data, Config{Now: now})
		if (err != nil) != (p.Error != "") || got != p.Expected {
			t.Errorf("%s\n got %q, %v\nwant %q, %s", p.Template, got, err, p.Expected, p.Error)
			continue
		}
		out, errMarked := prog.Run(marked, Config{Now: now})
		if text, _ := Unmark(out); text != got || (err != nil) != (errMarked != nil) {
			t.Errorf("%s\nwith marks %q, %v\n  without %q, %v", p.Template, text, errMarked, got, err)
		}
	}
	if n < 600 {
		t.Errorf("only %d probes", n)
	}
}
