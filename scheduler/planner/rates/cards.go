package rates

import (
	"slices"
	"strings"
)

// entry is a GPU by name. A driver's name of it has to contain words.
type entry struct {
	name  string
	words []string
	card  Card
}

// makers marks the figures that come out of a data sheet.
func makers(name string, gib, memory, tflops, link float64) Card {
	return Card{
		Name: name, MemoryGiB: gib, MemoryGBps: memory, TFLOPS: tflops, LinkGBps: link,
		Sources: map[string]Source{"memory_gib": Maker, "memory_gbps": Maker, "tflops": Maker, "link_gbps": Maker},
	}
}

// measured and assumed add figures that are.
func (c Card) measured(set func(*Card)) Card { return c.with(Measured, set) }
func (c Card) assumed(set func(*Card)) Card  { return c.with(Assumed, set) }

func (c Card) with(s Source, set func(*Card)) Card {
	before := c
	set(&c)
	was, is := before.figures(), c.figures()
	for i := range is {
		if *is[i].at != *was[i].at {
			c.Sources[is[i].name] = s
		}
	}
	return c
}

// hopper are the figures of an H100 (docs/planner.md says how they were found); those
// of memory are its own.
func hopper(c *Card) {
	c.Dense, c.Experts, c.Attention = Curve{780, 1200}, Curve{510, 43}, Curve{400, 64}
	c.CopyGBps, c.BusyGBps, c.CopyUS = 54.0, 53.7, 3.1
	c.LaunchUS, c.NodeUS, c.Launches = 4.5, 1.6, 8
	c.FlagUS, c.FlagGBps, c.SyncUS = 6.5, 13, 37.7
}

// Links: bytes a second of a PCI express slot, one way, after coding.
const (
	gen4x8  = 15.75
	gen4x16 = 31.5
	gen5x16 = 63.0
)

// entries are the GPUs known by name. Products are dense bfloat16 ones that add in
// float32, without the sparsity that data sheets like to count twice.
var entries = []entry{
	{"rtx-3090", []string{"3090"}, makers("NVIDIA GeForce RTX 3090", 24, 936, 71, gen4x16)},
	{"rtx-4090", []string{"4090"}, makers("NVIDIA GeForce RTX 4090", 24, 1008, 165.2, gen4x16)},
	{"rtx-5090", []string{"5090"}, makers("NVIDIA GeForce RTX 5090", 32, 1792, 209.5, gen5x16)},
	{"rtx-2000-ada", []string{"RTX 2000 Ada"}, makers("NVIDIA RTX 2000 Ada", 16, 224, 48, gen4x8)},
	{"rtx-a6000", []string{"RTX A6000"}, makers("NVIDIA RTX A6000", 48, 768, 154.8, gen4x16)},
	{"l4", []string{"NVIDIA L4"}, makers("NVIDIA L4", 24, 300, 121, gen4x16)},
	{"l40s", []string{"L40S"}, makers("NVIDIA L40S", 48, 864, 362, gen4x16)},
	{"a100-80", []string{"A100", "80GB"}, makers("NVIDIA A100 80GB", 80, 2039, 312, gen4x16)},
	{"h100", []string{"H100", "HBM3"}, makers("NVIDIA H100 80GB HBM3", 80, 3350, 989, gen5x16).measured(func(c *Card) {
		hopper(c)
		c.ReadGBps, c.WeightShare, c.KVShare = 3083, 0.66, 0.55
	})},
	{"h200", []string{"H200"}, makers("NVIDIA H200", 141, 4800, 989, gen5x16).measured(hopper).assumed(func(c *Card) {
		// Kernels of few rows are bound by their instructions: decode was 1.02 to 1.13 times
		// as fast as an H100's with the same program, not 1.4 times (bench/results/gpu.md).
		c.WeightShare, c.KVShare = 0.49, 0.44
	})},
}

// Cards are the names of all known cards.
func Cards() []string {
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.name
	}
	return names
}

// Named returns the GPU of a name of Cards, complete; false if there is none.
func Named(name string) (Card, bool) {
	i := slices.IndexFunc(entries, func(e entry) bool { return e.name == strings.ToLower(name) })
	if i < 0 {
		return Card{}, false
	}
	return entries[i].complete()
}

// Known finds the GPU that a driver calls by name, such as "NVIDIA H100 80GB HBM3".
func Known(name string) (Card, bool) {
	for _, e := range entries {
		if !slices.ContainsFunc(e.words, func(w string) bool { return !strings.Contains(name, w) }) && !longer(name, e.words[0]) {
			return e.complete()
		}
	}
	return Card{}, false
}

// longer reports whether word goes on in name: an L40 is no L4, a 4090D no 4090.
func longer(name, word string) bool {
	_, rest, _ := strings.Cut(name, word)
	return rest != "" && rest[0] != ' ' && rest[0] != '-'
}

func (e *entry) complete() (Card, bool) {
	c, err := e.card.Complete()
	return c, err == nil
}
