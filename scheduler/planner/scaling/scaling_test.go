package scaling

import (
	"math"
	"testing"
)

var (
	plain = Model{Layers: 60, Experts: 256, TopK: 8, ExpertBytes: 24e6, LayerBytes: 150e6, HeadBytes: 500e6, KVBytes: 1152, RowBytes: 28e3, Flops: 1.2e9}
	box   = Machine{Read: 400e9, Compute: 20e12, Fixed: 200e-6}
	lan   = Network{"25 Gbit/s", 30e-6, 3e9}
)

func near(t *testing.T, what string, got, want, off float64) {
	t.Helper()
	if math.Abs(got/want-1) > off {
		t.Errorf("%s: %g, want %g", what, got, want)
	}
}

// TestOneStream: one stream is on one machine at a time, so its time is the sum of all.
func TestOneStream(t *testing.T) {
	for _, machines := range []int{1, 2, 3, 7, 60} {
		d, err := Simulate(plain, machines, box, lan, Load{Streams: 1, Context: 1000})
		if err != nil {
			t.Fatal(err)
		}
		want := plain.step(60, 1, 1000, box) + float64(machines)*box.Fixed + plain.HeadBytes/box.Read
		if machines > 1 {
			want += float64(machines) * (lan.Delay + plain.RowBytes/lan.Rate)
		}
		near(t, "step", d.Step, want, 1e-9)
	}
}

// TestFullPipeline: with a micro-batch for each machine and more, the slowest machine sets the pace, and is never idle.
func TestFullPipeline(t *testing.T) {
	m := plain
	m.HeadBytes = 0
	for _, micro := range []int{4, 8} {
		d, err := Simulate(m, 4, box, Network{"none", 0, math.Inf(1)}, Load{Streams: 64, Micro: micro})
		if err != nil {
			t.Fatal(err)
		}
		stage := m.step(15, 64/float64(micro), 0, box) + box.Fixed
		near(t, "tokens a second", d.TokensPerSecond, 64/(float64(micro)*stage), 1e-9)
		near(t, "share of the slowest", d.Busy, 1, 1e-9)
	}
	d, err := Simulate(m, 4, box, Network{"slow", 0, 1e6}, Load{Streams: 64, Micro: 8})
	if err != nil {
		t.Fatal(err)
	}
	near(t, "a network that is slower than the machines", d.TokensPerSecond, 1e6/m.RowBytes, 1e-9)
}

// TestPrefill: chunks follow each other, and a long prompt uses all machines.
func TestPrefill(t *testing.T) {
	one := Prefill(plain, 1, box, lan, 1<<20, 2048)
	near(t, "four machines", Prefill(plain, 4, box, lan, 1<<20, 2048), 4*one, 0.02)
	near(t, "one chunk", Prefill(plain, 4, box, Network{"none", 0, math.Inf(1)}, 2048, 2048), one, 0.02)
}

func TestRefused(t *testing.T) {
	for _, machines := range []int{0, 61} {
		if _, err := Simulate(plain, machines, box, lan, Load{Streams: 1}); err == nil {
			t.Errorf("%d machines for 60 layers", machines)
		}
	}
}
