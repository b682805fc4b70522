package choices

import (
	"errors"
	"fmt"
	"os"

	"github.com/rs/zerolog"

	"krater/actors/local"
	"krater/actors/local/config"
	"krater/scheduler/heat"
	"krater/scheduler/routing"
)

// File is a recording of router choices that is being made.
type File struct {
	file *os.File
	w    *routing.Writer
	most int64 // bytes after which nothing is recorded
	err  error
}

// Create makes a recording of the model that m belongs to, in place of an older one.
func Create(path string, m *heat.Map, most int64) (*File, error) {
	f, err := routing.Create(path)
	if err != nil {
		return nil, err
	}
	t := &File{file: f, most: most}
	if t.w, err = routing.NewWriter(f, routing.Header{Identity: m.Identity, Shape: m.Shape()}); err != nil {
		f.Close()
		return nil, err
	}
	return t, nil
}

// Add records a batch. An error is told by Close.
func (t *File) Add(b *routing.Batch) {
	if t.err == nil && t.w.Size() < t.most {
		t.err = t.w.Write(b)
	}
}

// Close completes the file.
func (t *File) Close() error {
	if err := errors.Join(t.err, t.w.Flush(), t.file.Close()); err != nil {
		return fmt.Errorf("recording %s: %w", t.file.Name(), err)
	}
	return nil
}

// Recording are the flags of a server that records what its routers choose.
type Recording struct {
	RecordRouting string      `name:"record-routing" help:"Write the routers' choices for the rows of every step into a file, for krater heatmap --replay. An older recording is replaced." type:"path" placeholder:"FILE"`
	RecordLimit   config.Size `name:"record-limit" help:"Size of the --record-routing file after which nothing more is recorded." default:"1GiB"`

	file *File
}

// Begin makes the file, and has a model record into it, if a file is named.
func (r *Recording) Begin(s *local.Model) error {
	if r.RecordRouting == "" {
		return nil
	}
	m, err := s.Source.NewHeat(s.Config)
	if err == nil {
		r.file, err = Create(r.RecordRouting, m, int64(r.RecordLimit))
	}
	if err != nil {
		return fmt.Errorf("--record-routing: %w", err)
	}
	s.Record = r.file.Add
	return nil
}

// End completes the file after the last batch.
func (r *Recording) End(log zerolog.Logger) {
	if r.file == nil {
		return
	}
	if err := r.file.Close(); err != nil {
		log.Warn().Err(err).Msg("router choices are not all recorded")
	}
}
