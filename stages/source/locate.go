package source

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"krater/stages/source/hubcache"
)

// Locate finds a model by the path of a folder or of a .gguf file, or else by ORG/MODEL[:QUANT][@REV] in the cache of Hugging
// Face's tools. It downloads nothing. The error names the remedy.
func Locate(word string) (path string, err error) {
	info, err := os.Stat(word)
	ref, refErr := hubcache.Parse(word)
	switch {
	case err == nil && info.IsDir():
		return snapshotOf(word), nil
	case err == nil && strings.EqualFold(filepath.Ext(word), ".gguf"):
		return word, nil
	case err == nil:
		return "", fmt.Errorf("%s: it is a file: name the model's folder, or a .gguf file", word)
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR):
		return "", err
	case refErr != nil:
		return "", fmt.Errorf("%s: no such file or folder; krater models lists the models that are here, and krater pull ORG/MODEL downloads one", word)
	}
	cache := hubcache.Dir()
	path, err = ref.Locate(cache)
	switch {
	case errors.Is(err, hubcache.ErrSeveral):
		return "", fmt.Errorf("%s: %w", ref, err)
	case err != nil:
		return "", fmt.Errorf("%s: there is no such folder, and in the cache %s %w. Download it with: krater pull %s", ref, cache, err, ref)
	}
	return path, nil
}

// snapshotOf returns the snapshot of a repository's folder in the cache, and any other folder as it is.
func snapshotOf(dir string) string {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return dir
	}
	if repo := hubcache.RepoOf(filepath.Join(abs, "snapshots", hubcache.Main)); filepath.Base(abs) == hubcache.Folder(repo) {
		if path, err := (hubcache.Ref{Repo: repo}).Locate(filepath.Dir(abs)); err == nil {
			return path
		}
	}
	return dir
}
