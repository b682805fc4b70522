package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestJoin: decode is compared over the same number of tokens, without the peer's first samples,
// and only what both measured.
func TestJoin(t *testing.T) {
	theirs := write(t, "theirs.json", `[
		{"n_prompt": 0, "n_gen": 2, "n_depth": 0, "n_threads": 2, "model_type": "deepseek2 Q4_0", "samples_ts": [1, 20, 24, 25]},
		{"n_prompt": 0, "n_gen": 2, "n_depth": 0, "n_threads": 1, "samples_ts": [10, 10]},
		{"n_prompt": 0, "n_gen": 2, "n_depth": 512, "n_threads": 2, "samples_ts": [1000]},
		{"n_prompt": 512, "n_gen": 0, "n_depth": 0, "n_threads": 2, "samples_ts": [30, 40]},
		{"n_prompt": 512, "n_threads": 2, "cpu_ms": 900}, {"n_gen": 2, "n_threads": 2, "cpu_ms": 120}]`)
	ours := write(t, "ours.json", `{"model": "lite", "precision": "int4", "threads": 2, "steps_ms": [30, 50, 20, 30, 99], "decode_cpu_ms": 60, "read_gbps": 35, "decode_ratio": 0.9,
		"regime": "one core", "prefill": [{"tokens": 512, "samples_tok_s": [80, 60], "cpu_ms": 300}, {"tokens": 2048, "samples_tok_s": [70]}]}`)
	var out bytes.Buffer
	if err := run([]string{"join", "--json", "--ours", ours, "--theirs", theirs}, &out); err != nil {
		t.Fatal(err)
	}
	var j joined
	if err := json.Unmarshal(out.Bytes(), &j); err != nil {
		t.Fatal(err)
	}
	want := []comparison{
		{"decode", 2, speed{2, 25, 40, 40}, speed{3, 24, 25, 25}, 25. / 24, 1.6, 1.6, 2},
		{"prefill 512", 2, speed{2, 60, 80, 80}, speed{2, 30, 40, 40}, 2, 2, 2, 3},
	}
	if len(j.Tests) != 2 || j.Tests[0] != want[0] || j.Tests[1] != want[1] || j.Peer != "deepseek2 Q4_0" || j.Precision != "int4" {
		t.Errorf("%+v", j)
	}
	both := write(t, "both.json", out.String())
	out.Reset()
	if err := run([]string{"table", "q4=" + both}, &out); err != nil || !strings.Contains(out.String(), "| q4 | 2 | 60 | 30 | 2.00 | 2.00 | 3.00 | 25.0 | 24.0 | 1.04 | 1.60 | 2.00 | 0.90 | 0.86 |") {
		t.Errorf("%v\n%s", err, out.String())
	}
	out.Reset()
	if err := run([]string{"join", "--ours", ours, "--theirs", theirs}, &out); err != nil || !strings.Contains(out.String(), "prefill 512") {
		t.Errorf("%v\n%s", err, out.String())
	}
	if err := run([]string{"join", "--ours", write(t, "none.json", `{"threads": 7, "steps_ms": [1, 1]}`), "--theirs", theirs}, &out); err == nil {
		t.Error("reports without a common test were joined")
	}
	if err := run([]string{"join", "--ours", theirs, "--theirs", theirs}, &out); err == nil {
		t.Error("a report of the other program passed as ours")
	}
	out.Reset()
	if err := run([]string{"regime", "--threads", "1"}, &out); err != nil || !strings.Contains(out.String(), "GOP/s") {
		t.Errorf("%v %s", err, out.String())
	}
}
