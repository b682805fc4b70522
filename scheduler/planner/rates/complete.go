package rates

import (
	"errors"
	"fmt"
	"maps"
)

// Values for figures that a description leaves out. The shares are measured on an H100, relative to
// its maker's figures (docs/planner.md). WeightShare and KVShare are assumed instead: they depend on
// how much of the kernels' other work the memory's speed hides.
const (
	readShare      = 0.92
	weightShare    = 0.80
	kvShare        = 0.50
	denseShare     = 0.79
	expertShare    = 0.52
	attentionShare = 0.40
	heads64Share   = 0.65 // of the rate of latent attention, as an H200's kernels (bench/results/families.md)
	heads128Share  = 0.95
	heads256Share  = 0.95
	heads512Share  = 0.45
	denseHalf      = 1200
	expertHalf     = 43
	attentionHalf  = 64
	launchUS       = 4.5
	nodeUS         = 1.5
	launches       = 8
	copyShare      = 0.83
	busyShare      = 0.87
	copyUS         = 2.2
	flagUS         = 6.5
	flagShare      = 0.2
	syncUS         = 37.7

	decodeShare = 0.90
	cpuHalf     = 4
	matrixHalf  = 12 // the tile unit is fed by weights that are unpacked for it
	layerUS     = 20
)

// fill is a figure with the value it gets where it has none.
type fill struct {
	name  string
	at    *float64
	value float64
}

// complete sets figures that are 0 and notes them as assumed.
func complete(list []fill, sources map[string]Source) map[string]Source {
	sources = maps.Clone(sources)
	for _, f := range list {
		if *f.at == 0 && f.value != 0 {
			if sources == nil {
				sources = map[string]Source{}
			}
			*f.at, sources[f.name] = f.value, Assumed
		}
	}
	return sources
}

// ErrIncomplete: a description without a figure that nothing stands in for.
var ErrIncomplete = errors.New("incomplete description")

// Complete returns the GPU with every figure: it estimates missing figures from the
// others. It needs the rates of the memory, of products, and of the link.
func (c Card) Complete() (Card, error) {
	c.Sources = complete([]fill{
		{"memory_gbps", &c.MemoryGBps, c.ReadGBps / readShare},
		{"read_gbps", &c.ReadGBps, c.MemoryGBps * readShare},
		{"tflops", &c.TFLOPS, c.Dense.Peak / denseShare},
		{"link_gbps", &c.LinkGBps, c.CopyGBps / copyShare},
		{"copy_gbps", &c.CopyGBps, c.LinkGBps * copyShare},
	}, c.Sources)
	for _, x := range []struct {
		what  string
		value float64
	}{{"memory_gib", c.MemoryGiB}, {"memory_gbps or read_gbps", c.ReadGBps}, {"tflops or dense", c.TFLOPS}, {"link_gbps or copy_gbps", c.CopyGBps}} {
		if x.value == 0 {
			return c, fmt.Errorf("card %q: %w: %s", c.Name, ErrIncomplete, x.what)
		}
	}
	half := func(c Curve, n float64) float64 {
		if c.Peak != 0 { // a curve without Half is flat
			return c.Half
		}
		return n
	}
	c.Dense.Half, c.Experts.Half, c.Attention.Half = half(c.Dense, denseHalf), half(c.Experts, expertHalf), half(c.Attention, attentionHalf)
	for _, h := range []*Curve{&c.Heads64, &c.Heads128, &c.Heads256, &c.Heads512} {
		h.Half = half(*h, c.Attention.Half)
	}
	c.Sources = complete([]fill{
		{"weight_share", &c.WeightShare, weightShare},
		{"kv_share", &c.KVShare, kvShare},
		{"dense.peak", &c.Dense.Peak, c.TFLOPS * denseShare},
		{"experts.peak", &c.Experts.Peak, c.TFLOPS * expertShare},
		{"attention.peak", &c.Attention.Peak, c.TFLOPS * attentionShare},
		{"launch_us", &c.LaunchUS, launchUS},
		{"node_us", &c.NodeUS, nodeUS},
		{"launches", &c.Launches, launches},
		{"busy_copy_gbps", &c.BusyGBps, c.CopyGBps * busyShare},
		{"copy_us", &c.CopyUS, copyUS},
		{"flag_us", &c.FlagUS, flagUS},
		{"flag_gbps", &c.FlagGBps, c.LinkGBps * flagShare},
		{"sync_us", &c.SyncUS, syncUS},
	}, c.Sources)
	c.Sources = complete([]fill{
		{"heads_64.peak", &c.Heads64.Peak, c.Attention.Peak * heads64Share},
		{"heads_128.peak", &c.Heads128.Peak, c.Attention.Peak * heads128Share},
		{"heads_256.peak", &c.Heads256.Peak, c.Attention.Peak * heads256Share},
		{"heads_512.peak", &c.Heads512.Peak, c.Attention.Peak * heads512Share},
	}, c.Sources)
	if c.BusyGBps > c.CopyGBps { // or a GPU would copy faster the more it computes
		return c, fmt.Errorf("card %q: busy_copy_gbps %g is more than copy_gbps %g", c.Name, c.BusyGBps, c.CopyGBps)
	}
	return c, nil
}

// Complete returns the processors with every figure. They need the rate of memory and
// that of products.
func (c CPU) Complete() (CPU, error) {
	switch {
	case c.ReadGBps == 0:
		return c, fmt.Errorf("cpu %q: %w: read_gbps", c.Name, ErrIncomplete)
	case c.Experts.Peak == 0:
		return c, fmt.Errorf("cpu %q: %w: experts", c.Name, ErrIncomplete)
	}
	c.Sources = complete([]fill{{"decode_share", &c.DecodeShare, decodeShare}, {"rows_gbps", &c.RowsGBps, c.ReadGBps}, {"layer_us", &c.LayerUS, layerUS}}, c.Sources)
	return c, nil
}

// Assumed rates of processors without measurements: the memory bandwidth of a thread, at most that of
// the socket's channels, and the products of a thread, by its instructions.
const (
	threadGBps   = 8.0
	socketGBps   = 100.0
	threadPlain  = 0.002
	threadAVX2   = 0.150
	threadVNNI   = 0.380
	threadMatrix = 0.310 // of 16 that share the tile units of eight cores
)

// Level is the instructions that processors multiply integers with.
type Level uint8

// The levels. The rate assumed for the tile unit is that of threads that share cores.
const (
	Plain Level = iota
	AVX2
	VNNI
	Matrix // the tile unit
)

// AssumedCPU returns the rates of typical processors, for a plan without measurements.
func AssumedCPU(name string, threads, sockets int, level Level) CPU {
	threads = min(max(1, threads), threadsMost)
	half := float64(cpuHalf)
	if level >= Matrix {
		half = matrixHalf
	}
	each := [...]float64{threadPlain, threadAVX2, threadVNNI, threadMatrix}[min(level, Matrix)]
	c := CPU{
		Name: name, Threads: threads,
		ReadGBps: min(threadGBps*float64(threads), socketGBps*float64(max(1, sockets))),
		Experts:  Curve{each * float64(threads), half}, DecodeShare: decodeShare, LayerUS: layerUS,
		Sources: map[string]Source{},
	}
	c.RowsGBps = c.ReadGBps
	for _, f := range c.figures() {
		c.Sources[f.name] = Assumed
	}
	return c
}
