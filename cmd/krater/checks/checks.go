// Package checks looks for properties of a machine and a model that make serving slow or
// impossible, and names the remedy of each.
package checks

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"

	"github.com/rs/zerolog"

	"krater/actors/local"
	"krater/actors/local/plan"
	"krater/kernels/cpu"
	"krater/kernels/cpu/level"
	"krater/kernels/cuda"
	"krater/kernels/machine"
	"krater/scheduler/planner"
	"krater/stages/model"
	"krater/stages/source"
)

// Check is one property of the machine: what was found, what is recommended, and what to do if they
// differ. A check only warns.
type Check struct {
	Name        string `json:"name"`
	OK          bool   `json:"ok"`
	Value       string `json:"value"`
	Recommended string `json:"recommended"`
	Fix         string `json:"fix,omitempty"` // remedy, for a check that is not OK
}

// All checks everything that affects speed. dir is the model's folder, "" for the built-in one.
func All(o *plan.Plan, dir string) []Check {
	m := o.Machine
	list := []Check{
		checkFeatures(&m.CPU), checkThreads(m, o.Options.ThreadCount()), checkGovernor(m.CPU.Governors),
		checkNodes(m, o.Nodes), checkSockets(m), checkHuge(m.Huge, o.Memory.Devices[0].Planned),
		checkMemory(m, &o.Memory.Devices[0]), checkDisk(dir, o.Weights()),
	}
	list = append(list, checkGPUs(m)...)
	for i := range list {
		if list[i].OK {
			list[i].Fix = ""
		}
	}
	return list
}

func checkFeatures(c *machine.CPU) Check {
	model := c.Model
	if model == "" {
		model = "unknown processor"
	}
	return Check{
		Name: "processor", OK: c.Features.AVX2, Value: model + ": " + c.Features.String() + "; " + kernelLevel(), Recommended: "AVX2 or better; AVX-512 with VNNI and AMX is fastest",
		Fix: "pass the host's CPU features to the virtual machine (-cpu host); without AVX2 all products run in plain Go",
	}
}

// kernelLevel names the instruction level of the kernels in this process, which KRATER_CPU_LEVEL can lower.
func kernelLevel() string {
	l, err := level.Active()
	if err != nil {
		return err.Error()
	}
	return "kernels of level " + l.String()
}

// checkThreads recommends one thread per core, because a second thread on a core only competes for
// its caches.
func checkThreads(m *machine.Machine, threads int) Check {
	c := &m.CPU
	cores := c.AllowedCores()
	value := fmt.Sprintf("%s on %s (%s)", planner.Count(threads, "thread"), planner.Count(c.Cores, "core"), planner.Count(len(c.Online), "processor"))
	if c.SMT() {
		value += ", SMT on"
	}
	if cores < c.Cores {
		value += fmt.Sprintf(", %d of them allowed", cores)
	}
	recommended, most := "one thread per core", max(1, cores)
	if q := m.Limits.CPUs; q > 0 && q < float64(cores) {
		value += fmt.Sprintf(", limited to %.3g CPUs", q)
		recommended, most = "no more threads than the CPU limit allows", max(1, int(math.Floor(q)))
	}
	return Check{
		Name: "threads", OK: threads <= most, Value: value, Recommended: recommended,
		Fix: fmt.Sprintf("--threads %d, or raise the CPU limit of the container", most),
	}
}

func checkGovernor(governors []string) Check {
	c := Check{Name: "frequency governor", OK: true, Value: "unknown, as in most virtual machines", Recommended: "performance",
		Fix: "sudo cpupower frequency-set -g performance"}
	if len(governors) > 0 {
		c.Value = strings.Join(governors, ", ")
		c.OK = c.Value == "performance"
	}
	return c
}

// nodesShown bounds the nodes of a line.
const nodesShown = 8

// checkNodes checks the machine's NUMA nodes. It mentions those of --fake-topology, too.
func checkNodes(m *machine.Machine, nodes []cpu.Node) Check {
	var parts, bare []string
	for i, n := range m.Nodes {
		if len(n.CPUs) > 0 && n.Total == 0 {
			bare = append(bare, fmt.Sprint(n.ID))
		}
		if i < nodesShown {
			parts = append(parts, fmt.Sprintf("node %d: %s, %s", n.ID, planner.Count(len(n.CPUs), "processor"), planner.Size(n.Total)))
		}
	}
	if more := len(m.Nodes) - len(parts); more > 0 {
		parts = append(parts, fmt.Sprintf("%d more", more))
	}
	value := strings.Join(parts, "; ")
	if len(nodes) > 0 && nodes[0].Fake {
		var threads []string
		for _, n := range nodes {
			threads = append(threads, fmt.Sprint(n.Threads))
		}
		value += fmt.Sprintf("; treated as %s of %s threads", planner.Count(len(nodes), "node"), strings.Join(threads, ", "))
	}
	return Check{
		Name: "NUMA nodes", OK: len(bare) == 0, Value: value, Recommended: "memory at every node that has CPUs",
		Fix: "install memory in the slots of node " + strings.Join(bare, ", "),
	}
}

// largeSocket is the number of cores from which several NUMA nodes on a socket of several dies pay
// off.
const largeSocket = 16

func checkSockets(m *machine.Machine) Check {
	nodes := m.NodesPerSocket()
	c := Check{
		Name: "sockets", OK: true, Recommended: "four nodes per socket on EPYC (NPS4)",
		Value: fmt.Sprintf("%s with %s each", planner.Count(m.CPU.Sockets, "socket"), planner.Count(nodes, "node")),
		Fix:   "set NUMA nodes per socket to NPS4 in the firmware setup",
	}
	if strings.Contains(m.CPU.Model, "EPYC") && m.CPU.Cores/max(1, m.CPU.Sockets) >= largeSocket {
		c.OK = nodes >= 4
	}
	return c
}

// checkHuge recommends huge pages for the planned memory: transparent ones, which the buffers ask
// for, or a pool.
func checkHuge(h machine.HugePages, planned int64) Check {
	thp := h.THP
	if thp == "" {
		thp = "not in this kernel"
	}
	pools := h.GiB.Free<<30 + h.MiB2.Free<<21
	return Check{
		Name: "huge pages", OK: thp == "madvise" || thp == "always" || pools >= planned,
		Value:       fmt.Sprintf("transparent: %s; 1 GiB: %d of %d free; 2 MiB: %d of %d free", thp, h.GiB.Free, h.GiB.Pages, h.MiB2.Free, h.MiB2.Pages),
		Recommended: "transparent huge pages set to madvise or always, or a pool of 1 GiB or 2 MiB pages for the whole plan",
		Fix:         "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
	}
}

func checkMemory(m *machine.Machine, b *planner.Budget) Check {
	c := Check{
		Name: "memory", OK: b.Fits() && !b.Tight(), Recommended: planner.Size(b.Planned) + " for the plan",
		Value: fmt.Sprintf("%s free of %s", planner.Size(m.Available()), planner.Size(m.Total())),
		Fix:   "stop other programs, or lower --kv-cache, --max-seqs or --prefill-chunk",
	}
	switch {
	case m.Total() == 0:
		c.Value = "unknown"
	case m.Total() < m.Memory.Total:
		c.Value += fmt.Sprintf(" (the container's limit; the machine has %s)", planner.Size(m.Memory.Total))
		c.Fix = "raise the memory limit of the container, or lower --kv-cache, --max-seqs or --prefill-chunk"
	}
	return c
}

// checkDisk recommends room for a second, converted copy of the weights.
func checkDisk(dir string, weights int64) Check {
	if dir == "" {
		dir = "."
	}
	c := Check{Name: "disk", OK: true, Value: "unknown", Recommended: planner.Size(weights) + " for a copy of the weights", Fix: "free some space, or move the model to a larger disk"}
	free, err := machine.FreeDisk(dir)
	if err != nil {
		return c
	}
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	c.Value, c.OK = fmt.Sprintf("%s free at %s", planner.Size(free), dir), free >= weights
	return c
}

func checkGPUs(m *machine.Machine) []Check {
	if len(m.GPUs) == 0 {
		return []Check{checkNoGPU(local.Usable())}
	}
	driver := Check{Name: "GPU driver", OK: m.Driver != "", Value: m.Driver, Recommended: "the NVIDIA kernel module", Fix: "install the NVIDIA driver and load its module"}
	if m.Driver == "" {
		driver.Value = "none"
	}
	list := []Check{driver}
	for _, g := range m.GPUs {
		c := Check{
			Name: "GPU " + g.Address, OK: g.Link.Width == g.LinkMax.Width,
			Value: g.Name + ", PCIe link unknown", Recommended: "a link of full width (its speed may drop while idle)",
			Fix: "seat the GPU in a slot with all lanes; see lspci -vv, LnkSta",
		}
		if g.Link.Width > 0 {
			c.Value = fmt.Sprintf("%s, PCIe x%d of x%d, %g of %g GT/s", g.Name, g.Link.Width, g.LinkMax.Width, g.Link.Speed, g.LinkMax.Speed)
		}
		list = append(list, c)
	}
	return list
}

// checkNoGPU returns the check for a machine whose bus shows no GPU. missing says why --device cuda
// cannot work.
func checkNoGPU(missing error) Check {
	c := Check{Name: "GPU", OK: true, Value: "none", Recommended: "none needed: this build computes on the CPU"}
	switch {
	case errors.Is(missing, cuda.ErrNotBuilt):
	case missing != nil:
		c.Value, c.Recommended = fmt.Sprintf("none: %v", missing), "nothing for --device cpu; --device cuda needs a GPU and its driver, and a container needs access to both"
	default:
		c.Value, c.Recommended = "the driver reports one that the PCI bus does not show", "nothing; its link cannot be checked here"
	}
	return c
}

// Warn logs the checks that failed, one line each.
func Warn(log zerolog.Logger, list []Check) {
	for _, c := range list {
		if !c.OK {
			log.Warn().Str("check", c.Name).Str("value", c.Value).Str("recommended", c.Recommended).Str("fix", c.Fix).Msg("a setting of this machine makes serving slower")
		}
	}
}

// CheckFiles returns the check of the model's files, as doctor shows it.
func CheckFiles(s *source.Source, cfg *model.Config) Check {
	c := Check{Name: "model files", OK: true, Value: "whole", Recommended: "complete files that match each other"}
	if !s.HasWeights() && s.Dir != "" {
		c.Value = "no weights; the plan uses config.json only"
	}
	if err := s.Check(cfg, s.HasWeights()); err != nil {
		c.OK, c.Value, c.Fix = false, strings.ReplaceAll(err.Error(), "\n", "; "), "download the faulty files again; no command can load the model as it is"
	}
	return c
}

// CheckEnd checks that some token ends answers.
func CheckEnd(s *source.Source, cfg *model.Config, gen model.Generation) Check {
	c := Check{Name: "end token", Value: "none", Recommended: "a token that ends answers", Fix: "eos_token in tokenizer_config.json, or eos_token_id in generation_config.json; without one, answers continue to max_tokens or the end of the context"}
	if tok, _, err := s.Tokenizer(); err == nil {
		var names []string
		for _, id := range s.StopIDs(cfg, gen, tok) {
			text, _ := tok.TokenBytes(id)
			names = append(names, fmt.Sprintf("%d %.40q", id, text))
		}
		if c.OK = len(names) > 0; c.OK {
			c.Value, c.Fix = strings.Join(names, ", "), ""
		}
	}
	return c
}
