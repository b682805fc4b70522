package local

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/rs/zerolog"

	"krater/actors"
	"krater/actors/local/config"
)

// Served is a loaded model with the pipeline that answers its requests. If the device of one of several ranks is lost, or a helper, it loads
// the model on the other devices, and the open requests go on there.
type Served struct {
	Model *Model
	log   zerolog.Logger

	mu       sync.Mutex
	pipeline *actors.Pipeline
	err      error
	failed   chan struct{} // closed when nothing serves the model any more
	closing  chan struct{}
	watched  chan struct{} // closed when nobody moves the model any more
}

// Serve starts a pipeline over a loaded model. Close of the result ends it; the model stays the caller's.
func (s *Model) Serve(log zerolog.Logger) (*Served, error) {
	v := &Served{Model: s, log: log, failed: make(chan struct{}), closing: make(chan struct{}), watched: make(chan struct{})}
	if err := v.start(nil); err != nil {
		return nil, err
	}
	if err := v.unhelped(); err != nil {
		return nil, err
	}
	go v.watch()
	return v, nil
}

// unhelped loads the model without a helper that has no part: all experts are then where the rest of a layer is.
func (v *Served) unhelped() error {
	if v.Model.Helper == nil {
		return nil
	}
	p := v.Pipeline()
	if share, _ := p.Helper(); share > 0 {
		return nil
	}
	v.Model.report.Notice(fmt.Sprintf("--expert-device %s would make nothing faster; the model is loaded without it", v.Model.Helper.place))
	if err := p.Close(); err != nil {
		return err
	}
	f, err := v.Model.Plan.Options.Without(1)
	if err == nil {
		err = v.Model.reload(f)
	}
	if err != nil {
		return err
	}
	return v.start(nil)
}

// start starts a pipeline, in the place of one that is suspended; nil: there is none.
func (v *Served) start(before *actors.Pipeline) error {
	ranks, o := v.Model.pipeline(v.log)
	o.Before, o.Replay = before, len(ranks) > 1 || o.Help != nil
	p, err := actors.Start(ranks, o)
	if err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.pipeline = p
	return nil
}

// Pipeline returns the pipeline that serves the model now.
func (v *Served) Pipeline() *actors.Pipeline {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.pipeline
}

// Failed is closed when the model cannot be served any more.
func (v *Served) Failed() <-chan struct{} { return v.failed }

// Err returns why the model cannot be served any more; nil: it can.
func (v *Served) Err() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.err
}

// Close ends running answers.
func (v *Served) Close() error {
	close(v.closing)
	<-v.watched
	return v.Pipeline().Close()
}

// watch moves the model until it is closed or nothing is left.
func (v *Served) watch() {
	defer close(v.watched)
	for {
		p := v.Pipeline()
		select {
		case <-v.closing:
			return
		case <-p.Failed():
		}
		err := p.Err()
		lost, ok := errors.AsType[*actors.RankError](err)
		if ok && (len(v.Model.Ranks) > 1 || v.Model.Helper != nil) {
			if err = v.move(p, lost); err == nil {
				continue
			}
			p.Abandon(err)
		}
		v.mu.Lock()
		v.err = err
		v.mu.Unlock()
		close(v.failed)
		return
	}
}

// move loads the model on the devices that are left, and has its open requests go on there.
func (v *Served) move(p *actors.Pipeline, lost *actors.RankError) error {
	open := p.Suspend()
	if err := p.Close(); err != nil {
		v.log.Warn().Err(err).Msg("a device is lost, and closing its pipeline failed in part")
	}
	f, err := v.Model.Plan.Options.Without(lost.Rank)
	if err == nil {
		v.log.Warn().Err(lost).Str("device", string(f.Device)).Int("requests", len(open)).Msg("loading the model on the devices that are left")
		err = v.Model.reload(f)
	}
	if err == nil {
		err = v.start(p)
	}
	if err != nil {
		return fmt.Errorf("%w; the model was not loaded on other devices: %w", lost, err)
	}
	v.Pipeline().Adopt(open)
	v.log.Info().Str("ranks", v.Model.Plan.RankTable()).Msg("the model is served again")
	return nil
}

// reload closes the model and loads it with other options.
func (s *Model) reload(f config.Options) error {
	c := s.config
	c.Options = f
	s.Close()
	m, err := Load(context.Background(), c)
	if err != nil {
		return err
	}
	m.HeatSample, m.Record, m.TimingShare, m.Heat = s.HeatSample, s.Record, s.TimingShare, s.Heat
	*s = *m
	return nil
}
