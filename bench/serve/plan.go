package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"krater/transport/client"
)

// Plan is a whole measurement: loads of one kind in sequence, each through all doors at the same
// time.
type Plan struct {
	URL, Key string
	Doors    []string
	Asking   Asking
	Mix      Mix
	Load     Load // all fields except Door, Source, Rate and Concurrency
	// Either Rates of open loops or Concurrency of closed ones; every door gets this load.
	Rates       []float64
	Concurrency []int
	Warmup      int // requests per door before the measurement
	Soak        *Watcher
	Progress    func(string)

	writing sync.Mutex
	dial    func(streams int) *http.Client // nil: Transport
}

// serial makes writes of whole lines to one file safe for the loads of several doors.
type serial struct {
	w    io.Writer
	turn *sync.Mutex
}

// Write implements io.Writer.
func (s *serial) Write(line []byte) (int, error) {
	s.turn.Lock()
	defer s.turn.Unlock()
	return s.w.Write(line)
}

// lookEvery is the time between two looks at the server's metrics during a load.
const lookEvery = 250 * time.Millisecond

// errSilent is for a server that answered nothing.
var errSilent = errors.New("no request was answered")

// Run measures. If only a part was measured, it returns a report and an error.
func (p *Plan) Run(ctx context.Context) (*Report, error) {
	if len(p.Doors) == 0 || (len(p.Rates) > 0) == (len(p.Concurrency) > 0) {
		return nil, errors.New("a plan has doors, and rates or concurrencies")
	}
	streams := p.Load.OpenMost
	for _, n := range p.Concurrency {
		streams = max(streams, n)
	}
	// Each look opens its own connection, before and after a load.
	if p.dial == nil {
		p.dial = Transport
	}
	apart := p.dial(1)
	if t, ok := apart.Transport.(*http.Transport); ok {
		t.DisableKeepAlives = true
	}
	defer apart.CloseIdleConnections()
	seer := client.New(p.URL, p.Key, apart)
	var lanes []*lane
	for i, name := range p.Doors {
		l, err := p.lane(ctx, i, name, streams, client.New(p.URL, p.Key, apart))
		if err != nil {
			return nil, err
		}
		defer l.door.Close()
		lanes = append(lanes, l)
	}
	r := &Report{URL: p.URL, Load: p.describe(), Bounds: p.Load.Bounds}
	measure := func(ctx context.Context) error {
		defer func() {
			for _, l := range lanes {
				l.door.Close()
			}
		}()
		for i := range max(len(p.Rates), len(p.Concurrency)) {
			if err := p.point(ctx, r, lanes, seer, i); err != nil {
				return err
			}
		}
		return nil
	}
	err := p.begin(ctx, lanes)
	switch {
	case err != nil:
	case p.Soak == nil:
		err = measure(ctx)
	default:
		p.Soak.Client = seer
		r.Soak, err = p.Soak.Watch(ctx, measure)
	}
	if r.Compare(); len(r.Points) == 0 {
		return nil, err
	}
	return r, err
}

// lane is a door and its requests.
type lane struct {
	door   Door
	source *Source
}

// lane opens the i-th door and prepares its requests.
func (p *Plan) lane(ctx context.Context, i int, name string, streams int, c *client.Client) (*lane, error) {
	door, err := Open(name, p.URL, p.Key, p.dial(streams), p.Asking)
	if err != nil {
		return nil, err
	}
	words, err := FindWords(ctx, c, door.Chat())
	if err != nil {
		return nil, err
	}
	source, err := NewSource(p.Mix, words, door.Chat(), i)
	return &lane{door, source}, err
}

// begin warms up the server and closes the connections used for that.
func (p *Plan) begin(ctx context.Context, lanes []*lane) error {
	for _, l := range lanes {
		for range p.Warmup {
			a := l.source.Next()
			a.Fault = NoFault
			if _, err := l.door.ask(ctx, a, &watch{ask: a}); err != nil {
				return fmt.Errorf("warming up over %s: %w", l.door.Name(), err)
			}
		}
		l.door.Close()
	}
	return nil
}

// point runs the i-th load on the server, through all lanes at the same time.
func (p *Plan) point(ctx context.Context, r *Report, lanes []*lane, seer *client.Client, i int) error {
	points, errs := make([]*Point, len(lanes)), make([]error, len(lanes))
	sees := observe(ctx, seer, lookEvery)
	var all sync.WaitGroup
	for j, lane := range lanes {
		load := p.Load
		load.Door, load.Source = lane.door, lane.source
		if load.Out != nil {
			load.Out = &serial{w: load.Out, turn: &p.writing}
		}
		load.Seed += uint64(i*len(lanes) + j)
		if len(p.Rates) > 0 {
			load.Rate = p.Rates[i]
		} else {
			load.Concurrency = p.Concurrency[i]
		}
		if p.Progress != nil {
			at := Point{Door: lane.door.Name(), Rate: load.Rate, Concurrency: load.Concurrency}
			p.Progress(at.name())
		}
		all.Go(func() { points[j], errs[j] = load.Run(ctx) })
	}
	all.Wait()
	var server *ServerDelta
	if sees != nil {
		server = sees.end(ctx)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	points[0].Server = server // of all doors together
	r.Points = append(r.Points, points...)
	for _, x := range points {
		if x.Outcomes[OK]+x.Outcomes[Left]+x.Outcomes[GivenUp] == 0 {
			return fmt.Errorf("%s: %w: %v", x.name(), errSilent, x.Errors)
		}
	}
	return ctx.Err()
}

// describe returns the load in words.
func (p *Plan) describe() string {
	text := "closed loop"
	if len(p.Rates) > 0 {
		text = "open loop, " + p.Load.Arrivals.Kind + " arrivals"
		if p.Load.Arrivals.Kind == "gamma" {
			text += fmt.Sprintf(" of shape %v", p.Load.Arrivals.Shape)
		}
	}
	what := "prompts"
	if p.Mix.ShareGPT {
		what = "conversations with questions"
	}
	text += fmt.Sprintf("; %s of %v tokens, answers of %v", what, p.Mix.Prompt, p.Mix.Answer)
	if p.Mix.Prefix > 0 {
		text += fmt.Sprintf(", a shared prefix of %d before %v of them", p.Mix.Prefix, p.Mix.PrefixShare)
	}
	if p.Mix.Disconnect+p.Mix.Cancel > 0 {
		text += fmt.Sprintf(", %v disconnect, %v cancel", p.Mix.Disconnect, p.Mix.Cancel)
	}
	return text + fmt.Sprintf("; seed %d", p.Mix.Seed)
}
