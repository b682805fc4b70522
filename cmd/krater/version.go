package main

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"krater/cmd/krater/console"
	"krater/models"
)

// version is Krater's number. A release is the commit with the tag v and this number.
const version = "0.2.0"

// commit and date (YYYY-MM-DD) of the source are set by the linker (see the Makefile); else they
// are what Go notes of a build in a git checkout.
var commit, date string

// licenses are the texts of all that is linked in, compressed.
//
//go:generate sh -c "cd ../.. && go run ./cmd/licenses"
//go:embed licenses.txt.gz
var licenses []byte

type versionCmd struct {
	Licenses bool `help:"Print the licences and notices of Krater, the built-in model, Go and every library linked in."`
	JSON     bool `name:"json" help:"Print the version as JSON."`
}

// build is what a program was made of.
type build struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"` // -dirty behind it: the files were changed
	Date    string `json:"date,omitempty"`   // of the commit
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

// thisBuild is the running program's.
func thisBuild() build {
	b := build{Version: version, Commit: commit, Date: date, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok || b.Commit != "" {
		return b
	}
	b.noted(info.Settings)
	return b
}

// noted takes commit and date from what Go notes of a build.
func (b *build) noted(settings []debug.BuildSetting) {
	dirty := ""
	for _, s := range settings {
		switch {
		case s.Key == "vcs.revision":
			b.Commit = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.time":
			b.Date = s.Value[:min(len("2006-01-02"), len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	if b.Commit != "" {
		b.Commit += dirty
	}
}

// String is the first line of krater version.
func (b build) String() string {
	text := "krater " + b.Version + " ("
	if b.Commit != "" {
		text += "commit " + b.Commit + ", "
	}
	if b.Date != "" {
		text += b.Date + ", "
	}
	return fmt.Sprintf("%s%s %s/%s)", text, b.Go, b.OS, b.Arch)
}

// Run implements the command.
func (c *versionCmd) Run(e *console.Env) error {
	b := thisBuild()
	if c.JSON {
		return console.WriteJSON(e.Out, b)
	}
	fmt.Fprintln(e.Out, b)
	if !c.Licenses {
		return nil
	}
	if notice := models.Notice(); notice != "" {
		fmt.Fprintf(e.Out, "\nThe embedded model, Krater Tiny:\n\n%s\n", notice)
	}
	fmt.Fprint(e.Out, "\nKrater, Go and the libraries linked in, each text below the names of those that it is of:\n\n")
	z, err := gzip.NewReader(bytes.NewReader(licenses))
	if err != nil {
		return err
	}
	_, err = io.Copy(e.Out, z)
	return err
}
