package grammar

import "slices"

// reach holds the tokens that a set, or two, allow whatever is around the rule: a mask, and the nodes of the trie where the
// rule may end before a token does.
type reach struct {
	mask []uint32
	open []int32
	left int // nodes below those
}

// mask returns the tokens that may follow a config. It is kept.
func (a *automaton) mask(at int32) []uint32 {
	at = a.clampConfig(at)
	if at == dead {
		return nil
	}
	if m := a.masks[at]; m != nil {
		return m
	}
	m := make([]uint32, a.vocab.words())
	for _, n := range a.configs[at].nodes {
		r, parents := a.reach(a.nodes[n].set), a.nodes[n].parents
		if r.left > muchLeft && len(parents) == 1 && parents[0] != bottom {
			p := parents[0]
			r, parents = a.reach(a.nodes[n].set, a.nodes[p].set), a.nodes[p].parents
		}
		for i, w := range r.mask {
			m[i] |= w
		}
		if len(r.open) == 0 || len(parents) == 1 && parents[0] == bottom {
			continue
		}
		a.w.reset()
		a.pop(parents)
		if around := a.finish(); around != dead {
			for _, v := range r.open {
				a.walk(around, v, m, nil)
			}
		}
	}
	for i, id := range a.prog.tokens {
		if a.step(at, a.prog.class(uint16(256+i))) != dead {
			m[id/32] |= 1 << (id % 32)
		}
	}
	if a.configs[at].accepts {
		for _, id := range a.vocab.ends {
			m[id/32] |= 1 << (id % 32)
		}
	}
	if a.err != nil {
		return nil
	}
	if len(a.masks) >= maxMasks {
		clear(a.masks)
	}
	a.masks[at] = m
	return m
}

// muchLeft is the number of nodes below open ones from which a set is looked at together with the one around it: a character of a
// string is a rule of its own, which ends within every token.
const muchLeft = 1 << 10

// reach returns what a set allows alone, or two of them, the inner one first.
func (a *automaton) reach(sets ...int32) *reach {
	id := [2]int32{sets[0], dead}
	copy(id[:], sets)
	if r := a.reaches[id]; r != nil {
		return r
	}
	key := a.describe(sets)
	if r := a.vocab.shared.find(key); r != nil && key != "" {
		a.reaches[id] = r
		return r
	}
	r := &reach{mask: make([]uint32, a.vocab.words())}
	frame := bottom
	for _, set := range slices.Backward(sets) {
		frame = a.node(set, []int32{frame})
	}
	alone := a.config([]int32{frame}, false)
	if alone == dead {
		return r
	}
	a.walk(alone, 0, r.mask, &r.open)
	for _, v := range r.open {
		r.left += int(a.vocab.nodes[v].after - v)
	}
	if a.err == nil {
		if len(a.reaches) >= maxMasks {
			clear(a.reaches)
		}
		a.reaches[id] = r
		if key != "" {
			a.vocab.shared.add(key, r)
		}
	}
	return r
}

// walk adds the tokens below a node of the trie whose texts lead on from a config. open, if it is
// set, gets the nodes where the text may end before a token does.
func (a *automaton) walk(from, root int32, mask []uint32, open *[]int32) {
	nodes, count := a.vocab.nodes, int32(a.prog.count)
	path := &a.path // not cleared: a mask may need thousands of short walks
	base := nodes[root].depth
	path[base] = from * count
	end := nodes[root].after
	for i := root + 1; i < end; {
		n := &nodes[i]
		class := a.prog.classes[n.char]
		to := a.next[path[n.depth-1]+int32(class)]
		if to == 0 {
			if to = a.step(path[n.depth-1]/count, class); a.err != nil {
				return
			}
		}
		if to == dead {
			i = n.after
			continue
		}
		if n.token >= 0 {
			mask[n.token>>5] |= 1 << (n.token & 31)
		}
		if open != nil && n.inner && a.configs[to].accepts {
			*open = append(*open, i)
		}
		path[n.depth] = to * count
		i++
	}
}

// Counts of repetitions that one token cannot reach make no difference for its mask, so that masks
// are found and kept for configs whose counts are clamped.

func (a *automaton) clampConfig(at int32) int32 {
	c := &a.configs[at]
	same := true
	nodes := make([]int32, len(c.nodes))
	for i, n := range c.nodes {
		if nodes[i] = a.clampNode(n); nodes[i] == dead {
			return dead
		}
		same = same && nodes[i] == n
	}
	if same {
		return at
	}
	return a.config(tidy(nodes), c.accepts)
}

// clampNode is at most maxDepth deep.
func (a *automaton) clampNode(n int32) int32 {
	if n == bottom {
		return n
	}
	f := &a.nodes[n]
	if f.clamped >= 0 {
		return f.clamped
	}
	set := a.clampSet(f.set)
	parents := slices.Clone(f.parents)
	same := set == f.set
	for i, p := range parents {
		parents[i] = a.clampNode(p)
		same = same && parents[i] == p
	}
	to := n
	if !same {
		to = a.node(set, tidy(parents))
	}
	a.nodes[n].clamped = to
	if to != dead {
		a.nodes[to].clamped = to
	}
	return to
}

func (a *automaton) clampSet(id int32) int32 {
	s := &a.sets[id]
	if s.clamped >= 0 {
		return s.clamped
	}
	most := int32(a.vocab.longest + 1)
	elems := slices.Clone(s.elems)
	for i := range elems {
		e := &elems[i]
		e.least = min(e.least, most)
		if e.most > most {
			e.most = most
		}
	}
	to := a.intern(elems)
	a.sets[id].clamped = to
	if to != dead {
		a.sets[to].clamped = to
	}
	return to
}
