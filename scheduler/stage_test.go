package scheduler

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// TestStage is TestReuse with long prompts that are shared, of which much is in host memory,
// and little room for loads: the devices see that what was loaded piece by piece is right, and
// states that were waited for are, and the monitor that no batch loads more than it may.
func TestStage(t *testing.T) {
	first, count := uint64(1), scripts()/3
	if *seed != 0 {
		first, count = *seed, 1
	}
	var sum shares
	run := func(s uint64, ops int, log *strings.Builder) error {
		rng := rand.New(rand.NewPCG(s, 13))
		cfg := Config{
			BlockTokens: 1 + rng.IntN(2), MaxSeqs: 2 + rng.IntN(4), PrefillChunk: 2 + rng.IntN(20), PrefillShare: 1 + rng.IntN(6), MaxQueue: 8,
			MicroBatches: 1 + rng.IntN(3), Ahead: rng.IntN(2) == 0, LoadRate: 1 + rng.IntN(2), RAMBlocks: 100 + rng.IntN(200), Classes: rng.IntN(4) == 0,
		}
		cfg.Blocks = 90/cfg.BlockTokens + rng.IntN(40)
		cfg.MaxBatchTokens = cfg.MaxSeqs + 4 + rng.IntN(30)
		cfg.PrefillBatches = 1 + rng.IntN(cfg.MicroBatches)
		if rng.IntN(3) == 0 {
			cfg.Snapshots = 10 + rng.IntN(30)
		}
		cfg.windowed(rng)
		return runCrowd(rng, cfg, 20, ops, log, &sum)
	}
	for s := first; s < first+count; s++ {
		err := run(s, 1<<30, nil)
		if err == nil {
			continue
		}
		for ops := 0; ; ops++ {
			var log strings.Builder
			if short := run(s, ops, &log); short != nil {
				t.Fatalf("seed %d, cut to %d steps: %v (whole: %v)\n%s", s, ops, short, err, log.String())
			}
		}
	}
	t.Logf("%d scripts: %+v", count, sum)
	if count >= 1000 && (sum.staged < 300 || sum.moves[Load] < 2*sum.staged) {
		t.Errorf("only %d of %d loads came before their request", sum.staged, sum.moves[Load])
	}
	if count >= 1000 && sum.states < 200 {
		t.Errorf("only %d requests waited for another's state", sum.states)
	}
}
