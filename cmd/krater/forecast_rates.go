package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"

	"krater/bench/cards"
	"krater/bench/kernels"
	"krater/cmd/krater/console"
	"krater/kernels/machine"
	"krater/scheduler/files"
	"krater/scheduler/planner/rates"
	"krater/stages/model"
)

// machineOf is the machine a plan is for.
type machineOf = *machine.Machine

// errUnmeasured: there is no card here whose times are true.
var errUnmeasured = errors.New("no card was measured")

// kernelMeter measures by the benches of single kernels.
type kernelMeter struct {
	seconds float64
	bytes   int64 // working set
}

// usualMeter takes some ten seconds and a gigabyte.
var usualMeter = kernelMeter{8, 800e6}

// The rows of an expert at which products are measured: a curve goes through both.
const fewRows, manyRows = 4, 96

// CPU implements meter.
func (k kernelMeter) CPU(threads, bits int, available int64, tell console.Telling) (rates.CPU, error) {
	rep, err := kernels.Run(kernels.Options{
		Threads: []int{threads}, Seconds: k.seconds, Bytes: k.bytes, Available: available, Rows: []int{fewRows, manyRows}, Progress: tell,
	})
	if err != nil {
		return rates.CPU{}, err
	}
	return cpuOf(rep, cpuName(), threads, bits)
}

// cpuOf turns a report of kernels into rates.
func cpuOf(rep *kernels.Report, name string, threads, bits int) (rates.CPU, error) {
	format := "int4_g128"
	if bits == 8 {
		format = "int8"
	}
	find := func(name string) (kernels.Kernel, error) {
		for _, k := range rep.Kernels {
			if k.Name == name && k.Threads == threads {
				return k, nil
			}
		}
		return kernels.Kernel{}, fmt.Errorf("measured no %s", name)
	}
	experts, err := find("experts_" + format)
	few, err2 := find(fmt.Sprintf("gemm_%s_m%d", format, fewRows))
	many, err3 := find(fmt.Sprintf("gemm_%s_m%d", format, manyRows))
	if err := errors.Join(err, err2, err3); err != nil {
		return rates.CPU{}, err
	}
	c := rates.CPU{Name: name, Threads: threads, ReadGBps: rep.ReadGBps, DecodeShare: experts.GBps / rep.ReadGBps, Experts: curveThrough(fewRows, few.GOPS, manyRows, many.GOPS)}
	c.DecodeShare = min(c.DecodeShare, 2)
	c.Sources = map[string]rates.Source{}
	for _, f := range []string{"read_gbps", "decode_share", "experts.peak", "experts.half_rows"} {
		c.Sources[f] = rates.Measured
	}
	return c.Complete()
}

// curveThrough has the rates few and many, in GOP/s, at fewRows and manyRows, of which the
// latter are past its half.
func curveThrough(fewRows, few, manyRows, many float64) rates.Curve {
	if few >= many { // noise, or as fast as can be
		return rates.Curve{Peak: max(few, many) / 1e3}
	}
	// No curve grows as fast as the rows, or faster: then it is half of its peak at manyRows.
	half := manyRows
	if d := few/fewRows - many/manyRows; d > 0 {
		half = min(half, (many-few)/d)
	}
	return rates.Curve{Peak: many / 1e3 * (manyRows + half) / manyRows, Half: half}
}

// measure measures the processors, and the card where there is one, and keeps the result
// for later plans.
func (c *planCmd) measure(e *console.Env, m machineOf, cfg *model.Config) error {
	f := &c.engineFlags
	p, err := f.precision(cfg, false, false)
	if err != nil {
		return err
	}
	var with console.Meter = usualMeter
	if e.Meter != nil {
		with = e.Meter
	}
	threads := f.threads()
	defer e.Shown().End()
	e.Say("measuring this machine, some 10 s")
	got, err := with.CPU(threads, p.Experts, m.Available(), e.Measuring)
	if err != nil {
		return fmt.Errorf("--measure: %w", err)
	}
	file := rates.File{Machine: identity(m, threads), CPU: &got}
	switch card, err := with.Card(f.CardIndex, e.Measuring); {
	case err == nil:
		file.Card = &card
	case !errors.Is(err, errUnmeasured):
		return fmt.Errorf("--measure: %w", err)
	case len(m.GPUs) > 0 || errors.Is(err, cards.ErrEmulated):
		e.Say("--measure:", err)
	}
	if err := keepRates(f.CacheDir, file); err != nil { // it is good for this plan all the same
		e.Say("the measured rates are not kept:", err)
	}
	c.measured = &file
	return nil
}

// startMeter is quicker: a start waits for it.
var startMeter = kernelMeter{4, 800e6}

// sameCard tells whether kept rates are of a card of that name and memory; 0: of any.
func sameCard(kept *rates.File, name string, bytes int64) bool {
	if kept == nil || kept.Card == nil || kept.Card.Name != name {
		return false
	}
	const gib = 1 << 30
	return bytes == 0 || math.Abs(kept.Card.MemoryGiB-float64(bytes)/gib) < 1.0/1024 // as text has it
}

// measureOnce gives the rates that are kept of this machine and a card of that name and memory,
// measured now and kept where one of them is not, unless a flag says that nothing is to be; nil:
// there are none. bits are those of experts on the processors; apart does work while nobody else has
// the card open. Whatever fails, a start goes on without. An emulated card is not measured, nor is
// what stands beside it.
func (f *engineFlags) measureOnce(e *console.Env, card string, bytes int64, bits int, apart func(work func())) *rates.File {
	m, threads := e.Here(), f.threads()
	id := identity(m, threads)
	kept := keptRates(f.CacheDir, id)
	has := sameCard(kept, card, bytes)
	if f.NoMeasure || has && kept.CPU != nil {
		return kept
	}
	var with console.Meter = startMeter
	if e.Meter != nil {
		with = e.Meter
	}
	file := rates.File{Machine: id}
	if kept != nil {
		file = *kept
	}
	defer e.Shown().End()
	e.Say("measuring", card, "and the processors to choose strategies by, once for this machine, some 10 s; --no-measure goes without")
	var err error
	if !has {
		var got rates.Card
		apart(func() { got, err = with.Card(f.CardIndex, e.Measuring) })
		if err == nil {
			if got.Name = card; bytes > 0 {
				got.MemoryGiB = float64(bytes) / (1 << 30)
			}
			file.Card = &got
		}
	}
	if err == nil && file.CPU == nil {
		var got rates.CPU
		if got, err = with.CPU(threads, bits, m.Available(), e.Measuring); err == nil {
			file.CPU = &got
		}
	}
	if err != nil {
		e.Say("going on without:", err)
	}
	if !sameCard(&file, card, bytes) {
		return kept
	}
	if err := keepRates(f.CacheDir, file); err != nil { // they are good for this start all the same
		e.Say("the measured rates are not kept:", err)
	}
	return &file
}

// measureVersion changes whenever what is measured means something else.
const measureVersion = 1

// identity names the machine as far as its rates depend on it.
func identity(m machineOf, threads int) string {
	names := make([]string, len(m.GPUs))
	for i, g := range m.GPUs {
		names[i] = g.Name
	}
	text, err := json.Marshal(struct {
		Version, Threads, Cores, Sockets, Nodes int
		CPU                                     string
		Features                                machine.Features
		Allowed                                 []int
		Quota                                   float64
		Memory                                  int64
		GPUs                                    []string
		Driver                                  string
	}{measureVersion, threads, m.CPU.Cores, m.CPU.Sockets, len(m.Nodes), m.CPU.Model, m.CPU.Features, m.CPU.Allowed, m.Limits.CPUs, m.Memory.Total, names, m.Driver})
	if err != nil { // a quota that is no number
		text = []byte(m.CPU.Model)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// ratesPath is where rates of a machine are kept: in a folder, or the user's cache
// folder.
func ratesPath(dir, id string) (string, error) {
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(user, "krater")
	}
	return filepath.Join(dir, "rates-"+id+".json"), nil
}

// keepRates writes what was measured; a plan that reads at the same time finds the old
// file or the new one.
func keepRates(dir string, f rates.File) error {
	data, err := f.Bytes()
	if err != nil {
		return err
	}
	path, err := ratesPath(dir, f.Machine)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".rates-*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		os.Remove(tmp.Name())
	}
	return err
}

// keptRates reads what was measured on a machine before; nil where there is nothing, or
// nothing that can be used.
func keptRates(dir, id string) *rates.File {
	path, err := ratesPath(dir, id)
	if err != nil {
		return nil
	}
	f, err := readRates(path)
	if err != nil || f.Machine != id {
		return nil
	}
	return f
}

// readRates reads a description.
func readRates(path string) (*rates.File, error) {
	data, err := files.Read(path, rates.FileMost)
	if err != nil {
		return nil, err
	}
	r, err := rates.Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// defaultCard stands in where there is no card and none is named.
const defaultCard = "rtx-4090"

// knownRates says where a plan's rates are from.
type knownRates struct {
	Card string `json:"card"`
	CPU  string `json:"cpu"`
	here bool   // the processors are this machine's
}

// cpuAssumed is said of processors' rates that nobody has measured here.
const cpuAssumed = "assumed; --measure measures them"

// rates finds the rates that flags and machine give.
func (p *planFlags) rates(m machineOf, f *engineFlags) (r rates.Rates, known knownRates, err error) {
	threads := f.threads()
	kept := p.measured
	if kept == nil {
		kept = keptRates(f.CacheDir, identity(m, threads))
	}
	file, err := p.card(&r.Card, &known, m, kept)
	if err != nil {
		return r, known, err
	}
	switch {
	case p.CPU != "":
		given, err := readRates(p.CPU)
		if err == nil && given.CPU == nil {
			err = fmt.Errorf("%s: it describes no processors", p.CPU)
		}
		if err != nil {
			return r, known, fmt.Errorf("--cpu: %w", err)
		}
		r.CPU, known.CPU = *given.CPU, p.CPU
	case file != nil && file.CPU != nil:
		r.CPU, known.CPU = *file.CPU, p.Card
	case kept != nil && kept.CPU != nil:
		r.CPU, known.CPU, known.here = *kept.CPU, "measured on this machine", true
	default:
		r.CPU = rates.AssumedCPU(m.CPU.Model, threads, m.CPU.Sockets, levelOf(m.CPU.Features))
		known.CPU, known.here = cpuAssumed, true
	}
	if r.CPU, err = r.CPU.Complete(); err == nil {
		r.Card, err = r.Card.Complete()
	}
	return r, known, err
}

// errUnknownCard: a card whose rates nobody has measured or described.
var errUnknownCard = errors.New("nothing is known of the card")

// card finds the card and, if it came from one, the file.
func (p *planFlags) card(card *rates.Card, known *knownRates, m machineOf, kept *rates.File) (*rates.File, error) {
	if p.Card != "" {
		if c, ok := rates.Named(p.Card); ok {
			*card, known.Card = c, "as asked for"
			return nil, nil
		}
		file, err := readRates(p.Card)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("--card %s: neither a known card (%s) nor a file", p.Card, strings.Join(rates.Cards(), ", "))
		case err != nil:
			return nil, fmt.Errorf("--card: %w", err)
		case file.Card == nil:
			return nil, fmt.Errorf("--card: %s: it describes no card", p.Card)
		}
		*card, known.Card = *file.Card, p.Card
		return file, nil
	}
	if kept != nil && kept.Card != nil {
		*card, known.Card = *kept.Card, "measured on this machine"
		return nil, nil
	}
	for _, g := range m.GPUs {
		if c, ok := rates.Known(g.Name); ok {
			*card, known.Card = c, "the card of this machine"
			return nil, nil
		}
	}
	if len(m.GPUs) > 0 {
		return nil, fmt.Errorf("%w %s: describe it in a file, or name one like it: --card %s", errUnknownCard, m.GPUs[0].Name, strings.Join(rates.Cards(), ", "))
	}
	*card, _ = rates.Named(defaultCard)
	known.Card = "an example, because this machine has no GPU; --card NAME plans for another one"
	return nil, nil
}

// levelOf is the instructions that experts are multiplied with.
func levelOf(f machine.Features) rates.Level {
	switch {
	case f.AMXInt8:
		return rates.Matrix
	case f.AVX512VNNI:
		return rates.VNNI
	case f.AVX2:
		return rates.AVX2
	}
	return rates.Plain
}
