package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"krater/actors/local"
	"krater/actors/local/config"
	"krater/actors/local/plan"
	"krater/actors/local/predict"
	"krater/cmd/krater/checks"
	"krater/cmd/krater/console"
	"krater/cmd/krater/term"
	"krater/kernels/machine"
	"krater/scheduler/planner"
	"krater/stages/source"
)

type doctorCmd struct {
	source.Folder
	config.Options
	JSON bool `name:"json" help:"Print JSON."`
}

// doctorReport is the output of krater doctor --json.
type doctorReport struct {
	Model   string           `json:"model"`
	Checks  []checks.Check   `json:"checks"`
	Plan    *planner.Plan    `json:"plan"`
	Fits    bool             `json:"fits"`
	Machine *machine.Machine `json:"machine"`
	// Strategies is the recommendation of krater plan for the machine's GPU; "" without one.
	Strategies string `json:"strategies,omitempty"`
}

// Run implements the command. It looks at the machine and at the model's files, and reads no
// weights. The exit status reports whether the files are complete and the plan fits.
func (c *doctorCmd) Run(e *console.Env) error {
	src, err := source.Open(c.Model)
	if err != nil {
		return err
	}
	cfg, gen, err := src.Config()
	if err != nil {
		return err
	}
	devices, f, err := local.Settle(c.Options, console.ReportOn(e))
	if err != nil {
		return err
	}
	l := config.Case{}
	local.FactsOf(devices, &l)
	defer local.CloseRanks(devices)
	o, err := plan.New(cfg, src.TokenizerSize(), f, l, e.Here())
	if err != nil {
		return err
	}
	whole := checks.CheckFiles(src, cfg)
	list := append(checks.All(o, c.Model), whole)
	if whole.OK && src.HasTokenizer() {
		list = append(list, checks.CheckEnd(src, cfg, gen))
	}
	r := &doctorReport{Model: src.Name, Checks: list, Plan: o.Memory, Fits: o.Memory.Fits(), Machine: o.Machine}
	with := *o.Machine
	if gpu := devices[0].GPU; gpu != nil { // the bus may be hidden from a container
		with.GPUs = []machine.GPU{{Name: gpu.Describe()}}
	}
	r.Strategies = predict.Advice(src.Name, cfg, &f, &with, l.Rank.Memory)
	if c.JSON {
		enc := json.NewEncoder(e.Out)
		enc.SetIndent("", "  ")
		err = enc.Encode(r)
	} else {
		err = r.print(term.Paint(e.Out, console.DoctorRules...))
	}
	if err == nil && !(r.Fits && whole.OK) {
		err = console.ExitError(1)
	}
	return err
}

// print writes one line per check, and the table of the plan.
func (r *doctorReport) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, c := range r.Checks {
		state := "ok"
		if !c.OK {
			state = "warn"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n\t\trecommended: %s\n", state, c.Name, c.Value, c.Recommended)
		if c.Fix != "" {
			fmt.Fprintf(w, "\t\tfix: %s\n", c.Fix)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "\n%s needs\n\n%s\n", r.Model, r.Plan)
	if err == nil && r.Strategies != "" {
		_, err = fmt.Fprintf(out, "\n%s\n", r.Strategies)
	}
	return err
}
