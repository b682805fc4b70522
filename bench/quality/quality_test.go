package main

import (
	"fmt"
	"strings"
	"testing"
)

// TestRun: the model is no distance from itself, and INT8 a small one.
func TestRun(t *testing.T) {
	var out strings.Builder
	const tiny = "../../models/krater-tiny"
	if err := run(&out, tiny, tiny+"/heldout.txt", 64, 64, "BF16|int8"); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 4 || lines[2] != "| BF16 | as in the files | 16.000 | 18.0 | 0.0000 | 0.000 | 1.0000 |" {
		t.Fatalf("%s", out.String())
	}
	var bits, size, mean, tail, top float64
	if _, err := fmt.Sscanf(lines[3], "| int8_g128 | search | %f | %f | %f | %f | %f |", &bits, &size, &mean, &tail, &top); err != nil || !(mean > 0 && mean < 0.01 && tail >= mean && top > 0.9 && top <= 1) {
		t.Errorf("%s: %v", lines[3], err)
	}
	if err := run(&out, tiny, tiny+"/config.json", 64, 64, ""); err == nil || !strings.Contains(err.Error(), "tokens, want") {
		t.Errorf("a text that is too short: %v", err)
	}
}
