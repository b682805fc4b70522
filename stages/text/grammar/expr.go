package grammar

// Expr is a part of a grammar. It does not change, and may be a part of several others.
type Expr struct {
	op    op
	subs  []*Expr  // of a sequence, of alternatives; the body of a repetition
	texts []string // of words, in which one text is a literal; the marks of until
	set   Set
	id    int32 // of a rule, or of a token
	min   int
	max   int // below 0: no limit
}

type op uint8

const (
	opSeq op = iota
	opAlt
	opWords
	opSet
	opRepeat
	opRule
	opToken
	opUntil
)

// Rules are the rules of a grammar, by number.
type Rules struct{ list []*Expr }

// Add adds a rule that Define defines later, or nil.
func (r *Rules) Add(e *Expr) int32 {
	r.list = append(r.list, e)
	return int32(len(r.list) - 1)
}

// Define gives a rule its text.
func (r *Rules) Define(rule int32, e *Expr) { r.list[rule] = e }

// Join adds the rules of another grammar, and returns what one of them stands for.
func (r *Rules) Join(other *Rules, root int32) *Expr {
	base := int32(len(r.list))
	moved := map[*Expr]*Expr{}
	var move func(e *Expr) *Expr
	move = func(e *Expr) *Expr {
		if to := moved[e]; to != nil || e == nil {
			return to
		}
		to := *e
		moved[e] = &to
		if to.op == opRule {
			to.id += base
		}
		to.subs = make([]*Expr, len(e.subs))
		for i, s := range e.subs {
			to.subs[i] = move(s)
		}
		return &to
	}
	for _, e := range other.list {
		r.list = append(r.list, move(e))
	}
	return Rule(base + root)
}

// Len returns the number of rules.
func (r *Rules) Len() int { return len(r.list) }

// Rule stands for a rule's text.
func Rule(id int32) *Expr { return &Expr{op: opRule, id: id} }

// Text returns a literal.
func Text(s string) *Expr {
	if s == "" {
		return empty
	}
	return &Expr{op: opWords, texts: []string{s}}
}

// Words are alternatives of literals, which may be many.
func Words(list ...string) *Expr { return &Expr{op: opWords, texts: list} }

// Class is one character of a set, as UTF-8.
func Class(s Set) *Expr { return &Expr{op: opSet, set: s} }

// Token returns a control token of the vocabulary, whatever its text.
func Token(id int32) *Expr { return &Expr{op: opToken, id: id} }

// Until is text of whole characters, up to the first of the marks, which is not part of it.
func Until(marks ...string) *Expr { return &Expr{op: opUntil, texts: marks} }

var (
	empty   = &Expr{op: opSeq}
	nothing = &Expr{op: opAlt}
)

// Seq is its parts one after the other; without any it is the empty text.
func Seq(parts ...*Expr) *Expr {
	if len(parts) == 1 {
		return parts[0]
	}
	return &Expr{op: opSeq, subs: parts}
}

// Alt is one of its parts; without any, no text fits it.
func Alt(parts ...*Expr) *Expr {
	if len(parts) == 1 {
		return parts[0]
	}
	return &Expr{op: opAlt, subs: parts}
}

// Repeat is e at least least times, and at most most times; below 0 there is no limit.
func Repeat(e *Expr, least, most int) *Expr {
	if least == 1 && most == 1 {
		return e
	}
	if most == 0 {
		return empty
	}
	return &Expr{op: opRepeat, subs: []*Expr{e}, min: least, max: most}
}

// Optional is e or nothing.
func Optional(e *Expr) *Expr { return Repeat(e, 0, 1) }

// size is about how many states an expression takes. Beyond limit it is not exact.
func (e *Expr) size(limit int) int {
	n := 1
	for _, t := range e.texts {
		n += len(t)
	}
	n += len(e.set)
	for _, s := range e.subs {
		if n > limit {
			return n
		}
		m := s.size(limit - n)
		n += m
	}
	return n
}
