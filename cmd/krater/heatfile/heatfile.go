// Package heatfile keeps a file up to date with how often the routers of a pipeline choose each
// expert.
package heatfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/rs/zerolog"

	"krater/scheduler/heat"
)

// heatMemory is the number of tokens that a server's map remembers. When it is reached, all counts
// are halved, so that the map follows changes in use.
const heatMemory = 4 << 20

// Keeper keeps a file up to date with the counts of a pipeline. It belongs to one goroutine at a
// time.
type Keeper struct {
	path  string
	total *heat.Map        // as saved
	last  *heat.Map        // counts of the pipeline when total was last updated
	read  func() *heat.Map // reads the counts of the pipeline
	dirty bool             // total has counts that the file lacks
}

// Open reads the map of a server's file, or creates an empty one. It refuses a file of another
// model, and moves a damaged one to path.damaged so that the server can start.
func Open(path string, empty *heat.Map, log zerolog.Logger) (*heat.Map, error) {
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
		log.Warn().Err(err).Str("kept_as", path+".damaged").Msg("the heat map is damaged; starting a new one")
		if err := os.Rename(path, path+".damaged"); err != nil {
			return nil, fmt.Errorf("--heat-file: %w", err)
		}
		return empty, nil
	}
	return nil, fmt.Errorf("--heat-file: %w", err) // not a heat map: it may be another program's file
}

// Keep returns a keeper of total, which it then owns, and checks that the file can be written.
func Keep(path string, total *heat.Map, read func() *heat.Map) (*Keeper, error) {
	k := &Keeper{path: path, total: total, last: read(), read: read}
	if err := k.total.Save(path); err != nil {
		return nil, fmt.Errorf("--heat-file: %w", err)
	}
	return k, nil
}

// save brings the file up to date.
func (k *Keeper) save() error {
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

// Run saves at the given interval until ctx ends. A save that fails is logged and tried again.
func (k *Keeper) Run(ctx context.Context, every time.Duration, log zerolog.Logger) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			k.SaveOr(log)
		}
	}
}

// SaveOr saves, and logs an error.
func (k *Keeper) SaveOr(log zerolog.Logger) {
	if err := k.save(); err != nil {
		log.Warn().Err(err).Str("file", k.path).Msg("heat map not saved")
		return
	}
	log.Debug().Str("file", k.path).Uint64("tokens", k.total.Seen()).Msg("heat map saved")
}
