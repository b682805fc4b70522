package gguf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The keys of a part.
const (
	splitNo      = "split.no"
	splitCount   = "split.count"
	splitTensors = "split.tensors.count"
)

// maxParts bounds the parts of a model; their names have five digits.
const maxParts = 1 << 12

// numbered matches "model-00001-of-00003.gguf".
var numbered = regexp.MustCompile(`^(.+)-(\d{5})-of-(\d{5})\.gguf$`)

// split returns the value of one of the keys, 0 if it is not there.
func (m *Metadata) split(key string) (int64, error) {
	n, err := m.Int(key)
	if errors.Is(err, ErrKeyMissing) {
		return 0, nil
	}
	if err == nil && n < 0 {
		err = fmt.Errorf("%w: %s is %d", ErrHeader, key, n)
	}
	return n, err
}

// checkPart holds what a part says about itself against its place, i of n.
func (m *Metadata) checkPart(i, n int) error {
	count, err := m.split(splitCount)
	if err != nil {
		return err
	}
	no, err := m.split(splitNo)
	if err != nil {
		return err
	}
	switch {
	case count <= 1 && n == 1:
		return nil
	case n == 1:
		return fmt.Errorf("%w: it is part %d of %d; give the parts names that end in -%05d-of-%05d.gguf", ErrPart, no+1, count, no+1, count)
	case count != int64(n):
		return fmt.Errorf("%w: by its name it is one of %d parts, and %s is %d", ErrPart, n, splitCount, count)
	case no != int64(i):
		return fmt.Errorf("%w: by its name it is part %d, and %s is %d", ErrPart, i+1, splitNo, no)
	}
	return nil
}

// checkTotal holds the number of tensors against what the first part announces.
func (f *File) checkTotal() error {
	want, err := f.split(splitTensors)
	if err != nil {
		return fmt.Errorf("%s: %w", f.paths[0], err)
	}
	if len(f.paths) > 1 && int64(len(f.names)) != want {
		return fmt.Errorf("%s: %w: the parts have %d tensors, and %s is %d", f.paths[0], ErrPart, len(f.names), splitTensors, want)
	}
	return nil
}

// partsOf lists the files of the model that path leads to.
func partsOf(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err == nil && info.IsDir() {
		if path, err = ModelIn(path); err != nil {
			return nil, err
		}
	}
	dir, name := filepath.Split(path)
	m := numbered.FindStringSubmatch(name)
	if m == nil {
		return []string{path}, nil
	}
	no, _ := strconv.Atoi(m[2])
	count, _ := strconv.Atoi(m[3])
	if count < 1 || count > maxParts || no < 1 || no > count {
		return nil, fmt.Errorf("%s: %w: the name says part %d of %d, at most %d are accepted", path, ErrPart, no, count, maxParts)
	}
	paths, missing := make([]string, count), []string{}
	for i := range paths {
		name := fmt.Sprintf("%s-%05d-of-%05d.gguf", m[1], i+1, count)
		paths[i] = filepath.Join(dir, name)
		if _, err := os.Stat(paths[i]); err != nil {
			missing = append(missing, name+unfinished(paths[i]))
		}
	}
	if len(missing) > 0 {
		const shown = 5
		more := ""
		if n := len(missing) - shown; n > 0 {
			missing, more = missing[:shown], fmt.Sprintf(" and %d more", n)
		}
		return nil, fmt.Errorf("%s: %w: %s%s", path, ErrPartMissing, strings.Join(missing, ", "), more)
	}
	return paths, nil
}

// unfinished says so if a file is there whose name is path and an ending.
func unfinished(path string) string {
	list, _ := os.ReadDir(filepath.Dir(path))
	base := filepath.Base(path)
	for _, e := range list {
		if rest, ok := strings.CutPrefix(e.Name(), base); ok && rest != "" && rest != ".lock" {
			return " (" + e.Name() + " is there: its download has not ended)"
		}
	}
	return ""
}

// ModelIn finds the model of a folder: its only .gguf file, or the first of its only series of
// parts. It is ErrNoFile if there is none, ErrSeveral if there are several.
func ModelIn(dir string) (string, error) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	var models []string
	series := map[string]bool{}
	for _, e := range list {
		name := e.Name()
		if !strings.HasSuffix(name, ".gguf") || strings.Contains(name, "mmproj") || strings.Contains(name, "imatrix") {
			continue
		}
		if m := numbered.FindStringSubmatch(name); m != nil {
			key := m[1] + "-of-" + m[3]
			if series[key] {
				continue
			}
			series[key] = true
		}
		models = append(models, name)
	}
	switch len(models) {
	case 0:
		return "", fmt.Errorf("%s: %w", dir, ErrNoFile)
	case 1:
		return filepath.Join(dir, models[0]), nil
	}
	slices.Sort(models)
	return "", fmt.Errorf("%s: %w: name one of %s", dir, ErrSeveral, strings.Join(models, ", "))
}
