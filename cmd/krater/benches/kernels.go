package benches

import (
	"fmt"
	"runtime"
	"slices"

	"krater/actors/local/config"
	"krater/bench/kernels"
	"krater/cmd/krater/console"
)

type kernelsCmd struct {
	Output
	gpuFlags
	Threads []int       `help:"Numbers of threads to measure, each separately; 0: one per core." default:"1,0"`
	Seconds float64     `help:"Duration of a measurement, in seconds." default:"8"`
	Size    config.Size `help:"Memory that weights are spread over, which should exceed the caches." default:"0.8GB"`
	Rows    []int       `help:"Numbers of activation rows of the matrix products." default:"48"`
}

// Limits of the flags: threads, rows, seconds.
const (
	benchThreadsMax = 1 << 12
	benchRowsMax    = 1 << 12
	benchSecondsMax = 3600
)

// kernelsReport is the report and the machine that it describes.
type kernelsReport struct {
	benchHost
	*kernels.Report
}

// Run implements the command.
func (c *kernelsCmd) Run(e *console.Env) error {
	if c.Device == "cuda" {
		return c.runGPU(e)
	}
	threads, err := c.check()
	if err != nil {
		return err
	}
	r, err := kernels.Run(kernels.Options{
		Threads: threads, Seconds: c.Seconds, Bytes: int64(c.Size), Available: e.Here().Available(), Rows: c.Rows,
		Progress: console.Measuring(e.Shown()),
	})
	e.Shown().End()
	if err != nil {
		return err
	}
	h := host()
	return c.write(e, h, r, kernelsReport{h, r})
}

// check returns an error for the first flag out of its range. It also returns the numbers of
// threads, ascending and without repetitions.
func (c *kernelsCmd) check() ([]int, error) {
	if err := c.Output.Check(); err != nil {
		return nil, err
	}
	if _, err := c.match(); err != nil {
		return nil, err
	}
	if !(c.Seconds > 0 && c.Seconds <= benchSecondsMax) {
		return nil, fmt.Errorf("--seconds %g: want more than 0 and at most %d", c.Seconds, benchSecondsMax)
	}
	for _, m := range c.Rows {
		if m < 1 || m > benchRowsMax {
			return nil, fmt.Errorf("--rows %d: want 1 to %d", m, benchRowsMax)
		}
	}
	return threadCounts(c.Threads)
}

// threadCounts returns the numbers of --threads, ascending; 0 is replaced by the number of cores.
func threadCounts(list []int) ([]int, error) {
	if len(list) == 0 {
		list = []int{0}
	}
	var out []int
	for _, n := range list {
		if n < 0 || n > benchThreadsMax {
			return nil, fmt.Errorf("--threads %d: want 0 to %d", n, benchThreadsMax)
		}
		if n == 0 {
			n = runtime.GOMAXPROCS(0)
		}
		out = append(out, n)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}
