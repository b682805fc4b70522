package model

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"krater/bench/clock"
	"krater/bench/plot"
	"krater/bench/read"
	"krater/bench/stat"
)

// Report is the result of a run. Times are in milliseconds, and rates in GB/s (10^9 bytes) of
// weights and KV cache. Ratios are to the median of plain reads in the same seconds and regime.
// Speeds are medians.
type Report struct {
	Threads int    `json:"threads"`
	Level   string `json:"level"`

	DecodeTokS  float64 `json:"decode_tok_s"`
	DecodeGBps  float64 `json:"decode_gbps"`
	ReadGBps    float64 `json:"read_gbps"`
	DecodeRatio float64 `json:"decode_ratio"`
	// BestRatio compares the quiet moments of both: the step time that 10 % of the steps stay
	// below, and the P90 of reads.
	BestRatio    float64   `json:"decode_ratio_best"`
	BytesPerStep int64     `json:"decode_bytes"`
	DecodeCPUMS  float64   `json:"decode_cpu_ms"`    // least processor time of all threads in a step
	Regime       string    `json:"regime,omitempty"` // regime of most steps
	Decode       Steps     `json:"decode"`
	StepsMS      []float64 `json:"steps_ms"` // every step in order, in any regime
	Regimes      []Regime  `json:"regimes,omitempty"`
	ReadLoop     read.Loop `json:"read"`

	Prefill   []Prefill  `json:"prefill"`
	Breakdown []Stage    `json:"breakdown"`
	Operators []Operator `json:"operators"`
	Context   []Context  `json:"context"`
	Batch     []Batch    `json:"batch"`
	Scaling   []Scaling  `json:"scaling,omitempty"`
}

// Changing is the regime of steps in which the number of cores changed.
const Changing = "changing"

// Steps are percentiles of step times.
type Steps struct {
	N     int     `json:"n"`
	MinMS float64 `json:"min_ms"`
	P10MS float64 `json:"p10_ms"`
	P50MS float64 `json:"p50_ms"`
	P90MS float64 `json:"p90_ms"`
	P99MS float64 `json:"p99_ms"`
	MaxMS float64 `json:"max_ms"`
}

func steps(s stat.Sample) Steps {
	v := s.Summary()
	return Steps{v.N, v.Min, s.Percentile(0.1), v.P50, v.P90, v.P99, v.Max}
}

// Regime is decode in one state of the machine.
type Regime struct {
	Regime   string  `json:"regime"`
	Share    float64 `json:"share"`
	TokS     float64 `json:"tok_s"`
	ReadGBps float64 `json:"read_gbps"`
	Ratio    float64 `json:"ratio"`
}

// Prefill is one prompt length.
type Prefill struct {
	Tokens    int       `json:"tokens"`
	TokS      float64   `json:"tok_s"`
	BestTokS  float64   `json:"best_tok_s"`
	MS        float64   `json:"ms"`
	CPUMS     float64   `json:"cpu_ms"` // least processor time of all threads
	Runs      int       `json:"runs"`
	Regime    string    `json:"regime,omitempty"` // at the end
	Samples   []float64 `json:"samples_tok_s"`
	Breakdown []Stage   `json:"breakdown"`
}

// Stage is a part of a step.
type Stage struct {
	Stage string  `json:"stage"`
	MS    float64 `json:"ms"`
	Share float64 `json:"share"`
	MB    float64 `json:"mb"`
	GBps  float64 `json:"gbps"`
}

// Operator is an operator's part of a decode step.
type Operator struct {
	Stage
	Operator string  `json:"operator"`
	Calls    float64 `json:"calls"`
}

// Context is decode at a context length.
type Context struct {
	Tokens int     `json:"tokens"`
	MadeUp int     `json:"made_up_rows,omitempty"` // rows of the cache that are copies of those of a short prompt
	TokS   float64 `json:"tok_s"`
	GBps   float64 `json:"gbps"`
	Ratio  float64 `json:"ratio"`
	CPUMS  float64 `json:"cpu_ms"` // least processor time of all threads in a step
	Steps
	Operators []Operator `json:"operators"` // of one step
}

// Batch is decode of several streams.
type Batch struct {
	Streams int     `json:"streams"`
	TokS    float64 `json:"tok_s"` // of all together
	GBps    float64 `json:"gbps"`
	Ratio   float64 `json:"ratio"`
	Steps
	Operators []Operator `json:"operators"` // of one step
}

// Scaling is decode with another number of threads.
type Scaling struct {
	Threads  int     `json:"threads"`
	TokS     float64 `json:"tok_s"`
	GBps     float64 `json:"gbps"`
	ReadGBps float64 `json:"read_gbps"`
	Ratio    float64 `json:"ratio"`
	Regime   string  `json:"regime,omitempty"`
}

// Of returns the part of a report that Scaling shows.
func (r *Report) Of() Scaling {
	return Scaling{r.Threads, r.DecodeTokS, r.DecodeGBps, r.ReadGBps, r.DecodeRatio, r.Regime}
}

func sum(spent []clock.Spent) (bytes int64) {
	for _, s := range spent {
		bytes += s.Bytes
	}
	return bytes
}

// speed returns tokens per second for the given tokens per step, GB/s, and the ratio to plain
// reads.
func speed(s *stat.Series, reader *read.Reader, tokens int, bytes int64) (in stat.Sample, tokS, gbps, ratio float64) {
	main := s.States()[0]
	in = s.In(main)
	p50 := in.Median()
	gbps = stat.Ratio(float64(bytes)/1e6, p50)
	return in, stat.Ratio(float64(tokens)*1e3, p50), gbps, stat.Ratio(gbps, reader.Best(main).P50)
}

func (r *Report) decode(s *stat.Series, reader *read.Reader, spent []clock.Spent, all time.Duration, n int) {
	r.BytesPerStep = sum(spent) / int64(n)
	var in stat.Sample
	in, r.DecodeTokS, r.DecodeGBps, r.DecodeRatio = speed(s, reader, 1, r.BytesPerStep)
	states := s.States()
	r.Regime, r.Decode, r.StepsMS = states[0], steps(in), s.Values
	r.ReadLoop = reader.Best(r.Regime)
	r.ReadGBps = r.ReadLoop.P50
	r.BestRatio = stat.Ratio(stat.Ratio(float64(r.BytesPerStep)/1e6, r.Decode.P10MS), r.ReadLoop.P90)
	if len(states) > 1 {
		for _, state := range states {
			v, rd := s.In(state), reader.Best(state).P50
			gbps := stat.Ratio(float64(r.BytesPerStep)/1e6, v.Median())
			r.Regimes = append(r.Regimes, Regime{state, stat.Round(float64(len(v))/float64(len(s.Values)), 2), stat.Ratio(1e3, v.Median()), rd, stat.Ratio(gbps, rd)})
		}
	}
	r.Breakdown = breakdown(spent, ms(all), n)
	r.Operators = operators(spent, all, n)
}

// operators are the parts of n steps, the longest first.
func operators(spent []clock.Spent, all time.Duration, n int) (list []Operator) {
	for _, x := range spent {
		list = append(list, Operator{stage(x.Stage, x.Time, x.Bytes, ms(all), n), x.Operator, float64(x.Calls) / float64(n)})
	}
	slices.SortStableFunc(list, func(a, b Operator) int { return compare(b.MS, a.MS) })
	return list
}

func compare(a, b float64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// stage returns the mean of n steps that took all milliseconds together.
func stage(name string, d time.Duration, bytes int64, all float64, n int) Stage {
	return Stage{name, ms(d) / float64(n), stat.Ratio(ms(d), all), float64(bytes) / 1e6 / float64(n), stat.Ratio(float64(bytes)/1e6, ms(d))}
}

// Other is the time outside operators: the host's own work.
const Other = "other"

// breakdown adds spent by stage, the longest first, and the rest as Other.
func breakdown(spent []clock.Spent, all float64, n int) []Stage {
	times, bytes := map[string]time.Duration{}, map[string]int64{}
	left := all
	var names []string
	for _, s := range spent {
		if !slices.Contains(names, s.Stage) {
			names = append(names, s.Stage)
		}
		times[s.Stage] += s.Time
		bytes[s.Stage] += s.Bytes
		left -= ms(s.Time)
	}
	out := make([]Stage, 0, len(names)+1)
	for _, name := range names {
		out = append(out, stage(name, times[name], bytes[name], all, n))
	}
	slices.SortStableFunc(out, func(a, b Stage) int { return compare(b.MS, a.MS) })
	return append(out, Stage{Stage: Other, MS: max(0, left) / float64(n), Share: stat.Ratio(max(0, left), all)})
}

func (r *Report) prefill(tokens int, times, user stat.Sample, regime string, spent []clock.Spent) {
	p50 := times.Median()
	all := 0.0
	for _, t := range times {
		all += t
	}
	r.Prefill = append(r.Prefill, Prefill{
		Tokens: tokens, TokS: stat.Ratio(float64(tokens)*1e3, p50), BestTokS: stat.Ratio(float64(tokens)*1e3, times.Percentile(0)),
		MS: p50, CPUMS: user.Percentile(0), Runs: len(times), Regime: regime, Samples: times.Map(func(t float64) float64 { return stat.Ratio(float64(tokens)*1e3, t) }), Breakdown: breakdown(spent, all, len(times)),
	})
}

func (r *Report) context(tokens, made int, s *stat.Series, reader *read.Reader, spent []clock.Spent, all time.Duration) {
	in, tokS, gbps, ratio := speed(s, reader, 1, sum(spent))
	r.Context = append(r.Context, Context{Tokens: tokens, MadeUp: made, TokS: tokS, GBps: gbps, Ratio: ratio, Steps: steps(in), Operators: operators(spent, all, 1)})
}

func (r *Report) batch(streams int, s *stat.Series, reader *read.Reader, spent []clock.Spent, all time.Duration) {
	in, tokS, gbps, ratio := speed(s, reader, streams, sum(spent))
	r.Batch = append(r.Batch, Batch{streams, tokS, gbps, ratio, steps(in), operators(spent, all, 1)})
}

// Tables returns the figures for people.
func (r *Report) Tables() []stat.Table {
	d := stat.Table{
		Title: fmt.Sprintf("Decode, %d threads, level %s: %.1f MB a step, memory read %s GB/s (%s)%s", r.Threads, r.Level,
			float64(r.BytesPerStep)/1e6, stat.Number(r.ReadGBps), r.ReadLoop.Name, r.regimes()),
		Columns: []string{"streams", "depth", "tokens/s", "GB/s", "of read", "p50 ms", "p90 ms", "p99 ms", "min ms", "cpu ms"},
	}
	row := func(streams int, depth any, tokS, gbps, ratio float64, s Steps, user any) {
		d.Add(streams, depth, tokS, gbps, ratio, s.P50MS, s.P90MS, s.P99MS, s.MinMS, user)
	}
	row(1, prompt, r.DecodeTokS, r.DecodeGBps, r.DecodeRatio, r.Decode, r.DecodeCPUMS)
	for _, c := range r.Context {
		row(1, depth(c.Tokens, c.MadeUp), c.TokS, c.GBps, c.Ratio, c.Steps, c.CPUMS)
	}
	for _, b := range r.Batch {
		row(b.Streams, prompt, b.TokS, b.GBps, b.Ratio, b.Steps, nil)
	}
	p := stat.Table{Title: "Prefill", Columns: []string{"tokens", "tokens/s", "best", "ms", "runs"}}
	for _, x := range r.Prefill {
		p.Add(x.Tokens, x.TokS, x.BestTokS, x.MS, x.Runs)
	}
	tables := []stat.Table{d}
	if len(p.Rows) > 0 {
		tables = append(tables, p)
	}
	tables = append(tables, r.stageTable())
	if len(r.Scaling) > 0 {
		s := stat.Table{Title: "Decode by threads", Columns: []string{"threads", "tokens/s", "GB/s", "read GB/s", "of read", "regime"}}
		for _, x := range r.Scaling {
			s.Add(x.Threads, x.TokS, x.GBps, x.ReadGBps, x.Ratio, x.Regime)
		}
		tables = append(tables, s)
	}
	return tables
}

// depth shows a context length, and how much of it is made up.
func depth(tokens, made int) string {
	if made == 0 {
		return fmt.Sprint(tokens)
	}
	return fmt.Sprintf("%d (%d made-up rows)", tokens, made)
}

func (r *Report) regimes() string {
	if len(r.Regimes) == 0 {
		if r.Regime == "" {
			return ""
		}
		return ", " + r.Regime
	}
	var parts []string
	for _, x := range r.Regimes {
		parts = append(parts, fmt.Sprintf("%s %.0f %%: %s tokens/s, %s of %s GB/s", x.Regime, 100*x.Share, stat.Number(x.TokS), stat.Number(x.Ratio), stat.Number(x.ReadGBps)))
	}
	return "; " + strings.Join(parts, "; ")
}

// stageTable returns the breakdown of a decode step and of the prompts, in one.
func (r *Report) stageTable() stat.Table {
	t := stat.Table{Title: "Where the time goes", Columns: []string{"stage", "decode ms", "share", "MB", "GB/s"}}
	for _, p := range r.Prefill {
		t.Columns = append(t.Columns, fmt.Sprintf("prefill %d ms", p.Tokens), "share")
	}
	for _, s := range r.Breakdown {
		row := []any{s.Stage, s.MS, s.Share, nil, nil}
		if s.MB > 0 {
			row[3], row[4] = s.MB, s.GBps
		}
		for _, p := range r.Prefill {
			i := slices.IndexFunc(p.Breakdown, func(x Stage) bool { return x.Stage == s.Stage })
			if i < 0 {
				row = append(row, nil, nil)
				continue
			}
			row = append(row, p.Breakdown[i].MS, p.Breakdown[i].Share)
		}
		t.Add(row...)
	}
	return t
}

// Text writes all tables.
func (r *Report) Text(w io.Writer) error { return stat.Text(w, r.Tables()) }

// Charts are prefill by length, decode by threads and by depth where they were measured, and the
// breakdown of a decode step.
func (r *Report) Charts() []plot.Chart {
	var charts []plot.Chart
	line := func(title, x, name string, n int, at func(i int) (float64, float64)) {
		s := plot.Series{Name: name}
		for i := range n {
			a, b := at(i)
			s.X, s.Y = append(s.X, a), append(s.Y, stat.Round(b, 4))
		}
		if n > 0 {
			charts = append(charts, plot.Chart{Title: title, X: x, Y: "tokens/s", Series: []plot.Series{s}})
		}
	}
	line("Decode by threads", "threads", "decode", len(r.Scaling), func(i int) (float64, float64) { return float64(r.Scaling[i].Threads), r.Scaling[i].TokS })
	line("Prefill by length", "tokens of the prompt", "prefill", len(r.Prefill), func(i int) (float64, float64) { return float64(r.Prefill[i].Tokens), r.Prefill[i].TokS })
	if len(r.Context) > 0 {
		line("Decode by depth", "tokens in the cache", "decode", 1+len(r.Context), func(i int) (float64, float64) {
			if i == 0 {
				return prompt, r.DecodeTokS
			}
			return float64(r.Context[i-1].Tokens), r.Context[i-1].TokS
		})
	}
	bars := plot.Chart{Title: "A decode step", Y: "ms", Series: []plot.Series{{Name: "time"}}}
	for _, s := range r.Breakdown {
		bars.Categories = append(bars.Categories, s.Stage)
		bars.Series[0].Y = append(bars.Series[0].Y, stat.Round(s.MS, 4))
	}
	return append(charts, bars)
}
