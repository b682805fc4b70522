package scaling

import (
	"flag"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the tables of docs/scaling.md")

// Shapes of known models with INT4 experts, INT8 for the rest and an 8-bit KV cache, from their configs.
var (
	v2lite = Model{
		Name: "DeepSeek-V2-Lite", Layers: 27, Experts: 64, TopK: 6, ExpertBytes: 3 * 2048 * 1408 * 0.53, LayerBytes: 16e6 + 18e6, HeadBytes: 210e6, KVBytes: 576, RowBytes: 8192,
		Flops: 2 * (16e6 + 8*3*2048*1408),
	}
	v3 = Model{
		Name: "DeepSeek-V3", Layers: 61, Experts: 256, TopK: 8, ExpertBytes: 3 * 7168 * 2048 * 0.53, LayerBytes: 187e6 + 44e6, HeadBytes: 927e6, KVBytes: 576, RowBytes: 28672,
		Flops: 2 * (187e6 + 9*3*7168*2048),
	}
)

var (
	socket   = Machine{Read: 400e9, Compute: 20e12, Fixed: 100e-6}
	networks = []Network{{"1 Gbit/s", 100e-6, 115e6}, {"25 Gbit/s", 30e-6, 2.9e9}}
)

// tables are the tables of the page.
func tables(t *testing.T) string {
	var s strings.Builder
	for _, n := range networks {
		fmt.Fprintf(&s, "\n%s over %s: tokens a second (milliseconds between two tokens of a stream)\n\n", v3.Name, n.Name)
		s.WriteString("| machines | 1 stream | 8 streams | 64 streams | 512 streams | prompt of 32K, tok/s |\n|---|---|---|---|---|---|\n")
		for _, machines := range []int{1, 2, 4, 8, 16, 32, 61} {
			fmt.Fprintf(&s, "| %d |", machines)
			for _, streams := range []int{1, 8, 64, 512} {
				d, err := Simulate(v3, machines, socket, n, Load{Streams: streams, Context: 4096})
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(&s, " %.3g (%.0f) |", d.TokensPerSecond, 1000*d.Step)
			}
			fmt.Fprintf(&s, " %.3g |\n", Prefill(v3, machines, socket, n, 32768, 2048))
		}
	}
	return s.String()
}

// TestPage: docs/scaling.md has the tables of this package.
func TestPage(t *testing.T) {
	const path, from, to = "../../../docs/scaling.md", "<!-- tables: go test ./scheduler/planner/scaling -update -->\n", "<!-- end -->"
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(data), from)
	_, after, found := strings.Cut(rest, to)
	if !ok || !found {
		t.Fatalf("%s has no place for tables", path)
	}
	want := before + from + tables(t) + "\n" + to + after
	if *update {
		err = os.WriteFile(path, []byte(want), 0o644)
	} else if want != string(data) {
		err = fmt.Errorf("%s: the tables differ; run go test ./scheduler/planner/scaling -update", path)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestMeasured: simulations are within 15 % of what was measured (bench/results/ranks.md and two-gpus.md).
func TestMeasured(t *testing.T) {
	// Two simulated devices of no network against one: chunks of one prompt.
	chunks := func(machines, n int) float64 {
		m := Model{Layers: 8, LayerBytes: 1e6, RowBytes: 1}
		return Prefill(m, machines, Machine{Read: 1e9, Compute: math.Inf(1)}, Network{"none", 0, math.Inf(1)}, 32*n, 32)
	}
	// An H200 reads 4.2 TB/s; what a step of one stream takes beyond its bytes is its fixed time (one GPU: 841 tok/s).
	gpu := Machine{Read: 4.2e12, Compute: 600e12}
	one := v2lite.step(27, 1, 330, gpu) + v2lite.HeadBytes/gpu.Read
	perLayer := (1/841.0 - one) / 27
	link := Network{"peer", 30e-6, 300e9}
	gpus := func(machines, streams int) float64 {
		x := gpu
		x.Fixed = perLayer * 27 / float64(machines)
		d, err := Simulate(v2lite, machines, x, link, Load{Streams: streams, Context: 330})
		if err != nil {
			t.Fatal(err)
		}
		return d.TokensPerSecond
	}
	for _, x := range []struct {
		name                string
		simulated, measured float64
	}{
		{"two ranks, a prompt of 16 chunks, gain", chunks(2, 16) / chunks(1, 16), 1.84},
		{"two ranks, a prompt of 24 chunks, gain", chunks(2, 24) / chunks(1, 24), 1.88},
		{"two GPUs, one stream, against one", gpus(2, 1) / gpus(1, 1), 0.93},
		{"two GPUs, 32 streams, against one", gpus(2, 32) / gpus(1, 32), 1.10},
	} {
		t.Logf("%s: %.2f simulated, %.2f measured", x.name, x.simulated, x.measured)
		if math.Abs(x.simulated/x.measured-1) > 0.15 {
			t.Errorf("%s: %.2f simulated, %.2f measured", x.name, x.simulated, x.measured)
		}
	}
}
