// Package hubcache finds models in the cache folder that Hugging Face's tools share: models--ORG--MODEL with blobs, refs and
// snapshots. It reads folders only; transport/hub fills them.
package hubcache

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Ref names a model of a hub: ORG/MODEL[:QUANT][@REV].
type Ref struct {
	Repo  string // "ORG/MODEL"
	Quant string // of GGUF files, such as "Q4_K_M"; "": none is asked for
	Rev   string // a branch, a tag or a commit; "": the hub's main one
}

// Main is the revision of a Ref that names none.
const Main = "main"

// repoMost bounds a name; the hub allows 96 characters.
const repoMost = 200

var refSyntax = regexp.MustCompile(`^(\w[\w.-]*/\w[\w.-]*)(?::(\w[\w.-]*))?(?:@(\w[\w./-]*))?$`)

// Parse reads ORG/MODEL[:QUANT][@REV]. Its parts are safe as parts of paths.
func Parse(word string) (Ref, error) {
	m := refSyntax.FindStringSubmatch(word)
	if m == nil || len(word) > repoMost || !fs.ValidPath(m[1]) || m[3] != "" && !fs.ValidPath(m[3]) {
		return Ref{}, fmt.Errorf("%.200q is not ORG/MODEL[:QUANT][@REV]", word)
	}
	return Ref{Repo: m[1], Quant: m[2], Rev: m[3]}, nil
}

// String returns the text that Parse reads.
func (r Ref) String() string {
	s := r.Repo
	if r.Quant != "" {
		s += ":" + r.Quant
	}
	if r.Rev != "" {
		s += "@" + r.Rev
	}
	return s
}

// Revision returns Rev, or Main.
func (r Ref) Revision() string {
	if r.Rev == "" {
		return Main
	}
	return r.Rev
}

// Home returns the folder of Hugging Face's tools. It holds the cache and the token unless variables say otherwise.
func Home() string {
	if dir := os.Getenv("HF_HOME"); dir != "" {
		return dir
	}
	cache := os.Getenv("XDG_CACHE_HOME")
	if cache == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return ""
		}
		cache = filepath.Join(home, ".cache")
	}
	return filepath.Join(cache, "huggingface")
}

// Dir returns the cache: HF_HUB_CACHE, else hub in Home, or "" if the user has no home.
func Dir() string {
	for _, name := range []string{"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"} {
		if dir := os.Getenv(name); dir != "" {
			return dir
		}
	}
	if home := Home(); home != "" {
		return filepath.Join(home, "hub")
	}
	return ""
}

const folderPrefix = "models--"

// Folder returns the name of a repository's folder in the cache.
func Folder(repo string) string { return folderPrefix + strings.ReplaceAll(repo, "/", "--") }

// repoOf returns the repository of a folder of the cache.
func repoOf(folder string) (string, bool) {
	name, ok := strings.CutPrefix(folder, folderPrefix)
	if !ok {
		return "", false
	}
	repo := strings.Replace(name, "--", "/", 1)
	ref, err := Parse(repo)
	return repo, err == nil && ref.Repo == repo
}

// RepoOf returns the repository of a path in a snapshot, or "" for any other path.
func RepoOf(path string) string {
	parts := strings.Split(filepath.ToSlash(path), "/")
	for i := len(parts) - 3; i >= 0; i-- {
		if repo, ok := repoOf(parts[i]); ok && parts[i+1] == "snapshots" {
			return repo
		}
	}
	return ""
}

var (
	// ErrAbsent: the cache has no such model, revision or quantisation.
	ErrAbsent = errors.New("it is not there")
	// ErrUnfinished: files of the model are missing.
	ErrUnfinished = errors.New("its download has not ended")
)

// Locate finds a model in a cache: the folder of a snapshot with config.json and safetensors, or else a .gguf file (the first of
// several parts). The error is an ErrAbsent, ErrUnfinished or ErrSeveral.
func (r Ref) Locate(cache string) (string, error) {
	repo := filepath.Join(cache, Folder(r.Repo))
	if _, err := os.Stat(repo); err != nil {
		for _, name := range subfolders(cache) { // the hub does not tell upper from lower case
			if strings.EqualFold(name, Folder(r.Repo)) {
				repo = filepath.Join(cache, name)
			}
		}
	}
	return r.in(repo)
}

// in finds the model in the folder of its repository.
func (r Ref) in(repo string) (string, error) {
	revisions := []string{r.Revision()}
	if commit := commitOf(repo, r.Revision()); commit != "" {
		revisions[0] = commit
	} else if r.Rev == "" {
		revisions = subfolders(filepath.Join(repo, "snapshots"))
	}
	var found []string
	fault := ErrAbsent
	for _, rev := range revisions {
		dir := filepath.Join(repo, "snapshots", filepath.FromSlash(rev))
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			continue
		}
		path, err := modelOf(dir, r.Quant)
		if err != nil {
			fault = err
			continue
		}
		found = append(found, path)
	}
	switch len(found) {
	case 0:
		return "", fault
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("%w: no revision is called %s; name one of them behind @: %s", ErrSeveral, Main, strings.Join(revisions, ", "))
}
