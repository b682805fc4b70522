package benches

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"time"

	"krater/bench/cards"
	"krater/cmd/krater/console"
)

// gpuFlags choose a GPU to measure instead of the CPU.
type gpuFlags struct {
	Device   string `help:"Device to measure: ${enum}." enum:"cpu,cuda" default:"cpu"`
	GPU      int    `name:"gpu" help:"Index of the GPU, in the driver's order." default:"0"`
	Model    string `help:"With --device cuda: model whose sizes are used: ${enum}." enum:"v2-lite,qwen3-30b-a3b,qwen3-next-80b-a3b,glm-5.3-flash,heads-64,native" default:"v2-lite"`
	Portable bool   `name:"portable-kernels" help:"With --device cuda: measure the kernels that run on every GPU of compute capability 8.0 or newer, with at most 99 KiB of shared memory per block, as RTX GPUs use them."`
	Only     string `help:"With --device cuda: regular expression of the operators to run, by name, shape and type." placeholder:"REGEXP"`
	Small    bool   `help:"With --device cuda: use tiny sizes; check without measuring."`
	Plain    bool   `help:"With --device cuda: measure the plain kernels, to which the fast ones are compared."`
	Launches bool   `help:"With --device cuda: also measure each kernel of an operator."`
	Record   string `help:"With --device cuda: also write the report as JSON into a file." type:"path" placeholder:"FILE"`
}

// match compiles --only.
func (f *gpuFlags) match() (func(string) bool, error) {
	if f.GPU < 0 || f.GPU > 63 {
		return nil, fmt.Errorf("--gpu %d: want 0 to 63", f.GPU)
	}
	if f.Device == "cpu" && (f.Portable || f.Only != "" || f.Small || f.Plain || f.Launches || f.Record != "") {
		return nil, errors.New("--portable-kernels, --only, --small, --plain, --launches and --record need --device cuda")
	}
	if f.Only == "" {
		return nil, nil
	}
	re, err := regexp.Compile(f.Only)
	if err != nil {
		return nil, fmt.Errorf("--only: %w", err)
	}
	return re.MatchString, nil
}

// runGPU measures a GPU's operators. It returns an error if one of them is wrong.
func (c *kernelsCmd) runGPU(e *console.Env) error {
	match, err := c.match()
	if err != nil {
		return err
	}
	if c.Plot != "" {
		return errors.New("--plot: only the report of the CPU can be drawn")
	}
	h := host()
	rep, err := cards.Run(cards.Options{
		Index: c.GPU, Model: c.Model, Portable: c.Portable, Small: c.Small, Plain: c.Plain, Launches: c.Launches, Seed: uint64(time.Now().UnixNano()), Commit: h.Revision, Match: match,
		Progress: func(r *cards.Row) { fmt.Fprintf(e.Err, "%s %s %s: %.2f us\n", r.Op, r.Shape, r.DType, r.US) },
	})
	if rep == nil {
		return fmt.Errorf("bench kernels --device cuda: %w", err)
	}
	if c.Record != "" {
		err = errors.Join(err, record(c.Record, rep))
	}
	write := rep.Text
	if c.JSON {
		write = rep.JSON
	}
	if err := errors.Join(err, write(e.Out)); err != nil {
		return err
	}
	if faults := rep.Faults(); len(faults) > 0 {
		return fmt.Errorf("%d of %d operators are wrong, first %s", len(faults), len(rep.Rows), faults[0])
	}
	return nil
}

func record(path string, rep *cards.Report) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(rep.JSON(f), f.Close())
}
