package cpu

import (
	"unsafe"

	"krater/kernels/cpu/level"
)

// ReadLoop is a way to read memory with all threads of a device. No loop is the fastest on every
// CPU, so memory bandwidth is that of the best one.
type ReadLoop uint8

const (
	ReadTurns   ReadLoop = iota // pieces taken in turn, eight a thread, as the integer operators take weights
	ReadShares                  // one piece a thread
	ReadStreams                 // one piece a thread, read in four places at once
	ReadAhead                   // ReadTurns with a prefetch 4 KB ahead
)

// ReadLoops lists all of them.
var ReadLoops = []ReadLoop{ReadTurns, ReadShares, ReadStreams, ReadAhead}

func (r ReadLoop) String() string {
	return [...]string{"turns", "shares", "streams", "ahead"}[r]
}

// ReadPiece is the unit of Read in bytes.
const ReadPiece = 64 << 10

// Read reads all of b but the last incomplete piece on the device's team.
func (d *Device) Read(loop ReadLoop, b []byte) {
	load := readWords
	if d.level >= level.AVX2 {
		load = readVectors
		if loop == ReadAhead {
			load = readVectorsAhead
		}
	}
	pieces := len(b) / ReadPiece
	cut := d.team.Threads()
	if loop == ReadTurns || loop == ReadAhead {
		cut *= 8
	}
	cut = max(1, min(pieces, cut))
	d.team.Run(cut, func(i int) {
		from, to := i*pieces/cut, (i+1)*pieces/cut
		part := b[from*ReadPiece : to*ReadPiece]
		switch {
		case len(part) == 0:
		case loop == ReadStreams:
			readStreams(part, load)
		default:
			load(unsafe.SliceData(part), len(part))
		}
	})
}

// readStreams reads the four quarters of b side by side, a page of each in turn.
func readStreams(b []byte, load func(*byte, int)) {
	const page = 4096
	quarter := len(b) / 4
	for at := 0; at < quarter; at += page {
		for q := range 4 {
			load(&b[q*quarter+at], page)
		}
	}
}
