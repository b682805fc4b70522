package scaled

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"krater/scheduler/files"
	"krater/stages/model"
	"krater/stages/weights"
	"krater/stages/weights/fused"
)

// maxConfig bounds config.json.
const maxConfig = 1 << 20

// Open is weights.Open, with quantised matrices as the folder's config.json says, and with the
// experts of a layer that are one tensor as tensors of their own.
func Open(dir string) (*weights.Set, error) {
	var q *model.Quantization
	var cfg *model.Config
	config, err := files.Read(filepath.Join(dir, "config.json"), maxConfig)
	if err == nil {
		if q, err = model.ParseQuantization(config); err == nil {
			cfg, _ = model.Parse(config) // who needs it reports what is wrong with it
		}
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	set, err := weights.Open(dir)
	if err != nil {
		return nil, err
	}
	if set, err = View(set, q); err != nil || cfg == nil {
		return set, err
	}
	return fused.View(cfg, set)
}
