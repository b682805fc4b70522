package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/rs/zerolog"

	"krater/actors/local"
	"krater/cmd/krater/choices"
	"krater/cmd/krater/heatfile"
	"krater/scheduler/heat"
	"krater/stages/source"
)

// heatFlags are the flags of a server that keeps a heat map.
type heatFlags struct {
	choices.Recording
	HeatFile      string        `name:"heat-file" help:"File of a heat map: it is read at the start, and kept up to date with the routers' choices." type:"path" placeholder:"FILE"`
	HeatSaveEvery time.Duration `name:"heat-save-every" help:"Time between saves of the heat map, which is also saved at the end." default:"5m"`
	HeatSample    int           `name:"heat-sample" help:"Count the routers' choices in one of every N batches; 0: never." default:"8"`
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

// sample returns the flag in the form of actors.Options.
func (f *heatFlags) sample() int {
	if f.HeatSample == 0 {
		return -1
	}
	return f.HeatSample
}

// refusal returns why the file does not belong to the model; nil if the file is missing or damaged,
// since a new one is then begun.
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

// readHeat reads the file before the experts of a prepared model are placed, and makes that of --record-routing.
func (c *serveCmd) readHeat(s *local.Model, log zerolog.Logger) error {
	s.HeatSample = c.heatFlags.sample()
	if err := c.Recording.Begin(s); err != nil {
		return err
	}
	if c.HeatFile == "" {
		return nil
	}
	m, err := s.Source.NewHeat(s.Config)
	if err == nil {
		s.Heat, err = heatfile.Open(c.HeatFile, m, log)
	}
	return err
}

// counted returns the counts of the file, for choosing strategies; nil if it cannot be read, which
// readHeat reports.
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

// followHeat starts to keep the file of a model that serves.
func (c *serveCmd) followHeat(s *local.Model, p *local.Served, log zerolog.Logger) (err error) {
	if c.HeatFile == "" || c.HeatSample == 0 {
		return nil
	}
	id := s.Heat.Identity
	c.keeper, err = heatfile.Keep(c.HeatFile, s.Heat.Clone(), func() *heat.Map { return p.Pipeline().Heat(id) })
	return err
}

// keepHeat saves the file regularly, and once more when the returned function is called, after the
// last batch.
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
