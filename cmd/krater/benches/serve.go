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
	URL       string   `name:"url" help:"Address of the server." default:"http://127.0.0.1:8080"`
	APIKey    string   `name:"api-key" help:"Key, if the server asks for one; better as KRATER_API_KEY, where other users do not see it." placeholder:"KEY"`
	ModelName string   `help:"What requests name as the model; default: nothing, the served one." placeholder:"NAME"`
	Door      []string `help:"Ways into the server: completions, chat, websocket. Each of several gets the whole load, at the same time." default:"completions"`

	Rate        float64   `help:"Open loop: requests a second, whether or not those before are answered."`
	Sweep       []float64 `help:"Open loops of these rates, one after the other." placeholder:"RATE,..."`
	Arrival     string    `help:"Gaps between requests of an open loop: ${enum}." enum:"poisson,constant,gamma" default:"poisson"`
	Shape       float64   `name:"arrival-shape" help:"Of gamma gaps: under 1 requests come in bursts, 1 is poisson." default:"0.25"`
	Concurrency []int     `help:"Closed loop: clients that ask again when they are answered; of several numbers one after the other." placeholder:"N,..."`
	OpenMost    int       `help:"Requests of an open loop in flight at most; those over it are not sent, and counted." default:"4096"`

	Requests int           `help:"How many requests a load has; 0: as many as the duration allows." default:"0"`
	Duration time.Duration `help:"How long a load sends requests; 0: 30s, unless --requests says how many." default:"0"`
	Warmup   int           `help:"Requests of each door before anything is measured." default:"2"`
	Timeout  time.Duration `help:"Of one request." default:"10m"`

	Mix         string         `help:"What is asked: ${enum}. sharegpt makes conversations whose lengths resemble that data set's." enum:"single,sharegpt" default:"single"`
	Prompt      *serve.Lengths `help:"Tokens of a prompt: N, uniform:LEAST:MOST or lognormal:MEAN:SIGMA; default 128." placeholder:"N"`
	Answer      *serve.Lengths `help:"Tokens of an answer, in the same forms; default 64." placeholder:"N"`
	Prefix      int            `help:"A system prompt of so many tokens, the same for all, before a share of the prompts." default:"0"`
	PrefixShare float64        `help:"That share, 0 to 1." default:"1"`
	Disconnect  *float64       `help:"Share of requests whose client drops the connection at a random token; default 0, of a soak 0.2." placeholder:"SHARE"`
	Cancel      *float64       `help:"Share of requests that are cancelled at a random token, or, where a door has no word for that, given up at a random time before the first; default 0, of a soak 0.1." placeholder:"SHARE"`
	Seed        *uint64        `aliases:"load-seed" help:"Seed of prompts, lengths, arrivals and faults. The same seed makes the same requests again, and a server may have their prompts in its prefix cache; default: another one in every run, which the report names." placeholder:"N"`
	Greedy      bool           `help:"Ask for the most likely tokens instead of the model's own sampling."`
	Logprobs    bool           `help:"Ask for log-probabilities, so that each chunk tells its tokens; for models whose tokens have no text."`

	Goodput serve.Bounds `help:"Bounds that a good request keeps, such as ttft:500ms,tpot:50ms,e2el:10s." placeholder:"BOUNDS"`
	Out     string       `help:"File for each request's figures, a line of JSON each." type:"path" placeholder:"FILE"`

	Soak     time.Duration `help:"Load the server for so long, look at its memory, goroutines, files, blocks and queues, and exit with status 1 when something leaked." placeholder:"TIME"`
	PID      int           `name:"pid" help:"The server's process here, for memory and open files; 0: by its metrics." default:"0"`
	Sample   time.Duration `help:"Time between two looks of a soak." default:"2s"`
	Leak     float64       `help:"MB an hour that memory may grow by." default:"16"`
	LeakSize float64       `help:"MB that memory must have grown by in all to count as a leak." default:"16"`
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
		return nil, errors.New("--rate and --sweep are open loops, --concurrency is a closed one")
	}
	for _, r := range rates {
		if !(r > 0 && r <= 1e6) {
			return nil, fmt.Errorf("a rate of %v requests a second", r)
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

// soakStreams are the clients of a soak that says nothing of its load.
const soakStreams = 16

func (c *benchServeCmd) soak(p *serve.Plan) error {
	switch {
	case c.Soak < 0 || c.Sample <= 0:
		return errors.New("--soak and --sample want times above 0")
	case c.Requests != 0 || c.Duration != 0 || len(p.Rates)+len(p.Concurrency) > 1:
		return errors.New("--soak says how long its one load lasts: no --requests, --duration or list of loads")
	}
	p.Load.Duration = c.Soak
	if len(p.Rates)+len(p.Concurrency) == 0 {
		p.Concurrency = []int{soakStreams}
	}
	p.Soak = &serve.Watcher{PID: c.PID, Every: c.Sample, Rest: time.Minute, Slope: c.Leak, Slack: c.LeakSize}
	return nil
}

// mix is what is asked.
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
