package grammar

import (
	"encoding/binary"
	"slices"
	"unsafe"
)

// automaton is the states of a program's stacks as far as texts have reached them.
//
// An elem is a state of a rule, with the counts of its repetition. A set is a list of elems in which
// a rule may be at once. A frame is a set and the frames that the rule returns to; frame bottom is
// below all rules. A config is a list of frames, and whether the text may end: a state of the whole.
type automaton struct {
	prog  *program
	vocab *Vocabulary
	start int32

	sets    []set
	setIDs  map[string]int32
	elems   int // in all sets and frames
	moves   map[uint64]*move
	enters  []*move // by rule
	nodes   []frame
	nodeIDs map[string]int32
	configs []config
	ids     map[string]int32
	next    []int32             // by config and class: the config after it; 0: not known
	reaches map[[2]int32]*reach // by set, and the set around it or dead
	masks   map[int32][]uint32

	fresh int   // work since begin: configs found, by their size
	err   error // why a step that would be possible is none
	w     worker
	key   []byte
	path  [MaxToken + 1]int32 // of walk, by depth: the config times the number of classes
}

type elem struct{ state, least, most int32 }

type set struct {
	elems   []elem
	resumed *move
	clamped int32 // its set with counts that one token can tell apart; -1: not known
}

type frame struct {
	set     int32
	parents []int32
	depth   int32
	clamped int32
}

type config struct {
	nodes   []int32
	accepts bool
}

// move holds the states that follow from a set by one symbol, or by none. A set below 0 is none.
type move struct {
	set   int32
	calls []call
	pops  bool // the rule may end
}

// call is of a rule, which then returns to set back, or ends the calling rule as well (tail).
type call struct {
	rule, back int32
	tail       bool
}

const (
	dead   int32 = -1
	bottom int32 = 0
)

func newAutomaton(p *program, v *Vocabulary) *automaton {
	a := &automaton{prog: p, vocab: v, setIDs: map[string]int32{}, moves: map[uint64]*move{}, enters: make([]*move, len(p.entry)),
		nodeIDs: map[string]int32{}, ids: map[string]int32{}, reaches: map[[2]int32]*reach{}, masks: map[int32][]uint32{}}
	a.nodes = []frame{{set: -1}}
	a.configs = []config{{}} // so that 0 is none
	a.next = make([]int32, p.count)
	a.w = worker{parents: map[int32][]int32{}, pending: map[int32][]int32{}, popped: map[int32]bool{}}
	a.w.reset()
	a.w.enter(p.root, bottom)
	a.w.accepts = p.empty[p.entry[p.root]]
	a.start = a.finish()
	return a
}

// begin starts to count the work for one token.
func (a *automaton) begin() { a.fresh, a.err = 0, nil }

// intern returns the id of a set.
func (a *automaton) intern(elems []elem) int32 {
	slices.SortFunc(elems, func(x, y elem) int {
		if x.state != y.state {
			return int(x.state - y.state)
		}
		if x.least != y.least {
			return int(x.least - y.least)
		}
		return int(x.most - y.most)
	})
	elems = slices.Compact(elems)
	key := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(elems))), len(elems)*int(unsafe.Sizeof(elem{})))
	if id, ok := a.setIDs[string(key)]; ok {
		return id
	}
	if len(elems) > maxElems {
		a.err = ErrLimit
		return dead
	}
	id := int32(len(a.sets))
	a.sets = append(a.sets, set{elems: slices.Clone(elems), clamped: -1})
	a.setIDs[string(key)] = id
	a.elems += len(elems)
	return id
}

// node returns the id of a frame.
func (a *automaton) node(set int32, parents []int32) int32 {
	key := binary.LittleEndian.AppendUint32(a.key[:0], uint32(set))
	for _, p := range parents {
		key = binary.LittleEndian.AppendUint32(key, uint32(p))
	}
	a.key = key
	if id, ok := a.nodeIDs[string(key)]; ok {
		return id
	}
	depth := int32(0)
	for _, p := range parents {
		depth = max(depth, a.nodes[p].depth)
	}
	if depth >= maxDepth || len(parents) > maxNodes {
		a.err = ErrLimit
		return dead
	}
	a.fresh += len(parents) / 4
	id := int32(len(a.nodes))
	a.nodes = append(a.nodes, frame{set: set, parents: slices.Clone(parents), depth: depth + 1, clamped: -1})
	a.nodeIDs[string(key)] = id
	a.elems += len(parents)
	return id
}

// config returns the id of a config; dead for the one without frames where the text may not end.
func (a *automaton) config(nodes []int32, accepts bool) int32 {
	if len(nodes) == 0 && !accepts {
		return dead
	}
	slices.Sort(nodes)
	key := append(a.key[:0], 0)
	if accepts {
		key[0] = 1
	}
	for _, n := range nodes {
		key = binary.LittleEndian.AppendUint32(key, uint32(n))
	}
	a.key = key
	if id, ok := a.ids[string(key)]; ok {
		return id
	}
	if a.fresh += 1 + len(nodes)/4; a.fresh > maxFresh || len(nodes) > maxNodes {
		a.err = ErrLimit
		return dead
	}
	id := int32(len(a.configs))
	a.configs = append(a.configs, config{nodes: slices.Clone(nodes), accepts: accepts})
	a.ids[string(key)] = id
	a.next = append(a.next, make([]int32, a.prog.count)...)
	a.elems += len(nodes)
	return id
}

// step returns the config after a symbol of a class.
func (a *automaton) step(at int32, class uint16) int32 {
	slot := int(at)*a.prog.count + int(class)
	if to := a.next[slot]; to != 0 {
		return to
	}
	a.w.reset()
	for _, n := range a.configs[at].nodes {
		a.apply(a.move(a.nodes[n].set, class), a.nodes[n].parents)
	}
	to := a.finish()
	if a.err != nil {
		return dead
	}
	a.next[slot] = to
	return to
}

// move returns what follows from a set by a class.
func (a *automaton) move(set int32, class uint16) *move {
	key := uint64(set)<<16 | uint64(class)
	if m := a.moves[key]; m != nil {
		return m
	}
	var work []elem
	symbol := a.prog.member[class]
	for _, e := range a.sets[set].elems {
		if to := a.prog.states[e.state].to(symbol); to != fail {
			work = append(work, a.at(to))
		}
	}
	m := a.close(work)
	if a.err == nil {
		a.moves[key] = m
	}
	return m
}

// at returns the elem of a state that is reached anew.
func (a *automaton) at(state int32) elem {
	s := &a.prog.states[state]
	if s.kind == kindLoop {
		return elem{state, s.least, s.most}
	}
	return elem{state: state}
}

// close follows the ways that need no symbol.
func (a *automaton) close(work []elem) *move {
	m := &move{set: -1}
	seen := map[elem]bool{}
	backs := map[int32][]elem{}
	var inside []elem
	var rules []int32
	add := func(rule int32, back elem) {
		if _, ok := backs[rule]; !ok {
			rules = append(rules, rule)
		}
		backs[rule] = append(backs[rule], back)
	}
	for len(work) > 0 {
		e := work[len(work)-1]
		work = work[:len(work)-1]
		if seen[e] {
			continue
		}
		if seen[e] = true; len(seen) > 4*maxElems {
			a.err = ErrLimit
			break
		}
		switch s := &a.prog.states[e.state]; s.kind {
		case kindRet:
			m.pops = true
		case kindByte:
			inside = append(inside, e)
		case kindSplit:
			for _, to := range s.eps {
				work = append(work, a.at(to))
			}
		case kindCall:
			add(s.rule, a.at(s.next))
			if a.prog.empty[a.prog.entry[s.rule]] {
				work = append(work, a.at(s.next))
			}
		case kindLoop:
			if e.least == 0 || a.prog.empty[a.prog.entry[s.rule]] {
				work = append(work, a.at(s.next))
			}
			if e.most != 0 {
				add(s.rule, elem{e.state, max(e.least-1, 0), max(e.most-1, -1)})
			}
		}
	}
	a.fresh += len(seen) / 16
	if len(inside) > 0 {
		m.set = a.intern(inside)
	}
	for _, r := range rules {
		c := call{rule: r, back: -1}
		list := slices.DeleteFunc(backs[r], func(e elem) bool { return e.state == ret })
		if c.tail = len(list) < len(backs[r]); len(list) > 0 {
			c.back = a.intern(list)
		}
		m.calls = append(m.calls, c)
	}
	return m
}

// enter returns what a rule begins with. That it may be empty was seen by its caller.
func (a *automaton) enter(rule int32) *move {
	if a.enters[rule] == nil {
		m := a.close([]elem{a.at(a.prog.entry[rule])})
		m.pops = false
		if a.err != nil {
			return m
		}
		a.enters[rule] = m
	}
	return a.enters[rule]
}

// resume returns what follows when a rule that a set called has ended.
func (a *automaton) resume(set int32) *move {
	if a.sets[set].resumed == nil {
		m := a.close(slices.Clone(a.sets[set].elems))
		if a.err != nil {
			return m
		}
		a.sets[set].resumed = m
	}
	return a.sets[set].resumed
}
