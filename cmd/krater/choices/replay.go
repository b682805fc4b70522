// Package choices is the commands' recordings of what routers chose, and their replay.
package choices

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"

	"krater/cmd/krater/console"
	"krater/cmd/krater/term"
	"krater/scheduler/routing"
)

// Flags are the flags of krater heatmap that replay recorded choices of routers.
type Flags struct {
	Replay string    `help:"File of recorded choices (--record): print for each policy how many of the experts that steps read would be in a memory of some slots. The model does not run." type:"existingfile" placeholder:"FILE"`
	Slots  []float64 `help:"With --replay: sizes of the memory, as shares of all experts." default:"0.1,0.25,0.5"`
	Moves  int       `help:"With --replay: most experts that are copied after a step; 0: a fortieth of the slots." default:"0"`
	Rows   int       `name:"replay-rows" help:"With --replay: tokens of a prompt that a step has. Steps of generated tokens stay as they were." default:"1"`
}

func (f *Flags) check() error {
	for _, s := range f.Slots {
		if !(s > 0 && s <= 1) {
			return fmt.Errorf("--slots %v: want more than 0, and 1 at most", s)
		}
	}
	switch {
	case len(f.Slots) == 0 || len(f.Slots) > 16:
		return fmt.Errorf("--slots: %d values, want 1 to 16", len(f.Slots))
	case f.Moves < 0:
		return errors.New("--moves: want 0 or more")
	case f.Rows < 1:
		return errors.New("--replay-rows: want 1 or more")
	}
	return nil
}

// Report says what policies did with a recording.
type Report struct {
	Trace   string           `json:"trace"`
	Tokens  int              `json:"tokens"`
	Layers  int              `json:"layers"`
	Experts int              `json:"experts"`
	TopK    int              `json:"top_k"`
	Results []routing.Result `json:"results"` // by slots, then by policy
	MostAt  []int            `json:"moves"`   // most moves after a step, by slots
}

// Run replays a trace against every policy, and prints what they did.
func (f *Flags) Run(e *console.Env, asJSON bool) error {
	if err := f.check(); err != nil {
		return err
	}
	r := Report{Trace: f.Replay}
	var counter routing.Counter
	err := f.each(func(h routing.Header) error {
		r.Layers, r.Experts, r.TopK, counter.Header = len(h.Layers), h.Experts, h.TopK, h
		return nil
	}, func(b *routing.Batch) error {
		counter.Add(b)
		r.Tokens += b.Rows
		return nil
	})
	if err != nil {
		return err
	}
	if r.Tokens == 0 {
		return fmt.Errorf("--replay %s: it has no choices", f.Replay)
	}
	for _, share := range f.Slots {
		slots := max(1, int(share*float64(r.Layers*r.Experts)+0.5))
		most := f.Moves
		if most == 0 {
			most = max(1, slots/40)
		}
		r.MostAt = append(r.MostAt, most)
		for _, name := range routing.Names {
			result, err := f.policy(name, &counter, slots, most)
			if err != nil {
				return err
			}
			r.Results = append(r.Results, result)
		}
	}
	if asJSON {
		return console.WriteJSON(e.Out, r)
	}
	return r.text(term.Paint(e.Out, console.TableRules...))
}

// each calls step with the steps of the trace.
func (f *Flags) each(begin func(routing.Header) error, step func(*routing.Batch) error) error {
	row := 0
	return routing.Each(f.Replay, func(h routing.Header) error {
		row = len(h.Layers) * h.TopK
		return begin(h)
	}, func(b *routing.Batch) error {
		if b.Decode {
			return step(b)
		}
		for from := 0; from < b.Rows; from += f.Rows {
			n := min(f.Rows, b.Rows-from)
			if err := step(&routing.Batch{Rows: n, IDs: b.IDs[from*row : (from+n)*row]}); err != nil {
				return err
			}
		}
		return nil
	})
}

// policy replays the trace against one policy.
func (f *Flags) policy(name string, c *routing.Counter, slots, most int) (routing.Result, error) {
	ahead, stop := f.ahead()
	defer stop()
	p, err := routing.NewPolicy(name, &c.Header, slots, c.Counts, ahead)
	if err != nil {
		return routing.Result{}, err
	}
	r := routing.Replay{Header: c.Header, Slots: slots, Most: most, Policy: p}
	err = f.each(func(routing.Header) error { return nil }, func(b *routing.Batch) error {
		r.Step(b)
		return nil
	})
	return r.Result(), err
}

// ahead returns a function that gives the steps of the trace one by one, and one that ends it.
func (f *Flags) ahead() (next func() (*routing.Batch, error), stop func()) {
	read, stop := iter.Pull(func(yield func(*routing.Batch) bool) {
		_ = f.each(func(routing.Header) error { return nil }, func(b *routing.Batch) error { // it was read before
			if !yield(b) {
				return io.EOF
			}
			return nil
		})
	})
	return func() (*routing.Batch, error) {
		if b, ok := read(); ok {
			return b, nil
		}
		return nil, io.EOF
	}, stop
}

// text prints a table of policies by slots.
func (r *Report) text(w io.Writer) error {
	b := &strings.Builder{}
	fmt.Fprintf(b, "%s: %d tokens, %d layers of %d experts, %d per token\n\n", r.Trace, r.Tokens, r.Layers, r.Experts, r.TopK)
	fmt.Fprintf(b, "%-10s", "% of reads")
	n := len(routing.Names)
	for i := range r.MostAt {
		fmt.Fprintf(b, "  %20s", fmt.Sprintf("%d slots", r.Results[i*n].Slots))
	}
	fmt.Fprintf(b, "\n%-10s", "that hit")
	for _, most := range r.MostAt {
		fmt.Fprintf(b, "  %20s", fmt.Sprintf("moves of %d a step", most))
	}
	b.WriteByte('\n')
	for p, name := range routing.Names {
		fmt.Fprintf(b, "%-10s", name)
		for i := range r.MostAt {
			x := &r.Results[i*n+p]
			fmt.Fprintf(b, "  %10.1f  %8.2f", 100*x.Share(), float64(x.Moves)/float64(max(1, x.Batches)))
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}
