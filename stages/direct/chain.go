package direct

import (
	"errors"

	"krater/stages"
)

// ErrNoChain: the device does not choose tokens, so a step cannot be enqueued before the step whose
// tokens it takes has ended.
var ErrNoChain = errors.New("direct: a chain of steps needs a device that chooses tokens")

// Chain decodes n tokens of every row of b. Like the pipeline, it enqueues each step while the one
// before it runs, whose tokens it takes on the device. The spans of b are generated rows, wanted and
// with draws, and b has the tokens of the first step; each step moves the spans by one token. Chain
// calls read with the result of every step in order. The state is valid during the call.
func (m *Model) Chain(b *stages.Step, n int, read func(step int, st *stages.State) error) error {
	if !m.first.state.Choose() {
		return ErrNoChain
	}
	if m.second == nil {
		f, err := newFlight(m.dev, m.Parts)
		if err != nil {
			return err
		}
		m.second = f
	}
	flights := [2]*flight{m.first, m.second}
	defer func() { b.From, b.Take = nil, nil }()
	b.From, b.Take = nil, make([]int32, len(b.Tokens))
	for i := range b.Take {
		b.Take[i] = int32(i)
	}
	for i := range n + 1 {
		if i < n {
			f := flights[i%2]
			if err := f.state.Fill(f.stream, b); err != nil {
				return err
			}
			if err := enqueue(f.stream, m.Parts, f.state, nil); err != nil {
				return err
			}
			f.stream.Submit()
			b.From = f.state
			for j := range b.Spans {
				b.Spans[j].Pos++
			}
		}
		if i == 0 {
			continue
		}
		f := flights[(i-1)%2]
		if err := f.stream.Synchronize(); err != nil {
			return err
		}
		if err := read(i-1, f.state); err != nil {
			return err
		}
	}
	return nil
}
