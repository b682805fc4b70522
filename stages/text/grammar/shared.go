package grammar

import (
	"encoding/binary"
	"sync"
)

// Grammars have rules in common: the text of a JSON string is the same in all schemas. What a set of such a rule allows
// alone is a walk over all tokens, and is kept with the vocabulary for all grammars.

// shared are the reaches of a vocabulary, by the states that they depend on.
type shared struct {
	mu   sync.Mutex
	list map[string]*reach
}

// Limits of what is shared. A key is made in less time than the walk takes.
const (
	maxShared       = 512
	maxSharedStates = 1 << 10
)

func (s *shared) find(key string) *reach {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.list[key]
}

func (s *shared) add(key string, r *reach) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.list == nil || len(s.list) >= maxShared {
		s.list = map[string]*reach{}
	}
	s.list[key] = r
}

// describe makes a key of sets and all states that a text may lead to from it: equal keys allow the same, in
// whatever grammars. It is empty for more states than are worth it.
func (a *automaton) describe(sets []int32) string {
	most := int32(a.vocab.longest + 1) // see clampSet
	numbers := map[int32]int{fail: int(fail), ret: int(ret)}
	var todo []int32
	var key []byte
	put := func(n int) { key = binary.AppendVarint(key, int64(n)) }
	number := func(at int32) {
		n, ok := numbers[at]
		if !ok {
			n = len(numbers)
			numbers[at] = n
			todo = append(todo, at)
		}
		put(n)
	}
	for _, set := range sets {
		put(len(a.sets[set].elems))
		for _, e := range a.sets[set].elems {
			number(e.state)
			put(int(min(e.least, most)))
			put(int(min(e.most, most)))
		}
	}
	for i := 0; i < len(todo); i++ {
		if i == maxSharedStates {
			return ""
		}
		s := &a.prog.states[todo[i]]
		put(-1 - int(s.kind))
		switch s.kind {
		case kindByte:
			for _, e := range s.edges {
				if e.lo < 256 { // control tokens are no text
					put(int(e.lo))
					put(int(e.hi))
					number(e.to)
				}
			}
		case kindSplit:
			for _, to := range s.eps {
				number(to)
			}
		case kindLoop:
			put(int(min(s.least, most)))
			put(int(min(s.most, most)))
			fallthrough
		case kindCall:
			number(a.prog.entry[s.rule])
			number(s.next)
		}
	}
	return string(key)
}
