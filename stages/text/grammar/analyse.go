package grammar

import "slices"

// users are by state the states that depend on it: those of state i lie from begins[i] to begins[i+1].
type users struct{ list, begins []int32 }

// users finds them.
func (p *program) users() (u users) {
	u.begins = make([]int32, len(p.states)+1)
	each := func(note func(of, user int32)) {
		for i := range p.states {
			s, at := &p.states[i], int32(i)
			for _, e := range s.edges {
				note(e.to, at)
			}
			for _, to := range s.eps {
				note(to, at)
			}
			if s.kind == kindCall || s.kind == kindLoop {
				note(s.next, at)
				note(p.entry[s.rule], at)
			}
		}
	}
	each(func(of, _ int32) { u.begins[of]++ })
	sum := int32(0)
	for i, n := range u.begins {
		sum += n
		u.begins[i] = sum
	}
	u.list = make([]int32, sum)
	each(func(of, user int32) {
		u.begins[of]--
		u.list[u.begins[of]] = user
	})
	return u
}

// solve finds the states from which the rule's end can be reached: without a byte, or with any.
func (p *program) solve(empty bool, u users) []bool {
	good := make([]bool, len(p.states))
	holds := func(s *state) bool {
		any := func(to int32) bool { return good[to] }
		switch s.kind {
		case kindByte:
			return !empty && slices.ContainsFunc(s.edges, func(e edge) bool { return good[e.to] })
		case kindSplit:
			return slices.ContainsFunc(s.eps, any)
		case kindCall:
			return good[s.next] && good[p.entry[s.rule]]
		case kindLoop:
			return good[s.next] && (s.least == 0 || good[p.entry[s.rule]])
		}
		return true
	}
	work := []int32{ret}
	good[ret] = true
	for len(work) > 0 {
		at := work[len(work)-1]
		work = work[:len(work)-1]
		for _, user := range u.list[u.begins[at]:u.begins[at+1]] {
			if !good[user] && holds(&p.states[user]) {
				good[user] = true
				work = append(work, user)
			}
		}
	}
	return good
}

// prune takes out the ways to states that no text leads on from.
func (p *program) prune(productive []bool) {
	for i := range p.states {
		s := &p.states[i]
		if !productive[i] {
			*s = state{kind: kindSplit}
			continue
		}
		s.edges = slices.DeleteFunc(s.edges, func(e edge) bool { return !productive[e.to] })
		s.eps = slices.DeleteFunc(s.eps, func(to int32) bool { return !productive[to] })
		if s.kind == kindLoop && !productive[p.entry[s.rule]] {
			*s = state{kind: kindSplit, eps: []int32{s.next}}
		}
	}
}

// begins returns the rules that the text of a rule may begin with.
func (p *program) begins(rule int32) []int32 {
	var calls []int32
	seen := map[int32]bool{}
	work := []int32{p.entry[rule]}
	for len(work) > 0 {
		at := work[len(work)-1]
		work = work[:len(work)-1]
		if seen[at] {
			continue
		}
		seen[at] = true
		switch s := &p.states[at]; s.kind {
		case kindSplit:
			work = append(work, s.eps...)
		case kindCall, kindLoop:
			calls = append(calls, s.rule)
			if p.empty[p.entry[s.rule]] || s.kind == kindLoop && s.least == 0 {
				work = append(work, s.next)
			}
		}
	}
	return calls
}

// order ranks the rules. A rule whose text may begin with itself has no rank.
func (p *program) order() error {
	const open, done = 1, 2
	marks := make([]uint8, len(p.entry))
	p.rank = make([]int32, len(p.entry))
	last := int32(len(p.entry))
	type visit struct {
		rule  int32
		calls []int32
	}
	for r := range p.entry {
		if marks[r] != 0 {
			continue
		}
		marks[r] = open
		stack := []visit{{int32(r), p.begins(int32(r))}}
		for len(stack) > 0 {
			top := &stack[len(stack)-1]
			if len(top.calls) == 0 {
				last--
				p.rank[top.rule], marks[top.rule] = last, done
				stack = stack[:len(stack)-1]
				continue
			}
			next := top.calls[0]
			top.calls = top.calls[1:]
			switch marks[next] {
			case open:
				return sourceError("a rule begins with itself (left recursion)")
			case 0:
				marks[next] = open
				stack = append(stack, visit{next, p.begins(next)})
			}
		}
	}
	return nil
}

// classify numbers the symbols that the states tell apart.
func (p *program) classify(v *Vocabulary) {
	border := make([]bool, 256+len(p.tokens)+1)
	for i := range p.states {
		for _, e := range p.states[i].edges {
			border[e.lo], border[e.hi+1] = true, true
		}
	}
	p.classes = make([]uint16, 256+len(p.tokens))
	for s := range p.classes {
		if s == 0 || border[s] {
			p.count++
			p.member = append(p.member, uint16(s))
		}
		p.classes[s] = uint16(p.count - 1)
	}
}

// class is that of a symbol.
func (p *program) class(symbol uint16) uint16 { return p.classes[symbol] }

// to returns the state after a symbol, fail for none.
func (s *state) to(symbol uint16) int32 {
	for i := range s.edges {
		if e := &s.edges[i]; symbol <= e.hi {
			if symbol >= e.lo {
				return e.to
			}
			return fail
		}
	}
	return fail
}
