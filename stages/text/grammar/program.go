package grammar

import (
	"slices"
	"strings"
)

// program is a grammar's rules as states. Rule r begins at entry[r]; a state of kind ret ends it.
type program struct {
	states []state
	entry  []int32
	rank   []int32 // by rule: a rule comes before those that its text may begin with
	empty  []bool  // by state: its rule can end from there without another byte
	root   int32
	// classes gives symbols, the 256 bytes and then control tokens, that no state tells apart the
	// same number, below count.
	classes []uint16
	count   int
	member  []uint16 // a symbol of each class
	tokens  []int32  // symbol 256+i is token tokens[i]
}

type kind uint8

const (
	kindRet   kind = iota // the rule ends
	kindByte              // edges
	kindSplit             // eps
	kindCall              // rule, then next
	kindLoop              // rule, least to most times, then next
)

type state struct {
	kind        kind
	edges       []edge  // that do not overlap
	eps         []int32 // any of these
	rule, next  int32
	least, most int32 // most < 0: no limit
}

// edge goes to a state for the symbols from lo to hi.
type edge struct {
	lo, hi uint16
	to     int32
}

// fail is a state that nothing fits, and ret the end of a rule.
const (
	fail int32 = 0
	ret  int32 = 1
)

// builder makes states of expressions, from the last to the first.
type builder struct {
	*program
	rules *Rules
	units map[string]int32  // states of sets of characters that were made
	leads map[string][]edge // edges to them
	made  map[made]int32
	err   error
}

// made is an expression, and the state behind it.
type made struct {
	expr *Expr
	next int32
}

func compile(rules *Rules, root int32, v *Vocabulary) (*program, error) {
	if rules.Len() > maxRules {
		return nil, sourceError("it has more than %d rules", maxRules)
	}
	b := &builder{program: &program{root: root}, rules: rules, units: map[string]int32{}, leads: map[string][]edge{}, made: map[made]int32{}}
	b.states = []state{{kind: kindSplit}, {kind: kindRet}}
	for i := 0; i < rules.Len() && b.err == nil; i++ { // repetitions add rules
		if rules.list[i] == nil {
			return nil, sourceError("rule %d is not defined", i)
		}
		start := b.make(rules.list[i], ret)
		b.entry = append(b.entry, start)
	}
	if b.err != nil {
		return nil, b.err
	}
	p := b.program
	u := p.users() // more than there are once it is pruned, which solve does not mind
	productive := p.solve(false, u)
	if !productive[p.entry[root]] {
		return nil, sourceError("no text fits it")
	}
	p.prune(productive)
	p.empty = p.solve(true, u)
	if err := p.order(); err != nil {
		return nil, err
	}
	p.classify(v)
	return p, nil
}

// add makes a state.
func (b *builder) add(s state) int32 {
	if len(b.states)+len(b.rules.list) > maxStates {
		b.err = sourceError("it has more than %d states", maxStates)
		return fail
	}
	b.states = append(b.states, s)
	return int32(len(b.states) - 1)
}

// split is one of several states.
func (b *builder) split(list ...int32) int32 {
	list = slices.DeleteFunc(list, func(s int32) bool { return s == fail })
	switch len(list) {
	case 0:
		return fail
	case 1:
		return list[0]
	}
	return b.add(state{kind: kindSplit, eps: list})
}

// make returns the state where e begins, which goes on at next. Parts of several expressions are made
// once.
func (b *builder) make(e *Expr, next int32) int32 {
	if next == fail || b.err != nil {
		return fail
	}
	key := made{e, next}
	if at, ok := b.made[key]; ok {
		return at
	}
	at := b.makeNew(e, next)
	b.made[key] = at
	return at
}

func (b *builder) makeNew(e *Expr, next int32) int32 {
	switch e.op {
	case opSeq:
		for _, part := range slices.Backward(e.subs) {
			next = b.make(part, next)
		}
		return next
	case opAlt:
		list := make([]int32, 0, len(e.subs))
		for _, part := range e.subs {
			list = append(list, b.make(part, next))
		}
		return b.split(list...)
	case opWords:
		return b.words(slices.Compact(slices.Sorted(slices.Values(e.texts))), 0, next)
	case opSet:
		return b.set(e.set, next)
	case opRepeat:
		return b.repeat(e, next)
	case opRule:
		return b.add(state{kind: kindCall, rule: e.id, next: next})
	case opToken:
		i := slices.Index(b.tokens, e.id)
		if i < 0 {
			i = len(b.tokens)
			b.tokens = append(b.tokens, e.id)
		}
		symbol := uint16(256 + i)
		return b.add(state{kind: kindByte, edges: []edge{{symbol, symbol, next}}})
	}
	return b.until(e.texts, next)
}

// words makes a trie of sorted texts that have the first at bytes in common.
func (b *builder) words(list []string, at int, next int32) int32 {
	if len(list) == 1 {
		word := list[0]
		for i := len(word) - 1; i >= at; i-- {
			next = b.add(state{kind: kindByte, edges: []edge{{uint16(word[i]), uint16(word[i]), next}}})
		}
		return next
	}
	ends := fail
	if len(list) > 0 && len(list[0]) == at {
		ends, list = next, list[1:]
	}
	var edges []edge
	for len(list) > 0 {
		c := list[0][at]
		n := 1
		for n < len(list) && list[n][at] == c {
			n++
		}
		edges = append(edges, edge{uint16(c), uint16(c), b.words(list[:n], at+1, next)})
		list = list[n:]
	}
	if len(edges) == 0 {
		return ends
	}
	return b.split(ends, b.add(state{kind: kindByte, edges: edges}))
}

// unrolled is how large a repetition may become that is written out.
const unrolled = 24

func (b *builder) repeat(e *Expr, next int32) int32 {
	body, least, most := e.subs[0], e.min, e.max
	if most >= 0 && least > most {
		return fail
	}
	if least <= 1 && most < 0 {
		loop := b.add(state{kind: kindSplit})
		start := b.make(body, loop)
		b.states[loop].eps = []int32{start, next}
		if least == 0 {
			return loop
		}
		return start
	}
	if most > 0 && most*body.size(unrolled) <= unrolled || most == 1 {
		for i := most; i > 0; i-- {
			if start := b.make(body, next); i > least {
				next = b.split(start, next)
			} else {
				next = start
			}
		}
		return next
	}
	rule := b.rules.Add(body)
	return b.add(state{kind: kindLoop, rule: rule, next: next, least: int32(min(least, 1<<30)), most: int32(min(most, 1<<30))})
}

// until makes the states of text without marks: one for each beginning of a mark that the text ends
// with (Aho and Corasick, "Efficient String Matching", 1975).
func (b *builder) until(marks []string, next int32) int32 {
	var signs []rune
	prefixes := []string{""}
	for _, m := range marks {
		for i, c := range m {
			if signs = append(signs, c); i > 0 {
				prefixes = append(prefixes, m[:i])
			}
		}
	}
	slices.Sort(signs)
	signs = slices.Compact(signs)
	slices.Sort(prefixes)
	prefixes = slices.Compact(prefixes)
	first := len(b.states)
	for range prefixes {
		b.add(state{kind: kindSplit})
	}
	if b.err != nil {
		return fail
	}
	other := b.set(Any.Minus(Runes(signs...)), int32(first))
	for i, p := range prefixes {
		list := []int32{next, other}
		for _, c := range signs {
			s := p + string(c)
			if slices.ContainsFunc(marks, func(m string) bool { return strings.HasSuffix(s, m) }) {
				continue
			}
			best := 0 // the longest beginning of a mark that the text then ends with
			for k, q := range prefixes {
				if len(q) > len(prefixes[best]) && strings.HasSuffix(s, q) {
					best = k
				}
			}
			list = append(list, b.words([]string{string(c)}, 0, int32(first+best)))
		}
		b.states[first+i].eps = list
	}
	return int32(first)
}
