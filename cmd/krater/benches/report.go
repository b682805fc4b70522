package benches

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"krater/bench/meter"
	"krater/bench/plot"
	"krater/cmd/krater/console"
	"krater/cmd/krater/term"
	"krater/cmd/krater/version"
)

// Output selects the forms of a report.
type Output struct {
	JSON bool   `name:"json" help:"Print the report as JSON."`
	Keep string `name:"json-file" help:"Also write the report as JSON into a file." type:"path" placeholder:"FILE"`
	Plot string `help:"Also draw the report into a file: .svg or .png." type:"path" placeholder:"FILE"`
}

// Check refuses a file name that cannot be drawn to, before anything is measured.
func (o *Output) Check() error {
	if o.Plot == "" {
		return nil
	}
	return plot.CheckPath(o.Plot)
}

// drawable is a report that can be printed and drawn.
type drawable interface {
	Text(io.Writer) error
	Charts() []plot.Chart
}

// write prints, draws and saves a report. whole is the JSON form.
func (o *Output) write(e *console.Env, h benchHost, r drawable, whole any) error {
	if o.Plot != "" {
		if err := plot.Save(o.Plot, r.Charts()...); err != nil {
			return err
		}
	}
	if o.Keep != "" {
		var text bytes.Buffer
		if err := errors.Join(console.WriteJSON(&text, whole), os.WriteFile(o.Keep, text.Bytes(), 0o644)); err != nil {
			return err
		}
	}
	if o.JSON {
		return console.WriteJSON(e.Out, whole)
	}
	if err := console.Sentence(e.Out, "%s, %s, revision %s", h.CPU, h.GoVersion, h.Revision); err != nil {
		return err
	}
	fmt.Fprintln(e.Out)
	return r.Text(term.Paint(e.Out, console.TableRules...))
}

// benchHost describes the machine and program of a report.
type benchHost struct {
	CPU       string `json:"cpu"`
	GoVersion string `json:"go"`
	Revision  string `json:"revision"`
}

func host() benchHost {
	b := version.This()
	return benchHost{CPU: meter.CPUName(), GoVersion: b.Go, Revision: cmp.Or(b.Commit, b.Version)}
}

func microseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
