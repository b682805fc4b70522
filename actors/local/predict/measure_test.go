package predict

import (
	"errors"
	"strings"
	"testing"

	"krater/actors/local/config"
	"krater/kernels/machine"
	"krater/kernels/tensor"
	"krater/scheduler/planner/rates"
)

// TestMeasuresOnce: the first start on a GPU measures what is not kept of the machine, in one
// line; later starts take that. What cannot be measured keeps nobody from going on.
func TestMeasuresOnce(t *testing.T) {
	const mine = "NVIDIA Mine"
	card, _ := rates.Named("rtx-4090")
	card.Name = "as another program calls it"
	cpu := rates.CPU{Name: "Tried", Threads: 2, ReadGBps: 77, DecodeShare: 1, Experts: rates.Curve{Peak: 1}, LayerUS: 1}
	f := &fakeMeter{cpu: cpu, card: &card}
	dir, memory, lent := t.TempDir(), int64(24<<30), 0
	apart := func(work func()) {
		lent++
		work()
	}
	start := func(with *fakeMeter, name string, changes ...func(*config.Options)) (*rates.File, string) {
		t.Helper()
		o := config.Default()
		o.Device, o.Threads, o.CacheDir = config.CUDA, 2, dir
		for _, change := range changes {
			change(&o)
		}
		var told lines
		got := MeasureOnce(&o, someMachine(), with, told.reporter(), config.RankFacts{Name: name, Capacity: memory}, tensor.INT4.By(128), apart)
		return got, told.String()
	}
	if got, told := start(f, mine, noMeasure); got != nil || told != "" || f.threads != 0 {
		t.Errorf("--no-measure: %+v, %s", got, told)
	}
	// Emulated, or with its memory in use: nothing is measured, nothing kept.
	if got, told := start(&fakeMeter{cpu: cpu}, mine); got != nil || !strings.Contains(told, errNothing.Error()) {
		t.Errorf("%+v, %s", got, told)
	}
	got, told := start(f, mine)
	if got == nil || got.Card == nil || got.CPU == nil || got.Card.Name != mine || got.CPU.ReadGBps != 77 || f.threads != 2 || f.experts != tensor.INT4.By(128) {
		t.Fatalf("%+v: %s", got, told)
	}
	if lent != 2 {
		t.Errorf("the GPU was lent %d times", lent)
	}
	if strings.Count(told, "\n") != 1 || !strings.Contains(told, "measuring "+mine) || !strings.Contains(told, "--no-measure") {
		t.Errorf("%q", told)
	}
	for _, changes := range [][]func(*config.Options){nil, {noMeasure}} {
		if got, told := start(&fakeMeter{}, mine, changes...); told != "" || got == nil || got.CPU == nil || got.CPU.ReadGBps != 77 || got.Card.Name != mine {
			t.Errorf("later: %+v, %q", got, told)
		}
	}
	if lent != 2 {
		t.Error("the GPU was lent although its rates are kept")
	}
	// Another GPU is measured, and one of more memory; the processors are not again.
	f.threads = 0
	memory *= 2
	if got, told := start(f, mine); got == nil || got.Card.MemoryGiB != 48 || !strings.Contains(told, "measuring") || f.threads != 0 {
		t.Errorf("%+v: %s", got, told)
	}
	if _, told := start(&fakeMeter{}, mine); told != "" {
		t.Error(told)
	}
	if got, _ := start(f, "NVIDIA Other"); got == nil || got.Card.Name != "NVIDIA Other" || got.CPU.ReadGBps != 77 || f.threads != 0 {
		t.Errorf("%+v, %d", got, f.threads)
	}
	older := someMachine()
	newer := someMachine()
	newer.Driver = "580.1"
	if Identity(older, 2) == Identity(newer, 2) {
		t.Error("rates of another driver are taken")
	}
	// Other threads, another machine as far as rates go.
	if got, _ := start(&fakeMeter{}, mine, func(o *config.Options) { o.Threads = 3 }); got != nil {
		t.Errorf("%+v", got)
	}
}

func noMeasure(o *config.Options) { o.NoMeasure = true }

// someMachine is one of any kind.
func someMachine() *machine.Machine {
	return &machine.Machine{CPU: machine.CPU{Model: "Some Processor", Cores: 4, Sockets: 1, Features: machine.Features{AVX2: true}}}
}

// lines collects the lines that a reporter receives.
type lines struct{ strings.Builder }

func (l *lines) reporter() config.Reporter {
	tell := func(line string) { l.WriteString(line + "\n") }
	return config.Reporter{Notice: tell, Info: tell}.Complete()
}

var errNothing = errors.New("nothing to measure")

// fakeMeter measures what it is told to.
type fakeMeter struct {
	cpu     rates.CPU
	card    *rates.Card
	threads int
	experts tensor.Format
}

func (f *fakeMeter) CPU(threads int, experts tensor.Format, _ int64, _ config.Telling) (rates.CPU, error) {
	f.threads, f.experts = threads, experts
	return f.cpu, nil
}

func (f *fakeMeter) Card(int, config.Telling) (rates.Card, error) {
	if f.card == nil {
		return rates.Card{}, errNothing
	}
	return *f.card, nil
}
