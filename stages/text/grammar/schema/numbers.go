package schema

import (
	"math/big"
	"strings"

	"krater/stages/text/grammar"
)

var (
	digit  = grammar.Class(grammar.NewSet(grammar.Range{Lo: '0', Hi: '9'}))
	whole  = grammar.Alt(grammar.Text("0"), grammar.Seq(digits('1', '9'), grammar.Repeat(digit, 0, -1)))
	number = grammar.Seq(grammar.Optional(grammar.Text("-")), whole, grammar.Optional(grammar.Seq(grammar.Text("."), grammar.Repeat(digit, 1, -1))),
		grammar.Optional(grammar.Seq(grammar.Class(grammar.Runes('e', 'E')), grammar.Optional(grammar.Class(grammar.Runes('+', '-'))), grammar.Repeat(digit, 1, 3))))
)

func digits(lo, hi byte) *grammar.Expr {
	return grammar.Class(grammar.NewSet(grammar.Range{Lo: rune(lo), Hi: rune(hi)}))
}

// numbers returns the texts of a shape's numbers. With bounds they have no exponent.
func (c *compiler) numbers(s *shape) *grammar.Expr {
	if s.low == nil && s.high == nil {
		if s.types&fractionType != 0 {
			return number
		}
		return grammar.Seq(grammar.Optional(grammar.Text("-")), whole)
	}
	low, high := bound{s.low, s.lowOpen}, bound{s.high, s.highOpen}
	whole := s.types&fractionType == 0
	var list []*grammar.Expr
	if high.n == nil || high.n.Sign() >= 0 {
		positive := low
		if low.n == nil || low.n.Sign() < 0 {
			positive = bound{new(big.Rat), false}
		}
		list = append(list, c.from(positive, high, whole))
	}
	if low.n == nil || low.n.Sign() < 0 {
		from, to := high.negate(), low.negate()
		if from.n == nil || from.n.Sign() < 0 {
			from = bound{new(big.Rat), whole} // no -0
		}
		list = append(list, grammar.Seq(grammar.Text("-"), c.from(from, to, whole)))
	}
	return grammar.Alt(list...)
}

// bound is a bound of numbers; open: it is not allowed itself. n is nil for none.
type bound struct {
	n    *big.Rat
	open bool
}

func (b bound) negate() bound {
	if b.n == nil {
		return b
	}
	return bound{new(big.Rat).Neg(b.n), b.open}
}

// decimal returns a bound's digits before and behind the point.
func (b bound) decimal() (before, behind string) {
	prec, _ := b.n.FloatPrec() // exact, since the bound was written in decimal
	before, behind, _ = strings.Cut(b.n.FloatString(prec), ".")
	return before, strings.TrimRight(behind, "0")
}

// span makes the texts of numbers between two bounds of 0 or more.
type span struct {
	rules    *grammar.Rules
	low      [2]string // digits before and behind the point
	high     [2]string // "" before it: no bound
	lowOpen  bool
	highOpen bool
	whole    bool
	known    map[placeOf]*grammar.Expr
}

// placeOf is a number's text so far: how many digits of how many before the point, or behind it, and
// whether they equal those of a bound.
type placeOf struct {
	size, at      int
	behind        bool
	atLow, atHigh bool
}

// from returns the texts from one bound, of 0 or more, to another.
func (c *compiler) from(low, high bound, whole bool) *grammar.Expr {
	s := &span{rules: c.rules, lowOpen: low.open, highOpen: high.open, whole: whole, known: map[placeOf]*grammar.Expr{}}
	s.low[0], s.low[1] = low.decimal()
	sizes := len(s.low[0]) + 1
	if high.n != nil {
		s.high[0], s.high[1] = high.decimal()
		sizes = len(s.high[0])
	}
	var list []*grammar.Expr
	for size := len(s.low[0]); size <= sizes; size++ {
		if high.n == nil && size == sizes { // any longer number
			list = append(list, grammar.Seq(digits('1', '9'), grammar.Repeat(digit, size-1, -1), s.fraction(0, false, false)))
			break
		}
		list = append(list, s.integer(size, 0, size == len(s.low[0]), high.n != nil && size == len(s.high[0])))
	}
	return grammar.Alt(list...)
}

// integer returns the digits before the point from one on.
func (s *span) integer(size, at int, atLow, atHigh bool) *grammar.Expr {
	if at == size {
		return s.fraction(0, atLow, atHigh)
	}
	key := placeOf{size: size, at: at, atLow: atLow, atHigh: atHigh}
	if e := s.known[key]; e != nil {
		return e
	}
	lo, hi := byte('0'), byte('9')
	if at == 0 && size > 1 {
		lo = '1'
	}
	if atLow {
		lo = s.low[0][at]
	}
	if atHigh {
		hi = s.high[0][at]
	}
	e := s.digit(lo, hi, atLow, atHigh, func(l, h bool) *grammar.Expr { return s.integer(size, at+1, l, h) })
	s.known[key] = e
	return e
}

// digit returns a digit from lo to hi and what follows it, which depends on whether it is the bound's.
func (s *span) digit(lo, hi byte, atLow, atHigh bool, next func(atLow, atHigh bool) *grammar.Expr) *grammar.Expr {
	var list []*grammar.Expr
	for from := lo; from <= hi; {
		to := from
		l, h := atLow && from == lo, atHigh && from == hi
		if !l && !h {
			for to < hi && !(atHigh && to+1 == hi) {
				to++
			}
		}
		list = append(list, grammar.Seq(digits(from, to), next(l, h)))
		from = to + 1
	}
	return grammar.Alt(list...)
}

// fraction returns what may stand behind at digits behind the point, or in place of it.
func (s *span) fraction(at int, atLow, atHigh bool) *grammar.Expr {
	tail := func(digits string) string { return digits[min(at, len(digits)):] }
	low, high := tail(s.low[1]), tail(s.high[1])
	ends := !(atLow && (low != "" || s.lowOpen)) && !(atHigh && high == "" && s.highOpen)
	if s.whole {
		if ends {
			return grammar.Seq()
		}
		return nothing
	}
	key := placeOf{at: min(at, 1+max(len(s.low[1]), len(s.high[1]))), behind: true, atLow: atLow, atHigh: atHigh}
	if e := s.known[key]; e != nil {
		return e
	}
	rule := s.rules.Add(nil)
	s.known[key] = grammar.Rule(rule)
	lo, hi := byte('0'), byte('9')
	if atLow && low != "" {
		lo = low[0]
	}
	if atHigh {
		if hi = '0'; high != "" {
			hi = high[0]
		}
	}
	e := s.digit(lo, hi, atLow, atHigh, func(l, h bool) *grammar.Expr { return s.fraction(at+1, l, h) })
	if at == 0 {
		e = grammar.Seq(grammar.Text("."), e)
	}
	if ends {
		e = grammar.Optional(e)
	}
	s.rules.Define(rule, e)
	return s.known[key]
}
