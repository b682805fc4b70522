//go:build unix

package synth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"krater/kernels/tensor"
	"krater/stages/model"
	"krater/stages/weights"
	"krater/stages/weights/cache"
)

// shardBytes is the most a file of weights has, unless a single tensor is larger.
const shardBytes = 4_000_000_000

// ErrFolder: there is something in the folder that was to be made.
var ErrFolder = errors.New("folder is not empty")

// Folder is where a model is written to.
type Folder struct {
	Dir     string            // made if it is not there; else it must be empty
	Files   map[string][]byte // more files for it, such as a tokenizer
	Threads int               // 0: all cores
	// Progress is called with the bytes written and those of everything.
	Progress func(done, all int64)

	shard  int64                               // tests: instead of shardBytes
	create func(path string) (*os.File, error) // tests: instead of os.Create
}

// WriteSafetensors writes the model as bfloat16 in shards with an index. The index
// comes last and every file gets its name when it is whole, so that an unfinished
// folder is not taken for a model; after an error nothing is left.
func (m *Model) WriteSafetensors(ctx context.Context, f Folder) error {
	return f.make(m, func(w *writer) error {
		list := m.Config.Expected()
		w.all = tensorBytes(list)
		if err := w.file("config.json", m.JSON); err != nil {
			return err
		}
		return w.tensors(ctx, list)
	})
}

// WriteCache writes the model with its routed experts as integers only: the file
// that a start would make (cache.Build) and the rest as bfloat16.
func (m *Model) WriteCache(ctx context.Context, f Folder, format tensor.Format) error {
	if m.Config.MoE.Experts == 0 {
		return fmt.Errorf("synth: %s has no experts: nothing for a cache", m.Shape)
	}
	var list []model.TensorSpec
	var named []weights.Named
	for _, t := range m.Config.Expected() {
		if t.Part != model.Experts {
			list = append(list, t)
			named = append(named, weights.Named{Name: t.Name, Tensor: weights.Tensor{DType: tensor.BF16, Shape: t.Shape}})
		}
	}
	print, err := cache.FingerprintOf(m.JSON, m.Config, weights.Of(named, nil, nil))
	if err != nil {
		return err
	}
	plan, err := cache.NewPlan(m.Config, format, cache.Search, print)
	if err != nil {
		return fmt.Errorf("synth: %s: %w", m.Shape, err)
	}
	size, err := plan.Bytes()
	if err != nil {
		return err
	}
	return f.make(m, func(w *writer) error {
		w.all = size + tensorBytes(list)
		if err := errors.Join(w.room(), w.file("config.json", m.JSON)); err != nil {
			return err
		}
		o := cache.Options{Plan: plan, Source: &Experts{Model: m, Format: format, Threads: f.Threads}, Dir: "", Model: f.Dir, Threads: f.Threads}
		o.Progress = func(_ string, done, _ int64) { w.progress(done) }
		if _, err := cache.Build(ctx, o); err != nil {
			return err
		}
		w.done = size
		return w.tensors(ctx, list)
	})
}

// tensorBytes returns the size of tensors in bfloat16.
func tensorBytes(list []model.TensorSpec) int64 {
	n := int64(0)
	for _, t := range list {
		n += sizeOf(t)
	}
	return n
}

// make prepares the folder and has it filled; after an error all is taken away.
func (f Folder) make(m *Model, fill func(*writer) error) error {
	_, err := os.Stat(f.Dir)
	fresh := errors.Is(err, fs.ErrNotExist)
	if err := os.MkdirAll(f.Dir, 0o755); err != nil {
		return fmt.Errorf("synth: %w", err)
	}
	there, err := os.ReadDir(f.Dir)
	if err != nil {
		return fmt.Errorf("synth: %w", err)
	}
	if len(there) > 0 {
		return fmt.Errorf("synth: %s: %w: choose another, or remove what is there (%s)", f.Dir, ErrFolder, there[0].Name())
	}
	w := &writer{m: m, Folder: f}
	for name, data := range f.Files {
		err = errors.Join(err, w.file(name, data))
	}
	if err == nil {
		err = fill(w)
	}
	if err != nil {
		err = w.failed(err)
		w.clean(fresh)
		return fmt.Errorf("synth: %s: %w", f.Dir, err)
	}
	return nil
}

// cacheFolder is where a start looks for the cache of a model's folder.
const cacheFolder = ".krater_cache"

// clean takes away what was written, and the folder if it was made.
func (w *writer) clean(folder bool) {
	for _, name := range w.names {
		os.Remove(filepath.Join(w.Dir, name+partSuffix))
		os.Remove(filepath.Join(w.Dir, name))
	}
	os.RemoveAll(filepath.Join(w.Dir, cacheFolder))
	if folder {
		os.Remove(w.Dir)
	}
}

// failed words a full disk.
func (w *writer) failed(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: the model takes %d bytes; make room or choose another folder (%w)", cache.ErrFull, w.all, err)
	}
	return err
}

// room refuses early what cannot fit.
func (w *writer) room() error {
	var st unix.Statfs_t
	if err := unix.Statfs(w.Dir, &st); err != nil {
		return nil // the writing will tell
	}
	if free := int64(st.Bavail) * int64(st.Bsize); free < w.all {
		return fmt.Errorf("%w: the model takes %d bytes, %d are free; make room or choose another folder", cache.ErrFull, w.all, free)
	}
	return nil
}

// index is the file that names the shards.
const index = "model.safetensors.index.json"

// writeIndex writes the index of the tensors' shards.
func (w *writer) writeIndex(shardOf map[string]string, total int64) error {
	text, err := json.MarshalIndent(map[string]any{"metadata": map[string]any{"total_size": total}, "weight_map": shardOf}, "", "  ")
	if err != nil {
		return err
	}
	return w.file(index, text)
}
