package forecast

import (
	"krater/scheduler/planner/rates"
)

// Time divides the seconds of a prompt or a step. Parts that run at the same time each count in full, so
// Total may be less than their sum.
type Time struct {
	Total    float64 `json:"-"`
	Card     float64 `json:"card"`      // computing and reading on the GPU
	Copies   float64 `json:"copies"`    // of experts to the GPU
	Host     float64 `json:"host"`      // experts on the processors
	HandOver float64 `json:"hand_over"` // rows to the host and back, and waiting for it
	Launches float64 `json:"launches"`

	Copied float64 `json:"-"` // bytes of experts copied
	Wanted float64 `json:"-"` // experts needed, each counted once per layer and pass
	Found  float64 `json:"-"` // experts needed that were on the GPU already
}

// add sums up times that follow each other.
func (t *Time) add(x Time) {
	t.Total += x.Total
	t.Card += x.Card
	t.Copies += x.Copies
	t.Host += x.Host
	t.HandOver += x.HandOver
	t.Launches += x.Launches
	t.Copied += x.Copied
	t.Wanted += x.Wanted
	t.Found += x.Found
}

// times is n equal times, one after the other.
func (t Time) times(n int) Time {
	f := float64(n)
	return Time{f * t.Total, f * t.Card, f * t.Copies, f * t.Host, f * t.HandOver, f * t.Launches, f * t.Copied, f * t.Wanted, f * t.Found}
}

const (
	giga  = 1e9
	micro = 1e-6
	// smallUS is the time of an operator of few rows besides its launch, although it moves next to nothing: fitted to a
	// step of Gemma-4-26B-A4B with all experts on an H200 (bench/results/families.md).
	smallUS = 2
)

// calc computes times of one case. Rates are complete.
type calc struct {
	s     *Shape
	card  *rates.Card
	cpu   *rates.CPU
	w     *Work
	picks []float64 // of each expert by a row, the hottest first
	found []float64 // likewise as learned finds them; nil: picks
}

// weights is how fast products of few rows read weights, in bytes a second.
func (c *calc) weights() float64 { return giga * c.card.ReadGBps * c.card.WeightShare }

// rest is a pass of m rows of a prompt behind pos others, without shared and routed
// experts: projections, attention over keys so far (half of its own on average),
// what single operators move, and launches.
func (c *calc) rest(pos, m float64) Time {
	s := c.s
	t := Time{Launches: micro * c.card.NodeUS * (c.card.Launches*float64(s.Layers) + float64(s.Small))}
	t.Card = max(m*s.FixedFLOP/c.card.Dense.At(m), float64(s.FixedBytes)/c.weights())
	t.Card += s.PairFLOP * m * (pos + (m+1)/2) / c.card.Attention.At(m)
	for i := range s.Heads {
		h := &s.Heads[i]
		t.Card += h.PairFLOP * h.seen(pos, m) / c.card.Heads(h.Size).At(m)
	}
	if pos > 0 {
		t.Card += s.ExpandFLOP * pos / c.card.Dense.At(pos)
	}
	t.Card += m * (s.RowBytes/(giga*c.card.ReadGBps) + s.RowFLOP/c.card.Attention.At(m))
	t.Total = t.Card + t.Launches
	return t
}

// step returns the time of a decode step of b rows. The host replays a graph of it, or launches
// every kernel.
func (c *calc) step(b float64, graph bool) Time {
	s, launch := c.s, c.card.LaunchUS
	if graph {
		launch = c.card.NodeUS
	}
	keys := b * float64(c.w.Context)
	bytes, flop := keys*float64(s.KVToken), keys*s.DecodePair
	for i := range s.Heads {
		h := &s.Heads[i]
		seen := b * h.seen(float64(c.w.Context)-1, 1)
		bytes, flop = bytes+seen*float64(h.KVToken), flop+seen*h.PairFLOP
	}
	t := Time{Launches: micro * (launch*c.card.Launches*float64(s.Layers) + (launch+smallUS)*float64(s.Small))}
	t.Card = max(float64(s.FixedBytes+s.HeadBytes)/c.weights(), b*(s.FixedFLOP+s.HeadFLOP)/(1e12*c.card.Dense.Peak))
	t.Card += max(bytes/(giga*c.card.ReadGBps*c.card.KVShare), flop/(1e12*c.card.Attention.Peak))
	t.Card += b * max(2*float64(s.StateBytes)/(giga*c.card.ReadGBps*c.card.KVShare), s.RowFLOP/(1e12*c.card.Attention.Peak))
	t.Total = t.Card + t.Launches
	return t
}

// head is the head of a prompt's last row.
func (c *calc) head() Time {
	t := float64(c.s.HeadBytes) / c.weights()
	return Time{Total: t, Card: t}
}

// shared returns the time of the shared experts of one layer on the GPU. few: with the kernels for
// few rows.
func (c *calc) shared(m float64, few bool) float64 {
	n, rate := float64(c.s.MoE), c.card.Dense.At(m)
	if few {
		rate = 1e12 * c.card.Dense.Peak
	}
	return max(m*c.s.SharedFLOP/n/rate, float64(c.s.SharedBytes)/n/c.weights())
}

// experts returns the time of the experts in picks, of one layer, on the GPU, for m rows.
func (c *calc) experts(picks []float64, m float64) float64 {
	n, rows := active(picks, m), taken(picks, m)
	if n == 0 {
		return 0
	}
	return max(rows*c.s.ExpertFLOP/c.card.Experts.At(rows/n), n*float64(c.s.ExpertCard)/c.weights())
}

// host is the same on the processors. Besides the products rows pass through their memory: every
// row is widened and rounded to integers, what each of its experts gives is written and read again
// for the sum, which is written too.
func (c *calc) host(picks []float64, m float64) float64 {
	n, rows := active(picks, m), taken(picks, m)
	if n == 0 {
		return 0
	}
	read := giga * c.cpu.ReadGBps * c.cpu.DecodeShare
	in, wide := float64(c.s.HandIn), float64(c.s.HandOut)
	moved := m*(in+wide+wide+wide/4+wide) + rows*2*wide
	return max(rows*c.s.ExpertFLOP/c.cpu.Experts.At(rows/n), n*float64(c.s.ExpertHost)/read) + moved/(giga*c.cpu.RowsGBps) + micro*c.cpu.LayerUS
}

// handOver is a layer's rows to the host and their sums back: by flags in mapped memory or by
// copies, whichever is faster.
func (c *calc) handOver(m float64) float64 {
	bytes := m * float64(c.s.HandIn+c.s.HandOut)
	return min(micro*c.card.FlagUS+bytes/(giga*c.card.FlagGBps), micro*c.card.SyncUS+bytes/(giga*c.card.CopyGBps))
}

// copies returns the time of copying n experts to the GPU. The copies are slower during the busy
// seconds in which the GPU computes.
func (c *calc) copies(n, busy float64) float64 {
	if n <= 0 {
		return 0
	}
	idle, loaded := giga*c.card.CopyGBps, giga*c.card.BusyGBps
	bytes := n * float64(c.s.ExpertCard)
	// At the slower rate while the GPU computes, then at the other one.
	return n*micro*c.card.CopyUS + (bytes+min(busy, bytes/loaded)*(idle-loaded))/idle
}

// chunks calls f for every pass of a prompt.
func (c *calc) chunks(tokens int, f func(pos, m float64)) {
	for at := 0; at < tokens; at += c.w.Chunk {
		f(float64(at), float64(min(c.w.Chunk, tokens-at)))
	}
}
