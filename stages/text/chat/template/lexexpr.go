package template

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxName bounds the length of an identifier.
const maxName = 200

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// name reads an identifier. It accepts only ASCII; no template in the field uses other characters.
func (l *lexer) name() {
	i := l.pos
	for i < len(l.src) && isWord(l.src[i]) {
		i++
	}
	if i == l.pos || i < len(l.src) && l.src[i] >= utf8.RuneSelf {
		panic(l.fail(l.pos, "identifiers must be ASCII"))
	}
	if i-l.pos > maxName {
		panic(l.fail(l.pos, "identifier too long"))
	}
	val := l.src[l.pos:i]
	l.emit(kindName, val, l.pos, i)
	l.pos = i
	return
}

// number reads an integer or a float. Underscores between digits and the prefixes 0x, 0o, 0b are
// Python's; the parser converts.
func (l *lexer) number() {
	digits := func(i int) int {
		for i < len(l.src) && (l.src[i] >= '0' && l.src[i] <= '9' || l.src[i] == '_') {
			i++
		}
		return i
	}
	start := l.pos
	i := start
	if l.src[i] == '0' && i+1 < len(l.src) && strings.IndexByte("xXoObB", l.src[i+1]) >= 0 {
		for i++; i < len(l.src) && isWord(l.src[i]); {
			i++
		}
		l.emit(kindInt, l.src[start:i], start, i)
		l.pos = i
		return
	}
	i = digits(i)
	k := kindInt
	afterDot := start > 0 && l.src[start-1] == '.'
	if !afterDot && i+1 < len(l.src) && l.src[i] == '.' && l.src[i+1] >= '0' && l.src[i+1] <= '9' {
		k, i = kindFloat, digits(i+1)
	}
	if !afterDot && i < len(l.src) && (l.src[i] == 'e' || l.src[i] == 'E') {
		j := i + 1
		if j < len(l.src) && (l.src[j] == '+' || l.src[j] == '-') {
			j++
		}
		if end := digits(j); end > j {
			k, i = kindFloat, end
		}
	}
	l.emit(k, l.src[start:i], start, i)
	l.pos = i
}

// quoted reads a string literal.
func (l *lexer) quoted(quote byte) {
	for i := l.pos + 1; i < len(l.src); i++ {
		switch l.src[i] {
		case '\\':
			i++
		case quote:
			val, ok := unescape(l.src[l.pos+1 : i])
			if !ok {
				panic(l.fail(l.pos, "bad escape in string"))
			}
			l.emit(kindString, val, l.pos, i+1)
			l.pos = i + 1
			return
		}
	}
	panic(l.fail(l.pos, "string is not closed"))
}

var simpleEscapes = map[byte]string{
	'\n': "", '\\': `\`, '\'': "'", '"': `"`, 'a': "\a", 'b': "\b",
	'f': "\f", 'n': "\n", 'r': "\r", 't': "\t", 'v': "\v",
}

// unescape resolves the escapes of a Python string literal. An escape that Python does not know
// stays unchanged. It returns false for a code point that UTF-8 cannot hold, an incomplete \x, \u
// or \U, and a \N name.
func unescape(s string) (string, bool) {
	if strings.IndexByte(s, '\\') < 0 {
		return s, true
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		c := s[i]
		if v, ok := simpleEscapes[c]; ok {
			b.WriteString(v)
			continue
		}
		width, base, from := 0, 16, i+1
		switch {
		case c == 'x':
			width = 2
		case c == 'u':
			width = 4
		case c == 'U':
			width = 8
		case c >= '0' && c <= '7':
			base, from = 8, i
			for width < 3 && from+width < len(s) && s[from+width] >= '0' && s[from+width] <= '7' {
				width++
			}
		case c == 'N':
			return "", false
		default:
			b.WriteByte('\\')
			b.WriteByte(c)
			continue
		}
		if from+width > len(s) {
			return "", false
		}
		r, err := strconv.ParseUint(s[from:from+width], base, 32)
		if err != nil || !utf8.ValidRune(rune(r)) {
			return "", false
		}
		b.WriteRune(rune(r))
		i = from + width - 1
	}
	return b.String(), true
}

var (
	operators2 = []string{"**", "//", "==", "!=", "<=", ">="}
	operators1 = "+-*/%<>=~|.,:;()[]{}"
)

// operator reads an operator or a bracket; brackets must pair up inside a tag.
func (l *lexer) operator(depth *int) {
	rest := l.src[l.pos:]
	for _, op := range operators2 {
		if strings.HasPrefix(rest, op) {
			l.emit(kindOp, op, l.pos, l.pos+2)
			l.pos += 2
			return
		}
	}
	c := rest[0]
	if strings.IndexByte(operators1, c) < 0 {
		r, _ := utf8.DecodeRuneInString(rest)
		panic(l.fail(l.pos, "unexpected character "+strconv.QuoteRune(r)))
	}
	switch c {
	case '(', '[', '{':
		*depth++
	case ')', ']', '}':
		if *depth--; *depth < 0 {
			panic(l.fail(l.pos, "unexpected "+string(c)))
		}
	}
	l.emit(kindOp, string(c), l.pos, l.pos+1)
	l.pos++
}
