package benches

import (
	"strings"
	"testing"
)

func TestBenchCardFlags(t *testing.T) {
	for _, c := range []struct {
		flags gpuFlags
		want  string // in the error; empty: none
	}{
		{gpuFlags{Device: "cpu"}, ""},
		{gpuFlags{Device: "cuda", Only: "mix T=1 ", Small: true, Record: "x"}, ""},
		{gpuFlags{Device: "cpu", Small: true}, "need --device cuda"},
		{gpuFlags{Device: "cpu", Only: "mix"}, "need --device cuda"},
		{gpuFlags{Device: "cuda", Only: "("}, "--only"},
		{gpuFlags{Device: "cuda", GPU: -1}, "--gpu -1"},
	} {
		_, err := c.flags.match()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v", c.flags, err)
		}
	}
	match, err := (&gpuFlags{Device: "cuda", Only: "^mix .*INT4"}).match()
	if err != nil || !match("mix T=1 INT4 g128") || match("mix T=1 INT8 g128") {
		t.Error("--only does not choose", err)
	}
}
