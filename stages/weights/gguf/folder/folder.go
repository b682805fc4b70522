// Package folder presents a GGUF file as the folder of the released model that it was converted
// from: config.json and its like, and tensors by the names of the release. So families, tokenizers
// and chat templates are read by the same code, whatever the model came in.
//
// llama.cpp's conversion is undone: experts that are stored as one tensor are tensors of their
// own, rows of queries and keys that it permuted for its rotation are in their order again, the
// two halves of kv_b_proj are one, and norms that hold 1 + w hold w. Where a release stores
// experts as one tensor (gpt-oss), they are given one by one all the same, under the usual names.
//
// Set gives the tensors as a weights.Set; Config, Generation and Tokenizer give the other files.
package folder

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"krater/stages/weights"
	"krater/stages/weights/gguf"
)

var (
	// ErrArchitecture: general.architecture names no family that is known here.
	ErrArchitecture = errors.New("unknown GGUF architecture")
	// ErrTensor: a tensor has no place in the family, or not the shape that metadata give it.
	ErrTensor = errors.New("unexpected tensor")
	// ErrMetadata: a value that no model of the family has.
	ErrMetadata = errors.New("bad metadata")
	// ErrTokenizer: a tokenizer that is not supported.
	ErrTokenizer = errors.New("unsupported GGUF tokenizer")
)

// Folder is a GGUF file as a model's folder. It is valid as long as the file is open.
type Folder struct {
	file   *gguf.File
	config map[string]any
	views  map[string]View
	names  []string
	within string // as family's
}

// New reads the metadata and the list of tensors. A tensor that the family does not have is an
// error that names it: running without it would give nonsense.
func New(f *gguf.File) (*Folder, error) {
	arch, err := f.String("general.architecture")
	if err != nil {
		return nil, err
	}
	family, ok := families[arch]
	if !ok {
		return nil, fmt.Errorf("%w %.60q (known: %s)", ErrArchitecture, arch, strings.Join(slices.Sorted(maps.Keys(families)), ", "))
	}
	d := &Folder{file: f, views: map[string]View{}, within: family.within}
	r := &reader{Metadata: &f.Metadata, arch: arch, file: f}
	if arch == "llama" && r.intOr("expert_count", 0, maxExperts) > 0 {
		family = mixtral
	}
	d.config = common(r, family.varied)
	family.config(r, d.config)
	if len(r.errs) > 0 {
		return nil, errors.Join(r.errs...)
	}
	if err := newBinder(d, r, family).bind(); err != nil {
		return nil, err
	}
	return d, nil
}

// Config returns the model's config.json.
func (d *Folder) Config() ([]byte, error) { return json.Marshal(d.config) }

// Generation returns the model's generation_config.json, as far as files keep it; nil if they keep
// nothing.
func (d *Folder) Generation() ([]byte, error) {
	c := map[string]any{}
	for key, field := range map[string]string{"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "penalty_repeat": "repetition_penalty"} {
		key = "general.sampling." + key
		if !d.file.Has(key) {
			continue
		}
		x, err := d.file.Float(key)
		if err != nil {
			return nil, err
		}
		if c[field] = short(x); math.IsNaN(x) || math.IsInf(x, 0) {
			return nil, fmt.Errorf("%s: %w: %g", key, ErrMetadata, x)
		}
	}
	if len(c) == 0 {
		return nil, nil
	}
	return json.Marshal(c)
}

// Names lists the tensors of the release in the order of the layers. Not to be changed.
func (d *Folder) Names() []string { return d.names }

// Tensor returns a tensor by its name in the release.
func (d *Folder) Tensor(name string) (View, bool) {
	v, ok := d.views[name]
	return v, ok
}

// Set returns the tensors as a set of weights, which closes the file.
func (d *Folder) Set() *weights.Set {
	list := make([]weights.Named, len(d.names))
	for i, name := range d.names {
		list[i] = weights.Named{Name: name, Tensor: d.views[name].tensor()}
	}
	return weights.Of(list, d.file.Close, d.file.Release)
}

// named returns the name of a tensor in the release, given with the usual beginning.
func (d *Folder) named(name string) string {
	if rest, ok := strings.CutPrefix(name, "model."); ok && d.within != "" {
		return d.within + rest
	}
	return name
}

// add takes a tensor of the release.
func (d *Folder) add(name string, v View) {
	name = d.named(name)
	if v.Scale == 0 {
		v.Scale = 1
	}
	d.views[name] = v
	d.names = append(d.names, name)
}
