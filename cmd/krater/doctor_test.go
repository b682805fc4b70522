package main

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"krater/cmd/krater/checks"
	"krater/cmd/krater/cmdline"
	"krater/cmd/krater/console"
	"krater/kernels/cpu/level"
	"krater/kernels/machine"
	"krater/stages/load"
)

const gib = 1 << 30

// goodMachine is one that no check complains of, with 2 threads.
func goodMachine() *machine.Machine {
	return &machine.Machine{
		CPU: machine.CPU{
			Model: "Good Processor", Online: []int{0, 1, 2, 3}, Allowed: []int{0, 1, 2, 3}, Cores: 4, Sockets: 1,
			Siblings: [][]int{{0}, {1}, {2}, {3}}, Governors: []string{"performance"},
			Features: machine.Features{AVX2: true, AVX512: true, AVX512VNNI: true},
		},
		Nodes:  []machine.Node{{CPUs: []int{0, 1, 2, 3}, Total: 8 * gib, Free: 7 * gib}},
		Memory: machine.Memory{Total: 8 * gib, Free: 6 * gib, Available: 7 * gib},
		Huge:   machine.HugePages{THP: "madvise"},
	}
}

// on runs a command line on a made-up machine. A server that goes on instead of
// being refused fails the test.
func on(t *testing.T, m *machine.Machine, args ...string) outcome {
	t.Helper()
	var out, err bytes.Buffer
	ended := make(chan int, 1)
	go func() {
		ended <- run(args, &console.Env{Out: &out, Err: &err, Machine: func() *machine.Machine { return m }})
	}()
	select {
	case status := <-ended:
		return outcome{status, out.String(), err.String()}
	case <-time.After(patience):
		t.Fatalf("krater %s does not end", strings.Join(args, " "))
		return outcome{}
	}
}

// report runs krater doctor --json on a made-up machine.
func report(t *testing.T, m *machine.Machine, status int, args ...string) doctorReport {
	t.Helper()
	o := on(t, m, append([]string{"doctor", "--json", "--threads", "2"}, args...)...)
	if o.status != status || o.err != "" {
		t.Fatalf("status %d, want %d\n%s", o.status, status, o.err)
	}
	return decode[doctorReport](t, o.out)
}

// bad names the checks that are not fine.
func bad(r doctorReport) []string {
	var names []string
	for _, c := range r.Checks {
		if !c.OK {
			names = append(names, c.Name)
		}
	}
	return names
}

func TestDoctor(t *testing.T) {
	o := on(t, goodMachine(), "doctor", "--threads", "2")
	if o.status != 0 || o.err != "" {
		t.Fatalf("status %d\n%s", o.status, o.err)
	}
	for _, words := range []string{
		"Good Processor: AVX2, AVX-512, VNNI", "2 threads on 4 cores", "performance", "node 0: 4 processors, 8.0 GiB", "1 socket with 1 node each",
		"transparent: madvise", "7.0 GiB free of 8.0 GiB", "free at /", "krater-tiny needs", "6 layers of 32, BF16", "KV cache", "runtime", "fits: 7.0 GiB free of 8.0 GiB",
	} {
		if !strings.Contains(o.out, words) {
			t.Errorf("it does not say %q:\n%s", words, o.out)
		}
	}
	if strings.Contains(o.out, "warn") || strings.Contains(o.out, "fix:") {
		t.Errorf("a good machine is warned of:\n%s", o.out)
	}
}

// TestDoctorJSON: the report has the plan in numbers and sums up.
func TestDoctorJSON(t *testing.T) {
	r := report(t, goodMachine(), 0, "--model", modelDir, "--kv-cache", "64MiB", "--layer-groups", "3")
	b := r.Plan.Devices[0]
	if !r.Fits || r.Model != "krater-tiny" || b.Total != 8*gib || b.Available != 7*gib || r.Machine.CPU.Cores != 4 {
		t.Errorf("%+v", r)
	}
	sum, kv := int64(0), int64(0)
	for _, c := range b.Components {
		sum += c.Bytes
		if c.Name == load.KVCache.String() {
			kv = c.Bytes
		}
	}
	if sum != b.Planned || sum == 0 {
		t.Errorf("the parts are %d bytes, the whole %d", sum, b.Planned)
	}
	if kv > 64<<20 || kv < 63<<20 {
		t.Errorf("the KV cache takes %d bytes", kv)
	}
	if names := bad(r); names != nil {
		t.Errorf("a good machine is warned of %v", names)
	}
}

// TestDoctorNamesLevel: the level is that of the kernels that run, not the best of the machine.
func TestDoctorNamesLevel(t *testing.T) {
	want, err := level.Active()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range report(t, goodMachine(), 0).Checks {
		if c.Name == "processor" && !strings.HasSuffix(c.Value, "; kernels of level "+want.String()) {
			t.Errorf("processor: %q, the kernels' level is %s", c.Value, want)
		}
	}
}

// TestDoctorWarns: each fault of a machine is one warning that says what to do,
// and refuses nothing.
func TestDoctorWarns(t *testing.T) {
	for name, x := range map[string]struct {
		spoil func(*machine.Machine)
		check string
		words []string // of value and fix
	}{
		"features":  {func(m *machine.Machine) { m.CPU.Features = machine.Features{} }, "processor", []string{"none", "-cpu host"}},
		"SMT":       {func(m *machine.Machine) { m.CPU.Cores, m.CPU.Siblings = 1, [][]int{{0, 1, 2, 3}} }, "threads", []string{"SMT on", "--threads 1"}},
		"affinity":  {func(m *machine.Machine) { m.CPU.Allowed = []int{3} }, "threads", []string{"1 of them allowed", "--threads 1"}},
		"quota":     {func(m *machine.Machine) { m.Limits.CPUs = 1.5 }, "threads", []string{"limited to 1.5 CPUs", "--threads 1"}},
		"governor":  {func(m *machine.Machine) { m.CPU.Governors = []string{"performance", "powersave"} }, "frequency governor", []string{"powersave", "cpupower"}},
		"node":      {func(m *machine.Machine) { m.Nodes = append(m.Nodes, machine.Node{ID: 1, CPUs: []int{3}}) }, "NUMA nodes", []string{"node 1: 1 processor, 0 B", "slots of node 1"}},
		"NPS1":      {func(m *machine.Machine) { m.CPU.Model, m.CPU.Cores = "AMD EPYC 9654", 96 }, "sockets", []string{"1 node each", "NPS4"}},
		"THP":       {func(m *machine.Machine) { m.Huge.THP = "never" }, "huge pages", []string{"transparent: never", "madvise"}},
		"no THP":    {func(m *machine.Machine) { m.Huge.THP = "" }, "huge pages", []string{"not in this kernel"}},
		"tight":     {func(m *machine.Machine) { m.Memory.Available = 100 << 20 }, "memory", []string{"100.0 MiB free of 8.0 GiB", "other programs"}},
		"container": {func(m *machine.Machine) { m.Limits.Memory, m.Limits.Used = gib/2, gib/2-1<<20 }, "memory", []string{"1.0 MiB free of 512.0 MiB", "the machine has 8.0 GiB", "memory limit of the container"}},
		"link": {func(m *machine.Machine) {
			m.Driver, m.GPUs = "570.1", []machine.GPU{{Address: "0000:01:00.0", Name: "H100", Link: machine.Link{Width: 8, Speed: 2.5}, LinkMax: machine.Link{Width: 16, Speed: 32}}}
		}, "GPU 0000:01:00.0", []string{"H100, PCIe x8 of x16, 2.5 of 32 GT/s", "LnkSta"}},
		"driver": {func(m *machine.Machine) { m.GPUs = []machine.GPU{{Address: "0000:01:00.0", Name: "10de:2330"}} }, "GPU driver", []string{"none", "install"}},
	} {
		m := goodMachine()
		x.spoil(m)
		r := report(t, m, 0)
		if names := bad(r); !slices.Equal(names, []string{x.check}) {
			t.Errorf("%s: warned of %q", name, names)
			continue
		}
		c := r.Checks[slices.IndexFunc(r.Checks, func(c checks.Check) bool { return !c.OK })]
		for _, w := range x.words {
			if !strings.Contains(c.Value+"|"+c.Fix, w) {
				t.Errorf("%s: %+v does not say %q", name, c, w)
			}
		}
		if c.Recommended == "" || c.Fix == "" {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

// TestDoctorUnknownMachine: where nothing can be read, nothing is complained of
// but what would cost most.
func TestDoctorUnknownMachine(t *testing.T) {
	r := report(t, &machine.Machine{}, 0)
	if names := bad(r); !slices.Equal(names, []string{"processor", "threads", "huge pages"}) {
		t.Errorf("warned of %q", names)
	}
	if !r.Fits || math.IsNaN(r.Plan.Devices[0].Share()) {
		t.Errorf("%+v", r.Plan)
	}
}

// TestDoctorReadsNoWeights: a folder with a config alone is enough, and flags
// are checked.
func TestDoctorReadsNoWeights(t *testing.T) {
	dir := t.TempDir()
	data, err := os.ReadFile(filepath.Join(modelDir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := report(t, goodMachine(), 0, "--model", dir); r.Plan.Devices[0].Planned < 90<<20 {
		t.Errorf("%+v", r.Plan)
	}
	refuses(t, 1, []string{"doctor", "--model", t.TempDir()}, "config.json")
	refuses(t, 1, []string{"doctor", "--threads=-1"}, "--threads")
	refuses(t, 1, []string{"doctor", "--kv-cache", "1B"}, "--kv-cache", "block")
}

// TestRefusal: over 95 % of the memory, a container's limit included, the whole
// table is shown and nothing is loaded; --force goes on.
func TestRefusal(t *testing.T) {
	small := goodMachine()
	small.Memory = machine.Memory{Total: 100 << 20, Free: 90 << 20, Available: 90 << 20}
	container := goodMachine()
	container.Limits.Memory = 100 << 20
	for name, m := range map[string]*machine.Machine{"small": small, "container": container} {
		if r := report(t, m, 1); r.Fits {
			t.Errorf("%s: the report says that it fits", name)
		}
		if o := on(t, m, "doctor"); o.status != 1 || !strings.Contains(o.out, "DOES NOT FIT: over 95 % of 100.0 MiB") {
			t.Errorf("%s: status %d\n%s", name, o.status, o.out)
		}
		for _, args := range [][]string{{"run", "--max-tokens", "1", lighthouse}, {"serve", "--listen", "127.0.0.1:0", "--log-format", "json"}} {
			o := on(t, m, args...)
			if o.status != 1 || strings.Contains(o.err, "model loaded") {
				t.Errorf("%s: %s: status %d", name, args[0], o.status)
			}
			for _, words := range []string{"experts", "KV cache", "batch states", "runtime", "DOES NOT FIT: over 95 % of 100.0 MiB", "--kv-cache", "--force"} {
				if !strings.Contains(o.err, words) {
					t.Errorf("%s: %s does not say %q:\n%s", name, args[0], words, o.err)
				}
			}
		}
		o := on(t, m, "run", "--force", "--max-tokens", "3", lighthouse)
		if o.status != 0 || !strings.HasPrefix(readGolden(t).Prompts[0].Answer, strings.TrimSuffix(o.out, "\n")) {
			t.Errorf("%s: forced: status %d, %q", name, o.status, o.out)
		}
		if !strings.Contains(o.err, "continuing because of --force") || !strings.Contains(o.err, "DOES NOT FIT") {
			t.Errorf("%s: forced: %s", name, o.err)
		}
	}
}

// TestCacheInContainer: the default KV cache is a part of what the container
// leaves, not of the host.
func TestCacheInContainer(t *testing.T) {
	m := goodMachine()
	m.Memory = machine.Memory{Total: 256 * gib, Free: 200 * gib, Available: 200 * gib}
	m.Limits.Memory, m.Limits.Used = gib, gib/2
	r := report(t, m, 0, "--max-seqs", "4096")
	for _, c := range r.Plan.Devices[0].Components {
		if c.Name == load.KVCache.String() && (c.Bytes > gib/8 || c.Bytes < gib/16) {
			t.Errorf("%d bytes of KV cache with 512 MiB left", c.Bytes)
		}
	}
}

// TestServeLogsChecks: a warning a check, and plan and reality after the load in
// one line.
func TestServeLogsChecks(t *testing.T) {
	m := goodMachine()
	m.CPU.Governors, m.Huge.THP = []string{"powersave"}, "never"
	var c cli
	ctx, file, err := cmdline.Parse(&c, []string{"serve", "--threads", "2"})
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	e := &console.Env{Out: &text, Err: &text, Ctx: ctx, File: file, Machine: func() *machine.Machine { return m }}
	p, free, err := c.Serve.load(t.Context(), e, newLoadingEngine("krater-tiny", nil, e.Shown()), zerolog.New(&text))
	if err != nil {
		t.Fatal(err)
	}
	defer free()
	defer p.Close()
	type line struct {
		Level, Check, Value, Recommended, Fix, Message string
		Planned                                        int64 `json:"planned_bytes"`
		Resident                                       int64 `json:"resident_bytes"`
		Promised                                       int64 `json:"planned_allocation_bytes"`
		Allocated                                      int64 `json:"allocated_bytes"`
	}
	var warned []string
	measured := false
	for text := range strings.Lines(text.String()) {
		l := decode[line](t, text)
		if l.Level == "warn" && l.Check != "" {
			warned = append(warned, l.Check)
			if l.Value == "" || l.Recommended == "" || l.Fix == "" {
				t.Errorf("%s", text)
			}
		}
		if l.Planned > 0 {
			measured = true
			if l.Promised != l.Allocated || l.Resident == 0 {
				t.Errorf("%s", text)
			}
		}
	}
	if !slices.Equal(warned, []string{"frequency governor", "huge pages"}) || !measured {
		t.Errorf("warned of %q, measured %t:\n%s", warned, measured, text.String())
	}
}
