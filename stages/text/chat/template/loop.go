package template

import "math"

// forLoop is a for tag.
type forLoop struct {
	target     target
	list, cond expr // cond nil: all items
	recursive  bool
	id         int // of the variable loop
	body, none block
}

// forBlock reads a for tag after its name.
func (p *parser) forBlock() stmt {
	n := &forLoop{id: p.ident("loop"), target: p.target(false)}
	p.expect("in")
	n.list = p.tuple(false)
	if p.take("if") {
		n.cond = p.expr()
	}
	n.recursive = p.take("recursive")
	p.shut()
	p.loops++
	body, end := p.body("else", "endfor")
	p.loops--
	if n.body = body; end == "else" {
		p.shut()
		n.none, _ = p.body("endfor")
	}
	p.shut()
	return func(f *frame) signal { return n.run(f, n.list(f), 0) }
}

// loop is the variable loop.
type loop struct {
	*forLoop
	frame   *frame  // frame of the tag
	items   []Value // that cond has not seen yet
	ahead   []Value // that passed it and come next
	at      int     // the turn, from 0
	depth   int     // of the recursion, from 0
	current Value
	last    Value // the item before
	changed *List // the arguments of the last call of changed
}

// run goes through the items of v.
func (n *forLoop) run(f *frame, v Value, depth int) signal {
	l := &loop{forLoop: n, frame: f, depth: depth, ahead: iterable(f.run, v)}
	if n.cond != nil {
		l.items, l.ahead = l.ahead, nil
	}
	whole := false // a turn came to its end: else is not for this loop
	for ; l.peek(1); l.at++ {
		l.last, l.current, l.ahead = l.current, l.ahead[0], l.ahead[1:]
		end := l.turn()
		if end == broken {
			break
		}
		whole = whole || end == onward
	}
	if whole || n.none == nil {
		return onward
	}
	return n.none.run(f.child())
}

func (l *loop) turn() signal {
	l.frame.spend(turnCost)
	f := l.frame.child()
	f.set(l.id, Value{l})
	l.target(f, l.current)
	return l.body.run(f)
}

// peek reports whether n more items follow. It evaluates the condition as late as possible, because
// assignments in a turn may change the answer.
func (l *loop) peek(n int) bool {
	for len(l.ahead) < n && len(l.items) > 0 {
		f, item := l.frame.child(), l.items[0]
		f.spend(1)
		l.target(f, item)
		if l.items = l.items[1:]; l.cond(f).IsTruthy() {
			l.ahead = append(l.ahead, item)
		}
	}
	return len(l.ahead) >= n
}

func (l *loop) kind() string { return "LoopContext" }

func (l *loop) attribute(_ *run, name string) Value {
	n := 0
	switch name {
	case "previtem":
		return l.last
	case "nextitem":
		if !l.peek(1) {
			return Value{}
		}
		return l.ahead[0]
	case "first":
		return NewBool(l.at == 0)
	case "last":
		return NewBool(!l.peek(1))
	case "cycle":
		return Value{&callable{name, l.cycle}}
	case "changed":
		return Value{&callable{name, l.differs}}
	case "index":
		n = l.at + 1
	case "index0":
		n = l.at
	case "depth":
		n = l.depth + 1
	case "depth0":
		n = l.depth
	case "length", "revindex", "revindex0":
		l.peek(math.MaxInt)
		n = len(l.ahead) + map[string]int{"length": l.at + 1, "revindex": 1}[name]
	default:
		return Value{}
	}
	return NewInt(int64(n))
}

func (l *loop) cycle(_ *run, a args) Value {
	if len(a.pos) == 0 {
		panic(faultf("no items for cycling given"))
	}
	return a.pos[l.at%len(a.pos)]
}

// differs reports whether the arguments differ from those of the previous call.
func (l *loop) differs(r *run, a args) Value {
	now := &List{Items: a.pos}
	same := l.changed != nil && r.equal(Value{now}, Value{l.changed})
	l.changed = now
	return NewBool(!same)
}

// again returns the call of a recursive loop with the list to go through.
func (l *loop) again(r *run, a args) Value {
	if !l.recursive {
		panic(faultf("the loop must have the 'recursive' marker to be called recursively"))
	}
	if len(a.pos) != 1 {
		panic(faultf("a loop is called with one argument"))
	}
	r.deeper()
	f := l.frame.buffered()
	l.forLoop.run(f, a.pos[0], l.depth+1)
	r.depth--
	return NewString(f.out.String())
}
