// Package benches is the commands of krater bench.
package benches

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"krater/actors"
	"krater/actors/local"
	"krater/actors/local/config"
	"krater/bench/stat"
	"krater/cmd/krater/console"
	"krater/cmd/krater/term"
	"krater/kernels/machine"
	"krater/scheduler/planner"
	"krater/stages/direct"
	"krater/stages/load"
	"krater/stages/source"
)

// Cmd has the benchmarks. Without a subcommand it runs bench engine.
type Cmd struct {
	Engine  engineCmd  `cmd:"" default:"withargs" help:"Measure answers through the actors (the default)."`
	Kernels kernelsCmd `cmd:"" help:"Measure the integer kernels as a share of memory bandwidth; with --device cuda, check and measure the operators of a GPU."`
	Model   modelCmd   `cmd:"" help:"Measure decode, prefill and the time of each stage of a model."`

	Serve benchServeCmd `cmd:"" help:"Load a running server; measure latencies, throughput and goodput as its clients see them, or run a soak test."`

	Links linksCmd `cmd:"" help:"Test and measure the links between two GPUs, over which ranks of a model are joined."`

	Doors doorsCmd `cmd:"" help:"Measure the server alone: delay, processor time and memory of many WebSocket streams from a scripted engine."`

	Strategies strategiesCmd `cmd:"" help:"Run every dispatch strategy on a simulated GPU or on this one: times, bytes copied and hit rates side by side."`
}

type engineCmd struct {
	source.Folder
	source.Synthetic
	config.Options
	ActorsVsDirect bool  `help:"Compare a decode step through the actors with the same stages called as functions."`
	Prefill        []int `help:"Prompt lengths for the time to the first token." default:"200"`
	Decode         int   `help:"Tokens of each measured answer." default:"128"`
	Batch          []int `help:"Numbers of streams that decode together." default:"1,8"`
	Context        []int `help:"On a GPU: context lengths at which decode is measured; default: 2048. On the CPU contexts are short."`
	Rounds         int   `help:"Number of windows per measurement; the report has their median." default:"15"`
	JSON           bool  `name:"json" help:"Print the report as JSON."`
}

// benchReport is the report of the command. Times are medians over interleaved windows of one run.
type benchReport struct {
	Model string `json:"model"`
	benchHost
	Level       string `json:"level"`
	Threads     int    `json:"threads"`
	KVType      string `json:"kv_dtype"`
	LayerGroups int    `json:"layer_groups"`

	ReadGBps1 float64 `json:"read_gbps_1"` // memory read on one thread
	ReadGBps  float64 `json:"read_gbps"`   // memory read on all threads
	TokenMB   float64 `json:"mb_per_token"`

	DirectStepUS float64 `json:"direct_step_us"`
	ActorStepUS  float64 `json:"actor_step_us"`
	ActorWorkUS  float64 `json:"actor_work_us"`
	ActorLimitUS float64 `json:"actor_limit_us"` // max(2 %, 20 us)

	Decode  []decodeResult  `json:"decode"`
	Prefill []prefillResult `json:"prefill"`
	RSSMB   float64         `json:"rss_mb"`
}

type decodeResult struct {
	Streams    int     `json:"streams"`
	TokensPerS float64 `json:"tokens_per_second"`
	GBps       float64 `json:"gbps"`       // rate at which weights are read; one stream only
	ReadShare  float64 `json:"read_share"` // share of the bandwidth measured in this run
}

type prefillResult struct {
	Tokens     int     `json:"tokens"`
	FirstMS    float64 `json:"first_token_ms"`
	TokensPerS float64 `json:"tokens_per_second"`
}

// Run implements the command.
func (c *engineCmd) Run(e *console.Env) error {
	if c.Decode < 2 || c.Rounds < 1 {
		return errors.New("--decode: want 2 tokens or more, --rounds: want 1 or more")
	}
	if c.Device == config.CUDA {
		return c.runGPU(e)
	}
	if c.Device != config.CPU {
		return errors.New("--device: krater bench measures only cpu and cuda")
	}
	if len(c.Context) > 0 {
		return fmt.Errorf("--context needs --device cuda; on the CPU the context is %d tokens", benchPrompt)
	}
	if c.Shape != "" {
		return errors.New("--shape needs --device cuda; on the CPU use krater bench model")
	}
	if len(c.Batch) > 0 {
		c.MaxSeqs = max(c.MaxSeqs, slices.Max(c.Batch))
	}
	c.PrefixCache = false // the same prompts are sent again and must be computed
	src, err := source.Open(c.Model)
	if err != nil {
		return err
	}
	g, err := local.Open(context.Background(), console.ForLoad(e, src, c.Options, config.Case{AllRows: true}))
	if err != nil {
		return err
	}
	defer g.Close()
	b := &bench{c: c, s: g.Model, p: g.Pipeline, g: g.Gateway, report: c.newReport(g.Model)}
	err = b.measure(func(rounds int) { e.Shown().Set("bench", term.Steps, int64(rounds), int64(c.Rounds)) })
	e.Shown().End()
	if err != nil {
		return err
	}
	if c.JSON {
		return console.WriteJSON(e.Out, b.report)
	}
	return b.print(term.Paint(e.Out, console.TableRules...))
}

func (c *engineCmd) newReport(s *local.Model) *benchReport {
	return &benchReport{
		Model: s.Source.Name, benchHost: host(), Level: s.Host.Level().String(), Threads: s.Host.Team().Threads(),
		KVType: c.KVDType, LayerGroups: c.LayerGroups, TokenMB: float64(tokenBytes(s)) / 1e6,
	}
}

// tokenBytes returns how many bytes of weights a decoded token reads.
func tokenBytes(s *local.Model) int64 {
	if !s.Plan.Load.Precision.Integer() {
		return s.Config.BytesPerToken()
	}
	var n int64
	for _, x := range s.Plan.Needs {
		switch {
		case x.Part == load.Experts && s.Config.MoE.Experts > 0:
			n += x.Bytes / int64(s.Config.MoE.Experts) * int64(s.Config.MoE.Router.TopK)
		case x.Part.Weight() && (x.Part != load.Embedding || s.Config.TieEmbed):
			n += x.Bytes
		}
	}
	return n
}

// bench is a running measurement.
type bench struct {
	c      *engineCmd
	s      *local.Model
	p      *actors.Pipeline
	g      *actors.Gateway
	report *benchReport
}

// measure runs all measurements in interleaved windows, because on a shared machine only figures of
// the same seconds can be compared. tell receives the number of finished rounds.
func (b *bench) measure(tell func(rounds int)) error {
	r := b.report
	d, err := direct.New(b.s.Host, b.s.Parts)
	if err != nil {
		return err
	}
	defer d.Close()
	streams := make(map[int]stat.Sample)
	prefill := make(map[int]stat.Sample)
	var directUS, actorUS, read1, readAll stat.Sample
	for round := range b.c.Rounds {
		tell(round)
		for _, read := range []struct {
			threads int
			rates   *stat.Sample
		}{{1, &read1}, {r.Threads, &readAll}} {
			rate, err := b.s.Host.ReadBandwidth(read.threads)
			if err != nil {
				return err
			}
			*read.rates = append(*read.rates, rate.Median/1e9)
		}
		for _, n := range b.c.Batch {
			rate, err := b.streams(n)
			if err != nil {
				return err
			}
			streams[n] = append(streams[n], rate)
		}
		for _, n := range b.c.Prefill {
			ms, err := b.firstToken(n)
			if err != nil {
				return err
			}
			prefill[n] = append(prefill[n], ms)
		}
		if !b.c.ActorsVsDirect {
			continue
		}
		du, au, err := b.pair(d, round%2 == 0)
		if err != nil {
			return err
		}
		directUS, actorUS = append(directUS, du), append(actorUS, au)
	}
	r.ReadGBps1, r.ReadGBps = read1.Median(), readAll.Median()
	for _, n := range b.c.Batch {
		res := decodeResult{Streams: n, TokensPerS: streams[n].Median()}
		if n == 1 {
			res.GBps = res.TokensPerS * r.TokenMB / 1e3
			res.ReadShare = res.GBps / r.ReadGBps
		}
		r.Decode = append(r.Decode, res)
	}
	for _, n := range b.c.Prefill {
		ms := prefill[n].Median()
		r.Prefill = append(r.Prefill, prefillResult{Tokens: n, FirstMS: ms, TokensPerS: float64(n) / ms * 1e3})
	}
	if b.c.ActorsVsDirect {
		r.DirectStepUS, r.ActorStepUS = directUS.Median(), actorUS.Median()
		r.ActorWorkUS = r.ActorStepUS - r.DirectStepUS
		r.ActorLimitUS = max(r.DirectStepUS/50, 20)
	}
	r.RSSMB = float64(machine.Resident()) / 1e6
	return nil
}

// print writes the report as text.
func (b *bench) print(w interface{ Write([]byte) (int, error) }) error {
	r := b.report
	console.Sentence(w, "%s on %s, level %s, %d threads, kv %s, %s, %s, revision %s",
		r.Model, r.CPU, r.Level, r.Threads, r.KVType, planner.Count(r.LayerGroups, "layer group"), r.GoVersion, r.Revision)
	fmt.Fprintln(w)
	fmt.Fprintf(w, "memory read           %8.1f GB/s on one thread, %.1f GB/s on %d\n", r.ReadGBps1, r.ReadGBps, r.Threads)
	for _, d := range r.Decode {
		if d.Streams == 1 {
			fmt.Fprintf(w, "decode, 1 stream      %8.0f tokens/s = %.1f GB/s of weights (%.1f MB per token) = %.2f of the read bandwidth\n", d.TokensPerS, d.GBps, r.TokenMB, d.ReadShare)
			continue
		}
		fmt.Fprintf(w, "%-22s%8.0f tokens/s together = %.2f x one stream\n", fmt.Sprintf("decode, %d streams", d.Streams), d.TokensPerS, d.TokensPerS/max(1e-9, r.Decode[0].TokensPerS))
	}
	for _, p := range r.Prefill {
		fmt.Fprintf(w, "prompt of %-5d       %8.1f ms to the first token (%.0f tokens/s)\n", p.Tokens, p.FirstMS, p.TokensPerS)
	}
	if b.c.ActorsVsDirect {
		verdict := "within"
		if r.ActorWorkUS > r.ActorLimitUS {
			verdict = "OVER"
		}
		fmt.Fprintf(w, "decode step           %8.1f us direct, %.1f us through the actors: actor work %.1f us, %s the limit of %.1f us\n",
			r.DirectStepUS, r.ActorStepUS, r.ActorWorkUS, verdict, r.ActorLimitUS)
	}
	_, err := fmt.Fprintf(w, "resident memory       %8.1f MB\n", r.RSSMB)
	return err
}
