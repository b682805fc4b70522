//go:build soak

package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"testing"
)

var (
	batchKills  = flag.Int("batch.kills", 50, "how often the server is killed")
	batchLines  = flag.Int("batch.lines", 2000, "lines of the batch")
	batchSeed   = flag.Uint64("batch.seed", rand.Uint64(), "seed of the moments of the kills")
	batchReport = flag.String("batch.report", "", "file to write what was seen to")
	batchCommit = flag.String("batch.commit", "unknown", "commit that the report names")
)

// TestBatchCrashWhole is the long form of TestBatchCrash.
func TestBatchCrashWhole(t *testing.T) {
	c := crashRun(t, *batchLines, *batchKills, *batchSeed)
	slices.Sort(c.ready)
	text := fmt.Sprintf(`# A batch whose server is killed

'make batch-crash': krater serve with the built-in model works off %d lines (greedy, 1 to 4 tokens, 8 at a time) and is killed with SIGKILL %d times
at random moments, from the validation of the file to its last answer, and started again each time. Commit %s, %d cores (%s/%s), seed %d.

| what | figure |
|---|---|
| lines in the output file and in the error file | %d and %d: each of the %d once, in the order of the input |
| lines that differ from a run without a kill (ids and times apart) | 0 |
| kills by the batch's status at the last look before: validating, in_progress, finalizing, completed | %d, %d, %d, %d |
| time without a kill | %.1f s |
| time with the kills and starts | %.1f s |
| from the start of a process over the folder until it serves: median, worst | %.2f s, %.2f s |
`, c.lines, c.kills, *batchCommit, runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, *batchSeed,
		c.completed, c.failed, c.lines, c.at["validating"], c.at["in_progress"], c.at["finalizing"], c.at["completed"], c.undisturbed.Seconds(), c.took.Seconds(),
		c.ready[len(c.ready)/2].Seconds(), c.ready[len(c.ready)-1].Seconds())
	t.Log(text)
	if *batchReport == "" || t.Failed() {
		return
	}
	if err := os.WriteFile(*batchReport, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
