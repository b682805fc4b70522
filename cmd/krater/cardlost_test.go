//go:build cuda

package main

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"krater/actors/engine"
	"krater/kernels/cuda/cudatest"
)

// TestLostBatchOnCard: while a batch is lost on one of two orders of steps, the other goes on and
// requests come that get the blocks given back last. Every answer that is given is right.
func TestLostBatchOnCard(t *testing.T) {
	b := actorsBesideCard(t, "", "", 1, "--micro-batches", "2", "--layer-groups", "2")
	const readers, n = 4, 6
	rounds, after := 3, readers
	if testing.Short() {
		rounds, after, b.prompt = 2, 2, b.prompt[:4]
		b.learn(t, n)
	}
	lost := 0
	for _, c := range []struct {
		call string
		nth  []int
	}{{"cuLaunchKernel", []int{30, 200}}, {"cuStreamWriteValue32", []int{2, 5}}, {"cuMemcpy", []int{6}}} {
		for i, nth := range c.nth {
			if testing.Short() && i > 0 {
				break
			}
			cudatest.Fail(t, fmt.Sprintf("%s:%d:1", c.call, nth))
			var mu sync.Mutex
			var all sync.WaitGroup
			for range readers {
				all.Go(func() {
					for range rounds { // the next begins at once where one has failed
						out, fault := b.ask(t, n, false)
						mu.Lock()
						switch {
						case fault == nil && !slices.Equal(out, b.want[:n]):
							t.Errorf("%s %d: %v, want %v", c.call, nth, out, b.want[:n])
						case fault != nil && (fault.Kind != engine.Internal || !slices.Equal(out, b.want[:len(out)])):
							t.Errorf("%s %d: %v after %v", c.call, nth, fault, out)
						case fault != nil:
							lost++
						}
						mu.Unlock()
					}
				})
			}
			all.Wait()
			if fired := cudatest.Fail(t, ""); fired == 0 {
				t.Errorf("%s %d was not refused", c.call, nth)
			}
			b.right(t, after, n)
		}
	}
	if lost < 3 {
		t.Errorf("only %d requests were lost", lost)
	}
	if err := b.Err(); err != nil {
		t.Error(err)
	}
}
