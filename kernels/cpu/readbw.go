package cpu

import (
	"fmt"
	"slices"
	"time"
	"unsafe"

	"krater/kernels/cpu/level"
)

const (
	readBuffer = 256 << 20 // bytes, beyond any cache
	readWindow = 32 << 20  // bytes read between two looks at the clock
	readChunk  = 1 << 20   // bytes of one call, some 40 us
	readPasses = 6         // over the buffer, after one that touches it
)

// ReadRate is a measured memory read bandwidth.
type ReadRate struct {
	Threads int
	Windows int
	Median  float64 // bytes per second, of windows of 32 MB
	Best    float64
}

// ReadBandwidth measures how fast the given number of cores reads memory with a plain loop of
// vector loads: the ceiling for work that streams weights. On a shared machine, measure it in the
// same run as the work compared with it. It takes 256 MB of memory, outside the device's budget,
// and less than a second.
func (d *Device) ReadBandwidth(threads int) (ReadRate, error) {
	if threads < 1 {
		return ReadRate{}, fmt.Errorf("%s: read bandwidth of %d threads", d.name, threads)
	}
	memory, err := mapMemory(readBuffer)
	if err != nil {
		return ReadRate{}, fmt.Errorf("%s: read bandwidth: %w", d.name, err)
	}
	defer unmapMemory(memory)
	for i := 0; i < len(memory); i += 4096 {
		memory[i] = 1 // untouched pages would all be one page of zeros
	}
	team := NewTeam(threads)
	defer team.Close()
	load := readWords
	if d.level >= level.AVX2 {
		load = readVectors
	}
	var window []byte
	chunk := func(part int) { load(&window[part*readChunk], readChunk) }
	var rates []float64
	for pass := range 1 + readPasses {
		for at := 0; at < readBuffer; at += readWindow {
			window = memory[at : at+readWindow]
			start := time.Now()
			team.Run(readWindow/readChunk, chunk)
			if rate := readWindow / time.Since(start).Seconds(); pass > 0 {
				rates = append(rates, rate)
			}
		}
	}
	slices.Sort(rates)
	return ReadRate{Threads: threads, Windows: len(rates), Median: rates[len(rates)/2], Best: rates[len(rates)-1]}, nil
}

// readSink keeps the compiler from dropping the loads of readWords.
var readSink uint64

// readWords is the portable loop; n is a multiple of 64.
func readWords(p *byte, n int) {
	words := unsafe.Slice((*uint64)(unsafe.Pointer(p)), n/8)
	var a, b, c, e uint64
	for len(words) >= 4 {
		a, b, c, e = a^words[0], b^words[1], c^words[2], e^words[3]
		words = words[4:]
	}
	if a^b^c^e == 0x5afe5afe5afe5afe { // memory is never filled so; the store would race
		readSink = a
	}
}
