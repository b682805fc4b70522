// Package goldens finds the golden models under testdata/goldens for the tests of every package,
// and picks the settings to run them with.
package goldens

import (
	"encoding/json/jsontext"
	json "encoding/json/v2"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"krater/stages/model"
)

// Folder is a golden model.
type Folder struct {
	Name string
	Dir  string
	// Missing says what the engine lacks to run it: tests skip it then.
	Missing string
}

// All returns every folder, by name. A folder that unsupported.txt does not name is one that runs.
// The list fails the test where it names a folder that is not there or that has become supported.
func All(t testing.TB) []Folder {
	t.Helper()
	all, err := read(root(t))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Names returns the folders that run.
func Names(t testing.TB) []string {
	t.Helper()
	var names []string
	for _, f := range All(t) {
		if f.Missing == "" {
			names = append(names, f.Name)
		}
	}
	return names
}

// Each runs a subtest for every folder. It skips those that the engine cannot run yet, by name.
func Each(t *testing.T, run func(t *testing.T, f Folder)) {
	t.Helper()
	for _, f := range All(t) {
		t.Run(f.Name, func(t *testing.T) {
			if f.Missing != "" {
				t.Skipf("not supported: %s", f.Missing)
			}
			run(t, f)
		})
	}
}

// Wrapped returns a config of a folder's text model in the wrapper that the folder's config.json has
// around it, or config itself if that has none, or if config has it already. Most dumps of
// transformers 5 have no wrapper.
func Wrapped(t testing.TB, dir string, config []byte) []byte {
	t.Helper()
	var whole, own map[string]jsontext.Value
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err == nil {
		err = errors.Join(json.Unmarshal(data, &whole), json.Unmarshal(config, &own))
	}
	if err != nil {
		t.Fatal(err)
	}
	if whole["text_config"] == nil || own["text_config"] != nil {
		return config
	}
	whole["text_config"] = config
	if config, err = json.Marshal(whole); err != nil {
		t.Fatal(err)
	}
	return config
}

// root is testdata/goldens of the module that the test runs in.
func root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for at := dir; ; at = filepath.Dir(at) {
		if path := filepath.Join(at, "testdata", "goldens"); at == filepath.Dir(at) {
			t.Fatalf("no testdata/goldens above %s", dir)
		} else if _, err := os.Stat(path); err == nil {
			return path
		}
	}
}

func read(root string) ([]Folder, error) {
	const file = "unsupported.txt"
	list, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		return nil, err
	}
	missing := map[string]string{}
	for line := range strings.Lines(string(list)) {
		line = strings.TrimSpace(line)
		name, why, _ := strings.Cut(line, " ")
		switch {
		case line == "" || line[0] == '#':
		case why == "":
			return nil, fmt.Errorf("%s: no reason for %s", file, name)
		default:
			missing[name] = why
		}
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, err
	}
	var all []Folder
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		f := Folder{Name: e.Name(), Dir: filepath.Join(root, e.Name()), Missing: missing[e.Name()]}
		delete(missing, f.Name)
		config, err := os.ReadFile(filepath.Join(f.Dir, "config.json"))
		if err != nil {
			return nil, err
		}
		if _, err := model.Parse(config); err == nil && f.Missing != "" {
			return nil, fmt.Errorf("%s: the engine reads the config of %s: remove the line", file, f.Name)
		}
		all = append(all, f)
	}
	for name := range missing {
		return nil, fmt.Errorf("%s: no folder %s", file, name)
	}
	return all, nil
}

// Everything reports whether the tests run every combination of their settings
// (KRATER_GOLDENS=all), not a small set with each value at least once.
func Everything() bool { return os.Getenv("KRATER_GOLDENS") == "all" }

// Settings returns combinations of settings, of which setting i has counts[i] values, numbered from
// 0. With Everything it returns all combinations, otherwise the fewest that contain each value of
// each setting.
func Settings(counts ...int) [][]int {
	n, all := 0, Everything()
	if all {
		n = 1
	}
	for _, c := range counts {
		if all {
			n *= c
		} else {
			n = max(n, c)
		}
	}
	list := make([][]int, n)
	for i := range list {
		rest := i
		for _, c := range counts {
			list[i] = append(list[i], rest%c)
			if all {
				rest /= c
			}
		}
	}
	return list
}
