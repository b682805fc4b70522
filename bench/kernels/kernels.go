// Package kernels measures the integer kernels of the CPU against the speed of memory. Windows of
// every kernel and of plain reads take turns in one process, over a working set that no cache
// holds.
package kernels

import (
	"fmt"
	"time"

	"krater/bench/cores"
	"krater/bench/read"
	"krater/bench/stat"
	"krater/kernels/cpu"
	"krater/kernels/cpu/level"
	"krater/kernels/device"
)

// Options are the settings of a measurement.
type Options struct {
	Threads   []int // numbers of threads, each measured separately
	Seconds   float64
	Bytes     int64 // working set
	Available int64 // memory that may be used, 0: unknown
	Rows      []int // rows of activations of the GEMM kernels
	// Progress, if set, receives what is measured, and how many seconds of all have passed.
	Progress func(what string, done, all float64)
}

// kernel is one kernel on one device, and its measurements.
type kernel struct {
	name   string
	run    func() work
	bytes  int           // of the last window
	pause  time.Duration // before every window, in which threads have nothing to do
	rates  stat.Series   // bytes per second
	ops    float64       // multiplications and additions per window; 0: unknown
	speeds stat.Series   // operations per second
}

// work is the bytes that a window read.
type work struct{ bytes int }

// turn measures one window.
func (k *kernel) turn() {
	for begun := time.Now(); time.Since(begun) < k.pause; {
	}
	start := time.Now()
	w := k.run()
	s := max(1e-9, time.Since(start).Seconds())
	k.bytes = w.bytes
	k.rates.Add(float64(w.bytes) / s)
	if k.ops > 0 {
		k.speeds.Add(k.ops / s)
	}
}

// changing is the regime of windows in which the number of cores changed.
const changing = "changing"

// Run measures for Options.Seconds for each number of threads, and first fills the working set.
func Run(o Options) (*Report, error) {
	set, err := newSet(o.Bytes, o.Available)
	if err != nil {
		return nil, err
	}
	defer set.close()
	rep := &Report{Bytes: int64(len(set.values)), Seconds: o.Seconds}
	for i, threads := range o.Threads {
		tell := func(spent time.Duration) {
			if o.Progress != nil {
				o.Progress(fmt.Sprintf("%d threads, %.0f s", threads, o.Seconds), float64(i)*o.Seconds+min(o.Seconds, spent.Seconds()), float64(len(o.Threads))*o.Seconds)
			}
		}
		tell(0)
		if err := measure(rep, set, threads, o, tell); err != nil {
			return nil, err
		}
	}
	rep.sum()
	return rep, nil
}

// variant is a level at which kernels are measured.
type variant struct {
	level  level.Level
	suffix string
}

// variants returns the best level and, where that is a higher one, AVX2.
func variants() ([]variant, error) {
	active, err := level.Active()
	if err != nil {
		return nil, err
	}
	all := []variant{{active, ""}}
	if active > level.AVX2 {
		all = append(all, variant{level.AVX2, "_avx2"})
	}
	return all, nil
}

// measure adds the figures of one number of threads.
func measure(rep *Report, set *set, threads int, o Options, tell func(spent time.Duration)) error {
	all, err := variants()
	if err != nil {
		return err
	}
	var kernels []*kernel
	var reader *read.Reader
	for i, v := range all {
		dev, err := cpu.New(cpu.Options{Threads: threads, Level: v.level})
		if err != nil {
			return err
		}
		defer dev.Close()
		if i == 0 {
			reader, rep.Level = read.New(dev), dev.Level().String()
		}
		b := &builder{set: set, dev: dev, suffix: v.suffix}
		defer b.close()
		list, err := b.kernels(o.Rows, i == 0)
		if err != nil {
			return err
		}
		kernels = append(kernels, list...)
	}
	probe, err := cores.New(threads)
	if err != nil {
		return err
	}
	defer probe.Close()
	rounds(kernels, reader, probe, set, time.Duration(o.Seconds*float64(time.Second)), tell)
	rep.add(threads, reader, kernels)
	return nil
}

// roundsMin is the minimum number of rounds, however short the time is.
const roundsMin = 4

// rounds alternates between kernels and reads until the time is over. A window belongs to a regime
// if the same regime was seen before and after its round.
func rounds(kernels []*kernel, reader *read.Reader, probe *cores.Probe, set *set, limit time.Duration, tell func(spent time.Duration)) {
	for _, k := range kernels { // warm-up: scratch memory, first use of code
		k.run()
	}
	start, before := time.Now(), probe.Take().Regime()
	for n := 0; n < roundsMin || time.Since(start) < limit; n++ {
		for _, k := range kernels {
			reader.Window(set.values[set.take(read.WindowBytes):][:read.WindowBytes])
			k.turn()
		}
		after := probe.Take().Regime()
		regime := after
		if before != after {
			regime = changing
		}
		reader.Mark(regime)
		for _, k := range kernels {
			k.rates.Mark(regime)
			k.speeds.Mark(regime)
		}
		before = after
		tell(time.Since(start))
	}
}

// set is the working set: numbers that every kernel takes as its weights, and scales for them. Each
// use takes the next piece of a ring, so that nothing is met again before all of it has been read.
type set struct {
	dev    *cpu.Device
	bufs   [2]device.Buffer
	values []byte
	at     int
}

// scaleShare: scales take at most a quarter of their values (a sixth in IQ2_XS).
const scaleShare = 4

// newSet allocates and fills a working set of bytes, rounded up to windows.
func newSet(bytes, available int64) (*set, error) {
	windows := (bytes + read.WindowBytes - 1) / read.WindowBytes
	const windowsMin = 4 // more than any kernel takes at once
	size := max(windowsMin, windows) * read.WindowBytes
	need := size + size/scaleShare
	if available > 0 && need > available/10*9 {
		return nil, fmt.Errorf("bench kernels: a working set of %.2f GB takes %.2f GB of memory, %.2f GB are available: choose a smaller --size",
			float64(size)/1e9, float64(need)/1e9, float64(available)/1e9)
	}
	dev, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		return nil, err
	}
	s := &set{dev: dev}
	for i, n := range []int64{size, size / scaleShare} {
		if s.bufs[i], err = dev.Alloc(int(n)); err != nil {
			s.close()
			return nil, fmt.Errorf("bench kernels: working set: %w", err)
		}
	}
	s.values = s.bufs[0].Host()
	fill(s.values, s.bufs[1].Host())
	return s, nil
}

// fill writes noise to values and scales of about 0.01, as bfloat16, to scales.
func fill(values, scales []byte) {
	some := make([]byte, 1<<16+64)
	x := uint64(0x9e3779b97f4a7c15)
	for i := range some { // splitmix64 (Steele and others, 2014)
		x += 0x9e3779b97f4a7c15
		z := (x ^ x>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		some[i] = byte(z >> 32)
	}
	for at := 0; at < len(values); {
		at += copy(values[at:], some)
	}
	for at := 0; at < len(scales); {
		at += copy(scales[at:], some)
	}
	for i := 1; i < len(scales); i += 2 {
		scales[i] = scales[i]&0x80 | 0x3c
	}
}

// take returns the position of the next n bytes of values.
func (s *set) take(n int) int {
	n = (n + alignment - 1) / alignment * alignment
	if s.at+n > len(s.values) {
		s.at = 0
	}
	at := s.at
	s.at += n
	return at
}

// alignment of everything taken, so that scales are aligned to 64 bytes too.
const alignment = 64 * scaleShare

func (s *set) close() {
	for _, b := range s.bufs {
		if b != nil {
			b.Free()
		}
	}
	s.dev.Close()
}
