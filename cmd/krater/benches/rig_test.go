package benches

import (
	"slices"
	"testing"

	"krater/cmd/krater/cmdline"
)

// benchFor is the command with flags.
func benchFor(t *testing.T, args ...string) *Cmd {
	t.Helper()
	var c struct {
		Bench Cmd `cmd:""`
	}
	if _, _, err := cmdline.Parse(&c, append([]string{"bench"}, args...)); err != nil {
		t.Fatal(err)
	}
	return &c.Bench
}

// TestBenchServeSeed: two runs have different seeds, so that the second one's prompts are not in
// the server's prefix cache; --seed repeats a run.
func TestBenchServeSeed(t *testing.T) {
	seed := func(args ...string) (seeds []uint64) {
		p, err := benchFor(t, append([]string{"serve"}, args...)...).Serve.plan()
		if err != nil {
			t.Fatal(err)
		}
		return []uint64{p.Mix.Seed, p.Load.Seed, uint64(p.Asking.Seed)}
	}
	if a, b := seed(), seed(); slices.Equal(a, b) {
		t.Errorf("two runs have the seeds %v", a)
	}
	for _, flag := range []string{"--seed", "--load-seed"} {
		if got := seed("--soak", "1m", flag, "7"); !slices.Equal(got, []uint64{7, 7, 7}) {
			t.Errorf("%s 7 gives %v", flag, got)
		}
	}
}
