package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"krater/cmd/krater/cmdline"
	"krater/cmd/krater/wizard"
)

// otherSettings are the settings of the file that the wizard has no field for. They are kept.
type otherSettings wizard.Settings

// with returns all settings: s and the others.
func (o otherSettings) with(s wizard.Settings) wizard.Settings {
	all := wizard.Settings{}
	maps.Copy(all, o)
	maps.Copy(all, s)
	return all
}

// of returns the settings that are flags of a command.
func (o otherSettings) of(command string) otherSettings {
	list := otherSettings{}
	for _, c := range cmdline.Completions(cmdline.All(&cli{}).Node) {
		for _, f := range c.Flags {
			if v, ok := o[f.Name]; ok && c.Path == command {
				list[f.Name] = v
			}
		}
	}
	return list
}

// choose selects a value of a field. If the field does not offer the value, it becomes an option.
func choose(f *wizard.Field, value string) {
	at := slices.IndexFunc(f.Options, func(o wizard.Option) bool { return o.Value == value || o.Value == "" && o.Label == value })
	if at < 0 {
		at = len(f.Options)
		f.Options = append(f.Options, wizard.Option{Label: value, Value: value})
	}
	f.At = at
}

// storedSettings reads the existing file. It selects the file's values in the fields, and returns
// the settings that have no field in others. A file that cannot be read counts as empty; it is
// replaced only when the user confirms.
func storedSettings(path string, fields []wizard.Field) (stored wizard.Settings, others otherSettings) {
	file, err := cmdline.ReadConfig(path)
	if err != nil {
		return nil, nil
	}
	values := wizard.Settings{}
	for key, v := range file.Values {
		if v != "" { // "" is the default
			values[key] = cmdline.PlainValue(v)
		}
	}
	if values["device"] != "cuda" {
		delete(values, "gpu") // the wizard's device field names the GPU
	}
	stored, others = wizard.Settings{}, otherSettings(values)
	for i := range fields {
		f := &fields[i]
		value, ok := values[f.Key]
		if !ok {
			if f.Key == "model" {
				f.At = 0
			}
			continue
		}
		delete(values, f.Key)
		if f.Key == "gpu" && !slices.ContainsFunc(f.Options, func(o wizard.Option) bool { return o.Value == value }) {
			continue // a GPU that is no longer there
		}
		choose(f, value)
		if value = f.Options[f.At].Value; value != "" {
			stored[f.Key] = value
		}
	}
	delete(values, "device") // part of the device field
	return stored, others
}

// settingsText returns the text of a configuration file.
func settingsText(s wizard.Settings) (string, error) {
	var b strings.Builder
	b.WriteString("# Written by krater setup; krater serve --config reads it.\n")
	for _, k := range slices.Sorted(maps.Keys(s)) {
		value, err := yaml.Marshal(s[k])
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "%s: %s\n", k, strings.TrimSpace(string(value)))
	}
	return b.String(), nil
}

// ownSettings reports whether the file is unchanged since the wizard wrote it, so that replacing it
// loses no one's work.
func ownSettings(path string) bool {
	file, err := cmdline.ReadConfig(path)
	if err != nil {
		return false
	}
	values := wizard.Settings{}
	for key, v := range file.Values {
		values[key] = cmdline.PlainValue(v)
	}
	want, err := settingsText(values)
	if err != nil {
		return false
	}
	got, err := os.ReadFile(path)
	return err == nil && string(got) == want
}

// storeSettings writes a configuration file: completely or not at all.
func storeSettings(path string, s wizard.Settings) error {
	text, err := settingsText(s)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".krater-*.yaml")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails after the rename
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
