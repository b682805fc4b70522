package benches

import (
	"fmt"
	"io"

	"krater/bench/stat"
	"krater/cmd/krater/console"
	"krater/scheduler/planner"
)

// text prints one table per budget.
func (r *StrategiesReport) text(w io.Writer) error {
	console.Sentence(w, "%s on %s, %s, revision %s", r.Model, r.CPU, r.GoVersion, r.Revision)
	console.Sentence(w, "experts in %s, %d of %d bytes; prefill strategy from %d rows; heat %s", r.Precision, r.Experts, r.ExpertBytes, r.Threshold, r.Heat)
	if r.Card != "" {
		console.Sentence(w, "times of %s", r.Card)
	}
	if r.Rates != nil {
		console.Sentence(w, "virtual times of a simulated rank: copies %g GB/s and %g us, memory %g GB/s, %g TFLOP/s, launches %g us; host %g GB/s, %g TFLOP/s",
			r.Rates.Copy, r.Rates.CopyUS, r.Rates.Memory, r.Rates.Compute, r.Rates.LaunchUS, r.Rates.HostMemory, r.Rates.HostCompute)
	}
	for _, line := range r.Skipped {
		fmt.Fprintln(w, "skipped:", line)
	}
	fmt.Fprintln(w)
	tables := r.tables
	if len(r.Strategies) > 0 && len(r.Strategies[0].Windows) > 0 {
		tables = r.windowTables
	}
	if err := stat.Text(w, tables()); err != nil {
		return err
	}
	for _, x := range r.Strategies {
		if x.Runs != x.Strategy && len(x.Falls) > 0 {
			fmt.Fprintln(w)
			if err := console.Sentence(w, "with %s of experts %s runs as %s: %s", bytesText(x.Budget), x.Strategy, x.Runs, x.Falls[len(x.Falls)-1]); err != nil {
				return err
			}
		}
	}
	return nil
}

// tables returns the results by budget.
func (r *StrategiesReport) tables() (list []stat.Table) {
	for i, x := range r.Strategies {
		if i == 0 || x.Budget != r.Strategies[i-1].Budget {
			t := stat.Table{Title: fmt.Sprintf("%s for experts: %.0f %% of them", bytesText(x.Budget), 100*float64(x.Budget)/float64(max(1, r.ExpertBytes*int64(r.Experts)))), Columns: []string{"strategy"}}
			for _, p := range x.Prefill {
				t.Columns = append(t.Columns, fmt.Sprintf("prefill %d tok/s", p.Tokens), "MB copied", "hits %")
			}
			if x.Prompts != nil {
				t.Columns = append(t.Columns, "together tok/s", "MB copied")
			}
			t.Columns = append(t.Columns, "decode tok/s", "MB/token", "hits %", "host %", "experts MB", "rank MB", "KV tokens")
			for _, p := range x.Together {
				t.Columns = append(t.Columns, fmt.Sprintf("%s in %d tok/s", planner.Count(p.Streams, "stream"), p.MicroBatches), "rank busy %", "host busy %")
			}
			list = append(list, t)
		}
		t := &list[len(list)-1]
		row := []any{x.Strategy}
		for _, p := range x.Prefill {
			row = append(row, p.TokensPerS, mega(p.Copied), percent(p.HitRate))
		}
		if p := x.Prompts; p != nil {
			row = append(row, p.TokensPerS, mega(p.Copied))
		}
		d := x.Decode
		row = append(row, d.TokensPerS, mega(d.Copied)/float64(d.Tokens), percent(d.HitRate), percent(d.HostShare), mega(x.OnRank), mega(x.VRAM), int(x.KVTokens))
		for _, p := range x.Together {
			row = append(row, p.TokensPerS, percent(p.RankBusy), percent(p.HostBusy))
		}
		t.Rows = append(t.Rows, row)
	}
	return list
}

func mega(bytes int64) float64 { return float64(bytes) / 1e6 }

func percent(share float64) int { return int(100*share + 0.5) }

// bytesText formats a size for people, with three digits.
func bytesText(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.3g GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.3g MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%d bytes", n)
}
