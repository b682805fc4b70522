package routing

import (
	"fmt"
	"slices"

	"krater/scheduler/learn"
)

// Policy decides what a memory of experts holds. An expert is its index: layer * experts + expert, where layers counts
// those with experts.
type Policy interface {
	Name() string
	// Moves notes a batch, whose experts are sorted and distinct, and appends at most most moves to list, which
	// are carried out before the next batch.
	Moves(list []learn.Move, m *Memory, b *Read, most int) []learn.Move
}

// Read lists the experts that a batch reads.
type Read struct {
	Rows    int
	Chosen  []int32 // [rows * layers * top_k] experts
	Experts []int32 // of them, each once, rising
}

// Memory is the experts that are in the fast memory.
type Memory struct {
	slots int
	in    []bool // [experts of all layers]
	held  int
}

// Has reports whether an expert is there.
func (m *Memory) Has(expert int32) bool { return m.in[expert] }

// Free returns the number of slots without an expert.
func (m *Memory) Free() int { return m.slots - m.held }

// apply carries out a move. It panics where a policy asks for the impossible.
func (m *Memory) apply(v learn.Move) {
	if v.Evict >= 0 {
		if !m.in[v.Evict] {
			panic(fmt.Sprintf("routing: expert %d is not there to be evicted", v.Evict))
		}
		m.in[v.Evict] = false
		m.held--
	}
	if m.in[v.Load] || m.held == m.slots {
		panic(fmt.Sprintf("routing: expert %d is there already: %v; %d slots of %d in use", v.Load, m.in[v.Load], m.held, m.slots))
	}
	m.in[v.Load] = true
	m.held++
}

// Result counts the reads of a replay.
type Result struct {
	Policy  string  `json:"policy"`
	Slots   int     `json:"slots"`
	Batches int     `json:"batches"` // counted ones
	Reads   int     `json:"reads"`   // experts that batches read
	Hits    int     `json:"hits"`    // of them, in the memory
	Moves   int     `json:"moves"`   // experts that were copied
	Curve   []Point `json:"curve,omitempty"`
}

// Point is the reads and hits of the batches from one multiple of Replay.Interval tokens to the next.
type Point struct {
	Reads int `json:"reads"`
	Hits  int `json:"hits"`
}

// Share returns the share of reads that hit.
func (r *Result) Share() float64 { return float64(r.Hits) / float64(max(1, r.Reads)) }

// Replay runs a trace against a policy.
type Replay struct {
	Header
	Slots  int
	Most   int // moves after a batch
	Warm   int // tokens at the beginning that do not count
	Policy Policy

	// Interval is the tokens of a Point of the curve; 0: no curve.
	Interval int

	memory Memory
	read   Read
	moves  []learn.Move
	tokens int
	result Result
}

// Step replays a batch.
func (r *Replay) Step(b *Batch) {
	if r.memory.in == nil {
		r.memory = Memory{slots: r.Slots, in: make([]bool, len(r.Layers)*r.Experts)}
	}
	r.read.of(&r.Header, b)
	hits := 0
	for _, e := range r.read.Experts {
		if r.memory.in[e] {
			hits++
		}
	}
	r.moves = r.Policy.Moves(r.moves[:0], &r.memory, &r.read, r.Most)
	for _, v := range r.moves {
		r.memory.apply(v)
	}
	from := r.tokens
	if r.tokens += b.Rows; from < r.Warm {
		return
	}
	r.result.Batches++
	r.result.Reads += len(r.read.Experts)
	r.result.Hits += hits
	r.result.Moves += len(r.moves)
	if r.Interval > 0 {
		for at := from / r.Interval; at >= len(r.result.Curve); {
			r.result.Curve = append(r.result.Curve, Point{})
		}
		p := &r.result.Curve[from/r.Interval]
		p.Reads += len(r.read.Experts)
		p.Hits += hits
	}
}

// Result returns the counts so far.
func (r *Replay) Result() Result {
	out := r.result
	out.Policy, out.Slots = r.Policy.Name(), r.Slots
	return out
}

// of lists what b reads.
func (d *Read) of(h *Header, b *Batch) {
	d.Rows, d.Chosen = b.Rows, d.Chosen[:0]
	row := h.row()
	for i, e := range b.IDs {
		d.Chosen = append(d.Chosen, int32(i%row/h.TopK*h.Experts)+int32(e))
	}
	d.Experts = append(d.Experts[:0], d.Chosen...)
	slices.Sort(d.Experts)
	d.Experts = slices.Compact(d.Experts)
}

// Counts returns the number of batches that read each expert.
func Counts(h *Header, list []Batch) []int {
	c := Counter{Header: *h}
	for i := range list {
		c.Add(&list[i])
	}
	return c.Counts
}

// Counter counts the batches that read each expert [experts of all layers].
type Counter struct {
	Header
	Counts []int
	read   Read
}

// Add counts a batch.
func (c *Counter) Add(b *Batch) {
	if c.Counts == nil {
		c.Counts = make([]int, len(c.Layers)*c.Experts)
	}
	c.read.of(&c.Header, b)
	for _, e := range c.read.Experts {
		c.Counts[e]++
	}
}
