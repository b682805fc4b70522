package wizard

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"krater/scheduler/files"
)

// Found is a folder with a model.
type Found struct {
	Name string // name of the folder, or organisation and name on the hub
	Dir  string
}

// foundMax bounds the number of models searched for and shown.
const foundMax = 200

// Find looks for models in the given folders, which are models or contain some, and in the caches
// of hubs. A model is a folder with config.json and safetensors, or with converted weights. Folders
// that cannot be read are skipped.
func Find(folders, hubs []string) []Found {
	var list []Found
	add := func(name, dir string) {
		abs, err := filepath.Abs(dir)
		if err != nil || len(list) >= foundMax || slices.ContainsFunc(list, func(f Found) bool { return f.Dir == abs }) {
			return
		}
		list = append(list, Found{name, abs})
	}
	for _, folder := range folders {
		if isModel(folder) {
			abs, _ := filepath.Abs(folder) // add reports the error
			add(filepath.Base(abs), folder)
			continue
		}
		for _, name := range subfolders(folder) {
			if dir := filepath.Join(folder, name); isModel(dir) {
				add(name, dir)
			}
		}
	}
	for _, hub := range hubs {
		for _, name := range subfolders(hub) {
			repository, ok := strings.CutPrefix(name, "models--")
			if !ok {
				continue
			}
			if dir := snapshot(filepath.Join(hub, name)); dir != "" {
				add(strings.Replace(repository, "--", "/", 1), dir)
			}
		}
	}
	return list
}

// Hubs returns the folders in which Hugging Face's tools keep their downloads.
func Hubs() []string {
	if dir := os.Getenv("HF_HUB_CACHE"); dir != "" {
		return []string{dir}
	}
	if dir := os.Getenv("HF_HOME"); dir != "" {
		return []string{filepath.Join(dir, "hub")}
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return nil
	}
	return []string{filepath.Join(home, ".cache", "huggingface", "hub")}
}

// revisionMost bounds the file that names a revision: a hash of 40 letters.
const revisionMost = 4096

// snapshot returns the folder of a repository's main revision, or of any complete one.
func snapshot(repository string) string {
	var revisions []string
	if main, err := files.Read(filepath.Join(repository, "refs", "main"), revisionMost); err == nil {
		revisions = append(revisions, strings.TrimSpace(string(main)))
	}
	revisions = append(revisions, subfolders(filepath.Join(repository, "snapshots"))...)
	for _, r := range revisions {
		if dir := filepath.Join(repository, "snapshots", r); filepath.IsLocal(r) && isModel(dir) {
			return dir
		}
	}
	return ""
}

// isModel reports whether a folder holds a model that could be loaded.
func isModel(dir string) bool {
	if info, err := os.Stat(filepath.Join(dir, "config.json")); err != nil || !info.Mode().IsRegular() {
		return false
	}
	for _, pattern := range []string{"*.safetensors", ".krater_cache"} {
		if names, _ := filepath.Glob(filepath.Join(escaped(dir), pattern)); len(names) > 0 {
			return true
		}
	}
	return false
}

// escaped quotes a path for use in a pattern.
func escaped(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// subfolders returns the names of the folders in a folder, including links to folders.
func subfolders(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if info, err := os.Stat(filepath.Join(dir, e.Name())); err == nil && info.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}
