package cpu

import (
	"encoding/binary"
	"slices"
	"sync/atomic"
	"time"
)

// ReadBandwidth measures how fast this machine reads memory: the ceiling of
// decode. Its buffer is larger than any cache, and it is measured in the same run
// as what is held against it, since on a shared machine the ceiling moves.
type ReadBandwidth struct {
	buf []byte
}

const (
	readBytes   = 256 << 20
	readWindow  = 64 << 20 // bytes read between two looks at the clock, all threads together
	readWindows = 4
)

// NewReadBandwidth allocates and touches the buffer.
func NewReadBandwidth() (*ReadBandwidth, error) {
	buf, err := mapMemory(readBytes)
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(buf); i += 4096 {
		buf[i] = 1
	}
	return &ReadBandwidth{buf: buf}, nil
}

// Close frees the buffer.
func (r *ReadBandwidth) Close() { unmapMemory(r.buf) }

// Measure gives GB/s (1e9 bytes) with that many threads: the median of some
// windows of 64 MiB.
func (r *ReadBandwidth) Measure(threads int) float64 {
	rates := make([]float64, 0, readWindows)
	for w := range readWindows {
		part := r.buf[w*readWindow : (w+1)*readWindow]
		share := len(part) / threads &^ 255
		done := make(chan struct{}, threads)
		start := time.Now()
		for i := range threads {
			go func() {
				readAll(part[i*share : (i+1)*share])
				done <- struct{}{}
			}()
		}
		for range threads {
			<-done
		}
		rates = append(rates, float64(share*threads)/time.Since(start).Seconds()/1e9)
	}
	slices.Sort(rates)
	return rates[len(rates)/2]
}

// readCall bounds one assembly call to a quarter of a millisecond or so: the
// runtime cannot preempt it.
const readCall = 4 << 20

func readAll(b []byte) {
	for len(b) > 0 {
		n := min(len(b), readCall)
		read(b[:n])
		b = b[n:]
	}
}

// readSink keeps the compiler from dropping the loop of readPure.
var readSink atomic.Uint64

func readPure(b []byte) {
	var s0, s1, s2, s3 uint64
	for ; len(b) >= 32; b = b[32:] {
		s0 ^= binary.LittleEndian.Uint64(b)
		s1 ^= binary.LittleEndian.Uint64(b[8:])
		s2 ^= binary.LittleEndian.Uint64(b[16:])
		s3 ^= binary.LittleEndian.Uint64(b[24:])
	}
	readSink.Store(s0 ^ s1 ^ s2 ^ s3)
}
