//go:build cuda

package rt

import (
	"sync/atomic"

	"krater/kernels/cuda/driver"
	"krater/kernels/cuda/launch"
)

// graphs turns repeated lists into graphs. Data that changes between two steps is in the GPU's
// memory, so two steps of equal shape are equal lists. The second one is captured; later ones are
// one call. It belongs to the owner's thread.
//
// A graph costs milliseconds and memory, so at most max are kept, and the least recently used one
// is evicted.
type graphs struct {
	max   int
	kept  *atomic.Int64 // of all streams of the GPU
	clock uint64
	byKey map[uint64]*entry   // by the list's hash
	steps map[uint64]*entry   // by the key of a step that is one such list
	seen  map[uint64]struct{} // hashes of lists that have occurred once
}

type entry struct {
	list *launch.List
	g    *driver.Graph
	last uint64
	step uint64 // key in steps, 0: none
}

// seenMax bounds the number of remembered hashes.
const seenMax = 1024

func (g *graphs) run(s *Stream) error {
	key := s.List.Hash()
	g.clock++
	if e, ok := g.byKey[key]; ok && e.list.Same(&s.List) {
		e.last = g.clock
		g.note(s, e)
		return e.g.Launch(s.s)
	}
	plain := func() error { return s.gpu.run.run(&s.gpu.mods, &s.List, 0, len(s.List.Ops), s.s) }
	if _, again := g.seen[key]; !again {
		if g.seen == nil || len(g.seen) >= seenMax {
			g.seen = map[uint64]struct{}{}
		}
		g.seen[key] = struct{}{}
		return plain()
	}
	if old, ok := g.byKey[key]; ok { // another list with this hash
		g.drop(key, old)
	}
	graph, err := driver.Capture(s.s, plain)
	if err != nil {
		return err
	}
	if g.byKey == nil {
		g.byKey = map[uint64]*entry{}
	}
	for len(g.byKey) >= g.max {
		g.evict()
	}
	e := &entry{list: s.List.Clone(), g: graph, last: g.clock}
	g.byKey[key] = e
	g.kept.Add(1)
	g.note(s, e)
	return graph.Launch(s.s)
}

// note records that e is the graph of a step that was sent in one piece.
func (g *graphs) note(s *Stream, e *entry) {
	if s.step.key == 0 || s.step.cut || e.step != 0 {
		return
	}
	if g.steps == nil {
		g.steps = map[uint64]*entry{}
	}
	g.steps[s.step.key] = e
	e.step = s.step.key
}

// replay launches the graph of the whole step.
func (g *graphs) replay(s *Stream) error {
	e := s.step.replay
	s.step.replay = nil
	g.clock++
	e.last = g.clock
	return e.g.Launch(s.s)
}

func (g *graphs) evict() {
	var oldest uint64
	var victim *entry
	for key, e := range g.byKey {
		if victim == nil || e.last < victim.last {
			oldest, victim = key, e
		}
	}
	g.drop(oldest, victim)
}

func (g *graphs) drop(key uint64, e *entry) {
	_ = e.g.Destroy() // it remains usable for running launches; nothing else to do
	g.kept.Add(-1)
	delete(g.byKey, key)
	delete(g.seen, key)
	delete(g.steps, e.step)
}

func (g *graphs) clear() {
	for key, e := range g.byKey {
		g.drop(key, e)
	}
}

// Begun reports whether the GPU has a part of a step that is not sent as one piece.
func (s *Stream) Begun() bool { return s.began && !s.keep }
