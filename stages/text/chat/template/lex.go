package template

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// kind is the kind of a token of a template.
type kind uint8

const (
	kindText      kind = iota // data between tags
	kindVarOpen               // {{
	kindVarShut               // }}
	kindBlockOpen             // {%
	kindBlockShut             // %}
	kindName
	kindInt
	kindFloat
	kindString // val is the unescaped value
	kindOp     // val is the operator or bracket
	kindEnd
)

// token is one lexical unit; from and to are byte offsets in the source.
type token struct {
	kind     kind
	val      string
	from, to int
}

// lexer cuts a template into tokens by the rules of jinja2/lexer.py with trim_blocks and
// lstrip_blocks on and keep_trailing_newline off.
type lexer struct {
	src  string
	pos  int
	out  []token
	line bool // the last token ended a line: text starts at a line start
}

// normalize makes every line end a "\n" and drops one at the very end.
func normalize(src string) string {
	if strings.Contains(src, "\r") {
		src = strings.ReplaceAll(src, "\r\n", "\n")
		src = strings.ReplaceAll(src, "\r", "\n")
	}
	return strings.TrimSuffix(src, "\n")
}

// lex returns the tokens of a normalized source.
func lex(src string) []token {
	l := &lexer{src: src, line: true}
	for l.pos < len(l.src) {
		l.next()
	}
	l.emit(kindEnd, "", len(src), len(src))
	return l.out
}

func (l *lexer) emit(k kind, val string, from, to int) {
	l.out = append(l.out, token{k, val, from, to})
}

func (l *lexer) fail(at int, msg string) error {
	return &SyntaxError{Line: 1 + strings.Count(l.src[:at], "\n"), Message: msg}
}

// next reads the text up to the next tag, and the tag.
func (l *lexer) next() {
	start := l.pos
	i := start
	for {
		j := strings.IndexByte(l.src[i:], '{')
		if j < 0 || i+j+1 >= len(l.src) {
			l.emit(kindText, l.src[start:], start, len(l.src))
			l.pos = len(l.src)
			return
		}
		i += j
		if c := l.src[i+1]; c == '{' || c == '%' || c == '#' {
			break
		}
		i++
	}
	open, c := i, l.src[i+1]
	sign := byte(0)
	l.pos = i + 2
	if l.pos < len(l.src) && (l.src[l.pos] == '-' || l.src[l.pos] == '+') {
		sign = l.src[l.pos]
		l.pos++
	}
	l.text(start, open, sign, c != '{')
	switch c {
	case '#':
		l.comment(open)
	case '%':
		if shut, ok := l.rawOpen(); ok {
			l.raw(shut)
			return
		}
		l.emit(kindBlockOpen, "{%", open, l.pos)
		l.inside(open, kindBlockShut, "%}")
	default:
		l.emit(kindVarOpen, "{{", open, l.pos)
		l.inside(open, kindVarShut, "}}")
	}
}

// text emits src[from:to] as data, stripped as the next tag asks.
func (l *lexer) text(from, to int, sign byte, block bool) {
	s := l.src[from:to]
	switch {
	case sign == '-':
		s = strings.TrimRightFunc(s, isSpace)
	case sign != '+' && block:
		at := strings.LastIndexByte(s, '\n') + 1
		if (at > 0 || l.line) && strings.TrimFunc(s[at:], isSpace) == "" {
			s = s[:at]
		}
	}
	l.line = false
	if s != "" {
		l.emit(kindText, s, from, to)
	}
}

// shut consumes the end of a tag at pos with its white space rule.
func (l *lexer) shut(n int, sign byte, trim bool) {
	l.pos += n
	switch {
	case sign == '-':
		l.pos += len(l.src[l.pos:]) - len(strings.TrimLeftFunc(l.src[l.pos:], isSpace))
	case sign == 0 && trim && strings.HasPrefix(l.src[l.pos:], "\n"):
		l.pos++
	}
	l.line = l.src[l.pos-1] == '\n'
}

func (l *lexer) comment(open int) {
	i := strings.Index(l.src[l.pos:], "#}")
	if i < 0 {
		panic(l.fail(open, "missing end of comment tag"))
	}
	l.pos += i
	sign := byte(0)
	if c := l.src[l.pos-1]; i > 0 && (c == '-' || c == '+') {
		sign = c
	}
	l.shut(2, sign, true)
}

// rawOpen reports whether the block that starts here is {% raw %}; shut is where its text begins.
func (l *lexer) rawOpen() (shut int, ok bool) {
	rest := strings.TrimLeftFunc(l.src[l.pos:], isSpace)
	rest, ok = strings.CutPrefix(rest, "raw")
	if !ok {
		return 0, false
	}
	rest = strings.TrimLeftFunc(rest, isSpace)
	if strings.HasPrefix(rest, "-%}") {
		rest = strings.TrimLeftFunc(rest[3:], isSpace)
	} else if rest, ok = strings.CutPrefix(rest, "%}"); !ok {
		return 0, false
	}
	return len(l.src) - len(rest), true
}

// raw reads up to {% endraw %}.
func (l *lexer) raw(start int) {
	for i := start; ; i += 2 {
		j := strings.Index(l.src[i:], "{%")
		if j < 0 {
			panic(l.fail(start, "missing end of raw directive"))
		}
		i += j
		rest := l.src[i+2:]
		sign := byte(0)
		if rest != "" && (rest[0] == '-' || rest[0] == '+') {
			sign, rest = rest[0], rest[1:]
		}
		rest, ok := strings.CutPrefix(strings.TrimLeftFunc(rest, isSpace), "endraw")
		if !ok {
			continue
		}
		rest = strings.TrimLeftFunc(rest, isSpace)
		for _, end := range []string{"%}", "-%}", "+%}"} {
			if strings.HasPrefix(rest, end) {
				l.line = l.src[start-1] == '\n'
				l.text(start, i, sign, true)
				l.pos = len(l.src) - len(rest)
				s := byte(0)
				if len(end) == 3 {
					s = end[0]
				}
				l.shut(len(end), s, true)
				return
			}
		}
	}
}

// inside reads the tokens of a tag up to its end.
func (l *lexer) inside(open int, shut kind, closer string) {
	depth := 0
	for l.pos < len(l.src) {
		rest := l.src[l.pos:]
		if depth == 0 {
			signed := len(rest) > 2 && rest[1:3] == closer
			if signed && (rest[0] == '-' || rest[0] == '+' && shut == kindBlockShut) {
				l.emit(shut, closer, l.pos, l.pos+3)
				l.shut(3, rest[0], false)
				return
			}
			if strings.HasPrefix(rest, closer) {
				l.emit(shut, closer, l.pos, l.pos+2)
				l.shut(2, 0, shut == kindBlockShut)
				return
			}
		}
		r, n := utf8.DecodeRuneInString(rest)
		switch {
		case isSpace(r):
			l.pos += n
		case r == '\'' || r == '"':
			l.quoted(byte(r))
		case r >= '0' && r <= '9':
			l.number()
		case r == '_' || unicode.IsLetter(r):
			l.name()
		default:
			l.operator(&depth)
		}
	}
	panic(l.fail(open, "unexpected end of template, expected "+closer))
}

// isSpace is Python's \s: Go's white space and the four separators.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }
