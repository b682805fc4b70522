package cards

import "errors"

// ErrNoGPU means that there is no GPU to measure, or that this program cannot use one.
// ErrEmulated means that the GPU is emulated, so its speed means nothing.
var (
	ErrNoGPU    = errors.New("no GPU to measure")
	ErrEmulated = errors.New("an emulated GPU, whose times mean nothing")
)

// Points are the measured rates of a GPU, for planning. Times of work are medians over graphs
// that repeat the work on copies of its data, more than a cache holds.
type Points struct {
	GPU      string
	Emulated bool  // the times mean nothing
	Memory   int64 // all of it, in bytes

	ReadGBps float64 // a kernel that only reads
	TFLOPs   float64 // matrix instructions of bfloat16 without memory accesses
	// The time of a launch that does next to nothing, issued by the host and as a part of a
	// graph, in microseconds.
	LaunchUS, NodeUS float64

	Few       []Speed          // second halves of layers, with one and with several generated rows: weights
	KV        Speed            // attention of generated rows: keys and values
	Dense     [2]Speed         // a network that all rows use, with few and with many rows
	Experts   [2]Speed         // routed experts; the rows of each
	Attention [2]Speed         // latent attention of prompts of that many rows
	Heads     map[int][2]Speed // the same with heads of a size that share keys and values
	Copies    [2]Piece         // from pinned memory: small copies, and copies of an expert's size
	Busy      Piece            // copies of an expert's size during products of many rows
	RoundUS   float64          // a few numbers to the host, which waits for them, and back
}

// Speed is the time of an operator.
type Speed struct {
	Rows         float64
	US           float64 // of all its launches
	Bytes, Flops float64 // the least work: bytes to move, operations to do
	Launches     int
}

// Piece is the time of a copy of that many bytes, among others of the same size.
type Piece struct{ Bytes, US float64 }
