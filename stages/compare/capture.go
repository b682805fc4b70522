package compare

import (
	"fmt"
	"maps"
	"sync"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/model"
	"krater/stages/oracle"
)

// key names an intermediate result; layer is -1 outside the layers.
type key struct {
	layer int
	op    string
}

// capture is a probe that keeps the rows of one sequence, ordered by position, however they were
// batched.
type capture struct {
	seq uint64
	n   int // positions of the sequence

	mu   sync.Mutex // groups may run on several goroutines
	f32  map[key][]float32
	i32  map[key][]int32
	rows map[key]int // rows seen
	err  error
}

func newCapture(seq uint64, n int) *capture {
	return &capture{seq: seq, n: n, f32: map[key][]float32{}, i32: map[key][]int32{}, rows: map[key]int{}}
}

// Observe copies the sequence's rows of m (stages.Probe).
func (c *capture) Observe(s device.Stream, layer int, op string, m device.Mat, st *stages.State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	host := make([]byte, m.Bytes())
	s.CopyOut(host, m)
	if err := s.Synchronize(); err != nil {
		c.err = err
		return
	}
	k := key{layer, op}
	if op == "final_norm" {
		for i, row := range st.Wanted {
			sp := &st.Spans[st.Owner[i]]
			c.put(k, m, host, i, 1, 1, sp, sp.Pos+int(row)-sp.Row)
		}
		return
	}
	per := m.Rows / st.T // matrix rows of a token
	for i := range st.Spans {
		sp := &st.Spans[i]
		c.put(k, m, host, sp.Row*per, sp.Len, per, sp, sp.Pos)
	}
}

// put stores count tokens of per values each, starting at row row, as those of the positions from
// pos on, if they belong to the sequence.
func (c *capture) put(k key, m device.Mat, host []byte, row, count, per int, sp *stages.Span, pos int) {
	if sp.Seq != c.seq || c.err != nil {
		return
	}
	if pos+count > c.n {
		c.err = fmt.Errorf("compare: %s of layer %d at position %d, the prompt has %d", k.op, k.layer, pos+count-1, c.n)
		return
	}
	width := per * m.Cols
	from := row * m.Cols
	switch m.DType {
	case tensor.F32, tensor.BF16:
		if c.f32[k] == nil {
			c.f32[k] = make([]float32, c.n*width)
		}
		size := m.DType.Size()
		if err := tensor.Widen(c.f32[k][pos*width:][:count*width], m.DType, host[from*size:][:count*width*size]); err != nil {
			c.err = err
			return
		}
	case tensor.I32:
		if c.i32[k] == nil {
			c.i32[k] = make([]int32, c.n*width)
		}
		copy(c.i32[k][pos*width:], elements[int32](host)[from:from+count*width])
	default:
		c.err = fmt.Errorf("compare: %s of layer %d is %s", k.op, k.layer, m.DType)
		return
	}
	c.rows[k] += count
}

// finish turns the captured values into operators as the goldens name them: for rotated query heads
// only the rotated part, q_pe.
func (c *capture) finish(cfg *model.Config) error {
	for k, v := range maps.Clone(c.f32) {
		if pe := (key{k.layer, "q_pe"}); k.op == "q_rotated" {
			c.f32[pe], c.rows[pe] = oracle.RotatedPart(cfg, k.layer, v), c.rows[k]
			delete(c.f32, k)
		}
	}
	return c.err
}

// complete reports whether every position of an operator was seen once.
func (c *capture) complete(k key) error {
	if c.rows[k] != c.n {
		return fmt.Errorf("%d of %d positions observed", c.rows[k], c.n)
	}
	return nil
}
