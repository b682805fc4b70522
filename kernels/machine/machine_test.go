package machine

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// files is a made-up tree: content by path.
type files map[string]string

func (f files) read() *Machine {
	fs := fstest.MapFS{}
	for path, text := range f {
		fs[path] = &fstest.MapFile{Data: []byte(text)}
	}
	return Read(fs)
}

// with adds to a copy of f.
func (f files) with(more files) files {
	all := files{}
	for _, m := range []files{f, more} {
		for path, text := range m {
			all[path] = text
		}
	}
	return all
}

// without leaves out what begins with a prefix.
func (f files) without(prefix string) files {
	rest := files{}
	for path, text := range f {
		if !strings.HasPrefix(path, prefix) {
			rest[path] = text
		}
	}
	return rest
}

const desktopFlags = "fpu sse avx avx2 f16c fma bmi2 avx512f avx512dq avx512bw avx512vl avx512_vnni"

// desktop has 4 cores of two threads; processor 7 is turned off.
func desktop() files {
	f := files{
		"proc/meminfo":                                               "MemTotal:       32000000 kB\nMemFree:         1000000 kB\nMemAvailable:   30000000 kB\nHugePages_Total:       0\n",
		"proc/self/status":                                           "Name:\tkrater\nVmRSS:\t    2048 kB\nCpus_allowed:\tff\nCpus_allowed_list:\t0-7\n",
		"sys/devices/system/cpu/online":                              "0-6\n",
		"sys/devices/system/node/online":                             "0\n",
		"sys/devices/system/node/node0/cpulist":                      "0-6\n",
		"sys/devices/system/node/node0/meminfo":                      "\nNode 0 MemTotal:       32000000 kB\nNode 0 MemFree:         1000000 kB\n",
		"sys/kernel/mm/transparent_hugepage/enabled":                 "always [madvise] never\n",
		"sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages":      "512\n",
		"sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages":    "500\n",
		"sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages":   "3\n",
		"sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages": "2\n",
	}
	var info strings.Builder
	for i := range 8 {
		if i < 7 {
			fmt.Fprintf(&info, "processor\t: %d\nmodel name\t: Some Processor 9\nflags\t\t: %s\n\n", i, desktopFlags)
		}
		folder := fmt.Sprintf("sys/devices/system/cpu/cpu%d/", i)
		f[folder+"topology/physical_package_id"] = "0\n"
		f[folder+"topology/thread_siblings_list"] = fmt.Sprintf("%d,%d\n", i%4, i%4+4)
		f[folder+"cpufreq/scaling_governor"] = []string{"powersave\n", "performance\n"}[i%2]
	}
	f["proc/cpuinfo"] = info.String()
	return f
}

func TestDesktop(t *testing.T) {
	m := desktop().read()
	c := &m.CPU
	if c.Model != "Some Processor 9" || !slices.Equal(c.Online, []int{0, 1, 2, 3, 4, 5, 6}) || c.Cores != 4 || c.Sockets != 1 || !c.SMT() {
		t.Errorf("%+v", c)
	}
	if want := [][]int{{0, 4}, {1, 5}, {2, 6}, {3}}; !reflect.DeepEqual(c.Siblings, want) {
		t.Errorf("siblings %v, want %v: processor 7 is off", c.Siblings, want)
	}
	if want := []string{"performance", "powersave"}; !slices.Equal(c.Governors, want) {
		t.Errorf("governors %v", c.Governors)
	}
	if c.Features != (Features{AVX2: true, AVX512: true, AVX512VNNI: true}) || c.Features.String() != "AVX2, AVX-512, VNNI" {
		t.Errorf("features %v", c.Features)
	}
	if want := (Memory{Total: 32000000 << 10, Free: 1000000 << 10, Available: 30000000 << 10}); m.Memory != want {
		t.Errorf("memory %+v", m.Memory)
	}
	if want := (HugePages{GiB: Pool{3, 2}, MiB2: Pool{512, 500}, THP: "madvise"}); m.Huge != want {
		t.Errorf("huge pages %+v", m.Huge)
	}
	if want := []Node{{ID: 0, CPUs: c.Online, Total: 32000000 << 10, Free: 1000000 << 10}}; !reflect.DeepEqual(m.Nodes, want) {
		t.Errorf("nodes %+v", m.Nodes)
	}
	if m.Limits != (Limits{}) || m.GPUs != nil || m.Driver != "" || m.Total() != m.Memory.Total || m.Available() != m.Memory.Available {
		t.Errorf("%+v", m)
	}
}

func TestAffinity(t *testing.T) {
	for _, x := range []struct {
		list  string
		want  []int
		cores int
	}{
		{"0-7", []int{0, 1, 2, 3, 4, 5, 6}, 4}, {"1,5", []int{1, 5}, 1}, {"1-2", []int{1, 2}, 2},
		{"what", []int{0, 1, 2, 3, 4, 5, 6}, 4},
	} {
		m := desktop().with(files{"proc/self/status": "Cpus_allowed_list:\t" + x.list + "\n"}).read()
		if !slices.Equal(m.CPU.Allowed, x.want) || m.CPU.AllowedCores() != x.cores {
			t.Errorf("%s: %v, %d cores", x.list, m.CPU.Allowed, m.CPU.AllowedCores())
		}
	}
}

// TestNothing: an empty tree, and one with rubbish in every file, are read.
func TestNothing(t *testing.T) {
	if m := (files{}).read(); !reflect.DeepEqual(m, &Machine{}) {
		t.Errorf("out of nothing: %+v", m)
	}
	rubbish := files{}
	for path := range gpuHost() {
		rubbish[path] = "9999999999999999999999-[:,\x00 kB\n:::\n"
	}
	m := rubbish.read()
	if m.Total() != 0 || len(m.CPU.Online) != 0 || m.Limits != (Limits{}) || m.Driver != "" || m.Huge != (HugePages{}) {
		t.Errorf("out of rubbish: %+v", m)
	}
}

// TestHere: on any machine there is a processor, a node and, with /proc, memory.
func TestHere(t *testing.T) {
	m := Here()
	if len(m.CPU.Online) == 0 || len(m.CPU.Allowed) == 0 || m.CPU.Cores < 1 || m.CPU.Sockets < 1 || len(m.Nodes) == 0 {
		t.Errorf("%+v", m)
	}
	if m.Memory.Total > 0 && (Resident() == 0 || m.Available() == 0 || m.Available() > m.Total()) {
		t.Errorf("resident %d, available %d of %d", Resident(), m.Available(), m.Total())
	}
	if free, err := FreeDisk("."); err != nil || free <= 0 {
		t.Errorf("disk: %d, %v", free, err)
	}
	if _, err := FreeDisk("no such folder"); err == nil {
		t.Error("free space of a folder that is not there")
	}
}

// server has two sockets with five nodes: uneven ones, one of processors only and one of memory
// only. Node 5 is not on.
func server() files {
	f := files{
		"proc/meminfo":                     "MemTotal: 700 kB\nMemAvailable: 600 kB\n",
		"sys/devices/system/cpu/online":    "0-9\n",
		"sys/devices/system/node/online":   "0-4\n",
		"sys/devices/system/node/possible": "0-7\n",
	}
	for i := range 10 {
		folder := fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/", i)
		f[folder+"physical_package_id"] = fmt.Sprintln(i / 5)
		f[folder+"thread_siblings_list"] = fmt.Sprintln(i)
	}
	for i, x := range []struct {
		cpus string
		kb   int
	}{{"0-3", 400}, {"4", 100}, {"5-6,10-12", 150}, {"7-9", 0}, {"", 50}, {"13", 70}} {
		folder := fmt.Sprintf("sys/devices/system/node/node%d/", i)
		f[folder+"cpulist"] = x.cpus + "\n"
		f[folder+"meminfo"] = fmt.Sprintf("Node %d MemTotal:  %d kB\nNode %d MemFree: %d kB\n", i, x.kb, i, x.kb/2)
	}
	return f
}

func TestNodes(t *testing.T) {
	want := []Node{
		{0, []int{0, 1, 2, 3}, 400 << 10, 200 << 10},
		{1, []int{4}, 100 << 10, 50 << 10},
		{2, []int{5, 6}, 150 << 10, 75 << 10},
		{3, []int{7, 8, 9}, 0, 0},
		{4, nil, 50 << 10, 25 << 10},
	}
	for name, f := range map[string]files{
		"list":    server(),
		"folders": server().without("sys/devices/system/node/online").without("sys/devices/system/node/node5"),
	} {
		m := f.read()
		if !reflect.DeepEqual(m.Nodes, want) {
			t.Errorf("%s: %+v", name, m.Nodes)
		}
		if m.CPU.Sockets != 2 || m.CPU.SMT() || m.NodesPerSocket() != 2 {
			t.Errorf("%s: %d sockets, %d nodes each", name, m.CPU.Sockets, m.NodesPerSocket())
		}
	}
	// A lone node that does not know of memory added later.
	m := desktop().with(files{nodeFolder + "/node0/meminfo": "Node 0 MemTotal: 5 kB\nNode 0 MemFree: 4 kB\n"}).read()
	if len(m.Nodes) != 1 || m.Nodes[0].Total != m.Memory.Total || m.Nodes[0].Free != m.Memory.Free {
		t.Errorf("lone node: %+v", m.Nodes)
	}
	// A kernel without NUMA.
	m = server().without("sys/devices/system/node").read()
	if len(m.Nodes) != 1 || len(m.Nodes[0].CPUs) != 10 || m.Nodes[0].Total != 700<<10 {
		t.Errorf("without NUMA: %+v", m.Nodes)
	}
}

// gpuHost has three GPUs: one on a narrow link, one that only the driver shows, one of another
// maker.
func gpuHost() files {
	f := desktop()
	card := func(address string, more files) {
		for name, text := range more {
			f["sys/bus/pci/devices/"+address+"/"+name] = text + "\n"
		}
	}
	card("0000:00:02.0", files{"class": "0x030000", "vendor": "0x8086", "device": "0x1234"})
	card("0000:01:00.0", files{"class": "0x030200", "vendor": "0x10de", "device": "0x2330", "numa_node": "1",
		"current_link_width": "8", "max_link_width": "16", "current_link_speed": "2.5 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe"})
	card("0000:01:00.1", files{"class": "0x040300", "vendor": "0x10de", "device": "0x22ba"}) // its sound
	card("0000:02:00.0", files{"class": "0x030000", "vendor": "0x10de", "device": "0x2684", "numa_node": "-1",
		"current_link_width": "63", "max_link_width": "255", "current_link_speed": "Unknown", "max_link_speed": "Unknown"})
	f["proc/driver/nvidia/version"] = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs)\nGCC version:  gcc 12\n"
	f["proc/driver/nvidia/gpus/0000:01:00.0/information"] = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 99\n"
	f["proc/driver/nvidia/gpus/0000:05:00.0/information"] = "Model: \t\t NVIDIA L4\n"
	return f
}

func TestGPUs(t *testing.T) {
	m := gpuHost().read()
	want := []GPU{
		{"0000:01:00.0", "NVIDIA H100 80GB HBM3", 1, Link{8, 2.5}, Link{16, 32}},
		{"0000:02:00.0", "10de:2684", -1, Link{}, Link{}},
		{"0000:05:00.0", "NVIDIA L4", -1, Link{}, Link{}},
	}
	if !reflect.DeepEqual(m.GPUs, want) || m.Driver != "570.86.15" {
		t.Errorf("driver %q, cards %+v", m.Driver, m.GPUs)
	}
	m = gpuHost().without("proc/driver").read()
	if len(m.GPUs) != 2 || m.GPUs[0].Name != "10de:2330" || m.Driver != "" {
		t.Errorf("without a driver %q: %+v", m.Driver, m.GPUs)
	}
	if v := driverVersion("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024\n"); v != "550.54.14" {
		t.Errorf("driver %q", v)
	}
}
