//go:build unix

package synth

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"krater/kernels/tensor"
	"krater/stages/weights"
	"krater/stages/weights/cache"
	"krater/stages/weights/gguf"
)

// list is the files of a folder.
func list(t *testing.T, dir string) []string {
	t.Helper()
	there, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return []string{"no folder"}
	}
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, x := range there {
		names = append(names, x.Name())
	}
	return names
}

// TestWriteSafetensors: shards within their size, the index names all tensors, the
// same bytes whatever the threads.
func TestWriteSafetensors(t *testing.T) {
	m := small(t, Options{Seed: 1, Skew: Zipf})
	want := all(m, 1)
	for _, threads := range []int{1, 3} {
		dir := filepath.Join(t.TempDir(), "new", "model")
		last, total := int64(0), int64(0)
		f := Folder{Dir: dir, Threads: threads, shard: 400_000, Files: map[string][]byte{"tokenizer.json": []byte("{}")}}
		f.Progress = func(done, all int64) {
			if done < last {
				t.Errorf("progress from %d to %d", last, done)
			}
			last, total = done, all
		}
		if err := m.WriteSafetensors(context.Background(), f); err != nil {
			t.Fatal(err)
		}
		if last != total || total != tensorBytes(m.Config.Expected()) {
			t.Errorf("progress ended at %d of %d", last, total)
		}
		set, err := weights.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Config.CheckTensors(set.Names(), func(name string) []int { x, _ := set.Tensor(name); return x.Shape }); err != nil {
			t.Error(err)
		}
		for name, x := range set.All() {
			if !bytes.Equal(x.Data, want[name]) {
				t.Errorf("%s differs", name)
			}
		}
		set.Close()
		names := list(t, dir)
		if len(names) < 6 || !slices.Contains(names, "tokenizer.json") || !slices.Contains(names, "config.json") {
			t.Errorf("files %v", names)
		}
		for _, name := range names {
			if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() > 450_000 {
				t.Errorf("%s: %v, %v", name, info, err)
			}
		}
	}
}

// TestWriteFails: a full disk and an end in the middle are told and leave nothing; a
// folder with something in it stays as it is.
func TestWriteFails(t *testing.T) {
	m, spec := small(t, Options{}), tensor.INT4.By(32)
	write := map[string]func(context.Context, Folder) error{
		"gguf": func(ctx context.Context, f Folder) error {
			return m.WriteGGUF(ctx, f, GGUF{Experts: gguf.Q4_0, Other: gguf.Q8_0})
		},
		"safetensors": func(ctx context.Context, f Folder) error { return m.WriteSafetensors(ctx, f) },
		"cache":       func(ctx context.Context, f Folder) error { return m.WriteCache(ctx, f, spec) },
	}
	for as, write := range write {
		files := []string{"config.json", "model-00002-of", "index.json"}
		if as == "gguf" {
			files = []string{GGUFFile}
		}
		for _, full := range files {
			dir := filepath.Join(t.TempDir(), "model")
			f := Folder{Dir: dir, shard: 200_000, create: func(path string) (*os.File, error) {
				if strings.Contains(path, full) {
					if _, err := weights.Open(dir); !errors.Is(err, weights.ErrNoWeights) && !errors.Is(err, weights.ErrIndex) {
						t.Errorf("%s: an unfinished folder: got %v", as, err)
					}
					return os.OpenFile("/dev/full", os.O_WRONLY, 0)
				}
				return os.Create(path)
			}}
			if err := write(context.Background(), f); !errors.Is(err, cache.ErrFull) || !strings.Contains(err.Error(), dir) {
				t.Errorf("%s, %s: got %v", as, full, err)
			}
			if names := list(t, dir); !slices.Equal(names, []string{"no folder"}) {
				t.Errorf("%s, %s: left %v", as, full, names)
			}
		}
		dir := t.TempDir()
		ctx, cancel := context.WithCancel(context.Background())
		err := write(ctx, Folder{Dir: dir, Progress: func(done, all int64) {
			if done > all/2 {
				cancel()
			}
		}})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s, cancelled: got %v", as, err)
		}
		if names := list(t, dir); len(names) != 0 {
			t.Errorf("%s, cancelled: left %v", as, names)
		}
		if err := os.WriteFile(filepath.Join(dir, "mine"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := write(context.Background(), Folder{Dir: dir}); !errors.Is(err, ErrFolder) || !strings.Contains(err.Error(), "mine") {
			t.Errorf("%s: got %v", as, err)
		}
		if names := list(t, dir); !slices.Equal(names, []string{"mine"}) {
			t.Errorf("%s: now %v", as, names)
		}
	}
}

// TestWriteCacheRefuses what has no experts.
func TestWriteCacheRefuses(t *testing.T) {
	m, err := New("qwen2.5-7b", Options{Layers: 1, Vocab: 100})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.WriteCache(context.Background(), Folder{Dir: filepath.Join(t.TempDir(), "x")}, tensor.INT4.By(0)); err == nil || !strings.Contains(err.Error(), "no experts") {
		t.Errorf("got %v", err)
	}
}

// unpacked hides Pack.
type unpacked struct{ cache.Source }

// TestPack: the file is the same whether experts come packed or not.
func TestPack(t *testing.T) {
	m, spec := small(t, Options{Seed: 8}), tensor.INT4.By(32)
	plan, err := cache.NewPlan(m.Config, spec, cache.Search, cache.Fingerprint{1})
	if err != nil {
		t.Fatal(err)
	}
	var files [][]byte
	for _, src := range []cache.Source{&Experts{Model: m, Format: spec, Threads: 2}, unpacked{&Experts{Model: m, Format: spec, Threads: 1}}} {
		r, err := cache.Build(context.Background(), cache.Options{Plan: plan, Source: src, Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(r.Path)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, data)
	}
	if !bytes.Equal(files[0], files[1]) {
		t.Error("the files differ")
	}
}
