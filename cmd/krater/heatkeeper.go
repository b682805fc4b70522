package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"os"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"krater/actors"
	"krater/scheduler/heat"
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
func (f *heatFlags) refusal(src *source) error {
	if f.HeatFile == "" {
		return nil
	}
	cfg, _, err := src.config()
	if err != nil {
		return err
	}
	empty, err := src.newHeat(cfg)
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
func (c *serveCmd) readHeat(s *session, log zerolog.Logger) error {
	s.heatSample = c.heatFlags.sample()
	if c.HeatFile == "" {
		return nil
	}
	m, err := s.src.newHeat(s.cfg)
	if err == nil {
		s.heat, err = openHeat(c.HeatFile, m, log)
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
	return placedHeat(m)
}

// followHeat begins to keep the file of a session that serves.
func (c *serveCmd) followHeat(s *session, p *actors.Pipeline, log zerolog.Logger) (err error) {
	if c.HeatFile == "" || c.HeatSample == 0 {
		return nil
	}
	id := s.heat.Identity
	s.keeper, err = keep(c.HeatFile, s.heat.Clone(), func() *heat.Map { return p.Heat(id) })
	return err
}

// keepHeat saves now and then, and once more when its result is called, after the last
// batch.
func (c *serveCmd) keepHeat(s *session, log zerolog.Logger) (end func()) {
	if s.keeper == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.keeper.run(ctx, c.HeatSaveEvery, log)
	}()
	return func() {
		cancel()
		<-done
		s.keeper.saveOr(log)
	}
}

// heatMemory is how many tokens a server's map remembers: beyond it, what was counted
// so far counts half, so that a server follows what it is used for.
const heatMemory = 4 << 20

// heatKeeper keeps a file up to date with what a pipeline counts. It belongs to one
// goroutine at a time.
type heatKeeper struct {
	path  string
	total *heat.Map        // as saved
	last  *heat.Map        // of the pipeline, when total was last brought up to date
	read  func() *heat.Map // of the pipeline
	dirty bool             // the file lacks a part of total
}

// openHeat reads the map of a server's file, or begins one. A file of another model is
// refused; a damaged one is put aside, path.damaged, so that a server comes up.
func openHeat(path string, empty *heat.Map, log zerolog.Logger) (*heat.Map, error) {
	m, err := heat.Load(path)
	switch {
	case err == nil:
		if err := empty.Same(m); err != nil {
			return nil, fmt.Errorf("--heat-file %s: %w", path, err)
		}
		log.Info().Str("file", path).Uint64("tokens", m.Seen()).Msg("heat map read")
		return m, nil
	case errors.Is(err, fs.ErrNotExist):
		return empty, nil
	case errors.Is(err, heat.ErrDamaged):
		log.Warn().Err(err).Str("kept_as", path+".damaged").Msg("heat map not read; a new one is begun")
		if err := os.Rename(path, path+".damaged"); err != nil {
			return nil, fmt.Errorf("--heat-file: %w", err)
		}
		return empty, nil
	}
	return nil, fmt.Errorf("--heat-file: %w", err) // no heat map at all: somebody else's file
}

// keep begins a keeper of total, which becomes its own, and tries whether the file can
// be written.
func keep(path string, total *heat.Map, read func() *heat.Map) (*heatKeeper, error) {
	k := &heatKeeper{path: path, total: total, last: read(), read: read}
	if err := k.total.Save(path); err != nil {
		return nil, fmt.Errorf("--heat-file: %w", err)
	}
	return k, nil
}

// save brings the file up to date.
func (k *heatKeeper) save() error {
	now := k.read()
	more, err := now.Since(k.last)
	if err != nil {
		return err
	}
	if more.Seen() > 0 {
		if err := k.total.Merge(more); err != nil {
			return err
		}
		k.last, k.dirty = now, true
	}
	for k.total.Seen() > heatMemory {
		if err := k.total.Decay(0.5); err != nil {
			return err
		}
	}
	if !k.dirty {
		return nil
	}
	if err := k.total.Save(k.path); err != nil {
		return err
	}
	k.dirty = false
	return nil
}

// run saves every so often until ctx ends. A save that fails is told and tried again.
func (k *heatKeeper) run(ctx context.Context, every time.Duration, log zerolog.Logger) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			k.saveOr(log)
		}
	}
}

// saveOr saves and logs what went wrong.
func (k *heatKeeper) saveOr(log zerolog.Logger) {
	if err := k.save(); err != nil {
		log.Warn().Err(err).Str("file", k.path).Msg("heat map not saved")
		return
	}
	log.Debug().Str("file", k.path).Uint64("tokens", k.total.Seen()).Msg("heat map saved")
}

// placedHeat is a map as strategies take it, [layer][expert], nil where there is none or it
// has seen nothing. Counts beyond 32 bits lose their last ones, all alike.
func placedHeat(m *heat.Map) [][]uint32 {
	if m == nil || m.Seen() == 0 {
		return nil
	}
	layers, most := m.Shape().Layers, uint64(0)
	for _, l := range layers {
		most = max(most, slices.Max(m.Counts(l)))
	}
	shift := max(0, bits.Len64(most)-32)
	out := make([][]uint32, len(layers))
	for i, l := range layers {
		for _, n := range m.Counts(l) {
			out[i] = append(out[i], uint32(n>>shift))
		}
	}
	return out
}
