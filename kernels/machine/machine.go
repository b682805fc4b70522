// Package machine describes the machine, as /proc and /sys report it: CPU, NUMA nodes, memory and
// the part of it that a container may use, huge pages, GPUs. It loads nothing, changes nothing and
// runs no benchmark. Every source may be missing (a container hides some, and other systems have
// none): a value that cannot be read is zero, and no combination is an error.
package machine

import (
	"io"
	"io/fs"
	"os"
	"runtime"
	"strings"

	"github.com/klauspost/cpuid/v2"
)

// Machine is a description of a machine. Sizes are in bytes, 0 if unknown.
type Machine struct {
	CPU    CPU       `json:"cpu"`
	Nodes  []Node    `json:"nodes"` // by rising id; never empty after Here
	Memory Memory    `json:"memory"`
	Huge   HugePages `json:"huge_pages"`
	Limits Limits    `json:"limits"`
	GPUs   []GPU     `json:"gpus"`
	Driver string    `json:"driver"` // version of the NVIDIA kernel module, "" without one
}

// Total returns the memory a process here can have: the machine's, or the container's limit where
// that is less.
func (m *Machine) Total() int64 { return least(m.Memory.Total, m.Limits.Memory) }

// Available returns the memory that is available now without swapping, within the container's
// limit.
func (m *Machine) Available() int64 {
	if m.Limits.Memory == 0 || m.Limits.Memory >= m.Memory.Total && m.Memory.Total > 0 {
		return m.Memory.Available
	}
	return least(m.Memory.Available, max(1, m.Limits.Memory-m.Limits.Used))
}

// least returns the smaller of two sizes of which 0 means unknown.
func least(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// Here reads this machine. Processor and core count come from the processor itself where the system
// does not tell them.
func Here() *Machine {
	m := Read(os.DirFS("/"))
	if m.CPU.Model == "" {
		m.CPU.Model = cpuid.CPU.BrandName
	}
	if m.CPU.Features == (Features{}) {
		m.CPU.Features = featuresOf(cpuid.CPU.Supports)
	}
	if len(m.CPU.Online) == 0 {
		for i := range runtime.NumCPU() {
			m.CPU.Online = append(m.CPU.Online, i)
		}
		m.CPU.Allowed, m.CPU.Cores, m.CPU.Sockets = m.CPU.Online, len(m.CPU.Online), 1
	}
	if len(m.Nodes) == 0 {
		m.Nodes = []Node{{CPUs: m.CPU.Online, Total: m.Memory.Total, Free: m.Memory.Available}}
	}
	return m
}

// Read reads the machine whose root folder is root: proc and sys are looked for in it.
func Read(root fs.FS) *Machine {
	t := tree{root}
	m := &Machine{Memory: t.memory(), Huge: t.hugePages(), Limits: t.limits(), CPU: t.cpu()}
	m.Nodes = t.nodes(m.CPU.Online, m.Memory)
	m.GPUs, m.Driver = t.gpus()
	return m
}

// fileMaxBytes bounds the size of one file; /proc/cpuinfo of 1,024 processors has about 2 MB.
const fileMaxBytes = 8 << 20

// tree reads small files; what cannot be read is "".
type tree struct{ fs fs.FS }

// text returns a file's content, "" where there is none.
func (t tree) text(path string) string {
	f, err := t.fs.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, fileMaxBytes))
	if err != nil {
		return ""
	}
	return string(data)
}

// line is a file of one line.
func (t tree) line(path string) string { return strings.TrimSpace(t.text(path)) }

// names lists a folder, nothing where there is none.
func (t tree) names(path string) []string {
	entries, err := fs.ReadDir(t.fs, path)
	if err != nil {
		return nil
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}
