// Package version says what source and toolchain a program was built from.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Number is Krater's version. A release is the commit with the tag v and this number.
const Number = "0.2.0"

// commit and date (YYYY-MM-DD) of the source are set by the linker (see the Makefile). Otherwise
// they come from Go's record of a build in a git checkout.
var commit, date string

// Info describes how a program was built.
type Info struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"` // -dirty at the end: files were changed
	Date    string `json:"date,omitempty"`   // date of the commit
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

// This describes the running program.
func This() Info {
	b := Info{Version: Number, Commit: commit, Date: date, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok || b.Commit != "" {
		return b
	}
	b.Noted(info.Settings)
	return b
}

// Noted reads commit and date from what Go records of a build.
func (b *Info) Noted(settings []debug.BuildSetting) {
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

// String returns the first line of krater version.
func (b Info) String() string {
	text := "krater " + b.Version + " ("
	if b.Commit != "" {
		text += "commit " + b.Commit + ", "
	}
	if b.Date != "" {
		text += b.Date + ", "
	}
	return fmt.Sprintf("%s%s %s/%s)", text, b.Go, b.OS, b.Arch)
}
