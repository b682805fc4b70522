// Package local is an engine in this process. It finds a model, plans its memory, loads it on the
// devices that the options name, and starts the pipeline of actors. Open does all of that; a
// program that wants to see the plan first calls Prepare, Model.Load, Model.Pipeline and
// Model.Gateway.
package local

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/rs/zerolog"

	"krater/actors"
	"krater/actors/local/config"
	"krater/actors/local/plan"
	"krater/actors/local/predict"
	"krater/kernels/machine"
	"krater/kernels/tensor"
	"krater/scheduler/planner/rates"
	"krater/stages/source"
)

// Config says which model to load, and how. The zero value is the built-in model with the default
// options.
type Config struct {
	Model   string         // folder of the model, or ORG/MODEL in Hugging Face's cache; "": the built-in one
	Source  *source.Source // instead of Model
	Name    string         // name for clients; "": the folder's
	Options config.Options // zero: config.Default
	Log     zerolog.Logger // log of the pipeline
	config.Case
	Machine *machine.Machine // nil: this one
	Meter   predict.Meter    // measures rates of the machine that no earlier start has kept; nil: do not measure
	Report  config.Reporter  // receives progress and notices; nil functions are skipped
}

// complete fills in the defaults of a config.
func (c *Config) complete() (err error) {
	if c.Options == (config.Options{}) {
		c.Options = config.Default()
	}
	if c.Machine == nil {
		c.Machine = machine.Here()
	}
	c.Report = c.Report.Complete()
	if c.Source == nil {
		c.Source, err = source.Open(c.Model)
	}
	return err
}

// Engine is a loaded model that answers requests. Close frees it.
type Engine struct {
	*actors.Gateway
	Model    *Model
	Pipeline *actors.Pipeline // the first; see Served
	served   *Served
}

// Open loads a model and starts its pipeline. ctx can cancel the load only.
func Open(ctx context.Context, c Config) (*Engine, error) {
	c.Served = true
	m, err := Load(ctx, c)
	if err != nil {
		return nil, err
	}
	e := &Engine{Model: m}
	if e.served, err = m.Serve(c.Log); err == nil {
		e.Pipeline = e.served.Pipeline()
		e.Gateway, err = m.Gateway(e.Pipeline, c.Name)
	}
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// Close ends running answers and frees the model.
func (e *Engine) Close() (err error) {
	if e.served != nil {
		err = e.served.Close()
	}
	e.Model.Close()
	return err
}

// Load prepares a model and loads it. It reports which strategies were chosen.
func Load(ctx context.Context, c Config) (*Model, error) {
	m, err := Prepare(c)
	if err != nil {
		return nil, err
	}
	if !m.Plan.Memory.Fits() {
		m.report.Notice(fmt.Sprint("continuing because of --force: ", m.Plan.Memory.Check()))
	}
	if line := m.Plan.Chosen(); line != "" {
		m.report.Info(line)
	}
	if err := m.Load(ctx); err != nil {
		return nil, err
	}
	return m, nil
}

// Prepare reads a model's config, opens the GPU that the options ask for, and plans the memory. A
// plan that does not fit is an error unless the options force it.
func Prepare(c Config) (*Model, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	m := &Model{Source: c.Source, report: c.Report, config: c}
	var err error
	if m.Config, m.Gen, err = c.Source.Config(); err != nil {
		return nil, err
	}
	if err = c.Source.Check(m.Config, c.Served); err != nil {
		return nil, err
	}
	devices, f, err := Settle(c.Options, c.Report)
	if err != nil {
		return nil, err
	}
	places, err := f.Places()
	if err != nil {
		return nil, err
	}
	for i, r := range devices {
		m.Ranks = append(m.Ranks, &Part{Rank: r, place: places[i]})
	}
	FactsOf(devices, &c.Case)
	if m.Helper, err = newHelper(&f, places[0]); err != nil {
		CloseRanks(devices)
		return nil, fmt.Errorf("model %s: %w", c.Source.Name, err)
	}
	m.Helper.facts(&c.Case)
	if at := slices.IndexFunc(m.Ranks, (*Part).onGPU); at >= 0 && c.Meter != nil {
		apart := func(work func()) { err = m.lend(&f, work) }
		c.Measure = func(experts tensor.Format) *rates.File {
			g := f.Of(at, places[at])
			return predict.MeasureOnce(&g, c.Machine, c.Meter, c.Report, c.Ranks[at], experts, apart)
		}
	}
	planned, planErr := plan.New(m.Config, c.Source.TokenizerSize(), f, c.Case, c.Machine)
	if m.Plan = planned; err == nil {
		err = planErr
	}
	if err == nil {
		err = m.Plan.Refusal()
	}
	if err != nil {
		for _, p := range m.Ranks {
			p.closeDevice()
		}
		m.Helper.closeDevice()
		return nil, fmt.Errorf("model %s: %w", c.Source.Name, err)
	}
	for i, p := range m.Plan.Each() {
		m.Ranks[i].Plan = p
	}
	if m.Plan.Helper == nil && m.Helper != nil {
		m.report.Notice(fmt.Sprintf("--expert-device has no part: %s", m.Plan.Unhelped))
		m.Helper.closeDevice()
		m.Helper = nil
	}
	return m, nil
}
