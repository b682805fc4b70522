package template

import (
	"errors"
	"math"
)

// What break and continue end a turn of a loop with.
var errBreak, errContinue = errors.New("break"), errors.New("continue")

// forLoop is a for tag.
type forLoop struct {
	target     target
	list, cond expr // cond nil: all items
	recursive  bool
	id         int // of the variable loop
	body, none block
}

// forBlock reads a for tag behind its name.
func (p *parser) forBlock() (stmt, error) {
	n := &forLoop{id: p.ident("loop")}
	var err error
	if n.target, err = p.target(false); err != nil {
		return nil, err
	}
	if err := p.expect("in"); err != nil {
		return nil, err
	}
	if n.list, err = p.tuple(false); err != nil {
		return nil, err
	}
	if p.take("if") {
		if n.cond, err = p.expr(); err != nil {
			return nil, err
		}
	}
	n.recursive = p.take("recursive")
	if err := p.shut(); err != nil {
		return nil, err
	}
	p.loops++
	body, end, err := p.body("else", "endfor")
	p.loops--
	if err == nil && end == "else" {
		if err = p.shut(); err == nil {
			n.none, _, err = p.body("endfor")
		}
	}
	if err != nil {
		return nil, err
	}
	n.body = body
	return func(f *frame) error {
		v, err := n.list(f)
		if err != nil {
			return err
		}
		return n.run(f, v, 0)
	}, p.shut()
}

// loop is the variable loop.
type loop struct {
	*forLoop
	frame   *frame  // where the tag stands
	items   []Value // that cond has not seen yet
	ahead   []Value // that passed it and come next
	at      int     // the turn, from 0
	depth   int     // of the recursion, from 0
	current Value
	last    Value // the item before
	changed *List // the arguments of the last call of changed
}

// run goes through the items of v.
func (n *forLoop) run(f *frame, v Value, depth int) error {
	list, err := iterable(f.run, v)
	if err != nil {
		return err
	}
	l := &loop{forLoop: n, frame: f, depth: depth, ahead: list}
	if n.cond != nil {
		l.items, l.ahead = list, nil
	}
	ended := false // a turn came to its end: else is not for this loop
	for ; ; l.at++ {
		if more, err := l.peek(1); err != nil {
			return err
		} else if !more {
			break
		}
		l.last, l.current, l.ahead = l.current, l.ahead[0], l.ahead[1:]
		err := l.turn()
		if err == errBreak {
			break
		}
		if err != nil && err != errContinue {
			return err
		}
		ended = ended || err == nil
	}
	if ended || n.none == nil {
		return nil
	}
	return n.none.run(f.child())
}

func (l *loop) turn() error {
	if err := l.frame.spend(turnCost); err != nil {
		return err
	}
	f := l.frame.child()
	f.vars = make([]variable, 0, 4)
	f.set(l.id, Value{l})
	if err := l.target(f, l.current); err != nil {
		return err
	}
	return l.body.run(f)
}

// peek looks for n items to come. It asks the condition no earlier than it must:
// what a turn assigns may change the answer.
func (l *loop) peek(n int) (bool, error) {
	for len(l.ahead) < n && len(l.items) > 0 {
		f, item := l.frame.child(), l.items[0]
		if err := l.frame.spend(1); err != nil {
			return false, err
		}
		if err := l.target(f, item); err != nil {
			return false, err
		}
		v, err := l.cond(f)
		if err != nil {
			return false, err
		}
		if l.items = l.items[1:]; v.IsTruthy() {
			l.ahead = append(l.ahead, item)
		}
	}
	return len(l.ahead) >= n, nil
}

func (l *loop) kind() string { return "LoopContext" }

func (l *loop) attribute(_ *run, name string) (Value, error) {
	switch name {
	case "index":
		return NewInt(int64(l.at) + 1), nil
	case "index0":
		return NewInt(int64(l.at)), nil
	case "first":
		return NewBool(l.at == 0), nil
	case "depth":
		return NewInt(int64(l.depth) + 1), nil
	case "depth0":
		return NewInt(int64(l.depth)), nil
	case "previtem":
		return l.last, nil
	case "last", "nextitem":
		more, err := l.peek(1)
		if name == "last" {
			return NewBool(!more), err
		}
		if !more {
			return Value{}, err
		}
		return l.ahead[0], nil
	case "length", "revindex", "revindex0":
		_, err := l.peek(math.MaxInt)
		n := len(l.ahead)
		switch name {
		case "revindex":
			n++
		case "length":
			n += l.at + 1
		}
		return NewInt(int64(n)), err
	case "cycle":
		return Value{&callable{name, l.cycle}}, nil
	case "changed":
		return Value{&callable{name, l.differs}}, nil
	}
	return Value{}, nil
}

func (l *loop) cycle(_ *run, a args) (Value, error) {
	if len(a.pos) == 0 {
		return Value{}, faultf("no items for cycling given")
	}
	return a.pos[l.at%len(a.pos)], nil
}

// differs tells whether the arguments are others than in the call before.
func (l *loop) differs(r *run, a args) (Value, error) {
	now := &List{Items: a.pos}
	same := l.changed != nil && r.equal(Value{now}, Value{l.changed})
	l.changed = now
	return NewBool(!same), nil
}

// again is the call of a recursive loop with the list to go through.
func (l *loop) again(r *run, a args) (Value, error) {
	if !l.recursive {
		return Value{}, faultf("the loop must have the 'recursive' marker to be called recursively")
	}
	if len(a.pos) != 1 {
		return Value{}, faultf("a loop is called with one argument")
	}
	defer func() { r.depth-- }()
	if err := r.deeper(); err != nil {
		return Value{}, err
	}
	f := l.frame.buffered()
	err := l.forLoop.run(f, a.pos[0], l.depth+1)
	return NewString(f.out.String()), err
}
