package grammar

import "slices"

// worker makes one config.
type worker struct {
	accepts bool
	order   []int32           // sets, as they were found
	parents map[int32][]int32 // by set
	rules   []int32           // called and not entered yet
	pending map[int32][]int32 // by rule: frames that it returns to
	popped  map[int32]bool
	queue   []int32 // popped frames to be resumed
}

func (w *worker) reset() {
	w.accepts, w.order, w.rules, w.queue = false, w.order[:0], w.rules[:0], w.queue[:0]
	clear(w.parents)
	clear(w.pending)
	clear(w.popped)
}

func (w *worker) enter(rule int32, parents ...int32) {
	if _, ok := w.pending[rule]; !ok {
		w.rules = append(w.rules, rule)
	}
	w.pending[rule] = append(w.pending[rule], parents...)
}

// apply adds a move of frames that have these parents.
func (a *automaton) apply(m *move, parents []int32) {
	w := &a.w
	if m.set >= 0 {
		if _, ok := w.parents[m.set]; !ok {
			w.order = append(w.order, m.set)
		}
		w.parents[m.set] = append(w.parents[m.set], parents...)
	}
	for _, c := range m.calls {
		if c.tail {
			w.enter(c.rule, parents...)
		}
		if c.back >= 0 {
			if n := a.node(c.back, parents); n != dead {
				w.enter(c.rule, n)
			}
		}
	}
	if m.pops {
		a.pop(parents)
	}
}

// pop ends the rules that return to these frames.
func (a *automaton) pop(parents []int32) {
	for _, p := range parents {
		switch {
		case p == bottom:
			a.w.accepts = true
		case !a.w.popped[p]:
			a.w.popped[p] = true
			a.w.queue = append(a.w.queue, p)
		}
	}
}

// finish resumes what was popped, enters the rules that were called, and returns the config. Rules
// are entered by rank, so that all their callers are known.
func (a *automaton) finish() int32 {
	w := &a.w
	for len(w.queue) > 0 {
		n := &a.nodes[w.queue[len(w.queue)-1]]
		w.queue = w.queue[:len(w.queue)-1]
		set, parents := n.set, n.parents
		a.apply(a.resume(set), parents)
	}
	for len(w.rules) > 0 {
		best := 0
		for i, r := range w.rules {
			if a.prog.rank[r] < a.prog.rank[w.rules[best]] {
				best = i
			}
		}
		rule := w.rules[best]
		w.rules = slices.Delete(w.rules, best, best+1)
		parents := tidy(w.pending[rule])
		delete(w.pending, rule)
		a.apply(a.enter(rule), parents)
	}
	nodes := make([]int32, 0, len(w.order))
	for _, set := range w.order {
		if n := a.node(set, tidy(w.parents[set])); n != dead {
			nodes = append(nodes, n)
		}
	}
	return a.config(nodes, w.accepts)
}

// tidy sorts a list and takes out what is there twice.
func tidy(list []int32) []int32 {
	slices.Sort(list)
	return slices.Compact(list)
}

// adopt finds a config of another automaton of the same program.
func (a *automaton) adopt(from *automaton, at int32) int32 {
	known := map[int32]int32{bottom: bottom}
	var move func(n int32) int32 // at most maxDepth deep
	move = func(n int32) int32 {
		if to, ok := known[n]; ok {
			return to
		}
		parents := make([]int32, 0, len(from.nodes[n].parents))
		for _, p := range from.nodes[n].parents {
			parents = append(parents, move(p))
		}
		to := a.node(a.intern(slices.Clone(from.sets[from.nodes[n].set].elems)), tidy(parents))
		known[n] = to
		return to
	}
	nodes := make([]int32, 0, len(from.configs[at].nodes))
	for _, n := range from.configs[at].nodes {
		nodes = append(nodes, move(n))
	}
	return a.config(nodes, from.configs[at].accepts)
}
