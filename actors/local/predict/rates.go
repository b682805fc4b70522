package predict

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

	"krater/actors/local/config"
	"krater/kernels/machine"
	"krater/kernels/tensor"
	"krater/scheduler/files"
	"krater/scheduler/planner/rates"
)

// sameGPU reports whether kept rates are of a GPU of that name and memory; 0: any memory.
func sameGPU(kept *rates.File, name string, bytes int64) bool {
	if kept == nil || kept.Card == nil || kept.Card.Name != name {
		return false
	}
	const gib = 1 << 30
	return bytes == 0 || math.Abs(kept.Card.MemoryGiB-float64(bytes)/gib) < 1.0/1024 // as text has it
}

// MeasureOnce returns the kept rates of a machine and a GPU. It first measures and keeps those that
// are missing, unless an option forbids it; nil: there are none. experts is the format of experts on
// the CPU. apart runs work while no one else has the GPU open. A failure does not stop the start. An
// emulated GPU and its host are not measured.
func MeasureOnce(f *config.Options, m *machine.Machine, with Meter, r config.Reporter, on config.RankFacts, experts tensor.Format, apart func(work func())) *rates.File {
	threads := f.ThreadCount()
	id := Identity(m, threads)
	kept := Kept(f.CacheDir, id)
	has := sameGPU(kept, on.Name, on.Capacity)
	if f.NoMeasure || has && kept.CPU != nil {
		return kept
	}
	file := rates.File{Machine: id}
	if kept != nil {
		file = *kept
	}
	defer r.End()
	r.Info(fmt.Sprintf("measuring %s and the CPUs to choose strategies; this takes about 10 s, once per machine, and --no-measure skips it", on.Name))
	var err error
	if !has {
		var got rates.Card
		apart(func() { got, err = with.Card(f.GPUIndex, r.Measured) })
		if err == nil {
			if got.Name = on.Name; on.Capacity > 0 {
				got.MemoryGiB = float64(on.Capacity) / (1 << 30)
			}
			file.Card = &got
		}
	}
	if err == nil && file.CPU == nil {
		var got rates.CPU
		if got, err = with.CPU(threads, experts, m.Available(), r.Measured); err == nil {
			file.CPU = &got
		}
	}
	if err != nil {
		r.Notice(fmt.Sprintf("continuing without measured rates: %v", err))
	}
	if !sameGPU(&file, on.Name, on.Capacity) {
		return kept
	}
	if err := KeepRates(f.CacheDir, file); err != nil { // they are still good for this start
		r.Notice(fmt.Sprintf("the measured rates are not kept: %v", err))
	}
	return &file
}

// Meter measures rates of this machine.
type Meter interface {
	// CPU measures the CPU with the given threads on experts in a format.
	CPU(threads int, experts tensor.Format, available int64, tell config.Telling) (rates.CPU, error)
	// Card measures the GPU with this index.
	Card(index int, tell config.Telling) (rates.Card, error)
}

// measureVersion changes whenever the meaning of a measured rate changes.
const measureVersion = 1

// Identity names the machine as far as its rates depend on it.
func Identity(m *machine.Machine, threads int) string {
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
	if err != nil { // the quota is not a number
		text = []byte(m.CPU.Model)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// RatesPath returns where the rates of a machine are kept: in the given folder, or in the user's
// cache folder.
func RatesPath(dir, id string) (string, error) {
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(user, "krater")
	}
	return filepath.Join(dir, "rates-"+id+".json"), nil
}

// KeepRates writes the measured rates. A plan that reads at the same time finds the old file or the
// new one.
func KeepRates(dir string, f rates.File) error {
	data, err := f.Bytes()
	if err != nil {
		return err
	}
	path, err := RatesPath(dir, f.Machine)
	if err != nil {
		return err
	}
	return replaceFile(path, ".rates-*", data)
}

// replaceFile writes a file in its folder, which is made. A reader finds the old file or the new one.
func replaceFile(path, pattern string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), pattern)
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

// Kept returns the rates measured on a machine before; nil if there are none that can be used.
func Kept(dir, id string) *rates.File {
	path, err := RatesPath(dir, id)
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

// defaultGPU stands in for a missing GPU if none is named.
const defaultGPU = "rtx-4090"

// Known says where the rates of a plan come from.
type Known struct {
	Card string `json:"card"`
	CPU  string `json:"cpu"`
	here bool   // the CPU is this machine's
}

// CPUAssumed describes CPU rates that nothing has measured on this machine.
const CPUAssumed = "assumed; --measure measures them"

// Rates finds the rates that options and machine call for.
func (p *Flags) Rates(m *machine.Machine, f *config.Options) (r rates.Rates, known Known, err error) {
	threads := f.ThreadCount()
	kept := p.Measured
	if kept == nil {
		kept = Kept(f.CacheDir, Identity(m, threads))
	}
	file, err := p.card(&r.Card, &known, m, kept)
	if err != nil {
		return r, known, err
	}
	switch {
	case p.CPU != "":
		given, err := readRates(p.CPU)
		if err == nil && given.CPU == nil {
			err = fmt.Errorf("%s: it describes no CPUs", p.CPU)
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
		known.CPU, known.here = CPUAssumed, true
	}
	if r.CPU, err = r.CPU.Complete(); err == nil {
		r.Card, err = r.Card.Complete()
	}
	return r, known, err
}

// ErrUnknownGPU: the rates of the GPU are neither measured nor described.
var ErrUnknownGPU = errors.New("no rates are known for the GPU")

// card finds the GPU, and the file if it came from one.
func (p *Flags) card(card *rates.Card, known *Known, m *machine.Machine, kept *rates.File) (*rates.File, error) {
	if p.Card != "" {
		if c, ok := rates.Named(p.Card); ok {
			*card, known.Card = c, "named by --card"
			return nil, nil
		}
		file, err := readRates(p.Card)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("--card %s: neither a known GPU (%s) nor a file", p.Card, strings.Join(rates.Cards(), ", "))
		case err != nil:
			return nil, fmt.Errorf("--card: %w", err)
		case file.Card == nil:
			return nil, fmt.Errorf("--card: %s: it describes no GPU", p.Card)
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
			*card, known.Card = c, "this machine's GPU"
			return nil, nil
		}
	}
	if len(m.GPUs) > 0 {
		return nil, fmt.Errorf("%w %s: describe it in a file, or name a similar one with --card %s", ErrUnknownGPU, m.GPUs[0].Name, strings.Join(rates.Cards(), ", "))
	}
	*card, _ = rates.Named(defaultGPU)
	known.Card = "an example, because this machine has no GPU; --card NAME plans for another one"
	return nil, nil
}

// levelOf returns the instruction set for products with experts.
func levelOf(f machine.Features) rates.Level {
	switch {
	case f.AMXInt8:
		return rates.Matrix
	case f.AVX512VNNI, f.AVXVNNI:
		return rates.VNNI
	case f.AVX2:
		return rates.AVX2
	}
	return rates.Plain
}
