//go:build unix

package cache

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// folderName is the cache folder inside a model folder.
const folderName = ".krater_cache"

// folders lists where the cache may lie, the preferred first: --cache-dir alone
// if given; else the model's own folder, then the user's cache folder (for a
// model that is read-only or embedded). Outside the model's folder a folder named
// after the fingerprint keeps models apart: folder names of two models may be
// equal. A model that is a .gguf file has a folder of its own name within that of
// its folder, since there may be several.
func (o *Options) folders() ([]string, error) { return folders(o.Dir, o.Model, o.Plan.Source) }

func folders(dir, model string, source Fingerprint) ([]string, error) {
	id := source.String()
	if dir != "" {
		return []string{filepath.Join(dir, id)}, nil
	}
	var list []string
	if model != "" {
		list = append(list, folderOf(model))
	}
	user, err := os.UserCacheDir()
	if err == nil {
		list = append(list, filepath.Join(user, "krater", id))
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%w: %w; choose one with --cache-dir", ErrNoFolder, err)
	}
	return list, nil
}

// folderOf returns the cache folder of a model's folder or .gguf file.
func folderOf(model string) string {
	if strings.EqualFold(filepath.Ext(model), ".gguf") {
		if info, err := os.Stat(model); err == nil && !info.IsDir() {
			name := filepath.Base(model)
			return filepath.Join(filepath.Dir(model), folderName, name[:len(name)-len(".gguf")])
		}
	}
	return filepath.Join(model, folderName)
}

// writable makes the first folder that can be written to. It leaves nothing
// behind to find that out: a process may be killed at any moment.
func writable(list []string) (string, error) {
	var errs []error
	for _, dir := range list {
		err := os.MkdirAll(dir, 0o755)
		if err == nil {
			if err = unix.Access(dir, unix.W_OK|unix.X_OK); err == nil {
				return dir, nil
			}
			err = &os.PathError{Op: "access", Path: dir, Err: err}
		}
		errs = append(errs, err)
	}
	return "", fmt.Errorf("%w: %w; choose one with --cache-dir", ErrNoFolder, errors.Join(errs...))
}
