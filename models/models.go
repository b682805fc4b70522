// Package models holds the default model, so that the program can answer as soon as it starts. The
// build tag nomodel leaves it out.
package models

import (
	"errors"
	"io/fs"
	"maps"
)

// Name is the default model's name.
const Name = "krater-tiny"

// ErrNoModel: the program was built without a default model.
var ErrNoModel = errors.New("no model is built into this program (build tag nomodel): name a model folder")

// Files are the files of an embedded model.
type Files struct {
	// FS has config.json, generation_config.json, tokenizer.json, tokenizer_config.json and
	// heldout.txt, a text that the model was not trained on. Reading one copies it.
	fs.FS
	weights map[string][]byte
	ahead   *uint64 // keeps the variable of that name in the program
}

// Weights returns the shards and their index by file name, in place in the program's image: they
// must not be written to. The pages are read from the program's file when they are first used.
func (f Files) Weights() map[string][]byte { return maps.Clone(f.weights) }
