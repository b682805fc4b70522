// Package rates describes the speed of a machine for the planner: a GPU, the CPUs, and the link
// between them. Each figure says whether it is the maker's, measured or assumed. The package also
// reads and writes the file that holds the figures.
package rates

import "fmt"

// Rates holds the rates of one machine. A figure of 0 is not known; Complete fills it in.
type Rates struct {
	Card Card `json:"card"`
	CPU  CPU  `json:"cpu"`
}

// Curve is a rate that grows with the number of rows that share a weight. With m rows the rate is
// Peak * m / (m + Half), so it is half of Peak with Half rows.
type Curve struct {
	Peak float64 `json:"peak"`      // 10^12 operations a second; a multiply and an add are two
	Half float64 `json:"half_rows"` // rows
}

// At returns the rate with m rows, in operations per second.
func (c Curve) At(m float64) float64 {
	if m <= 0 {
		return 0
	}
	return 1e12 * c.Peak * m / (m + c.Half)
}

// Card describes a GPU, its kernels and its link to the host.
type Card struct {
	Name      string  `json:"name"`
	MemoryGiB float64 `json:"memory_gib"`
	// MemoryGBps is the maker's rate of the GPU's memory, ReadGBps the rate that a kernel reaches which
	// only reads.
	MemoryGBps float64 `json:"memory_gbps"`
	ReadGBps   float64 `json:"read_gbps"`
	// Shares of ReadGBps that the kernels of few rows reach: products with weights,
	// and attention over keys and values.
	WeightShare float64 `json:"weight_share"`
	KVShare     float64 `json:"kv_share"`
	// TFLOPS is the maker's rate of dense bfloat16 products that add in float32.
	TFLOPS float64 `json:"tflops"`
	// The rates that the kernels of many rows reach: products that all rows share, products of
	// experts (over the rows of each expert), latent attention (over the rows of a chunk), and
	// attention with heads of the given size that share keys and values.
	Dense     Curve `json:"dense"`
	Experts   Curve `json:"experts"`
	Attention Curve `json:"attention"`
	Heads64   Curve `json:"heads_64"`
	Heads128  Curve `json:"heads_128"`
	Heads256  Curve `json:"heads_256"`
	Heads512  Curve `json:"heads_512"`
	// LaunchUS is the cost of a launch by the host, NodeUS of a launch as part of a graph;
	// Launches is the number of launches per layer.
	LaunchUS float64 `json:"launch_us"`
	NodeUS   float64 `json:"node_us"`
	Launches float64 `json:"launches"`
	// LinkGBps is the maker's rate of the link. CopyGBps is the rate of copies from the host while the
	// GPU is idle, BusyGBps their rate while kernels run. CopyUS is the fixed cost of a copy.
	LinkGBps float64 `json:"link_gbps"`
	CopyGBps float64 `json:"copy_gbps"`
	BusyGBps float64 `json:"busy_copy_gbps"`
	CopyUS   float64 `json:"copy_us"`
	// Costs of handing rows to the host and back. By flags in mapped memory it takes FlagUS, and the
	// rows move at FlagGBps in both directions. By copies and a wait it takes SyncUS, and the rows
	// move at CopyGBps.
	FlagUS   float64 `json:"flag_us"`
	FlagGBps float64 `json:"flag_gbps"`
	SyncUS   float64 `json:"sync_us"`

	// Sources maps the names of figures, as in the file, to where they come from.
	Sources map[string]Source `json:"sources,omitempty"`
}

// plainShare is the part of the rate of heads of 64 that kernels for every size reach: gpt-oss-20b's
// shape, whose attention had no other kernels then (bench/results/families.md).
const plainShare = 0.002

// Heads returns the curve of attention of prompts with heads of a size that share keys and values; 0: latent
// attention.
func (c *Card) Heads(size int) Curve {
	switch size {
	case 0:
		return c.Attention
	case 64:
		return c.Heads64
	case 128:
		return c.Heads128
	case 256:
		return c.Heads256
	case 512:
		return c.Heads512
	}
	return Curve{Peak: plainShare * c.Heads64.Peak, Half: c.Heads64.Half}
}

// CPU describes the processors that compute experts together.
type CPU struct {
	Name    string `json:"name"`
	Threads int    `json:"threads"`
	// ReadGBps is the rate at which simple loops read memory with all threads. DecodeShare is the
	// share of it that experts reach with few rows, Experts their rate with many rows.
	ReadGBps    float64 `json:"read_gbps"`
	DecodeShare float64 `json:"decode_share"`
	Experts     Curve   `json:"experts"`
	// RowsGBps is the rate at which rows are read and written: widened and rounded before products,
	// written by them, and read for sums.
	RowsGBps float64 `json:"rows_gbps"`
	// LayerUS is the fixed cost of a layer's experts: waking the threads and waiting for the last one.
	LayerUS float64 `json:"layer_us"`

	Sources map[string]Source `json:"sources,omitempty"`
}

// Source says where a figure is from.
type Source string

// The sources.
const (
	Maker    Source = "maker"    // published by who makes it
	Measured Source = "measured" // on this machine or one like it
	Assumed  Source = "assumed"  // by what such machines usually reach
)

// figure is one number of a description with its bounds.
type figure struct {
	name   string
	at     *float64
	lo, hi float64
}

// figures lists the numbers of a GPU. The bounds lie far outside those of any machine;
// within them no forecast overflows.
func (c *Card) figures() []figure {
	return []figure{
		{"memory_gib", &c.MemoryGiB, 1e-3, 1e6},
		{"memory_gbps", &c.MemoryGBps, 1e-2, 1e7},
		{"read_gbps", &c.ReadGBps, 1e-2, 1e7},
		{"weight_share", &c.WeightShare, 1e-3, 1},
		{"kv_share", &c.KVShare, 1e-3, 1},
		{"tflops", &c.TFLOPS, 1e-3, 1e6},
		{"dense.peak", &c.Dense.Peak, 1e-4, 1e6},
		{"dense.half_rows", &c.Dense.Half, 0, 1e6},
		{"experts.peak", &c.Experts.Peak, 1e-4, 1e6},
		{"experts.half_rows", &c.Experts.Half, 0, 1e6},
		{"attention.peak", &c.Attention.Peak, 1e-4, 1e6},
		{"attention.half_rows", &c.Attention.Half, 0, 1e6},
		{"heads_64.peak", &c.Heads64.Peak, 1e-4, 1e6},
		{"heads_64.half_rows", &c.Heads64.Half, 0, 1e6},
		{"heads_128.peak", &c.Heads128.Peak, 1e-4, 1e6},
		{"heads_128.half_rows", &c.Heads128.Half, 0, 1e6},
		{"heads_256.peak", &c.Heads256.Peak, 1e-4, 1e6},
		{"heads_256.half_rows", &c.Heads256.Half, 0, 1e6},
		{"heads_512.peak", &c.Heads512.Peak, 1e-4, 1e6},
		{"heads_512.half_rows", &c.Heads512.Half, 0, 1e6},
		{"launch_us", &c.LaunchUS, 0, 1e6},
		{"node_us", &c.NodeUS, 0, 1e6},
		{"launches", &c.Launches, 0, 1e4},
		{"link_gbps", &c.LinkGBps, 1e-3, 1e6},
		{"copy_gbps", &c.CopyGBps, 1e-3, 1e6},
		{"busy_copy_gbps", &c.BusyGBps, 1e-3, 1e6},
		{"copy_us", &c.CopyUS, 0, 1e6},
		{"flag_us", &c.FlagUS, 0, 1e6},
		{"flag_gbps", &c.FlagGBps, 1e-3, 1e6},
		{"sync_us", &c.SyncUS, 0, 1e6},
	}
}

// figures lists the numbers of processors.
func (c *CPU) figures() []figure {
	return []figure{
		{"read_gbps", &c.ReadGBps, 1e-2, 1e6},
		{"decode_share", &c.DecodeShare, 1e-3, 2}, // more than 1: caches, or a poor plain loop
		{"experts.peak", &c.Experts.Peak, 1e-5, 1e5},
		{"experts.half_rows", &c.Experts.Half, 0, 1e6},
		{"rows_gbps", &c.RowsGBps, 1e-2, 1e6},
		{"layer_us", &c.LayerUS, 0, 1e6},
	}
}

// check refuses figures that are out of bounds. Those of 0 are not known.
func check(what string, list []figure, sources map[string]Source) error {
	known := map[string]bool{}
	for _, f := range list {
		known[f.name] = true
		if v := *f.at; v != 0 && !(v >= f.lo && v <= f.hi) {
			return fmt.Errorf("%s: %s: %g, want %g to %g", what, f.name, v, f.lo, f.hi)
		}
	}
	for name, s := range sources {
		if !known[name] {
			return fmt.Errorf("%s: sources: there is no figure %.40q", what, name)
		}
		if s != Maker && s != Measured && s != Assumed {
			return fmt.Errorf("%s: sources: %s: %.40q, want %s, %s or %s", what, name, s, Maker, Measured, Assumed)
		}
	}
	return nil
}

// nameMost bounds a name; threadsMost the number of threads.
const (
	nameMost    = 200
	threadsMost = 1 << 16
)

func checkName(what, name string) error {
	if len(name) > nameMost {
		return fmt.Errorf("%s: a name of %d bytes, want at most %d", what, len(name), nameMost)
	}
	for _, r := range name {
		if r < ' ' || r == 0x7f || r == 0xfffd { // it is printed as it is
			return fmt.Errorf("%s: name %.40q: control characters", what, name)
		}
	}
	return nil
}

// Check refuses what no machine can be.
func (r *Rates) Check() error {
	if err := checkName("card", r.Card.Name); err != nil {
		return err
	}
	if err := checkName("cpu", r.CPU.Name); err != nil {
		return err
	}
	if r.CPU.Threads < 0 || r.CPU.Threads > threadsMost {
		return fmt.Errorf("cpu: threads: %d, want 0 to %d", r.CPU.Threads, threadsMost)
	}
	if err := check("card", r.Card.figures(), r.Card.Sources); err != nil {
		return err
	}
	return check("cpu", r.CPU.figures(), r.CPU.Sources)
}
