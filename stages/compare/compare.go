// Package compare holds a running model against golden vectors: every layer, operator and router
// choice of one prompt, the last logits and the greedy continuation of all prompts.
package compare

import (
	"fmt"
	"slices"

	"krater/stages/drive"
	"krater/stages/model"
	"krater/stages/weights"
)

// Options of a comparison.
type Options struct {
	Chunk int // prompt rows of a sequence in one batch; 0: as many as fit
	Batch int // sequences together; 0: one
	// Tolerance replaces the tolerances for logits and hidden states (1e-3) and, divided by ten,
	// those for router weights and single operators; 0: as is.
	Tolerance float64
	// Relative, if not 0, is for models whose activations are rounded: the traced prompt alone is
	// compared, everything by its relative L2 error, and of every token the set of chosen experts.
	Relative float64
}

// The tolerances of the goldens for float32 arithmetic: logits and hidden states differ by up to
// 2e-4 between correct evaluations.
const (
	hiddenTolerance = 1e-3
	opTolerance     = 1e-4
)

// Run compares a model with a golden. The tolerances require that r runs with a float32 KV cache.
// Chunks larger than the runner's rows of logits are cut to that size. weight returns a weight
// matrix widened to float32, for the operators that no stage computes separately (kv_b,
// attn_probs).
func Run(r drive.Runner, cfg *model.Config, g *Golden, weight func(name string) ([]float32, error), o Options) (*Report, error) {
	o.Batch = max(1, o.Batch)
	c := &comparison{r: r, cfg: cfg, golden: g, weight: weight, o: o, hidden: hiddenTolerance, op: opTolerance,
		report: &Report{Golden: g.Name, Chunk: o.Chunk, Batch: o.Batch}, wants: map[string][]float32{}}
	if o.Tolerance > 0 {
		c.hidden, c.op = o.Tolerance, o.Tolerance/10
	}
	if g.traced >= 0 {
		if err := c.trace(); err != nil {
			return nil, err
		}
	}
	if o.Relative > 0 {
		return c.report, nil // a continuation parts where margins are within the error
	}
	if err := c.prompts(); err != nil {
		return nil, err
	}
	return c.report, nil
}

type comparison struct {
	r          drive.Runner
	cfg        *model.Config
	golden     *Golden
	weight     func(name string) ([]float32, error)
	o          Options
	hidden, op float64
	report     *Report

	wants  map[string][]float32 // of the traced prompt, by the name of the check
	logits []float32            // of the traced prompt
}

// trace runs the traced prompt with a probe, together with other prompts, and compares everything
// that the golden has of it.
func (c *comparison) trace() error {
	p := &c.golden.Prompts[c.golden.traced]
	logits := make([]float32, 0, len(p.IDs)*c.cfg.Vocab)
	seqs := []*drive.Sequence{{Prompt: p.IDs, All: true, See: func(_ int, row []float32) {
		logits = append(logits, row...)
	}}}
	for i := 1; i < c.o.Batch; i++ {
		q := &c.golden.Prompts[(c.golden.traced+i)%len(c.golden.Prompts)]
		seqs = append(seqs, &drive.Sequence{Prompt: q.IDs, New: min(4, len(q.Greedy))})
	}
	seen := newCapture(0, len(p.IDs))
	if err := drive.Run(c.r, seqs, drive.Options{Chunk: c.o.Chunk, Probe: seen}); err != nil {
		return fmt.Errorf("compare: %s: %w", p.Name, err)
	}
	if err := seen.finish(c.cfg); err != nil {
		return err
	}
	c.logits = logits
	if err := c.vectors(p, seen); err != nil {
		return err
	}
	c.diverge(p, seen)
	return nil
}

// prompts continues every prompt greedily, Batch at a time, and compares last logits and ids.
// Prompts repeat to fill the last batch; every copy is compared.
func (c *comparison) prompts() error {
	list := c.golden.Prompts
	for from := 0; from < len(list); from += c.o.Batch {
		seqs := make([]*drive.Sequence, c.o.Batch)
		last := make([][]float32, c.o.Batch)
		for i := range seqs {
			p := &list[(from+i)%len(list)]
			end := len(p.IDs) - 1
			seqs[i] = &drive.Sequence{Prompt: p.IDs, New: p.Compare, See: func(pos int, row []float32) {
				if pos == end {
					last[i] = slices.Clone(row)
				}
			}}
		}
		if err := drive.Run(c.r, seqs, drive.Options{Chunk: c.o.Chunk}); err != nil {
			return fmt.Errorf("compare: %w", err)
		}
		for i := range seqs {
			p := &list[(from+i)%len(list)]
			if p.Last != nil {
				c.report.add(floats(p.Name+".logits_last", -1, "logits", last[i], p.Last, c.hidden))
			}
			c.report.add(c.greedy(p, seqs[i].Out))
		}
	}
	return nil
}

// greedy compares a continuation and says how close the choice was where it parts.
func (c *comparison) greedy(p *Prompt, got []int32) Check {
	want := p.Greedy[:p.Compare]
	check := ids(p.Name+".greedy_ids", -1, "greedy", got, want)
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			if i < len(p.Margin) {
				check.Detail += fmt.Sprintf(" (margin %.1e)", p.Margin[i])
			}
			break
		}
	}
	return check
}

// Weights returns the tensors of a set, widened, to Run.
func Weights(set *weights.Set) func(name string) ([]float32, error) {
	return func(name string) ([]float32, error) {
		t, ok := set.Tensor(name)
		if !ok {
			return nil, fmt.Errorf("%w: %s", model.ErrTensorMissing, name)
		}
		rows, width := t.Rows()
		out := make([]float32, rows*width)
		if err := t.Floats(out, 0); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		return out, nil
	}
}
