package cpu_test

import (
	"testing"
	"time"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/tensor"
)

// TestPhases: each group of rows has two phases, one behind the other, within the time that the
// operator took; those of many groups are told of as fewer, and nothing where nobody asked.
func TestPhases(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		const h, f, group, topK = 64, 32, 32, 2
		timer := s.(device.PhaseTimer)
		e, _ := newQExpert(d, 1, h, f, tensor.INT4, group, 32)
		floats := device.Expert{Gate: f32s(d, make([]float32, f*h), f, h), Up: f32s(d, make([]float32, f*h), f, h), Down: f32s(d, make([]float32, h*f), h, f)}
		for _, rows := range []int{1, 40, 300, 6000} {
			values := kerneltest.Normal(kerneltest.Rand(5), rows*h, 1)
			x, y := f32s(d, values, rows, h), f32s(d, make([]float32, rows*topK*h), rows*topK, h)
			q := quantized(d, s, values, rows, h, group)
			work := []device.ExpertRows{{}}
			for a := range rows * topK {
				work[0].Assign = append(work[0].Assign, int32(a))
			}
			for name, run := range map[string]func(){
				"floats":   func() { d.Experts(s, y, x, []device.Expert{floats}, work, topK) },
				"integers": func() { d.ExpertsQ(s, y, q, []device.QExpert{e}, work, topK) },
			} {
				timer.TimePhases(true)
				began := time.Now()
				run()
				ended := time.Now()
				list := timer.Phases()
				if n := len(list); n == 0 || n%2 != 0 || n > 64 || rows == 1 && n != 2 {
					t.Fatalf("%s, %d rows: %d phases", name, rows, n)
				}
				at := began
				for i, p := range list {
					if p.Down != (i%2 == 1) || p.From.Before(at) || p.To.Before(p.From) || p.To.After(ended) || p.Down && p.From != list[i-1].To {
						t.Errorf("%s, %d rows: phase %d is %+v, after %v", name, rows, i, p, at)
					}
					at = p.From
				}
				timer.TimePhases(false)
				if run(); len(timer.Phases()) != 0 {
					t.Error("phases that nobody asked for")
				}
			}
		}
	})
}
