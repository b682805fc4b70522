//go:build cuda

package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"krater/kernels/cuda"
)

// childArgs has a process of this test run a command instead, with a GPU that fails.
const childArgs = "TEST_CHILD_ARGS"

// TestCardChild is that process.
func TestCardChild(t *testing.T) {
	args := os.Getenv(childArgs)
	if args == "" {
		t.Skip("a process of TestCardFaults")
	}
	o := krater(t, "", strings.Split(args, " ")...)
	os.Stdout.WriteString(o.out)
	os.Stderr.WriteString(o.err)
	os.Exit(o.status)
}

// besideArgs have a third of krater-tiny's experts on a GPU, which others are copied to.
const besideArgs = "--kv-cache 4MiB --prefill-chunk 64 --max-seqs 2 --gpu-prefill-threshold 3 --expert-vram 6MiB --prefill-strategy lru --decode-strategy hot_cached_static "

// TestCardFaults: whatever call fails, the program ends with a line that says so, or goes on
// another way and says that; with a GPU that is merely small it does not begin.
func TestCardFaults(t *testing.T) {
	cardFor(t, cuda.Options{}).Close()
	if !strings.Contains(os.Getenv("LD_LIBRARY_PATH"), "cudaemu") {
		t.Skip("faults are the emulated GPU's")
	}
	for name, c := range map[string]struct {
		env  string
		want string
		args string
		ends int
	}{
		"first allocation":             {"KR_EMU_FAIL=cuMemAlloc:1:2", "out of memory", "", 1},
		"a later one":                  {"KR_EMU_FAIL=cuMemAlloc:2:2", "out of memory", "", 1},
		"pinned memory":                {"KR_EMU_FAIL=cuMemHostAlloc:1:2", "krater: ", "", 1},
		"a stream":                     {"KR_EMU_FAIL=cuStreamCreate:1:2", "krater: ", "", 1},
		"a copy":                       {"KR_EMU_FAIL=cuMemcpy:9:999", "context is lost", "", 1},
		"a launch, refused":            {"KR_EMU_FAIL=cuLaunchKernel:30:1", "krater: ", "", 1},
		"a kernel":                     {"KR_EMU_FAIL=launch:60:700", "context is lost", "", 1},
		"a small GPU":                  {"KR_EMU_MEMORY=40000000", "DOES NOT FIT", "", 1},
		"experts beside it are pinned": {"KR_EMU_FAIL=cuMemHostRegister:1:2,cuMemHostRegister:2:2", "bytes of host memory are not pinned", besideArgs, 0},
		"their slots, all of them":     {"KR_EMU_MEMORY=150000000", "out of memory", besideArgs + "--vram 200MiB ", 1},
		"a copy of them":               {"KR_EMU_FAIL=cuMemcpy:60:1", "krater: ", besideArgs, 1},
		"a mailbox":                    {"KR_EMU_FAIL=cuMemHostAlloc:12:2", "a mailbox: cuMemHostAlloc", besideArgs, 0},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestCardChild$")
			cmd.Env = append(os.Environ(), childArgs+"=run --device cuda --max-tokens 4 "+c.args+"hello", c.env)
			out, _ := cmd.CombinedOutput()
			if got := cmd.ProcessState.ExitCode(); got != c.ends {
				t.Fatalf("status %d, want %d\n%s", got, c.ends, out)
			}
			if !strings.Contains(string(out), c.want) {
				t.Errorf("nothing of %q in\n%s", c.want, out)
			}
			if strings.Contains(string(out), "goroutine 1 [") {
				t.Errorf("a panic:\n%s", out)
			}
		})
	}
}
