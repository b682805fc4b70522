package routing

import (
	"errors"
	"fmt"

	"krater/scheduler/learn"
)

// Curve counts the reads of a trace, token by token, that hit with learned in memories of several sizes.
type Curve struct {
	Header
	Tokens int
	Counts [][]uint32 // [layers with experts][experts] choices
	Hits   []Point    // for each size
}

const (
	// curveTokens bounds the tokens that a curve is made of: those at the beginning of the trace.
	curveTokens = 4096
	// curveWarm is the part of them, 1/curveWarm, after which hits count.
	curveWarm = 4
	// movesOf is the part of the slots, 1/movesOf, that may move after a token.
	movesOf = 40
)

// errEnough ends the reading of a trace.
var errEnough = errors.New("enough")

// ReadCurve makes the curve of a trace for memories of the given parts of all experts.
func ReadCurve(path string, parts []float64) (*Curve, error) {
	c := &Curve{Hits: make([]Point, len(parts))}
	var replays []*Replay
	row := 0
	take := func(b *Batch) error {
		for i := range b.Rows {
			if c.Tokens == curveTokens {
				return errEnough
			}
			one := Batch{Decode: b.Decode, Rows: 1, IDs: b.IDs[i*row : (i+1)*row]}
			for j, e := range one.IDs {
				c.Counts[j/c.TopK][e]++
			}
			for j, r := range replays {
				r.Step(&one)
				if c.Tokens == curveTokens/curveWarm { // a shorter trace counts from its beginning
					c.Hits[j] = Point{-r.result.Reads, -r.result.Hits}
				}
			}
			c.Tokens++
		}
		return nil
	}
	err := Each(path, func(h Header) error {
		c.Header, row = h, h.row()
		c.Counts = make([][]uint32, len(h.Layers))
		for i := range c.Counts {
			c.Counts[i] = make([]uint32, h.Experts)
		}
		all := len(h.Layers) * h.Experts
		for _, part := range parts {
			slots := max(1, int(part*float64(all)+0.5))
			l, err := learn.New(all, slots, learn.Options{})
			if err != nil {
				return err
			}
			replays = append(replays, &Replay{Header: h, Slots: slots, Most: max(1, slots/movesOf), Policy: &learned{l}})
		}
		return nil
	}, take)
	if err != nil && !errors.Is(err, errEnough) {
		return nil, err
	}
	if c.Tokens == 0 {
		return nil, fmt.Errorf("%s: it has no choices", path)
	}
	for j, r := range replays {
		c.Hits[j].Reads += r.result.Reads
		c.Hits[j].Hits += r.result.Hits
	}
	return c, nil
}

// Share returns the part of the reads that hit.
func (p Point) Share() float64 { return float64(p.Hits) / float64(max(1, p.Reads)) }
