package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"krater/models"
)

// version is set by the linker (see the Makefile).
var version = "dev"

type versionCmd struct {
	Licenses bool `help:"Print the licence, the notice that travels with the embedded model, and the libraries linked."`
	JSON     bool `name:"json" help:"Print the version as JSON."`
}

// Run implements the command.
func (c *versionCmd) Run(e *env) error {
	if c.JSON {
		return writeJSON(e.out, map[string]string{"version": version, "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH})
	}
	fmt.Fprintf(e.out, "krater %s (%s %s/%s)\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	if !c.Licenses {
		return nil
	}
	fmt.Fprintln(e.out, "\nKrater is licensed under the Apache License, Version 2.0")
	fmt.Fprintln(e.out, "(http://www.apache.org/licenses/LICENSE-2.0).")
	if notice := models.Notice(); notice != "" {
		fmt.Fprintf(e.out, "\nThe embedded model, Krater Tiny:\n\n%s", notice)
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	fmt.Fprintln(e.out, "\nLibraries linked into this program, each under its own licence:")
	for _, m := range info.Deps {
		fmt.Fprintf(e.out, "  %s %s\n", m.Path, m.Version)
	}
	return nil
}
