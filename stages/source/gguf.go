package source

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"

	"krater/stages/source/hubcache"
	"krater/stages/weights"
	"krater/stages/weights/gguf"
	"krater/stages/weights/gguf/folder"
)

// ggufIn returns the .gguf file to open for a path: the path itself, the only model of a folder
// without safetensors, or "" if the path leads to a folder of the other kind.
func ggufIn(path string) (string, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil || !info.IsDir():
		return path, err
	case len(hubcache.Tensors(path)) > 0:
		return "", nil
	}
	file, err := gguf.ModelIn(path)
	if errors.Is(err, gguf.ErrNoFile) {
		return "", nil
	}
	return file, err
}

// openGGUF opens a model by the path of a .gguf file: the only one, or one of its parts. It reads
// metadata and the list of tensors.
func openGGUF(path string) (*Source, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	files, err := newGGUFFiles(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	first := f.Paths()[0]
	open := func() (*weights.Set, error) {
		f, err := gguf.Open(first)
		if err != nil {
			return nil, err
		}
		d, err := folder.New(f)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", first, err), f.Close())
		}
		return d.Set(), nil
	}
	return &Source{Name: hubcache.NameOf(first), Dir: first, Files: files, Open: open, encoded: true}, nil
}

// ggufFiles are the files of a model's folder that a .gguf file stands for.
type ggufFiles struct {
	configs   MemoryFiles
	tokenizer func() (MemoryFiles, error)
}

// newGGUFFiles makes the configs. A tokenizer is made when it is asked for: a model can be planned
// and compared whose tokenizer is not supported.
func newGGUFFiles(f *gguf.File) (*ggufFiles, error) {
	d, err := folder.New(f)
	if err != nil {
		return nil, err
	}
	config, err := d.Config()
	if err != nil {
		return nil, err
	}
	generation, err := d.Generation()
	if err != nil {
		return nil, err
	}
	g := &ggufFiles{configs: MemoryFiles{"config.json": config}}
	if generation != nil {
		g.configs["generation_config.json"] = generation
	}
	meta := f.Metadata // valid when the file is closed
	g.tokenizer = sync.OnceValues(func() (MemoryFiles, error) {
		if !meta.Has("tokenizer.ggml.model") {
			return nil, absent("the file has no tokenizer (tokenizer.ggml.model)")
		}
		tokenizer, config, err := folder.Tokenizer(&meta)
		return MemoryFiles{"tokenizer.json": tokenizer, "tokenizer_config.json": config}, err
	})
	return g, nil
}

// Open implements fs.FS.
func (g *ggufFiles) Open(name string) (fs.File, error) {
	if !strings.HasPrefix(name, "tokenizer") {
		return g.configs.Open(name)
	}
	files, err := g.tokenizer()
	if err != nil {
		return nil, err
	}
	return files.Open(name)
}

// absent is an fs.ErrNotExist that says what is missing.
type absent string

func (a absent) Error() string        { return string(a) }
func (a absent) Is(target error) bool { return target == fs.ErrNotExist }
