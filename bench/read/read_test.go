package read

import (
	"testing"

	"krater/kernels/cpu"
)

func TestReader(t *testing.T) {
	dev, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	r := New(dev)
	b := make([]byte, 16*cpu.ReadPiece)
	for round, state := range []string{"", "busy"} {
		for range (round + 1) * 3 * len(cpu.ReadLoops) {
			r.Window(b)
		}
		r.Mark(state)
	}
	for state, want := range map[string]int{"": 3, "busy": 6, "never": 0} {
		loops := r.In(state)
		best := r.Best(state)
		for i, l := range loops {
			if l.N != want || i > 0 && l.P50 > loops[i-1].P50 || l.P99 > best.P99 || l.P50 > best.P50 {
				t.Errorf("%q: %+v, best %+v", state, loops, best)
			}
		}
		if want > 0 && (best.P50 < 0.01 || best.Max > 1e5) {
			t.Errorf("%q: %v to %v GB/s", state, best.Min, best.Max)
		}
	}
}
