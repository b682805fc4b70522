package placement_test

import (
	"testing"

	"krater/actors/placement"
	"krater/kernels/hostsim"
	"krater/stages"
	"krater/stages/drive"
	"krater/stages/load"
)

// BenchmarkDecode is a decode step of krater-tiny, on the CPU as it is and through
// a simulated device: what the simulation costs.
func BenchmarkDecode(b *testing.B) {
	host := processor(b)
	s := open(b, "")
	run := func(name string, r drive.Runner) {
		b.Run(name, func(b *testing.B) {
			batch := &stages.Step{Tokens: []int32{5}, Spans: []stages.Span{{Decode: true, Want: true}}}
			batch.Spans[0].Len, batch.Spans[0].Blocks = 1, []int32{0}
			for b.Loop() {
				if err := r.Step(batch, nil, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	o := load.Options{Limits: limits}
	run("cpu", plain(b, host, s.on(b, host, o)))
	for _, name := range []string{"persistent", "cpu_only"} {
		d := simulated(b, hostsim.Options{CPU: host})
		run(name, s.placed(b, d, host, o, placement.Options{Prefill: strategy(b, name), Decode: strategy(b, name)}))
	}
}
