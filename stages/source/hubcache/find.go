package hubcache

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"krater/scheduler/files"
)

// Found is a model on the disk.
type Found struct {
	Name string // name of the folder or file, or ORG/MODEL, with :QUANT if there are several
	Path string // a folder, or a .gguf file (the first of its parts)
}

// GGUF reports whether it is a .gguf file.
func (f Found) GGUF() bool { return isGGUF(f.Path) }

func isGGUF(path string) bool { return strings.EqualFold(filepath.Ext(path), ".gguf") }

// foundMax bounds the number of models searched for and shown.
const foundMax = 200

// Find looks for models in the given folders, which are models or contain some, or which are .gguf files, and in a cache ("": none). A model is a folder
// with config.json and safetensors, or with converted weights, or a .gguf file. Folders that cannot be read are skipped.
func Find(folders []string, cache string) []Found {
	var list []Found
	add := func(name, path string) {
		abs, err := filepath.Abs(path)
		if err != nil || len(list) >= foundMax || slices.ContainsFunc(list, func(f Found) bool { return f.Path == abs }) {
			return
		}
		list = append(list, Found{name, abs})
	}
	for _, folder := range folders {
		if info, err := os.Stat(folder); err == nil && isGGUF(folder) && info.Mode().IsRegular() {
			add(NameOf(filepath.Join("/", filepath.Base(folder))), folder)
			continue
		}
		inside := append([]string{""}, subfolders(folder)...)
		if isModel(folder) {
			inside = inside[:1]
		}
		for _, name := range inside {
			dir := filepath.Join(folder, name)
			if isModel(dir) {
				abs, _ := filepath.Abs(dir) // add reports the error
				add(NameOf(abs), dir)
				continue
			}
			for _, path := range firstParts(dir) {
				add(NameOf(filepath.Join("/", filepath.Base(path))), path)
			}
		}
	}
	for _, folder := range subfolders(cache) {
		repo, ok := repoOf(folder)
		if !ok {
			continue
		}
		ref := Ref{Repo: repo}
		if path, err := ref.in(filepath.Join(cache, folder)); err == nil {
			add(repo, path)
		}
		for _, quant := range ref.quants(filepath.Join(cache, folder)) {
			ref.Quant = quant
			if path, err := ref.in(filepath.Join(cache, folder)); err == nil {
				add(ref.String(), path)
			}
		}
	}
	return list
}

// NameOf returns the name of the model at an absolute path: ORG/MODEL in a hub's cache, else the name of the folder, or of the
// .gguf file without its ending and part.
func NameOf(path string) string {
	if repo := RepoOf(path); repo != "" {
		return repo
	}
	name := filepath.Base(path)
	if !isGGUF(name) {
		return name
	}
	name = name[:len(name)-len(".gguf")]
	if m := partName.FindStringSubmatch(name); m != nil {
		return m[1]
	}
	return name
}

// quants lists the quantisations that a repository's snapshots hold.
func (r Ref) quants(repo string) (all []string) {
	for _, rev := range subfolders(filepath.Join(repo, "snapshots")) {
		all = append(all, Quants(filesIn(filepath.Join(repo, "snapshots", rev)))...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// revisionMost bounds the file that names a revision: a hash of 40 letters.
const revisionMost = 4096

// commitOf returns the commit of a branch or tag in a repository's folder, or "".
func commitOf(repo, rev string) string {
	data, err := files.Read(filepath.Join(repo, "refs", filepath.FromSlash(rev)), revisionMost)
	if commit := strings.TrimSpace(string(data)); err == nil && filepath.IsLocal(commit) {
		return commit
	}
	return ""
}

// modelOf finds the model in the folder of a snapshot.
func modelOf(dir, quant string) (string, error) {
	names := filesIn(dir)
	if quant == "" && isModel(dir) {
		return dir, shardsThere(dir, names)
	}
	if quant == "" && len(gguf(names)) == 0 {
		return "", fmt.Errorf("%w: %s has no config.json with safetensors and no .gguf file", ErrUnfinished, dir)
	}
	chosen, err := Select(names, quant)
	if err != nil {
		return "", err
	}
	for _, name := range chosen {
		if err := there(dir, name); err != nil {
			return "", err
		}
	}
	return filepath.Join(dir, filepath.FromSlash(chosen[0])), nil
}

// there returns an error if a file of a snapshot is missing, or its link dangles.
func there(dir, name string) error {
	if _, err := os.Stat(filepath.Join(dir, filepath.FromSlash(name))); err != nil {
		return fmt.Errorf("%w: %s is missing", ErrUnfinished, name)
	}
	return nil
}

// shard matches the name of a file that is one of several.
var shard = regexp.MustCompile(`^(.+)-(\d{1,6})-of-(\d{1,6})\.safetensors$`)

// shardsThere checks by their names that all safetensors of a series are there, and that no link dangles. The index is checked
// when the model is opened.
func shardsThere(dir string, names []string) error {
	count, want := map[string]int{}, map[string]int{}
	for _, name := range names {
		if !strings.HasSuffix(name, ".safetensors") || strings.Contains(name, "/") {
			continue
		}
		if err := there(dir, name); err != nil {
			return err
		}
		if m := shard.FindStringSubmatch(name); m != nil {
			key := m[1] + "-of-" + m[3]
			count[key]++
			want[key], _ = strconv.Atoi(m[3])
		}
	}
	for key, n := range want {
		if count[key] < n {
			return fmt.Errorf("%w: there are %d of %d files of %s", ErrUnfinished, count[key], n, key)
		}
	}
	return nil
}

// filesMost bounds the number of files read from a snapshot.
const filesMost = 10000

// filesIn lists the files of a folder and the folders in it, with slashes.
func filesIn(dir string) (names []string) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error { // skips folders that cannot be read
		if err != nil || d.IsDir() {
			return nil
		}
		if rel, err := filepath.Rel(dir, path); err == nil {
			names = append(names, filepath.ToSlash(rel))
		}
		if len(names) >= filesMost {
			return fs.SkipAll
		}
		return nil
	})
	return names
}

// firstParts lists the models in the .gguf files of a folder.
func firstParts(dir string) (paths []string) {
	matches, _ := filepath.Glob(filepath.Join(escaped(dir), "*.[gG][gG][uU][fF]"))
	for _, s := range gguf(matches) {
		if len(s.files) == s.parts {
			paths = append(paths, s.files[0])
		}
	}
	return paths
}

// isModel reports whether a folder holds a model that could be loaded.
func isModel(dir string) bool {
	if info, err := os.Stat(filepath.Join(dir, "config.json")); err != nil || !info.Mode().IsRegular() {
		return false
	}
	if len(Tensors(dir)) > 0 {
		return true
	}
	_, err := os.Stat(filepath.Join(dir, ".krater_cache"))
	return err == nil && len(gguf(filesIn(dir))) == 0 // which keep theirs there as well
}

// Tensors lists the safetensors of a folder.
func Tensors(dir string) []string {
	paths, _ := filepath.Glob(filepath.Join(escaped(dir), "*.safetensors"))
	return paths
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
