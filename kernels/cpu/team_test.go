package cpu_test

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"krater/kernels/cpu"
)

func TestTeamRunsEveryPartOnce(t *testing.T) {
	for _, threads := range []int{1, 2, 5} {
		team := cpu.NewTeam(threads)
		for parts := range 40 {
			counts := make([]atomic.Int32, parts)
			team.Run(parts, func(p int) { counts[p].Add(1) })
			for p := range counts {
				if n := counts[p].Load(); n != 1 {
					t.Fatalf("%d threads: part %d of %d ran %d times", threads, p, parts, n)
				}
			}
		}
		team.Close()
	}
}

// More loops at once than slots, each with its own sums: no part is lost, run twice or run for
// another loop.
func TestTeamRunsAtOnce(t *testing.T) {
	team := cpu.NewTeam(4)
	defer team.Close()
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			for round := range 200 {
				parts := 1 + round%9
				var sum atomic.Int64
				team.Run(parts, func(p int) { sum.Add(int64(p + 1)) })
				if want := int64(parts * (parts + 1) / 2); sum.Load() != want {
					t.Errorf("sum %d of %d parts, want %d", sum.Load(), parts, want)
					return
				}
			}
		})
	}
	wg.Wait()
}

// Parts really run on several goroutines: each waits for all to have begun.
func TestTeamPartsOverlap(t *testing.T) {
	const threads = 4
	team := cpu.NewTeam(threads)
	defer team.Close()
	var begun sync.WaitGroup
	begun.Add(threads)
	team.Run(threads, func(int) {
		begun.Done()
		begun.Wait()
	})
}

// A loop started from within a part must not wait for itself.
func TestTeamNestedRun(t *testing.T) {
	team := cpu.NewTeam(2)
	defer team.Close()
	var n atomic.Int32
	team.Run(4, func(int) { team.Run(4, func(int) { n.Add(1) }) })
	if n.Load() != 16 {
		t.Errorf("%d parts ran", n.Load())
	}
}

func TestTeamCloseEndsWorkers(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 20 {
		team := cpu.NewTeam(8)
		team.Run(3, func(int) {})
		team.Close() // waits for the workers
	}
	// A worker that has told Close of its end still has to leave the scheduler.
	for range 100_000 {
		if runtime.NumGoroutine() <= before {
			return
		}
		runtime.Gosched()
	}
	t.Errorf("%d goroutines, %d before", runtime.NumGoroutine(), before)
}

func TestTeamRunDoesNotAllocate(t *testing.T) {
	team := cpu.NewTeam(2)
	defer team.Close()
	fn := func(int) {}
	if n := testing.AllocsPerRun(100, func() { team.Run(8, fn) }); n != 0 {
		t.Errorf("%v allocations a Run", n)
	}
}

func BenchmarkTeamRun(b *testing.B) {
	for _, threads := range []int{2, 4} {
		if threads > runtime.NumCPU() {
			break // the operating system would decide when each runs
		}
		team := cpu.NewTeam(threads)
		fn := func(int) {}
		b.Run("empty", func(b *testing.B) {
			for b.Loop() {
				team.Run(threads, fn)
			}
		})
		team.Close()
	}
}
