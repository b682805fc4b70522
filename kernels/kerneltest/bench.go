package kerneltest

import (
	"slices"
	"testing"
	"time"
)

// Quartile runs f in b's loop and returns the first quartile of the time of one call, in
// nanoseconds. On a machine shared with others the mean would measure the others. f should take a
// microsecond or more, or batch count calls.
func Quartile(b *testing.B, count int, f func()) float64 {
	const windows = 2000
	times := make([]time.Duration, 0, windows)
	for b.Loop() {
		start := time.Now()
		f()
		if d := time.Since(start); len(times) < windows {
			times = append(times, d)
		} else {
			times[b.N%windows] = d
		}
	}
	slices.Sort(times)
	return float64(times[len(times)/4].Nanoseconds()) / float64(count)
}

// Report adds rates at the quartile; bytes and flops are per call.
func Report(b *testing.B, ns float64, bytes, flops int) {
	b.ReportMetric(ns, "q1-ns")
	if bytes > 0 {
		b.ReportMetric(float64(bytes)/ns, "q1-GB/s")
	}
	if flops > 0 {
		b.ReportMetric(float64(flops)/ns, "q1-GFLOP/s")
	}
}

// Allocations returns how often a run of f allocates: the fewest of five runs. A run that allocates of itself does so each
// time; a pool that the collector emptied and what the runtime takes for its own goroutines show in one run and not in the next.
func Allocations(f func()) float64 {
	least := testing.AllocsPerRun(1, f)
	for range 4 {
		if least == 0 {
			break
		}
		least = min(least, testing.AllocsPerRun(1, f))
	}
	return least
}
