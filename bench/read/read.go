// Package read measures memory read bandwidth, in windows that alternate with other measurements.
// It is the ceiling of everything that streams weights.
package read

import (
	"time"

	"krater/bench/stat"
	"krater/kernels/cpu"
)

// WindowBytes is the size of a window: about a millisecond, so that on a busy machine some windows
// are undisturbed.
const WindowBytes = 32 << 20

// Reader keeps the rates of every loop of a device.
type Reader struct {
	dev   *cpu.Device
	rates []stat.Series // of cpu.ReadLoops, bytes a second
	next  int           // loop
}

// New makes a reader.
func New(dev *cpu.Device) *Reader {
	return &Reader{dev: dev, rates: make([]stat.Series, len(cpu.ReadLoops))}
}

// Window reads b, about WindowBytes, with the next loop in turn.
func (r *Reader) Window(b []byte) {
	start := time.Now()
	r.dev.Read(cpu.ReadLoops[r.next], b)
	r.rates[r.next].Add(float64(len(b)) / max(1e-9, time.Since(start).Seconds()))
	r.next = (r.next + 1) % len(r.rates)
}

// Fake adds a rate to every loop, for tests of reports.
func (r *Reader) Fake(rate float64) {
	for i := range r.rates {
		r.rates[i].Add(rate)
	}
}

// Mark assigns a state to all windows since the last call.
func (r *Reader) Mark(state string) {
	for i := range r.rates {
		r.rates[i].Mark(state)
	}
}

// Loop is one loop's rates in GB/s.
type Loop struct {
	Name string `json:"loop"`
	stat.Summary
}

// In returns the rates of every loop in a state, the best median first.
func (r *Reader) In(state string) []Loop {
	out := make([]Loop, 0, len(r.rates))
	for i := range r.rates {
		l := Loop{cpu.ReadLoops[i].String(), r.rates[i].In(state).Map(func(v float64) float64 { return v / 1e9 }).Summary()}
		at := len(out)
		for at > 0 && out[at-1].P50 < l.P50 {
			at--
		}
		out = append(out[:at], append([]Loop{l}, out[at:]...)...)
	}
	return out
}

// Best returns the loop with the best median in a state, with the best percentiles of all loops:
// the memory bandwidth.
func (r *Reader) Best(state string) Loop {
	loops := r.In(state)
	best := loops[0]
	for _, l := range loops[1:] {
		best.P90, best.P99, best.Max = max(best.P90, l.P90), max(best.P99, l.P99), max(best.Max, l.Max)
	}
	return best
}
