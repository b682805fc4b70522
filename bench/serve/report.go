package serve

import (
	"fmt"
	"io"
	"strings"

	"krater/bench/plot"
	"krater/bench/stat"
)

// Report is the result: one point per rate or concurrency.
type Report struct {
	URL    string   `json:"url"`
	Load   string   `json:"load"` // in words
	Bounds Bounds   `json:"goodput_bounds"`
	Points []*Point `json:"points"`
	Soak   *Soak    `json:"soak,omitempty"`
}

// Compare fills in how the points relate to the first of their door.
func (r *Report) Compare() {
	first := map[string]float64{}
	for _, p := range r.Points {
		if _, found := first[p.Door]; !found {
			first[p.Door] = p.AnswerTokS
		}
		p.Ratio = stat.Ratio(p.AnswerTokS, first[p.Door])
	}
}

// name describes the load of a point.
func (p *Point) name() string {
	if p.Rate > 0 {
		return fmt.Sprintf("%s, %v requests/s", p.Door, p.Rate)
	}
	if p.Concurrency == 1 {
		return p.Door + ", 1 stream"
	}
	return fmt.Sprintf("%s, %d streams", p.Door, p.Concurrency)
}

// Text writes the tables.
func (r *Report) Text(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "%s\n\n", stat.Wrap(r.URL+": "+r.Load)); err != nil {
		return err
	}
	var tables []stat.Table
	for _, p := range r.Points {
		tables = append(tables, p.times())
	}
	tables = append(tables, r.rates(), r.ends())
	if t := r.servers(); len(t.Rows) > 0 {
		tables = append(tables, t)
	}
	if r.Soak != nil {
		tables = append(tables, r.Soak.tables()...)
	}
	if err := stat.Text(w, tables); err != nil {
		return err
	}
	return r.notes(w)
}

// times returns the table of one point's latencies.
func (p *Point) times() stat.Table {
	t := stat.Table{
		Title:   p.name() + ", times in ms",
		Columns: []string{"", "n", "mean", "p50", "p90", "p95", "p99", "max"},
	}
	for _, x := range []struct {
		name string
		s    Summary
	}{
		{"TTFT, to the first token", p.TTFT}, {"ITL, between tokens", p.ITL}, {"TPOT, its mean of a request", p.TPOT},
		{"E2E, to the end", p.E2E}, {"queue, from the server", p.Queue}, {"delay of the load generator", p.Late},
	} {
		if x.s.N > 0 {
			t.Add(x.name, x.s.N, x.s.Mean, x.s.P50, x.s.P90, x.s.P95, x.s.P99, x.s.Max)
		}
	}
	return t
}

// rates returns the table over points.
func (r *Report) rates() stat.Table {
	t := stat.Table{
		Title: "Throughput",
		Columns: []string{
			"load", "s", "requests/s", "prompt tok/s", "answer tok/s", "vs first", "TTFT p50 ms", "p99", "TPOT p50 ms", "p99", "ITL p99",
		},
	}
	if r.Bounds.Any() {
		t.Columns = append(t.Columns, "goodput/s", "share")
	}
	for _, p := range r.Points {
		row := []any{p.name(), p.Window, p.RequestsPerS, p.PromptTokS, p.AnswerTokS, p.Ratio, p.TTFT.P50, p.TTFT.P99, p.TPOT.P50, p.TPOT.P99, p.ITL.P99}
		if r.Bounds.Any() {
			row = append(row, p.GoodPerS, p.GoodShare)
		}
		t.Add(row...)
	}
	return t
}

// ends returns the table of how requests ended.
func (r *Report) ends() stat.Table {
	t := stat.Table{
		Title:   "Requests",
		Columns: []string{"load", "sent", "ok", "others", "open at most", "prompt tokens", "answer tokens", "from cache"},
	}
	for _, p := range r.Points {
		var others []string
		for _, o := range p.outcomes() {
			if o != OK {
				others = append(others, fmt.Sprintf("%d %s", p.Outcomes[o], o))
			}
		}
		t.Add(p.name(), p.Sent, p.Outcomes[OK], strings.Join(others, ", "), p.OpenMost, p.PromptTokens, p.AnswerTokens, p.CachedTokens)
	}
	return t
}

// servers returns the table of the server's own figures.
func (r *Report) servers() stat.Table {
	t := stat.Table{
		Title: "What the server reports",
		Columns: []string{
			"load", "running: before", "most", "after", "waiting: most", "after", "KV use: most", "after", "prompt tokens", "answer tokens",
			"aborted", "errors", "queue mean ms", "prefix hits", "preemptions",
		},
	}
	counted := func(v float64) any {
		if v < 0 {
			return nil
		}
		return v
	}
	for _, p := range r.Points {
		d := p.Server
		if d == nil {
			continue
		}
		var preempted any
		if d.Preemptions >= 0 {
			preempted = d.Preemptions
		}
		t.Add(p.name(), d.Before.Running, d.Most.Running, d.After.Running, d.Most.Waiting, d.After.Waiting, d.Most.KV, d.After.KV,
			d.Prompt, d.Answer, d.Aborted, d.Errors, d.QueueMean, counted(d.PrefixHits), preempted)
	}
	return t
}

// notes says what a reader must know before believing the tables.
func (r *Report) notes(w io.Writer) error {
	var notes []string
	for _, p := range r.Points {
		add := func(format string, args ...any) { notes = append(notes, p.name()+": "+fmt.Sprintf(format, args...)) }
		if p.Behind != "" {
			add("THE GENERATOR FELL BEHIND: %s", p.Behind)
		}
		for _, e := range p.Errors {
			add("%s", e)
		}
		if n := p.Outcomes[Refused]; n > 0 {
			add("%d requests were refused (429), asked to wait %v at most, %d without a Retry-After", n, p.RetryAfter, p.NoRetryAfter)
		}
		if p.PromptsOff > 0 {
			add("the server counted %d prompts to be longer or shorter than they were made", p.PromptsOff)
		}
	}
	if len(notes) == 0 {
		return nil
	}
	for i := range notes {
		notes[i] = stat.Wrap(notes[i])
	}
	_, err := fmt.Fprintf(w, "\n%s\n", strings.Join(notes, "\n"))
	return err
}

// Charts draws the distributions, the throughput over time and over points.
func (r *Report) Charts() []plot.Chart {
	var charts []plot.Chart
	for _, x := range []struct {
		title string
		of    func(*Point) *Histogram
	}{
		{"Time to first token", func(p *Point) *Histogram { return &p.ttft }},
		{"Time between tokens", func(p *Point) *Histogram { return &p.itl }},
		{"Time to the end", func(p *Point) *Histogram { return &p.e2e }},
	} {
		c := plot.Chart{Title: x.title + ", cumulative", X: "ms", Y: "% of " + map[bool]string{true: "gaps", false: "requests"}[x.title == "Time between tokens"], Dense: true, LogX: true}
		for _, p := range r.Points {
			if h := x.of(p); h.N > 0 {
				at, share := h.cdf()
				c.Series = append(c.Series, plot.Series{Name: p.name(), X: at, Y: share})
			}
		}
		if len(c.Series) > 0 {
			charts = append(charts, c)
		}
	}
	over := plot.Chart{Title: "Throughput over time", X: "s", Y: "answer tokens/s", Dense: true}
	for _, p := range r.Points {
		s := plot.Series{Name: p.name()}
		for _, x := range p.Throughput {
			s.X, s.Y = append(s.X, x.At), append(s.Y, x.AnswerPS)
		}
		if len(s.X) > 0 {
			over.Series = append(over.Series, s)
		}
	}
	if len(over.Series) > 0 {
		charts = append(charts, over)
	}
	if c := r.curve(); len(c.Series) > 0 && len(c.Series[0].X) > 1 {
		charts = append(charts, c)
	}
	if r.Soak != nil {
		charts = append(charts, r.Soak.charts()...)
	}
	return charts
}

// curve is throughput over the load.
func (r *Report) curve() plot.Chart {
	c := plot.Chart{Title: "Throughput by load", X: "streams", Y: "answer tokens/s"}
	of := map[string]int{}
	for _, p := range r.Points {
		x := float64(p.Concurrency)
		if p.Rate > 0 {
			c.X, x = "requests/s", p.Rate
		}
		i, found := of[p.Door]
		if !found {
			i = len(c.Series)
			of[p.Door] = i
			c.Series = append(c.Series, plot.Series{Name: p.Door})
		}
		s := &c.Series[i]
		s.X, s.Y = append(s.X, x), append(s.Y, p.AnswerTokS)
	}
	return c
}
