//go:build !race

// It compares much on one goroutine; other tests drive the same actors under the race detector.

package actors

import (
	"fmt"
	"testing"

	"krater/stages"
	"krater/stages/compare"
	"krater/stages/compare/goldens"
)

// TestGoldensThroughActors holds every layer, operator, router choice and
// greedy token to the goldens while the batches travel through the actors.
func TestGoldensThroughActors(t *testing.T) {
	chunks, batches, groups := []int{1000, 7, 1, 32}, []int{1, 3, 8}, []int{2, 3, 1}
	golden := 0
	goldens.Each(t, func(t *testing.T, f goldens.Folder) {
		golden++
		g, err := compare.ReadGolden(f.Dir)
		if err != nil {
			t.Fatal(err)
		}
		for i, s := range goldens.Settings(len(groups), 3, len(chunks), len(batches)) {
			if testing.Short() && !goldens.Everything() && (i+golden)%2 > 0 {
				continue // the next model has it
			}
			groups, pools, chunk, batch := groups[s[0]], 1+s[1], chunks[s[2]], batches[s[3]]
			t.Run(fmt.Sprintf("groups%d/pools%d/chunk%d/batch%d", groups, pools, chunk, batch), func(t *testing.T) {
				r := newRig(t, setup{dir: f.Dir, groups: groups, pools: pools,
					limits: stages.Limits{Tokens: 1000, LogitRows: 128 * batch}})
				report, err := compare.Run(r, r.cfg, g, compare.Weights(r.set), compare.Options{Chunk: chunk, Batch: batch})
				if err != nil {
					t.Fatal(err)
				}
				for _, check := range report.Checks {
					if !check.Passed {
						t.Errorf("%+v", check)
					}
				}
				if !report.OK() {
					t.Fatalf("%d passed, %d failed", report.Passed, report.Failed)
				}
			})
		}
	})
}
