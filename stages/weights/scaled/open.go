package scaled

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"krater/scheduler/files"
	"krater/stages/model"
	"krater/stages/weights"
)

// maxConfig bounds config.json.
const maxConfig = 1 << 20

// Open is weights.Open, with quantised matrices as the folder's config.json says.
func Open(dir string) (*weights.Set, error) {
	var q *model.Quantization
	config, err := files.Read(filepath.Join(dir, "config.json"), maxConfig)
	if err == nil {
		q, err = model.ParseQuantization(config)
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
	return View(set, q)
}
