package cpu_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"krater/kernels/cpu"
)

// until waits for a condition on a device.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for began := time.Now(); !ok(); {
		if time.Since(began) > 20*time.Second {
			t.Fatal(what)
		}
		time.Sleep(10 * time.Microsecond)
	}
}

// TestRestAndReady: workers that would look for work for long park when they may rest, and wake when work is to come.
func TestRestAndReady(t *testing.T) {
	defer cpu.SpinFor(time.Hour)()
	d, err := cpu.New(cpu.Options{Threads: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	defer d.Rest() // Close waits for workers
	for range 3 {
		d.Rest()
		until(t, "workers look for work, and may rest", func() bool { return d.Parked() == 2 })
		d.Ready()
		until(t, "workers are parked when work is to come", func() bool { return d.Parked() == 0 })
	}
	d.Rest()
	until(t, "workers look for work", func() bool { return d.Parked() == 2 })
	d.Team().Run(64, func(int) {
		d.Rest() // of a loop that runs
		time.Sleep(100 * time.Microsecond)
	})
	if d.Parked() == 2 {
		t.Error("all workers are parked behind a loop in which they could not rest")
	}
}

// TestRestBesideLoops: loops run every part once, whatever is said about work.
func TestRestBesideLoops(t *testing.T) {
	d, err := cpu.New(cpu.Options{Threads: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var over atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !over.Load() {
			d.Rest()
			d.Ready()
		}
	})
	for range 2 {
		wg.Go(func() {
			defer over.Store(true)
			for range 500 {
				var ran atomic.Int32
				d.Team().Run(9, func(int) { ran.Add(1) })
				if n := ran.Load(); n != 9 {
					t.Errorf("%d of 9 parts ran", n)
				}
			}
		})
	}
	wg.Wait()
}
