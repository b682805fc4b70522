package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"krater/actors"
	"krater/actors/cluster"
	"krater/actors/local/config"
	"krater/scheduler/planner"
	"krater/scheduler/planner/rates"
	"krater/stages/load"
	"krater/stages/source"
)

// Worker has some layers of a model, as the leader of a cluster says. It implements cluster.Host. Its devices and their
// memory are its own options'; all that members must have in common are the leader's.
type Worker struct {
	own  Config
	rate float64 // bytes a second that its device reads; 0: unknown

	c       Config // of the model that is open
	print   string // its fingerprint
	held    held
	segment *actors.Segment
}

// NewWorker makes a worker. Its model, if c names one, is used instead of the path that the leader has.
func NewWorker(c Config, rate float64) (*Worker, error) {
	w := &Worker{own: c, rate: rate}
	if c.Model != "" || c.Source != nil {
		return w, w.own.complete()
	}
	w.own.Source = new(source.Source) // the leader says which
	err := w.own.complete()
	w.own.Source = nil
	return w, err
}

// Open implements cluster.Host.
func (w *Worker) Open(_ context.Context, m cluster.Model) (string, cluster.Offer, error) {
	var o cluster.Offer
	var s shared
	if err := json.Unmarshal(m.Options, &s); err != nil {
		return "", o, fmt.Errorf("the leader's options: %w", err)
	}
	c := w.own
	c.Options = s.Options.Beside(w.own.Options.DeviceOptions, w.own.Options.RankOptions, w.own.Options.CacheOptions)
	if err := c.Options.Check(); err != nil {
		return "", o, err
	}
	if c.Source == nil {
		var err error
		if c.Source, err = s.Synthetic.SourceOr(m.Path); err != nil {
			return "", o, fmt.Errorf("%w; --model says where the model is on this machine", err)
		}
	}
	if _, _, err := c.Source.Config(); err != nil {
		return "", o, err
	}
	print, err := c.Source.Fingerprint()
	if err != nil {
		return "", o, err
	}
	if o, c.Options, err = offer(&c, w.rate); err != nil {
		return "", o, err
	}
	if w.print != print {
		w.held.unload()
	}
	w.c, w.print = c, print
	return print, o, nil
}

// offer says how much of a model this process can take, and returns the options for that. rate is that of the processor.
func offer(c *Config, rate float64) (cluster.Offer, config.Options, error) {
	o := cluster.Offer{Memory: c.Machine.Available(), Rate: rate}
	devices, f, err := Settle(c.Options, c.Report)
	if err != nil {
		return o, f, err
	}
	defer CloseRanks(devices)
	places, err := f.Places()
	if err != nil {
		return o, f, err
	}
	o.Device = string(f.Device)
	for i, r := range devices { // host memory may have the experts
		switch {
		case r.GPU != nil:
			o.Memory = planner.Add(o.Memory, r.GPU.Memory().Total)
			if card, ok := rates.Known(r.Describe()); ok {
				o.Rate = card.ReadGBps * 1e9
			}
		case places[i].Kind == config.HostSim:
			o.Memory = planner.Add(o.Memory, int64(f.VRAM.Of(i)))
		}
	}
	return o, f, nil
}

// Load implements cluster.Host.
func (w *Worker) Load(ctx context.Context, p cluster.Part) error {
	var s sizes
	if err := json.Unmarshal(p.Sizes, &s); err != nil {
		return err
	}
	c := w.c
	c.Options.MicroBatches = s.MicroBatches
	return w.held.load(ctx, c, config.Part{First: p.First, Layers: p.Last - p.First, Ends: load.NoEnds, Limits: s.Limits})
}

// Start implements cluster.Host.
func (w *Worker) Start(h *cluster.Hops) (cluster.Segment, error) {
	if w.held.model == nil {
		return nil, errors.New("no part is loaded")
	}
	ranks, o := w.held.model.pipeline(w.c.Log)
	s, err := actors.StartSegment(ranks, o, actors.SegmentHops{In: h.In, Out: h.Out, Side: h.Side})
	if err != nil {
		return nil, err
	}
	w.segment = s
	return s, nil
}

// Stop implements cluster.Host.
func (w *Worker) Stop() {
	if w.segment != nil {
		if err := w.segment.Close(); err != nil {
			w.c.Log.Error().Err(err).Msg("the part of the pipeline did not end well")
		}
		w.segment = nil
	}
}

// Close frees the part.
func (w *Worker) Close() {
	w.Stop()
	w.held.unload()
}
