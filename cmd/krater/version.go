package main

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"fmt"
	"io"

	"krater/cmd/krater/console"
	"krater/cmd/krater/version"
	"krater/models"
)

// licenses are the licence texts of all linked code, compressed.
//
//go:generate sh -c "cd ../.. && go run ./cmd/licenses"
//go:embed licenses.txt.gz
var licenses []byte

type versionCmd struct {
	Licenses bool `help:"Print the licences and notices of Krater, the built-in model, Go and every library linked in."`
	JSON     bool `name:"json" help:"Print the version as JSON."`
}

// Run implements the command.
func (c *versionCmd) Run(e *console.Env) error {
	b := version.This()
	if c.JSON {
		return console.WriteJSON(e.Out, b)
	}
	fmt.Fprintln(e.Out, b)
	if !c.Licenses {
		return nil
	}
	if notice := models.Notice(); notice != "" {
		fmt.Fprintf(e.Out, "\nThe built-in model, Krater Tiny:\n\n%s\n", notice)
	}
	fmt.Fprint(e.Out, "\nKrater, Go and the linked libraries; each licence text follows the names of the modules that it covers:\n\n")
	z, err := gzip.NewReader(bytes.NewReader(licenses))
	if err != nil {
		return err
	}
	_, err = io.Copy(e.Out, z)
	return err
}
