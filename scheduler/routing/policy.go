package routing

import (
	"cmp"
	"fmt"
	"slices"

	"krater/scheduler/learn"
)

// Names are the policies, in the order of a report.
var Names = []string{"static", "lru", "lfu", "learned", "oracle"}

// oracleWindow is the number of tokens whose choices the oracle knows beforehand.
const oracleWindow = 256

// NewPolicy makes a policy for a memory of slots. static holds the experts that were chosen most in all of the trace, which
// counts has [experts of all layers]; the others begin with nothing. ahead gives the batches of the trace again, for the oracle.
func NewPolicy(name string, h *Header, slots int, counts []int, ahead func() (*Batch, error)) (Policy, error) {
	experts := len(h.Layers) * h.Experts
	switch name {
	case "static":
		return &static{best(counts, slots)}, nil
	case "lru":
		return &lru{last: make([]int, experts)}, nil
	case "lfu":
		return &lfu{counts: make([]int, experts)}, nil
	case "learned":
		l, err := learn.New(experts, slots, learn.Options{})
		return &learned{l}, err
	case "oracle":
		return &oracle{h: h, slots: slots, ahead: ahead, counts: make([]int, experts)}, nil
	}
	return nil, fmt.Errorf("no policy %q: want one of %v", name, Names)
}

// best lists the n experts with the highest counts, those without any left out, the highest first.
func best(counts []int, n int) []int32 {
	var list []int32
	for e, c := range counts {
		if c > 0 {
			list = append(list, int32(e))
		}
	}
	slices.SortStableFunc(list, func(a, b int32) int { return cmp.Compare(counts[b], counts[a]) })
	return list[:min(n, len(list))]
}

// static loads a fixed set once.
type static struct{ set []int32 }

func (*static) Name() string { return "static" }

func (p *static) Moves(list []learn.Move, _ *Memory, _ *Read, most int) []learn.Move {
	n := min(most, len(p.set))
	for _, e := range p.set[:n] {
		list = append(list, learn.Move{Load: e, Evict: -1})
	}
	p.set = p.set[n:]
	return list
}

// lru loads what a batch missed, in place of what was read least recently.
type lru struct {
	last []int // [experts] batch in which an expert was read
	now  int
}

func (*lru) Name() string { return "lru" }

func (p *lru) Moves(list []learn.Move, m *Memory, b *Read, most int) []learn.Move {
	p.now++
	for _, e := range b.Experts {
		p.last[e] = p.now
	}
	return missed(list, m, b, most, p.last)
}

// lfu loads what a batch missed, in place of what was read least often, if that was read less often.
type lfu struct{ counts []int }

func (*lfu) Name() string { return "lfu" }

func (p *lfu) Moves(list []learn.Move, m *Memory, b *Read, most int) []learn.Move {
	for _, e := range b.Experts {
		p.counts[e]++
	}
	return missed(list, m, b, most, p.counts)
}

// missed moves the experts that b missed, the most worth first, in place of those worth the least and less.
func missed(list []learn.Move, m *Memory, b *Read, most int, worth []int) []learn.Move {
	var found []int32
	for _, e := range b.Experts {
		if !m.Has(e) {
			found = append(found, e)
		}
	}
	slices.SortStableFunc(found, func(a, b int32) int { return cmp.Compare(worth[b], worth[a]) })
	return replace(list, m, found[:min(most, len(found))], func(a, b int32) int { return cmp.Compare(worth[a], worth[b]) })
}

// replace puts the experts of found into free slots, then into those of the least resident ones, as long as they are more.
func replace(list []learn.Move, m *Memory, found []int32, order func(a, b int32) int) []learn.Move {
	free := min(m.Free(), len(found))
	for _, e := range found[:free] {
		list = append(list, learn.Move{Load: e, Evict: -1})
	}
	if found = found[free:]; len(found) == 0 {
		return list
	}
	var held []int32
	for e, in := range m.in {
		if in {
			held = append(held, int32(e))
		}
	}
	slices.SortStableFunc(held, order)
	for i, e := range found {
		if i == len(held) || order(held[i], e) >= 0 {
			break
		}
		list = append(list, learn.Move{Load: e, Evict: held[i]})
	}
	return list
}

// learned moves experts as the strategy of that name does.
type learned struct{ *learn.Learner }

func (learned) Name() string { return "learned" }

func (p *learned) Moves(list []learn.Move, m *Memory, b *Read, most int) []learn.Move {
	p.Note(b.Rows, b.Chosen)
	return p.Learner.Moves(list, most, m.Free(), m.Has, func(int32) bool { return true })
}

// oracle moves toward the best set for the window of tokens that the next batch is in, which it counts
// beforehand.
type oracle struct {
	h      *Header
	slots  int
	ahead  func() (*Batch, error)
	done   int // tokens that were replayed
	known  int // tokens up to the end of the window that was counted last
	counts []int
	read   Read
	wanted []int32
}

func (*oracle) Name() string { return "oracle" }

func (p *oracle) Moves(list []learn.Move, m *Memory, b *Read, most int) []learn.Move {
	for p.done += b.Rows; p.done >= p.known; {
		if !p.look() {
			return list // the trace is over
		}
	}
	var found []int32
	for _, e := range p.wanted {
		if !m.Has(e) && len(found) < most {
			found = append(found, e)
		}
	}
	return replace(list, m, found, func(a, b int32) int { return cmp.Compare(p.counts[a], p.counts[b]) })
}

// look counts the reads of the next window.
func (p *oracle) look() bool {
	clear(p.counts)
	from := p.known
	for p.known < from+oracleWindow {
		b, err := p.ahead()
		if err != nil {
			break
		}
		p.read.of(p.h, b)
		for _, e := range p.read.Experts {
			p.counts[e]++
		}
		p.known += b.Rows
	}
	p.wanted = best(p.counts, p.slots)
	return p.known > from
}
