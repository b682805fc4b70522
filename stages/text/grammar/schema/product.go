package schema

import (
	"encoding/binary"
	"regexp/syntax"
	"slices"
	"unicode"

	"krater/stages/text/grammar"
)

// maxProduct bounds the states of several conditions on one string.
const maxProduct = 1 << 12

// product is an automaton over characters that takes the strings that all of some regular expressions
// are found in, and that have a length within bounds.
type product struct {
	progs       []*syntax.Prog
	signs       []rune // the first character of each class that the expressions tell apart
	least, most int
	stop        []rune // a text that no string contains
	class       func(grammar.Set) *grammar.Expr
	rules       *grammar.Rules
	known       map[string]int32
	work        []place
	full        bool
}

// place is a state: for each expression where it may be, and the number of characters so far as far as
// it counts.
type place struct {
	at    []threads
	count int
	stop  int // characters of product.stop that the string so far ends with
}

type threads struct {
	pcs     []uint32
	matched bool
}

// intersection returns strings that match all patterns and have an allowed length.
func (c *compiler) intersection(sources []source, s *shape) *grammar.Expr {
	p := &product{least: s.leastChars, most: s.mostChars, stop: []rune(c.n.Stop), class: c.n.class, rules: c.rules, known: map[string]int32{}}
	borders := []rune{0, 0xe000}
	for _, r := range p.stop {
		borders = append(borders, r, r+1)
	}
	for _, src := range sources {
		re, err := syntax.Parse(grammar.GoRegexp(src.text), syntax.Perl)
		if err == nil {
			var prog *syntax.Prog
			if prog, err = syntax.Compile(re.Simplify()); err == nil && len(prog.Inst) < maxProduct {
				p.progs = append(p.progs, prog)
				borders = append(borders, edges(prog)...)
				if !plainAnchors(prog) {
					c.fail(src.at, "a border of a word or line is not supported")
				}
				continue
			}
		}
		c.fail(src.at, "it is not supported: %v", err)
		return nothing
	}
	slices.Sort(borders)
	p.signs = slices.Compact(borders)
	start := place{}
	for _, prog := range p.progs {
		start.at = append(start.at, follow(prog, []uint32{uint32(prog.Start)}, syntax.EmptyBeginText|syntax.EmptyBeginLine))
	}
	root := p.rule(start)
	for len(p.work) > 0 && !p.full {
		at := p.work[len(p.work)-1]
		p.work = p.work[:len(p.work)-1]
		p.define(at)
	}
	if p.full {
		c.fail(sources[0].at, "together with the other conditions on the string it needs more than %d states", maxProduct)
		return nothing
	}
	return grammar.Rule(root)
}

// edges are the first characters of an expression's classes.
func edges(prog *syntax.Prog) (list []rune) {
	add := func(lo, hi rune) { list = append(list, lo, hi+1) }
	for _, in := range prog.Inst {
		switch in.Op {
		case syntax.InstRune1, syntax.InstRune:
			if len(in.Rune) == 1 {
				add(in.Rune[0], in.Rune[0])
				for f := unicode.SimpleFold(in.Rune[0]); f != in.Rune[0]; f = unicode.SimpleFold(f) {
					add(f, f)
				}
			}
			for i := 0; i+1 < len(in.Rune); i += 2 {
				add(in.Rune[i], in.Rune[i+1])
			}
		case syntax.InstRuneAnyNotNL:
			add('\n', '\n')
		}
	}
	return slices.DeleteFunc(list, func(c rune) bool { return c > unicode.MaxRune || c >= 0xd800 && c < 0xe000 })
}

func plainAnchors(prog *syntax.Prog) bool {
	return !slices.ContainsFunc(prog.Inst, func(in syntax.Inst) bool {
		return in.Op == syntax.InstEmptyWidth && syntax.EmptyOp(in.Arg)&^(syntax.EmptyBeginText|syntax.EmptyEndText) != 0
	})
}

// follow returns where an expression may be without another character. flags are the anchors that
// hold here.
func follow(prog *syntax.Prog, work []uint32, flags syntax.EmptyOp) (t threads) {
	seen := map[uint32]bool{}
	for len(work) > 0 {
		pc := work[len(work)-1]
		work = work[:len(work)-1]
		if seen[pc] {
			continue
		}
		seen[pc] = true
		switch in := &prog.Inst[pc]; in.Op {
		case syntax.InstAlt, syntax.InstAltMatch:
			work = append(work, in.Out, in.Arg)
		case syntax.InstCapture, syntax.InstNop:
			work = append(work, in.Out)
		case syntax.InstMatch:
			t.matched = true
		case syntax.InstEmptyWidth:
			if syntax.EmptyOp(in.Arg)&^flags == 0 {
				work = append(work, in.Out)
			} else if syntax.EmptyOp(in.Arg)&^syntax.EmptyEndText&^flags == 0 {
				t.pcs = append(t.pcs, pc) // holds if the text ends here
			}
		case syntax.InstFail:
		default:
			t.pcs = append(t.pcs, pc)
		}
	}
	slices.Sort(t.pcs)
	if t.matched { // whatever follows
		t.pcs = nil
	}
	return t
}

// accepts reports whether the text may end where t is.
func (t threads) accepts(prog *syntax.Prog, start bool) bool {
	flags := syntax.EmptyEndText | syntax.EmptyEndLine
	if start {
		flags |= syntax.EmptyBeginText
	}
	return t.matched || follow(prog, slices.Clone(t.pcs), flags).matched
}

// after returns where an expression may be after a character. A match may begin anywhere.
func (t threads) after(prog *syntax.Prog, c rune) threads {
	if t.matched {
		return t
	}
	work := []uint32{uint32(prog.Start)}
	for _, pc := range t.pcs {
		if in := &prog.Inst[pc]; in.Op != syntax.InstEmptyWidth && in.MatchRune(c) {
			work = append(work, in.Out)
		}
	}
	return follow(prog, work, 0)
}

// rule returns the rule of a state.
func (p *product) rule(at place) int32 {
	key := binary.LittleEndian.AppendUint32(nil, uint32(at.count))
	key = append(key, byte(at.stop))
	for _, t := range at.at {
		key = binary.LittleEndian.AppendUint32(key, uint32(len(t.pcs)))
		for _, pc := range t.pcs {
			key = binary.LittleEndian.AppendUint32(key, pc)
		}
		if t.matched {
			key = append(key, 1)
		}
	}
	if id, ok := p.known[string(key)]; ok {
		return id
	}
	if p.full = len(p.known) >= maxProduct; p.full {
		return 0
	}
	id := p.rules.Add(nil)
	p.known[string(key)] = id
	p.rules.Define(id, nothing)
	p.work = append(p.work, at)
	return id
}

// after is how many characters of the stop a string ends with that ended with n of them before c.
func (p *product) after(n int, c rune) int {
	if len(p.stop) == 0 {
		return 0
	}
	text := append(slices.Clone(p.stop[:n]), c)
	for n++; !slices.Equal(p.stop[:n], text[len(text)-n:]); {
		n--
	}
	return n
}

// define gives a state's rule its text: a character of a class and the state after it, for all
// classes.
func (p *product) define(at place) {
	id := p.rule(at)
	var list []*grammar.Expr
	ends := at.count >= p.least
	for i, t := range at.at {
		ends = ends && t.accepts(p.progs[i], at.count == 0)
	}
	if ends {
		list = append(list, grammar.Seq())
	}
	count := at.count + 1
	if p.most < 0 {
		count = min(count, max(p.least, 1))
	}
	if p.most >= 0 && count > p.most {
		p.rules.Define(id, grammar.Alt(list...))
		return
	}
	var targets []int32
	sets := map[int32][]grammar.Range{}
	for i, c := range p.signs {
		hi := rune(unicode.MaxRune)
		if i+1 < len(p.signs) {
			hi = p.signs[i+1] - 1
		}
		next := place{count: count, stop: p.after(at.stop, c)}
		for j, t := range at.at {
			next.at = append(next.at, t.after(p.progs[j], c))
		}
		if len(p.stop) > 0 && next.stop == len(p.stop) || slices.ContainsFunc(next.at, func(t threads) bool { return !t.matched && len(t.pcs) == 0 }) {
			continue
		}
		to := p.rule(next)
		if sets[to] == nil {
			targets = append(targets, to)
		}
		sets[to] = append(sets[to], grammar.Range{Lo: c, Hi: hi})
	}
	for _, to := range targets {
		list = append(list, grammar.Seq(p.class(grammar.NewSet(sets[to]...)), grammar.Rule(to)))
	}
	p.rules.Define(id, grammar.Alt(list...))
}
