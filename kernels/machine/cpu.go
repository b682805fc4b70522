package machine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/klauspost/cpuid/v2"

	"krater/kernels/cpu/level"
)

// CPU is the processors of all sockets. A processor ("CPU" in the kernel's words) is a hardware
// thread, a core has one or more.
type CPU struct {
	Model     string   `json:"model"`
	Online    []int    `json:"online"`    // processors that are on
	Allowed   []int    `json:"allowed"`   // those this process may use
	Cores     int      `json:"cores"`     // of all sockets
	Sockets   int      `json:"sockets"`   //
	Siblings  [][]int  `json:"siblings"`  // processors of each core, by the first
	Governors []string `json:"governors"` // distinct frequency governors, sorted; empty where the system exposes none
	Features  Features `json:"features"`
}

// SMT reports whether cores run several threads.
func (c *CPU) SMT() bool { return c.Cores > 0 && len(c.Online) > c.Cores }

// AllowedCores counts the cores of which this process may use a thread.
func (c *CPU) AllowedCores() int {
	n := 0
	for _, core := range c.Siblings {
		if slices.ContainsFunc(core, func(id int) bool { return slices.Contains(c.Allowed, id) }) {
			n++
		}
	}
	if n == 0 {
		return len(c.Allowed)
	}
	return n
}

// Features are the instruction sets that decide about speed.
type Features struct {
	AVX2       bool `json:"avx2"` // with FMA and BMI2
	AVXVNNI    bool `json:"avx_vnni"`
	AVX512     bool `json:"avx512"`
	AVX512VNNI bool `json:"avx512_vnni"`
	AMXInt8    bool `json:"amx_int8"`
	AMXBF16    bool `json:"amx_bf16"`
}

// String lists the levels and units that are present, or "none".
func (f Features) String() string {
	var names []string
	for _, x := range []struct {
		has  bool
		name string
	}{{f.AVX2, "AVX2"}, {f.AVXVNNI, "AVX-VNNI"}, {f.AVX512, "AVX-512"}, {f.AVX512VNNI, "VNNI"}, {f.AMXInt8, "AMX INT8"}, {f.AMXBF16, "AMX BF16"}} {
		if x.has {
			names = append(names, x.name)
		}
	}
	if names == nil {
		return "none"
	}
	return strings.Join(names, ", ")
}

const cpuFolder = "sys/devices/system/cpu"

func (t tree) cpu() CPU {
	info := t.text("proc/cpuinfo")
	c := CPU{Model: field(info, "model name"), Features: parseFeatures(field(info, "flags"))}
	if c.Online = t.list(cpuFolder + "/online"); c.Online == nil {
		c.Online = processors(info)
	}
	c.Allowed = intersect(t.allowed(c.Online), c.Online)
	sockets := map[string]bool{}
	governors := map[string]bool{}
	seen := map[int]bool{}
	for _, id := range c.Online {
		folder := fmt.Sprintf("%s/cpu%d", cpuFolder, id)
		sockets[t.line(folder+"/topology/physical_package_id")] = true
		if g := t.line(folder + "/cpufreq/scaling_governor"); g != "" {
			governors[g] = true
		}
		if seen[id] {
			continue
		}
		// The list may still name processors that were turned off.
		core := intersect(t.list(folder+"/topology/thread_siblings_list"), c.Online)
		if !slices.Contains(core, id) {
			core = []int{id}
		}
		for _, other := range core {
			seen[other] = true
		}
		c.Siblings = append(c.Siblings, core)
	}
	c.Cores, c.Sockets = len(c.Siblings), len(sockets)
	for g := range governors {
		c.Governors = append(c.Governors, g)
	}
	slices.Sort(c.Governors)
	return c
}

// allowed returns the process's affinity, all processors where it is not told.
func (t tree) allowed(online []int) []int {
	ids, err := parseList(field(t.text("proc/self/status"), "Cpus_allowed_list"))
	if err != nil || len(ids) == 0 {
		return online
	}
	return ids
}

// processors lists those of /proc/cpuinfo.
func processors(info string) []int {
	var ids []int
	for line := range strings.Lines(info) {
		key, value, ok := strings.Cut(line, ":")
		if !ok || strings.TrimSpace(key) != "processor" {
			continue
		}
		if id, err := parseID(value); err == nil && len(ids) < cpuMax {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// parseFeatures reads the flags of /proc/cpuinfo, which leave out what the kernel has turned off.
func parseFeatures(flags string) Features {
	found := map[cpuid.FeatureID]bool{}
	for flag := range strings.FieldsSeq(flags) {
		if flag == "fma" {
			flag = "fma3"
		}
		found[cpuid.ParseFeature(strings.ReplaceAll(flag, "_", ""))] = true
	}
	return featuresOf(func(ids ...cpuid.FeatureID) bool {
		return !slices.ContainsFunc(ids, func(id cpuid.FeatureID) bool { return !found[id] })
	})
}

// featuresOf returns the instruction sets of a processor; has reports single features. A level of
// the kernels counts only if all its features are present.
func featuresOf(has func(...cpuid.FeatureID) bool) Features {
	wide := has(level.AVX512.Features()...)
	return Features{
		AVX2:       has(level.AVX2.Features()...),
		AVXVNNI:    has(level.AVXVNNI.Features()...),
		AVX512:     wide,
		AVX512VNNI: wide && has(cpuid.AVX512VNNI),
		AMXInt8:    wide && has(cpuid.AMXTILE, cpuid.AMXINT8),
		AMXBF16:    wide && has(cpuid.AMXTILE, cpuid.AMXBF16),
	}
}

// intersect keeps the ids of a that are in b; both rise.
func intersect(a, b []int) []int {
	var both []int
	for _, id := range a {
		if _, ok := slices.BinarySearch(b, id); ok {
			both = append(both, id)
		}
	}
	return both
}
