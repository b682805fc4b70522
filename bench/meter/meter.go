// Package meter measures the rates of a machine for forecasts, with short runs of the kernel
// benchmarks.
package meter

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"krater/bench/cards"
	"krater/bench/kernels"
	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/scheduler/planner/rates"
)

// telling receives what is being measured and the share that is done.
type telling = func(what string, done, all float64)

// ErrUnmeasured reports that no GPU here can be measured: there is none, or it is emulated, or its
// memory is in use.
var ErrUnmeasured = errors.New("no GPU was measured")

// KernelMeter measures with the benchmarks of single kernels.
type KernelMeter struct {
	Seconds float64
	Bytes   int64 // working set
}

// UsualMeter takes about ten seconds and a gigabyte.
var UsualMeter = KernelMeter{8, 800e6}

// The numbers of rows per expert at which experts are measured besides one row. The curve goes through both.
const fewRows, manyRows = 4, 96

// CPU implements meter.
func (k KernelMeter) CPU(threads int, experts tensor.Format, available int64, tell telling) (rates.CPU, error) {
	rep, err := kernels.Run(kernels.Options{
		Threads: []int{threads}, Seconds: k.Seconds, Bytes: k.Bytes, Available: available, Rows: []int{fewRows, manyRows}, Progress: tell,
	})
	if err != nil {
		return rates.CPU{}, err
	}
	return cpuOf(rep, CPUName(), threads, experts)
}

// cpuOf turns a report of kernels into rates.
func cpuOf(rep *kernels.Report, name string, threads int, weights tensor.Format) (rates.CPU, error) {
	of := tensor.INT4.By(128)
	if weights.Encoding == tensor.INT8 {
		of = tensor.INT8.By(128)
	}
	format := kernels.FormatName(of)
	find := func(name string) (kernels.Kernel, error) {
		for _, k := range rep.Kernels {
			if k.Name == name && k.Threads == threads {
				return k, nil
			}
		}
		return kernels.Kernel{}, fmt.Errorf("measured no %s", name)
	}
	one, err := find(kernels.LayerName(of, false))
	experts, err2 := find(kernels.LayerName(of, true))
	few, err3 := find(fmt.Sprintf("experts_%s_m%d", format, fewRows))
	many, err4 := find(fmt.Sprintf("experts_%s_m%d", format, manyRows))
	if err := errors.Join(err, err2, err3, err4); err != nil {
		return rates.CPU{}, err
	}
	gbps, us := lineThrough(pieceOf(one), pieceOf(experts))
	c := rates.CPU{Name: name, Threads: threads, ReadGBps: rep.ReadGBps, DecodeShare: gbps / rep.ReadGBps, LayerUS: us, Experts: expertCurve(gbps, us, few, many)}
	c.DecodeShare = min(c.DecodeShare, 2)
	c.Sources = map[string]rates.Source{}
	for _, f := range []string{"read_gbps", "decode_share", "layer_us", "experts.peak", "experts.half_rows"} {
		c.Sources[f] = rates.Measured
	}
	return c.Complete()
}

// pieceOf returns the bytes and the time of a call.
func pieceOf(k kernels.Kernel) cards.Piece {
	return cards.Piece{Bytes: float64(k.Bytes), US: float64(k.Bytes) / k.GBps / 1e3}
}

// expertCurve returns the curve of experts of fewRows and of manyRows rows each, without the constant time of a call,
// us. Experts of one row read gbps: no curve is slower there than what they do.
func expertCurve(gbps, us float64, few, many kernels.Kernel) rates.Curve {
	without := func(k kernels.Kernel) float64 {
		t := pieceOf(k).US
		return k.GOPS * t / max(t-us, t/4)
	}
	c := curveThrough(fewRows, without(few), manyRows, without(many))
	if one := gbps * few.GOPS / few.GBps / fewRows; c.At(1) < 1e9*one {
		return curveThrough(1, one, manyRows, without(many))
	}
	return c
}

// curveThrough returns the curve with the rates few and many, in GOP/s, at fewRows and manyRows.
// manyRows is beyond the half-rate point.
func curveThrough(fewRows, few, manyRows, many float64) rates.Curve {
	if few >= many { // noise, or the maximum already
		return rates.Curve{Peak: max(few, many) / 1e3}
	}
	// No curve grows as fast as the rows or faster: assume half of the peak at manyRows.
	half := manyRows
	if d := few/fewRows - many/manyRows; d > 0 {
		half = min(half, (many-few)/d)
	}
	return rates.Curve{Peak: many / 1e3 * (manyRows + half) / manyRows, Half: half}
}

// StartMeter is faster, because a start waits for it.
var StartMeter = KernelMeter{4, 800e6}

// Card implements meter by kernels and copies of a few seconds. A GPU whose memory others have is
// not measured.
func (KernelMeter) Card(index int, tell telling) (rates.Card, error) {
	p, err := cards.Measure(cards.Options{Index: index, Seed: 1, Step: func(done, all int) { tell("the GPU", float64(done), float64(all)) }})
	if errors.Is(err, cards.ErrNoGPU) || errors.Is(err, cards.ErrEmulated) || errors.Is(err, device.ErrOutOfMemory) {
		return rates.Card{}, fmt.Errorf("%w: %w", ErrUnmeasured, err)
	}
	if err != nil {
		return rates.Card{}, err
	}
	return cardOf(p)
}

// cardOf turns measurements of a GPU into rates. Complete assumes what is not measured: launches
// per layer, the maker's rates of memory and link, and rates by number of rows in mapped memory.
func cardOf(p *cards.Points) (rates.Card, error) {
	if p.Emulated {
		return rates.Card{}, fmt.Errorf("%w: %w", ErrUnmeasured, cards.ErrEmulated)
	}
	c := rates.Card{
		Name: p.GPU, MemoryGiB: float64(p.Memory) / (1 << 30), ReadGBps: p.ReadGBps, TFLOPS: p.TFLOPs,
		LaunchUS: p.LaunchUS, NodeUS: p.NodeUS, SyncUS: p.RoundUS,
		Dense: curveOf(p, p.Dense), Experts: curveOf(p, p.Experts), Attention: curveOf(p, p.Attention),
		KVShare: shareOf(p, p.KV),
	}
	heads := map[int]*rates.Curve{64: &c.Heads64, 128: &c.Heads128, 256: &c.Heads256, 512: &c.Heads512}
	for size, two := range p.Heads {
		*heads[size] = curveOf(p, two)
	}
	for _, s := range p.Few {
		c.WeightShare += shareOf(p, s) / float64(len(p.Few))
	}
	small, large := p.Copies[0], p.Copies[1]
	c.CopyGBps, c.CopyUS = lineThrough(small, large)
	// A copy that takes as long during computation as alone is not faster.
	c.BusyGBps = c.CopyGBps
	if us := p.Busy.US - c.CopyUS; us > 0 {
		c.BusyGBps = min(c.CopyGBps, p.Busy.Bytes/us/1e3)
	}
	c.Sources = map[string]rates.Source{}
	for _, f := range []string{"memory_gib", "read_gbps", "tflops", "weight_share", "kv_share", "dense.peak", "dense.half_rows", "experts.peak",
		"experts.half_rows", "attention.peak", "attention.half_rows", "heads_64.peak", "heads_64.half_rows", "heads_128.peak", "heads_128.half_rows",
		"heads_256.peak", "heads_256.half_rows", "heads_512.peak", "heads_512.half_rows", "launch_us", "node_us", "copy_gbps", "busy_copy_gbps", "copy_us", "sync_us"} {
		c.Sources[f] = rates.Measured
	}
	whole, err := c.Complete()
	if err == nil {
		err = (&rates.Rates{Card: whole}).Check()
	}
	if err != nil {
		return rates.Card{}, fmt.Errorf("the measured rates do not describe a GPU: %w", err)
	}
	return whole, nil
}

// workUS returns the time of the work without its launches, which forecasts count separately.
// Launches that take most of the time overlap, so a part of it always remains.
func workUS(p *cards.Points, s cards.Speed) float64 {
	return max(s.US-float64(s.Launches)*p.NodeUS, s.US/4)
}

// shareOf returns the share of the read bandwidth that memory-bound work reaches.
func shareOf(p *cards.Points, s cards.Speed) float64 {
	return min(1, s.Bytes/workUS(p, s)/1e3/p.ReadGBps)
}

// curveOf returns the curve through two speeds.
func curveOf(p *cards.Points, s [2]cards.Speed) rates.Curve {
	rate := func(s cards.Speed) float64 { return s.Flops / workUS(p, s) / 1e3 } // GOP/s
	return curveThrough(s[0].Rows, rate(s[0]), s[1].Rows, rate(s[1]))
}

// lineThrough returns the rate and the constant part of two sizes of copies or of reads; noise that would make
// either negative counts as none.
func lineThrough(small, large cards.Piece) (gbps, us float64) {
	per := large.US / large.Bytes
	if slope := (large.US - small.US) / (large.Bytes - small.Bytes); slope > 0 && slope < per {
		per = slope
	}
	return 1 / per / 1e3, max(0, large.US-large.Bytes*per)
}

// CPUName names the processor, with its family and model.
func CPUName() string {
	data, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	return cpuinfo(data, "model name") + " (family " + cpuinfo(data, "cpu family") + ", model " + cpuinfo(data, "model") + "), " +
		strconv.Itoa(runtime.NumCPU()) + " CPUs"
}

// cpuinfo finds a field of the first processor in /proc/cpuinfo.
func cpuinfo(data []byte, name string) string {
	for line := range bytes.Lines(data) {
		key, value, ok := bytes.Cut(line, []byte(":"))
		if ok && string(bytes.TrimSpace(key)) == name {
			return string(bytes.TrimSpace(value))
		}
	}
	return "unknown"
}
