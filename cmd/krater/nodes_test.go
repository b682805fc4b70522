package main

import (
	"math"
	"strings"
	"testing"

	"krater/scheduler/planner"
)

// TestTopologies: whatever nodes the threads are divided among, and however many
// pools there are, an answer is the same, with experts as in the files and as
// integers that are brought to their nodes.
func TestTopologies(t *testing.T) {
	g := readGolden(t)
	question, dir := g.Prompts[0].Messages[0].Content, t.TempDir()
	ask := func(args ...string) string {
		t.Helper()
		return answers(t, "", append(append([]string{"run", "--ids", "--temperature", "0", "--inline-below", "0s", "--cache-dir", dir}, args...), question)...)
	}
	for i, precision := range [][]string{{"--cpu-expert-bits", "4", "--lm-head-quant", "int8"}, nil} {
		if i > 0 && testing.Short() {
			break
		}
		want := ask(precision...)
		all := [][]string{
			{"--fake-topology", "1x2,1x1"}, {"--fake-topology", "2x1", "--expert-pools", "5"}, {"--expert-pools", "3"},
			{"--fake-topology", "2x1"}, {"--fake-topology", "4x1"}, {"--fake-topology", "2x2", "--expert-pools", "1"},
		}
		if testing.Short() {
			all = all[:3]
		}
		for _, nodes := range all {
			if got := ask(append(nodes, precision...)...); got != want {
				t.Errorf("%v %v: %s, want %s", nodes, precision, got, want)
			}
		}
	}
}

// TestTopologyGolden: the golden through pools on made-up nodes.
func TestTopologyGolden(t *testing.T) {
	out := answers(t, "", "compare", "--model", goldenDir, "--golden", goldenDir, "--fake-topology", "1x2,2x1", "--inline-below", "0s")
	if !strings.Contains(out, " 0 failed") {
		t.Errorf("%s", out)
	}
}

// TestTopologyRefuses what is no topology.
func TestTopologyRefuses(t *testing.T) {
	for _, bad := range []string{"2", "0x4", "2x", "x", "99999x1"} {
		if o := krater(t, "", "run", "--fake-topology", bad, "Hello"); o.status != 1 || !strings.Contains(o.err, "--fake-topology") {
			t.Errorf("%s: status %d: %s", bad, o.status, o.err)
		}
	}
	plan := answers(t, "", "doctor", "--fake-topology", "2x1")
	for _, part := range []string{"2 pools on 2 nodes", "treated as 2 nodes of 1, 1 threads"} {
		if !strings.Contains(plan, part) {
			t.Errorf("no %q in\n%s", part, plan)
		}
	}
}

// TestTopologyMemory: what pools on nodes take is planned, with integers that are
// brought there too.
func TestTopologyMemory(t *testing.T) {
	dir := t.TempDir()
	for _, args := range [][]string{
		{"--fake-topology", "2x1"}, {"--fake-topology", "4x1", "--expert-pools", "16"}, {"--fake-topology", "4x1", "--expert-pools", "2"},
		{"--fake-topology", "2x1", "--cpu-expert-bits", "4", "--lm-head-quant", "int8", "--cache-dir", dir},
		{"--fake-topology", "2x1", "--cpu-expert-bits", "4", "--lm-head-quant", "int8", "--cache-dir", dir, "--cache-load", "map"}, // made before
	} {
		s, _ := started(t, args...)
		// What is resident is of all sessions of this process.
		if u := s.MemoryUse(); math.Abs(planner.Off(u.Promised, u.Allocated)) > 0.01 {
			t.Errorf("%v: %+v", args, u)
		}
	}
}
