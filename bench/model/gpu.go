package model

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"krater/bench/plot"
	"krater/bench/stat"
	"krater/kernels/device"
	"krater/stages"
	"krater/stages/drive"
)

// GPUReport is the measurement of a model on a GPU. Times are in milliseconds, of whole steps as
// their caller sees them; speeds are medians.
type GPUReport struct {
	Prefill   []GPUPrefill `json:"prefill"`
	Decode    []GPUDecode  `json:"decode"`
	Operators []GPUPart    `json:"operators"`
}

// GPUPrefill is one prompt length.
type GPUPrefill struct {
	Tokens  int       `json:"tokens"`
	TokS    float64   `json:"tok_s"`
	MS      float64   `json:"ms"`
	MinMS   float64   `json:"min_ms"`
	Runs    int       `json:"runs"`
	ChunkMS []float64 `json:"chunk_ms"` // chunks of the fastest run
}

// GPUDecode is a number of streams at a context length.
type GPUDecode struct {
	Streams int     `json:"streams"`
	Context int     `json:"context"`
	MadeUp  int     `json:"made_up_rows,omitempty"` // rows of a stream's cache that are copies of those of a short prompt
	TokS    float64 `json:"tok_s"`
	Steps   Steps   `json:"steps"`
}

// GPUPart is the GPU's time in an operator, in a step of kind Of.
type GPUPart struct {
	Of    string  `json:"of"` // "prefill 2048", "decode 1 at 2048"
	Op    string  `json:"op"`
	MS    float64 `json:"ms"`
	Calls int     `json:"calls"`
}

// GPUOptions are the settings of a measurement.
type GPUOptions struct {
	Prefill []int // prompt lengths
	Decode  int   // steps of a decode measurement
	Batch   []int // numbers of streams
	Context []int // context lengths; several streams are measured at those up to Together
	Chunk   int
	Vocab   int
	// Profile, if set, runs f and passes the time of every operator to tell.
	Profile  func(tell func(op string, d time.Duration), f func() error) error
	Progress func(string)
}

// Together is the largest context length at which several streams are measured.
const Together = 2048

// warmup is the number of steps before the measured ones: the second step of a kind is captured as
// a graph, for each of two states.
const warmup = 6

// pairs returns the numbers of streams and context lengths to measure.
func (o *GPUOptions) pairs() (list [][2]int) {
	for _, n := range o.Batch {
		for _, ctx := range o.Context {
			if n == 1 || ctx <= Together {
				list = append(list, [2]int{n, ctx})
			}
		}
	}
	return list
}

// Blocks returns the number of KV blocks, of the given tokens, that the measurement takes.
func (o *GPUOptions) Blocks(blockTokens int) int {
	most := 0
	each := func(streams, tokens int) {
		most = max(most, streams*((tokens+blockTokens-1)/blockTokens))
	}
	for _, n := range o.Prefill {
		each(1, n)
	}
	for _, p := range o.pairs() {
		each(p[0], p[1]+o.room())
	}
	return most
}

// room returns the tokens that a decode measurement adds.
func (o *GPUOptions) room() int { return o.Decode + warmup + 2 }

// RunGPU measures a model on a GPU.
func RunGPU(r drive.Runner, o GPUOptions) (*GPUReport, error) {
	b := &bench{o: Options{Chunk: o.Chunk, Vocab: o.Vocab, Progress: o.Progress}, run: r, draws: true}
	report := &GPUReport{}
	for _, n := range o.Prefill {
		p, err := b.gpuPrefill(n)
		if err != nil {
			return nil, err
		}
		report.Prefill = append(report.Prefill, *p)
		err = report.profile(&o, fmt.Sprintf("prefill %d", n), func() error {
			_, _, err := b.start(1, n, 0)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	for _, p := range o.pairs() {
		if err := b.gpuDecode(report, &o, p[0], p[1]); err != nil {
			return nil, err
		}
	}
	return report, nil
}

// gpuPrefill measures one prompt length.
func (b *bench) gpuPrefill(n int) (*GPUPrefill, error) {
	b.tell("prefill, %d tokens", n)
	p := &GPUPrefill{Tokens: n}
	var times stat.Sample
	const runs = 7
	for begin := time.Now(); len(times) < runs && (len(times) < 2 || time.Since(begin) < prefillLong); {
		b.chunks = b.chunks[:0]
		_, took, err := b.start(1, n, 0)
		if err != nil {
			return nil, err
		}
		if p.Runs++; p.Runs == 1 {
			continue // the first run grows scratch memory
		}
		if v := ms(took); len(times) == 0 || v < slices.Min(times) {
			p.ChunkMS = slices.Clone(b.chunks)
		}
		times = append(times, ms(took))
	}
	v := times.Summary()
	p.MS, p.MinMS, p.Runs = v.P50, v.Min, len(times)
	p.TokS = 1e3 * float64(n) / p.MS
	return p, nil
}

// chainer enqueues a step while the previous one runs, as serving does (direct.Model).
type chainer interface {
	Chain(b *stages.Step, n int, read func(step int, st *stages.State) error) error
}

// gpuDecode measures streams at a context length: the time from one step's tokens to the next's,
// while the next step is always enqueued already.
func (b *bench) gpuDecode(r *GPUReport, o *GPUOptions, streams, context int) error {
	b.tell("decode, %d streams at %d tokens", streams, context)
	q, made, err := b.deep(streams, context, o.room())
	if err != nil {
		return err
	}
	times, err := b.chain(q, o.Decode)
	if err != nil {
		return err
	}
	s := steps(times)
	r.Decode = append(r.Decode, GPUDecode{Streams: streams, Context: context, MadeUp: made, TokS: 1e3 * float64(streams) / s.P50MS, Steps: s})
	return r.profile(o, fmt.Sprintf("decode %d at %d", streams, context), func() error {
		_, err := b.forward(q)
		return err
	})
}

// chain decodes n tokens of every sequence, after a few to warm up.
func (b *bench) chain(q *sequences, n int) (times stat.Sample, err error) {
	c, ok := b.run.(chainer)
	if !ok {
		for i := range n + warmup {
			d, err := b.forward(q)
			if err != nil {
				return nil, err
			}
			if i >= warmup {
				times = append(times, ms(d))
			}
		}
		return times, nil
	}
	q.decodes()
	q.batch.Draws = greedy(&q.batch)
	var last time.Time
	err = c.Chain(&q.batch, n+warmup, func(i int, st *stages.State) error {
		now := time.Now()
		if i >= warmup {
			times = append(times, ms(now.Sub(last)))
		}
		last = now
		for j := range q.next {
			id, _ := st.ChosenID(j)
			q.next[j] = max(id, 0)
		}
		return nil
	})
	q.pos += n + warmup
	return times, err
}

// profile adds up the time of every operator of f.
func (r *GPUReport) profile(o *GPUOptions, of string, f func() error) error {
	if o.Profile == nil {
		return nil
	}
	at := map[string]int{}
	return o.Profile(func(op string, d time.Duration) {
		i, ok := at[op]
		if !ok {
			i = len(r.Operators)
			at[op] = i
			r.Operators = append(r.Operators, GPUPart{Of: of, Op: op})
		}
		r.Operators[i].MS += ms(d)
		r.Operators[i].Calls++
	}, f)
}

// Text writes the report for people.
func (r *GPUReport) Text(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "prompt\ttok/s\tms\tfastest\t")
	for _, p := range r.Prefill {
		fmt.Fprintf(t, "%d\t%.0f\t%.1f\t%.1f\t\n", p.Tokens, p.TokS, p.MS, p.MinMS)
	}
	fmt.Fprintln(t, "\t\t\t\t\nstreams\tdepth\ttok/s\tms a step\tp99\t")
	for _, d := range r.Decode {
		fmt.Fprintf(t, "%d\t%s\t%.0f\t%.3f\t%.3f\t\n", d.Streams, depth(d.Context, d.MadeUp), d.TokS, d.Steps.P50MS, d.Steps.P99MS)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return r.parts(w)
}

// parts prints the operators, the slowest first.
func (r *GPUReport) parts(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	of := ""
	first := map[string]int{} // of every step, in the order in which they were measured
	for i, p := range r.Operators {
		if _, ok := first[p.Of]; !ok {
			first[p.Of] = i
		}
	}
	list := slices.Clone(r.Operators)
	slices.SortStableFunc(list, func(a, b GPUPart) int {
		return cmp.Or(cmp.Compare(first[a.Of], first[b.Of]), cmp.Compare(b.MS, a.MS))
	})
	for _, p := range list {
		if p.Of != of {
			of = p.Of
			fmt.Fprintf(t, "\t\t\t\n%s\tms\tcalls\t\n", of)
		}
		fmt.Fprintf(t, "%s\t%.3f\t%d\t\n", p.Op, p.MS, p.Calls)
	}
	return t.Flush()
}

// Charts draws prefill by length, and decode by context length for every number of streams.
func (r *GPUReport) Charts() []plot.Chart {
	prefill := plot.Series{Name: "prefill"}
	for _, p := range r.Prefill {
		prefill.X, prefill.Y = append(prefill.X, float64(p.Tokens)), append(prefill.Y, stat.Round(p.TokS, 4))
	}
	var decode []plot.Series
	for _, d := range r.Decode {
		name := fmt.Sprintf("streams: %d", d.Streams)
		i := slices.IndexFunc(decode, func(s plot.Series) bool { return s.Name == name })
		if i < 0 {
			i, decode = len(decode), append(decode, plot.Series{Name: name})
		}
		decode[i].X, decode[i].Y = append(decode[i].X, float64(d.Context)), append(decode[i].Y, stat.Round(d.TokS, 4))
	}
	var charts []plot.Chart
	if len(r.Prefill) > 0 {
		charts = append(charts, plot.Chart{Title: "Prefill by length", X: "tokens of the prompt", Y: "tokens/s", Series: []plot.Series{prefill}})
	}
	if len(decode) > 0 {
		charts = append(charts, plot.Chart{Title: "Decode by depth", X: "tokens in the cache", Y: "tokens/s", Series: decode})
	}
	return charts
}

// greedy returns draws of the largest logit for every wanted row of a batch.
func greedy(b *stages.Step) []device.Draw {
	var list []device.Draw
	for i := range b.Spans {
		if b.Spans[i].Want {
			list = append(list, device.Draw{TopP: 1})
		}
	}
	return list
}
