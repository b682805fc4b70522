package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/rs/zerolog"

	"krater/actors/local"
	"krater/actors/local/config"
	"krater/actors/local/predict"
	"krater/cmd/krater/console"
	"krater/cmd/krater/term"
	"krater/kernels/tensor"
	"krater/stages/compare"
	"krater/stages/source"
)

type compareCmd struct {
	source.Folder
	config.Options
	Golden    string  `help:"Folder of the golden vectors; default: the folder of the model." type:"existingdir" placeholder:"DIR"`
	Chunk     int     `help:"Prompt tokens of a sequence in one step; 0: as many as fit." default:"0"`
	Batch     int     `help:"Number of sequences to compute together." default:"1"`
	Tolerance float64 `help:"Tolerance for logits and hidden states, if larger than the golden's." default:"0"`
	Relative  float64 `help:"Compare only the traced prompt, by relative L2 error, which suits rounded activations (--rows bf16). 0: the default for --rows." default:"0"`
	JSON      bool    `name:"json" help:"Print the report as JSON."`
}

// compareRows is the number of rows per step that can have logits: every position of the longest
// golden prompt.
const compareRows = 128

// bf16Relative is three times the error of a whole run in bfloat16 that the goldens of the
// DeepSeek-V2 family record.
const bf16Relative = 0.06

// Run implements the command. The exit status is 0 only when everything agrees.
func (c *compareCmd) Run(e *console.Env) error {
	dir := cmp.Or(c.Golden, c.Model)
	if dir == "" {
		return errors.New("name the folder of the golden vectors: --golden DIR")
	}
	golden, err := compare.ReadGolden(dir)
	if err != nil {
		return err
	}
	// The goldens were computed in float32, including the KV cache.
	switch {
	case c.Rows == config.Auto:
		c.Rows = "f32"
	case c.Rows == "bf16" && c.Relative == 0:
		c.Relative = bf16Relative
	}
	src, err := source.Open(c.Model)
	if err != nil {
		return err
	}
	s, err := local.Load(context.Background(), console.ForLoad(e, src, c.Options, config.Case{LogitRows: compareRows * max(1, c.Batch), Context: golden.Longest(), KVType: tensor.F32, Whole: true}))
	if err != nil {
		return err
	}
	defer s.Close()
	p, err := s.Pipeline(zerolog.New(e.Err).Level(zerolog.WarnLevel))
	if err != nil {
		return err
	}
	defer p.Close()
	report, err := compare.Run(p, s.Config, golden, compare.Weights(s.Weights), compare.Options{Chunk: c.Chunk, Batch: c.Batch, Tolerance: c.Tolerance, Relative: c.Relative})
	if err != nil {
		return err
	}
	write, out := report.Text, term.Paint(e.Out, console.CompareRules...)
	if c.JSON {
		write, out = report.JSON, e.Out
	} else if s.Config.Types != nil { // encoded weights
		fmt.Fprintln(out, "the files have "+predict.Types(s.Weights.Types()))
	}
	if err := write(out); err != nil || report.OK() {
		return err
	}
	return console.ExitError(1)
}
