package cards

import "errors"

// ErrNoGPU: there is no GPU to measure, or this program cannot use one. ErrEmulated: what
// there is has no speed of its own.
var (
	ErrNoGPU    = errors.New("no GPU to measure")
	ErrEmulated = errors.New("an emulated GPU, whose times mean nothing")
)

// Points are what a GPU was measured to do, for those who plan with it. Times of work are
// medians of graphs that repeat it over copies of its data which no cache holds.
type Points struct {
	GPU      string
	Emulated bool  // no time is true
	Memory   int64 // bytes of all of it

	ReadGBps float64 // a kernel that only reads
	TFLOPs   float64 // matrix instructions of bfloat16 without any memory
	// A launch of next to nothing, when the host makes it and as a part of a graph, in
	// microseconds.
	LaunchUS, NodeUS float64

	Few       []Speed  // second halves of layers with one and with some generated rows: weights
	KV        Speed    // attention of generated rows: keys and values
	Dense     [2]Speed // a network of all rows, of few and of many
	Experts   [2]Speed // routed experts, rows of each
	Attention [2]Speed // prompts of so many rows
	Copies    [2]Piece // from pinned memory, small ones and those of an expert
	Busy      Piece    // those of an expert beside products of many rows
	RoundUS   float64  // a few numbers to the host, which waits for them, and back
}

// Speed is how long an operator takes.
type Speed struct {
	Rows         float64
	US           float64 // of all its launches
	Bytes, Flops float64 // that have to move, to be done
	Launches     int
}

// Piece is how long a copy of so many bytes takes, among others like it.
type Piece struct{ Bytes, US float64 }
