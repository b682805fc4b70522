package main

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"strings"

	"krater/bench/stat"
	"krater/cmd/krater/console"
	"krater/cmd/krater/term"
	"krater/scheduler/planner"
	"krater/scheduler/planner/forecast"
	"krater/scheduler/planner/rates"
)

// planReport is what krater plan prints.
type planReport struct {
	Model      string          `json:"model"`
	Cannot     string          `json:"cannot_run,omitempty"` // why this version cannot run the model
	Note       string          `json:"note,omitempty"`       // why there are no candidates
	Rates      *rates.Rates    `json:"rates,omitempty"`
	Known      knownRates      `json:"rates_from"`
	Skew       string          `json:"routing_skew,omitempty"`
	Budget     forecast.Budget `json:"budget"`
	Room       int64           `json:"expert_room"` // bytes of the card that experts may take
	Experts    int64           `json:"expert_bytes"`
	Work       forecast.Work   `json:"work"`
	Prefill    string          `json:"prefill,omitempty"` // the chosen strategies
	Decode     string          `json:"decode,omitempty"`
	Flags      string          `json:"flags,omitempty"` // for krater serve
	kvToken    int64
	made       *forecast.Forecast
	Candidates []forecast.Candidate `json:"candidates"`
}

func newPlanReport(name string, known knownRates, c *forecast.Case, made *forecast.Forecast) *planReport {
	r := &planReport{
		Model: name, Rates: &c.Rates, Known: known, Skew: c.Skew.Name, Budget: c.Budget, Room: max(0, c.Budget.Room()),
		Experts: int64(c.Shape.MoE*c.Shape.Experts) * c.Shape.ExpertCard, Work: c.Work, kvToken: c.Shape.KVToken, made: made, Candidates: made.Candidates,
	}
	if made.Prefill != nil {
		r.Prefill, r.Decode = made.Prefill.Name(), made.Decode.Name()
		r.Flags = fmt.Sprintf("--prefill-strategy %s --decode-strategy %s", r.Prefill, r.Decode)
		if n := made.PrefillExperts; n > 0 {
			r.Flags += fmt.Sprintf(" --prefill-expert-vram %d", int64(n)*c.Shape.ExpertCard)
		}
	}
	return r
}

// planWidth is how wide a plan is printed, where nobody asks for more columns of figures.
const planWidth = 100

// beforeUnit is the space between a number and its unit, which stay in one line.
var beforeUnit = regexp.MustCompile(`(\d) (%|B|[KMGT]iB|m?s\b)`)

// paragraph writes text in lines of planWidth that begin with lead, the first of them with first, which is not
// longer.
func paragraph(out io.Writer, first, lead, text string) {
	for _, line := range term.Wrap(beforeUnit.ReplaceAllString(text, "$1\x00$2"), planWidth-len(lead)) {
		fmt.Fprintln(out, first+strings.ReplaceAll(line, "\x00", " "))
		first = lead
	}
}

// print writes the report for people: what is recommended, what it is for and made of, and the
// figures of all strategies.
func (r *planReport) print(to io.Writer) error {
	var out bytes.Buffer
	if r.Note != "" {
		_, err := fmt.Fprintf(to, "%s: %s\n", r.Model, r.Note)
		return err
	}
	paragraph(&out, "", "  ", fmt.Sprintf("%s, predicted for %s (%s)", r.line(), r.Rates.Card.Name, r.Known.Card))
	if r.Flags != "" {
		paragraph(&out, "", "  ", "flags: "+r.Flags)
	}
	out.WriteByte('\n')
	r.given(&out)
	if !r.hopeless() {
		first := r.Prefill
		if first == "" {
			first = "no prefill"
		}
		r.table(&out, "Prefill, tok/s by prompt", func(c *forecast.Candidate) *forecast.Side { return &c.Prefill }, r.Work.Lengths, fmt.Sprintf("GB at %d", r.decides()))
		r.table(&out, fmt.Sprintf("Decode, tok/s of all streams at %d tokens, in what %s leaves", r.Work.Context, first),
			func(c *forecast.Candidate) *forecast.Side { return &c.Decode }, r.Work.Batches, "GB/step")
	}
	_, err := to.Write(out.Bytes())
	return err
}

// given writes what the forecast is for and what it is made of.
func (r *planReport) given(out io.Writer) {
	b := &r.Budget
	c, p := &r.Rates.Card, &r.Rates.CPU
	paragraph(out, "", "  ", fmt.Sprintf("%s on %s, %s of its memory, routing %s", r.Model, c.Name, planner.Size(b.VRAM), r.Skew))
	if r.Cannot != "" {
		paragraph(out, "  ", "    ", "sizes alone: "+r.Cannot)
	}
	item := func(name, format string, args ...any) {
		paragraph(out, fmt.Sprintf("  %-8s", name), strings.Repeat(" ", 10), fmt.Sprintf(format, args...))
	}
	item("GPU", "reads %s GB/s (%s), multiplies %s / %s / %s TFLOP/s dense / experts / attention (%s), copies %s GB/s, %s while it computes (%s)",
		stat.Number(c.ReadGBps), c.Sources["read_gbps"], stat.Number(c.Dense.Peak), stat.Number(c.Experts.Peak), stat.Number(c.Attention.Peak), c.Sources["experts.peak"],
		stat.Number(c.CopyGBps), stat.Number(c.BusyGBps), c.Sources["copy_gbps"])
	item("CPU", "%s, %s: reads %s GB/s, experts %s GOP/s (%s)", orUnknown(p.Name), console.Count(p.Threads, "thread"), stat.Number(p.ReadGBps), stat.Number(1e3*p.Experts.Peak), r.Known.CPU)
	item("budget", "weights and workspace %s, KV cache %s or more (%d tokens), experts %s of %s",
		planner.Size(b.Fixed), planner.Size(b.KV), b.KV/max(1, r.kvToken), planner.Size(min(r.Room, r.Experts)), planner.Size(r.Experts))
}

func orUnknown(name string) string {
	if name == "" {
		return "unknown processor"
	}
	return name
}

// hopeless reports whether nothing fits, for one reason.
func (r *planReport) hopeless() bool {
	for i := range r.Candidates {
		if s := &r.Candidates[i].Prefill; s.Fits || s.Reason != r.Candidates[0].Prefill.Reason {
			return false
		}
	}
	return true
}

// decides is the length that stands for all.
func (r *planReport) decides() int {
	for i := range r.Candidates {
		if n := r.Candidates[i].Prefill.Decides.N; n > 0 {
			return n
		}
	}
	return 0
}

// table writes one phase: the strategies that fit, the chosen one marked, and below them what
// bounds each, or why it does not fit. Strategies that have a reason in common share a line.
func (r *planReport) table(out *bytes.Buffer, title string, side func(*forecast.Candidate) *forecast.Side, list []int, copied string) {
	t := stat.Table{Title: title, Columns: []string{"", "strategy"}}
	for _, n := range list {
		t.Columns = append(t.Columns, fmt.Sprint(n))
	}
	t.Columns = append(t.Columns, copied, "hits", "VRAM", "KV tokens")
	var reasons []string
	names := map[string][]string{}
	for i := 0; i < len(r.Candidates); i++ {
		c := &r.Candidates[i]
		s, name := side(c), c.Name()
		for ; i+1 < len(r.Candidates) && sameRow(c, &r.Candidates[i+1], side); i++ {
			name = fmt.Sprintf("%s:%d-%d", c.Strategy, c.Groups, r.Candidates[i+1].Groups)
		}
		if names[s.Reason] == nil {
			reasons = append(reasons, s.Reason)
		}
		names[s.Reason] = append(names[s.Reason], name)
		if !s.Fits {
			continue
		}
		mark := ""
		if s.Chosen {
			mark = ">"
		}
		row := []any{mark, name}
		for j := range list {
			if s.Points[j].PerSecond == 0 {
				row = append(row, nil)
				continue
			}
			row = append(row, s.Points[j].PerSecond)
		}
		t.Add(append(row, s.Decides.Copied/1e9, s.Decides.HitRate, planner.Size(s.VRAM), s.KV)...)
	}
	out.WriteByte('\n')
	if len(t.Rows) == 0 {
		fmt.Fprintln(out, title)
	} else {
		t.Text(out) // a buffer takes everything
	}
	for _, reason := range reasons {
		paragraph(out, "   ", "     ", strings.Join(names[reason], ", ")+": "+reason)
	}
}

// sameRow reports whether another number of groups changes nothing.
func sameRow(a, b *forecast.Candidate, side func(*forecast.Candidate) *forecast.Side) bool {
	x, y := side(a), side(b)
	return a.Strategy == b.Strategy && x.Fits && y.Fits && !x.Chosen && !y.Chosen && x.Reason == y.Reason && x.VRAM == y.VRAM && x.Decides.PerSecond == y.Decides.PerSecond
}

// line is the recommendation in a sentence.
func (r *planReport) line() string {
	if r.Prefill == "" {
		why := r.Note
		if why == "" {
			why = "nothing fits: " + r.Candidates[0].Prefill.Reason
		}
		return "strategies: " + why
	}
	p, d := &r.made.Prefill.Prefill, &r.made.Decode.Decode
	return fmt.Sprintf("strategies: prefill %s, %s tok/s of %d tokens (%s); decode %s, %s tok/s of %s (%s)",
		r.Prefill, forecast.Number(p.Decides.PerSecond), p.Decides.N, p.Reason, r.Decode, forecast.Number(d.Decides.PerSecond), console.Count(d.Decides.N, "stream"), d.Reason)
}
