package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/rs/zerolog"

	"krater/actors"
	"krater/actors/local"
	"krater/cmd/krater/heatfile"
	"krater/scheduler/heat"
	"krater/stages/source"
)

// heatFlags are those of a server that keeps a heat map.
type heatFlags struct {
	HeatFile      string        `name:"heat-file" help:"Read a heat map from this file and keep it up to date with what the routers choose." type:"path" placeholder:"FILE"`
	HeatSaveEvery time.Duration `name:"heat-save-every" help:"Time between two saves of it; it is saved at the end too." default:"5m"`
	HeatSample    int           `name:"heat-sample" help:"Of how many batches one is counted; 0: none." default:"8"`
}

func (f *heatFlags) check() error {
	switch {
	case f.HeatSaveEvery < time.Millisecond:
		return fmt.Errorf("--heat-save-every %v: want a millisecond or more", f.HeatSaveEvery)
	case f.HeatSample < 0 || f.HeatSample > 1<<20:
		return fmt.Errorf("--heat-sample %d: want 0 to %d", f.HeatSample, 1<<20)
	}
	return nil
}

// sample is the flag as actors.Options takes it.
func (f *heatFlags) sample() int {
	if f.HeatSample == 0 {
		return -1
	}
	return f.HeatSample
}

// refusal is why the file cannot be of a model, nil if there is none yet or a new one is begun.
func (f *heatFlags) refusal(src *source.Source) error {
	if f.HeatFile == "" {
		return nil
	}
	cfg, _, err := src.Config()
	if err != nil {
		return err
	}
	empty, err := src.NewHeat(cfg)
	if err != nil {
		return err
	}
	m, err := heat.Load(f.HeatFile)
	if err == nil {
		err = empty.Same(m)
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, heat.ErrDamaged) {
		return nil
	}
	return fmt.Errorf("--heat-file %s: %w", f.HeatFile, err)
}

// readHeat reads the file of a prepared session, before its experts are placed.
func (c *serveCmd) readHeat(s *local.Model, log zerolog.Logger) error {
	s.HeatSample = c.heatFlags.sample()
	if c.HeatFile == "" {
		return nil
	}
	m, err := s.Source.NewHeat(s.Config)
	if err == nil {
		s.Heat, err = heatfile.Open(c.HeatFile, m, log)
	}
	return err
}

// counted is what the file has counted, for choosing strategies; nil where it cannot be read,
// of which readHeat tells.
func (f *heatFlags) counted() [][]uint32 {
	if f.HeatFile == "" {
		return nil
	}
	m, err := heat.Load(f.HeatFile)
	if err != nil {
		return nil
	}
	return m.Scaled()
}

// followHeat begins to keep the file of a session that serves.
func (c *serveCmd) followHeat(s *local.Model, p *actors.Pipeline, log zerolog.Logger) (err error) {
	if c.HeatFile == "" || c.HeatSample == 0 {
		return nil
	}
	id := s.Heat.Identity
	c.keeper, err = heatfile.Keep(c.HeatFile, s.Heat.Clone(), func() *heat.Map { return p.Heat(id) })
	return err
}

// keepHeat saves now and then, and once more when its result is called, after the last
// batch.
func (c *serveCmd) keepHeat(log zerolog.Logger) (end func()) {
	if c.keeper == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.keeper.Run(ctx, c.HeatSaveEvery, log)
	}()
	return func() {
		cancel()
		<-done
		c.keeper.SaveOr(log)
	}
}
