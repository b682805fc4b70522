package forecast

import (
	"errors"
	"fmt"
	"math"
)

// Shape holds the sizes of a model in its precision. A forecast uses nothing else of the model. A
// multiply and an add count as two operations. FLOP fields count the operations of one row in all
// layers together, unless they say otherwise.
type Shape struct {
	Layers  int // layers of the model
	MoE     int // layers with routed experts
	Experts int // experts of each of them
	TopK    int // experts that a row goes to

	ExpertCard int64   // bytes of an expert on the GPU
	ExpertHost int64   // bytes of an expert on the host
	ExpertFLOP float64 // operations of a row in one expert

	FixedBytes  int64   // on the GPU, read in every step: projections, dense networks, routers, norms
	FixedFLOP   float64 // operations with FixedBytes
	SharedBytes int64   // bytes of the shared experts, which run at the same time as routed ones; read in every step
	SharedFLOP  float64
	HeadBytes   int64
	HeadFLOP    float64

	KVToken    int64   // bytes of the KV cache per token
	StateBytes int64   // bytes of a sequence's state apart from its tokens; a generated row reads and writes all of it
	RowFLOP    float64 // operations of a row with these states
	PairFLOP   float64 // operations of a query and a key of a prompt, in attention without Heads
	DecodePair float64 // operations of a query and a key of generated rows, in attention without Heads
	Heads      []Heads
	ExpandFLOP float64 // operations per cached token of earlier chunks, once per chunk (latent attention)
	RowBytes   float64 // bytes of activations that a row of a prompt moves through the GPU's memory
	Small      int     // operators of all layers that read no weights (norms, sums), in addition to Card.Launches per layer
	HandIn     int64   // bytes of a row that the host receives per layer
	HandOut    int64   // bytes of a row that the host returns per layer: the sum of its experts in float32
}

// Heads describes the layers whose attention has heads of one size that share keys and values, and one window.
type Heads struct {
	Size     int     // values of a head
	Window   int     // tokens that a row sees at most; 0: all
	PairFLOP float64 // operations of a query and a key
	KVToken  int64   // bytes of the KV cache per token that Shape.KVToken does not count, because few tokens are kept
}

// seen returns the number of tokens that m rows after pos others see, added up over the rows.
func (h *Heads) seen(pos, m float64) float64 {
	most := float64(h.Window)
	if h.Window == 0 || pos+m <= most {
		return m * (pos + (m+1)/2)
	}
	rising := max(0, most-pos) // rows that see all before them
	return rising*(pos+(rising+1)/2) + (m-rising)*most
}

// ErrShape reports sizes that no model has.
var ErrShape = errors.New("impossible sizes")

// Bounds of a shape, far above any model: within them no sum overflows.
const (
	countMost = 1 << 20
	bytesMost = 1 << 50
	flopMost  = 1e18
)

func (s *Shape) check() error {
	for _, n := range []int{s.Layers, s.MoE, s.Experts, s.TopK} {
		if n < 1 || n > countMost {
			return fmt.Errorf("%w: %d layers, %d with %d experts of which %d are taken", ErrShape, s.Layers, s.MoE, s.Experts, s.TopK)
		}
	}
	if s.MoE > s.Layers || s.TopK > s.Experts || s.MoE*s.Experts > countMost {
		return fmt.Errorf("%w: %d layers, %d with %d experts of which %d are taken", ErrShape, s.Layers, s.MoE, s.Experts, s.TopK)
	}
	if s.ExpertCard < 1 || s.ExpertHost < 1 || s.KVToken < 1 {
		return fmt.Errorf("%w: experts of %d and %d bytes, %d bytes of KV cache a token", ErrShape, s.ExpertCard, s.ExpertHost, s.KVToken)
	}
	for _, b := range []int64{s.ExpertCard, s.ExpertHost, s.FixedBytes, s.SharedBytes, s.HeadBytes, s.KVToken, s.StateBytes, s.HandIn, s.HandOut} {
		if b < 0 || b > bytesMost {
			return fmt.Errorf("%w: %d bytes", ErrShape, b)
		}
	}
	if s.Small < 0 || s.Small > countMost {
		return fmt.Errorf("%w: %d small operators", ErrShape, s.Small)
	}
	for i := range s.Heads {
		if h := &s.Heads[i]; h.Size < 1 || h.Size > countMost || h.Window < 0 || h.Window > tokensMost || h.KVToken < 0 || h.KVToken > bytesMost || !(h.PairFLOP >= 0 && h.PairFLOP <= flopMost) {
			return fmt.Errorf("%w: %+v", ErrShape, *h)
		}
	}
	for _, f := range []float64{s.ExpertFLOP, s.FixedFLOP, s.SharedFLOP, s.HeadFLOP, s.PairFLOP, s.DecodePair, s.ExpandFLOP, s.RowFLOP, s.RowBytes} {
		if !(f >= 0 && f <= flopMost) {
			return fmt.Errorf("%w: %g operations or bytes a row", ErrShape, f)
		}
	}
	return nil
}

// expertBytes returns the bytes of n experts on the GPU, at most the largest int64.
func (s *Shape) expertBytes(n int) int64 {
	if n > 0 && s.ExpertCard > math.MaxInt64/int64(n) {
		return math.MaxInt64
	}
	return int64(n) * s.ExpertCard
}

// all returns the number of routed experts of the model.
func (s *Shape) all() int { return s.MoE * s.Experts }
