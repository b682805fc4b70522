package benches

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"krater/bench/serve"
	"krater/cmd/krater/console"
	"krater/cmd/krater/remote"
)

type benchServeCmd struct {
	Output
	URL       string   `name:"url" help:"URL of the server." default:"http://127.0.0.1:8080"`
	APIKey    string   `name:"api-key" help:"API key, if the server asks for one. Prefer the variable KRATER_API_KEY, which other users cannot see." placeholder:"KEY"`
	ModelName string   `help:"Model name in requests; default: none, which means the served model." placeholder:"NAME"`
	Door      []string `help:"APIs to use: completions, chat, websocket. Each gets the whole load, at the same time." default:"completions"`

	Rate        float64   `help:"Open loop: send this many requests per second, whether or not earlier ones are answered."`
	Sweep       []float64 `help:"Run open loops with each of these rates in turn." placeholder:"RATE,..."`
	Arrival     string    `help:"Distribution of the gaps between requests of an open loop: ${enum}." enum:"poisson,constant,gamma" default:"poisson"`
	Shape       float64   `name:"arrival-shape" help:"With --arrival gamma: shape of the distribution. Below 1 requests come in bursts; 1 is poisson." default:"0.25"`
	Concurrency []int     `help:"Closed loop: number of clients that each send a request when the last is answered. Several numbers run in turn." placeholder:"N,..."`
	OpenMost    int       `help:"Open loop: maximum number of requests in flight. Further ones are counted but not sent." default:"4096"`

	Requests int           `help:"Number of requests of a load; 0: as many as fit into the duration." default:"0"`
	Duration time.Duration `help:"Time during which a load sends requests; 0: 30s, or no limit with --requests." default:"0"`
	Warmup   int           `help:"Requests to each API before the measurement." default:"2"`
	Timeout  time.Duration `help:"Timeout of one request." default:"10m"`

	Mix         string         `help:"Kind of requests: ${enum}. sharegpt makes conversations with lengths like those of that data set." enum:"single,sharegpt" default:"single"`
	Prompt      *serve.Lengths `help:"Length of prompts in tokens: N, uniform:LEAST:MOST or lognormal:MEAN:SIGMA; default 128." placeholder:"N"`
	Answer      *serve.Lengths `help:"Length of answers in tokens, in the same form; default 64." placeholder:"N"`
	Prefix      int            `help:"Tokens of a common system prompt that a share of the prompts begins with." default:"0"`
	PrefixShare float64        `help:"Share of the prompts with that system prompt, 0 to 1." default:"1"`
	Disconnect  *float64       `help:"Share of requests whose client drops the connection at a random token; default 0, or 0.2 in a soak test." placeholder:"SHARE"`
	Cancel      *float64       `help:"Share of requests that are cancelled at a random token. An API without cancellation drops them at a random time before the first token instead. Default 0, or 0.1 in a soak test." placeholder:"SHARE"`
	Seed        *uint64        `aliases:"load-seed" help:"Seed of prompts, lengths, arrivals and faults. The same seed repeats the same requests, whose prompts a server may then have in its prefix cache. Default: a different one in every run, which the report names." placeholder:"N"`
	Greedy      bool           `help:"Ask for greedy decoding instead of the model's default sampling."`
	Logprobs    bool           `help:"Ask for log-probabilities, so that the tokens of each chunk can be counted even if they have no text."`

	Goodput serve.Bounds `help:"Limits for a good request, such as ttft:500ms,tpot:50ms,e2el:10s." placeholder:"BOUNDS"`
	Out     string       `help:"File for the figures of each request, one JSON object per line." type:"path" placeholder:"FILE"`

	Soak     time.Duration `help:"Soak test: load the server for this time, watch its memory, goroutines, files, KV blocks and queues, and exit with status 1 if one of them leaks." placeholder:"TIME"`
	PID      int           `name:"pid" help:"Process id of a server on this machine, to read its memory and open files; 0: use its metrics." default:"0"`
	Sample   time.Duration `help:"Time between two samples of a soak test." default:"2s"`
	Leak     float64       `help:"Growth of memory that counts as a leak, in MB per hour." default:"16"`
	LeakSize float64       `help:"Growth of memory in all that counts as a leak, in MB." default:"16"`
}

// Run implements the command.
func (c *benchServeCmd) Run(e *console.Env) error {
	if err := c.Output.Check(); err != nil {
		return err
	}
	p, err := c.plan()
	if err != nil {
		return err
	}
	if p.Progress = nil; !c.JSON {
		p.Progress = func(what string) { fmt.Fprintf(e.Err, "krater: %s\n", what) }
	}
	save := func() error { return nil }
	if c.Out != "" {
		f, err := os.Create(c.Out)
		if err != nil {
			return err
		}
		w := bufio.NewWriter(f)
		p.Load.Out = w
		save = func() error { return errors.Join(w.Flush(), f.Close()) }
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r, err := p.Run(ctx)
	if err = errors.Join(err, save()); r == nil {
		return remote.Answering(c.URL, err)
	}
	h := host()
	whole := struct {
		benchHost
		*serve.Report
	}{h, r}
	if err = errors.Join(err, c.Output.write(e, h, r, whole)); err != nil {
		return err
	}
	if r.Soak != nil && len(r.Soak.Leaks) > 0 {
		return console.ExitError(1)
	}
	return nil
}

// plan turns the flags into a measurement.
func (c *benchServeCmd) plan() (*serve.Plan, error) {
	rates := c.Sweep
	if c.Rate != 0 {
		rates = append([]float64{c.Rate}, rates...)
	}
	if len(rates) > 0 && len(c.Concurrency) > 0 {
		return nil, errors.New("--rate and --sweep are open loops, --concurrency is a closed one: use one kind")
	}
	for _, r := range rates {
		if !(r > 0 && r <= 1e6) {
			return nil, fmt.Errorf("a rate of %v requests per second", r)
		}
	}
	for _, n := range c.Concurrency {
		if n < 1 || n > 1<<16 {
			return nil, fmt.Errorf("--concurrency %d: want 1 to %d", n, 1<<16)
		}
	}
	seed := uint64(rand.Uint32())
	if c.Seed != nil {
		seed = *c.Seed
	}
	p := &serve.Plan{
		URL: c.URL, Key: c.APIKey, Doors: c.Door, Warmup: max(0, c.Warmup), Rates: rates, Concurrency: c.Concurrency,
		Asking: serve.Asking{Model: c.ModelName, Seed: int64(seed), Greedy: c.Greedy, Logprobs: c.Logprobs},
		Load: serve.Load{
			Arrivals: serve.Arrivals{Kind: c.Arrival, Shape: c.Shape}, Requests: c.Requests, Duration: c.Duration,
			Timeout: c.Timeout, OpenMost: c.OpenMost, Seed: seed, Bounds: c.Goodput,
		},
	}
	if c.Soak != 0 {
		if err := c.soak(p); err != nil {
			return nil, err
		}
	}
	if len(p.Rates)+len(p.Concurrency) == 0 {
		p.Concurrency = []int{1}
	}
	if p.Load.Requests <= 0 && p.Load.Duration <= 0 {
		p.Load.Duration = 30 * time.Second
	}
	var err error
	p.Mix, err = c.mix()
	p.Mix.Seed = seed
	return p, err
}

// soakStreams is the number of clients of a soak test without a load of its own.
const soakStreams = 16

func (c *benchServeCmd) soak(p *serve.Plan) error {
	switch {
	case c.Soak < 0 || c.Sample <= 0:
		return errors.New("--soak and --sample: want times above 0")
	case c.Requests != 0 || c.Duration != 0 || len(p.Rates)+len(p.Concurrency) > 1:
		return errors.New("--soak runs one load for its own duration: remove --requests, --duration and lists of loads")
	}
	p.Load.Duration = c.Soak
	if len(p.Rates)+len(p.Concurrency) == 0 {
		p.Concurrency = []int{soakStreams}
	}
	p.Soak = &serve.Watcher{PID: c.PID, Every: c.Sample, Rest: time.Minute, Slope: c.Leak, Slack: c.LeakSize}
	return nil
}

// mix returns the kind of requests.
func (c *benchServeCmd) mix() (serve.Mix, error) {
	m := serve.Mix{ShareGPT: c.Mix == "sharegpt", Prefix: c.Prefix, PrefixShare: c.PrefixShare}
	for _, x := range []struct {
		flag             *serve.Lengths
		single, sharegpt string
		to               *serve.Lengths
	}{{c.Prompt, "128", serve.ShareGPTPrompt, &m.Prompt}, {c.Answer, "64", serve.ShareGPTAnswer, &m.Answer}} {
		text := x.single
		if m.ShareGPT {
			text = x.sharegpt
		}
		var err error
		if *x.to, err = serve.ParseLengths(text); err != nil {
			return m, err
		}
		if x.flag != nil {
			*x.to = *x.flag
		}
	}
	if c.Soak > 0 {
		m.Disconnect, m.Cancel = 0.2, 0.1
	}
	if c.Disconnect != nil {
		m.Disconnect = *c.Disconnect
	}
	if c.Cancel != nil {
		m.Cancel = *c.Cancel
	}
	return m, nil
}
