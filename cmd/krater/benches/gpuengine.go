package benches

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/rs/zerolog"

	"krater/actors/engine"
	"krater/actors/local"
	"krater/actors/local/config"
	"krater/bench/stat"
	"krater/cmd/krater/console"
	"krater/cmd/krater/term"
	"krater/kernels/device"
	"krater/stages"
	"krater/stages/direct"
)

// gpuEngineReport is the report of answers on a GPU, through the actors and without them.
type gpuEngineReport struct {
	Model string `json:"model"`
	Card  string `json:"card"`
	benchHost
	Precision string             `json:"precision"`
	KVType    string             `json:"kv_dtype"`
	Experts   string             `json:"experts,omitempty"` // where experts are computed, if not all are on the GPU
	Decode    []*gpuEngineDecode `json:"decode"`
	Prefill   []prefillResult    `json:"prefill"`
}

// gpuEngineDecode is the result for a number of streams and a context length. The GPU's own step
// time comes from a chain of steps that is enqueued without looking at the tokens. A step through
// the actors takes longer by the time that the GPU waits.
type gpuEngineDecode struct {
	Streams     int     `json:"streams"`
	Context     int     `json:"context"`
	TokensPerS  float64 `json:"tokens_per_second"`
	ActorStepUS float64 `json:"actor_step_us"`
	CardStepUS  float64 `json:"card_step_us"`
	WaitUS      float64 `json:"wait_us"` // median of the rounds' differences

	actor, card, wait stat.Sample
}

// chainWarm is the number of steps of a chain before the measured ones. The second step of a kind
// is captured as a graph, for each of two states.
const chainWarm = 5

// runGPU measures a model on a GPU.
func (c *engineCmd) runGPU(e *console.Env) error {
	if c.Decode < 4*chainWarm {
		return fmt.Errorf("--decode %d: want %d or more on a GPU", c.Decode, 4*chainWarm)
	}
	src, err := c.SourceOr(c.Model)
	if err != nil {
		return err
	}
	cfg, _, err := src.Config()
	if err != nil {
		return err
	}
	if len(c.Context) == 0 {
		c.Context = []int{2048}
	}
	f := &c.Options
	f.PrefixCache = false // the same prompts are sent again and must be computed
	most := max(1, slices.Max(append([]int{1}, c.Batch...)))
	deepest := slices.Max(slices.Concat([]int{1}, c.Context, c.Prefill))
	f.MaxSeqs = max(f.MaxSeqs, most)
	if f.KVCache == 0 {
		blocks := most * (deepest/f.BlockTokens + spare*c.Decode/f.BlockTokens + 3)
		f.KVCache = config.Size(int64(blocks) * cfg.KVBlockBytes(f.BlockTokens, config.KVTypes[f.KVDType]))
	}
	s, err := local.Prepare(console.ForLoad(e, src, *f, config.Case{AllRows: true}))
	if err != nil {
		return err
	}
	if !s.OnGPU() {
		return errors.New("bench --device cuda needs a GPU")
	}
	if err := s.Load(context.Background()); err != nil {
		return err
	}
	defer s.Close()
	p, err := s.Pipeline(zerolog.New(e.Err).Level(zerolog.WarnLevel))
	if err != nil {
		return err
	}
	defer p.Close()
	g, err := s.Gateway(p, "")
	if err != nil {
		return err
	}
	b := &bench{c: c, s: s, p: p, g: g}
	r := &gpuEngineReport{Model: src.Name, Card: s.Rank().Describe(), benchHost: host(), Precision: precisionName(s.Plan.Load.Precision), KVType: f.KVDType}
	if s.Placement() != nil {
		r.Experts = s.Ranks[0].WhereExperts()
	}
	if err := b.onCard(e, r); err != nil {
		return err
	}
	if c.JSON {
		return console.WriteJSON(e.Out, r)
	}
	return r.print(term.Paint(e.Out, console.TableRules...))
}

// onCard runs all measurements in interleaved rounds.
func (b *bench) onCard(e *console.Env, r *gpuEngineReport) error {
	var d *direct.Model
	if b.s.Placement() == nil { // otherwise the GPU cannot run ahead
		var err error
		if d, err = direct.New(b.s.Rank().Device, b.s.Parts); err != nil {
			return err
		}
		defer d.Close()
	}
	for _, n := range b.c.Batch {
		for _, length := range b.c.Context {
			r.Decode = append(r.Decode, &gpuEngineDecode{Streams: n, Context: length})
		}
	}
	prefill := make([]stat.Sample, len(b.c.Prefill))
	for round := range b.c.Rounds + 1 { // the first is a warm-up
		fmt.Fprintf(e.Err, "krater: round %d of %d\n", round, b.c.Rounds)
		for _, x := range r.Decode {
			w, err := b.answers(x.Streams, x.Context, spare*b.c.Decode)
			if err != nil {
				return err
			}
			actor := w.stepUS()
			card := actor
			if d != nil {
				if card, err = b.chained(d, x.Streams, x.Context); err != nil {
					return err
				}
			}
			if round > 0 {
				x.actor, x.card, x.wait = append(x.actor, actor), append(x.card, card), append(x.wait, actor-card)
			}
		}
		for i, n := range b.c.Prefill {
			ms, err := b.firstToken(n)
			if err != nil {
				return err
			}
			if round > 0 {
				prefill[i] = append(prefill[i], ms)
			}
		}
	}
	for _, x := range r.Decode {
		x.ActorStepUS, x.CardStepUS, x.WaitUS = x.actor.Median(), x.card.Median(), x.wait.Median()
		x.TokensPerS = 1e6 * float64(x.Streams) / x.ActorStepUS
	}
	for i, n := range b.c.Prefill {
		ms := prefill[i].Median()
		r.Prefill = append(r.Prefill, prefillResult{Tokens: n, FirstMS: ms, TokensPerS: float64(n) / ms * 1e3})
	}
	return nil
}

// spare is the length of an answer as a multiple of the measured tokens: the first stream continues
// while the last stream's prompt is computed.
const spare = 16

// window is a period in which all streams generate, and how much they generate.
type window struct {
	begin, end      time.Time
	streams, tokens int // tokens of all streams
}

// stepUS returns the time of a step in microseconds.
func (w *window) stepUS() float64 {
	return microseconds(w.end.Sub(w.begin)) * float64(w.streams) / float64(w.tokens)
}

// answers runs n answers together, each behind a prompt of the given length. It returns the window
// of --decode tokens per stream that starts when the last stream has produced its first few.
func (b *bench) answers(n, length, most int) (window, error) {
	type result struct {
		at  []time.Time // arrival of every token
		err error
	}
	results := make(chan result, n)
	var started atomic.Int32
	for i := range n {
		s, err := b.g.Submit(context.Background(), b.request(i, length, most))
		if err != nil {
			return window{}, err
		}
		go func() {
			var r result
			r.at, r.err = b.arrivals(s, &started, int32(n))
			results <- r
		}()
	}
	w := window{streams: n}
	all := make([]result, n)
	for i := range all {
		r := <-results
		if r.err != nil {
			return w, r.err
		}
		if len(r.at) <= chainWarm {
			return w, fmt.Errorf("bench: an answer of %d tokens", len(r.at))
		}
		if first := r.at[chainWarm]; first.After(w.begin) { // the steps behind a prompt differ from later ones
			w.begin = first
		}
		if last := r.at[len(r.at)-1]; w.end.IsZero() || last.Before(w.end) {
			w.end = last
		}
		all[i] = r
	}
	for _, r := range all {
		for _, t := range r.at {
			if t.After(w.begin) && !t.After(w.end) {
				w.tokens++
			}
		}
	}
	if w.tokens < n*(b.c.Decode-chainWarm)/2 {
		return w, fmt.Errorf("bench: %d streams ran together for %d tokens only; raise --decode", n, w.tokens)
	}
	return w, nil
}

// arrivals reads a stream until --decode tokens have arrived since all streams began, and returns
// the arrival times.
func (b *bench) arrivals(s engine.Stream, started *atomic.Int32, streams int32) (at []time.Time, err error) {
	defer s.Close()
	together := 0
	for {
		ev, err := s.Next(context.Background())
		if err != nil {
			return at, err
		}
		now := time.Now()
		if ev.Kind == engine.Failed {
			return at, ev.Err
		}
		if len(at) == 0 && ev.Usage.Completion > 0 {
			started.Add(1)
		}
		all := started.Load() == streams
		for len(at) < ev.Usage.Completion {
			at = append(at, now)
			if all {
				together++
			}
		}
		switch {
		case ev.Kind == engine.Done && len(at) == 0:
			return at, errors.New("bench: an answer had no tokens")
		case ev.Kind == engine.Done, together > b.c.Decode:
			return at, nil
		}
	}
}

// chained returns the GPU's own time of a step with the same rows, in microseconds.
func (b *bench) chained(d *direct.Model, n, length int) (float64, error) {
	lim := d.Limits()
	each := (length+b.c.Decode)/lim.BlockTokens + 1
	batch := stages.Step{}
	for i := range n {
		blocks := make([]int32, each)
		for j := range blocks {
			blocks[j] = int32(i*each + j)
		}
		prompt := b.promptIDs(i, length)
		sp := stages.Span{Seq: uint64(i), Span: device.Span{Blocks: blocks}}
		for at := 0; at < length; at += sp.Len {
			sp.Pos, sp.Len = at, min(length-at, b.s.Plan.Steps.Chunk)
			if err := d.Step(&stages.Step{Tokens: prompt[at : at+sp.Len], Spans: []stages.Span{sp}}, nil, nil); err != nil {
				return 0, err
			}
		}
		sp.Row, sp.Pos, sp.Len, sp.Decode, sp.Want = i, length, 1, true, true
		batch.Spans, batch.Tokens = append(batch.Spans, sp), append(batch.Tokens, prompt[0])
		batch.Draws = append(batch.Draws, device.Draw{TopP: 1})
	}
	var begin, end time.Time
	steps := b.c.Decode - 1
	err := d.Chain(&batch, steps, func(i int, _ *stages.State) error {
		if end = time.Now(); i == chainWarm {
			begin = end
		}
		return nil
	})
	return microseconds(end.Sub(begin)) / float64(steps-1-chainWarm), err
}

// print writes the report as text.
func (r *gpuEngineReport) print(w io.Writer) error {
	fmt.Fprintf(w, "%s on %s, %s, kv %s, revision %s\n\n", r.Model, r.Card, r.Precision, r.KVType, r.Revision)
	if r.Experts != "" {
		fmt.Fprintf(w, "experts: %s\n\n", r.Experts)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "streams\tdepth\ttok/s\tus per step\tGPU alone\tGPU waits\t")
	for _, d := range r.Decode {
		fmt.Fprintf(t, "%d\t%d\t%.0f\t%.1f\t%.1f\t%.1f\t\n", d.Streams, d.Context, d.TokensPerS, d.ActorStepUS, d.CardStepUS, d.WaitUS)
	}
	fmt.Fprintln(t, "\t\t\t\t\t\t\nprompt\tms to the first token\ttok/s\t")
	for _, p := range r.Prefill {
		fmt.Fprintf(t, "%d\t%.1f\t%.0f\t\n", p.Tokens, p.FirstMS, p.TokensPerS)
	}
	return t.Flush()
}
