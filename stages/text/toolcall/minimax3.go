package toolcall

import (
	"strings"

	"krater/stages/text/grammar"
	jsonschema "krater/stages/text/grammar/schema"
)

// MiniMax-M3 writes calls as XML, nested for objects and arrays, with a control token before each
// tag, so that a tag in a value is text.
const (
	minimax3Mark  = "]<]minimax[>["
	minimax3Open  = minimax3Mark + "<invoke name="
	minimax3Close = minimax3Mark + "</invoke>"
	minimax3Tag   = minimax3Mark + "<"
)

// minimax3Notation is how it writes values. A string ends with the mark before the next tag. The name in a
// closing tag of a member that the schema does not name is left to the model.
func minimax3Notation(s *Speaker) *jsonschema.Notation {
	tag := func(name *grammar.Expr) (open, end *grammar.Expr) {
		return grammar.Seq(s.Spell(minimax3Tag), name, s.Spell(">")), grammar.Seq(s.Spell(minimax3Tag+"/"), name, s.Spell(">"))
	}
	none := grammar.Seq()
	n := &jsonschema.Notation{Quote: none, Stop: minimax3Mark, Object: [2]*grammar.Expr{none, none}, Array: [2]*grammar.Expr{none, none}, Comma: none, Untyped: true}
	n.Member = func(name, value *grammar.Expr) *grammar.Expr {
		open, end := tag(name)
		return grammar.Seq(open, value, end)
	}
	n.Item = func(value *grammar.Expr) *grammar.Expr { return n.Member(grammar.Text("item"), value) }
	return n
}

func minimax3Call(p *Parser) bool {
	name, next, v := p.named(len(minimax3Open), ">")
	switch {
	case v == wrong:
		p.literal(minimax3Open)
	case v == found && p.begin(name, ""):
		p.drop(next)
		p.args.byte('{')
		p.next = minimax3Param
	}
	return v != more
}

// minimax3Param takes the tag that begins a parameter, or the end of the call.
func minimax3Param(p *Parser) bool {
	n, which := p.find([]string{minimax3Tag, minimax3Close})
	p.drop(n)
	switch which {
	case -1:
		return false
	case 1:
		p.drop(len(minimax3Close))
		p.endCall()
		return true
	}
	key, next, v := p.upTo(len(minimax3Tag), ">")
	switch {
	case v == more:
		return false
	case v == wrong || strings.HasPrefix(key, "/"):
		p.drop(len(minimax3Tag))
		return true
	}
	p.drop(next)
	p.key, p.value = key, p.value[:0]
	p.kinds = p.tools.typesOf(p.name, key)
	p.writeKey(key)
	if p.kinds == stringType {
		p.args.beginRaw()
	}
	p.next = minimax3Value
	return true
}

// minimax3Value takes a parameter's value up to its closing tag.
func minimax3Value(p *Parser) bool {
	end := minimax3Tag + "/" + p.key + ">"
	n, which := p.find([]string{end, minimax3Close})
	p.writeValue(p.buf[:n])
	p.drop(n)
	if which < 0 {
		return false
	}
	if which == 0 {
		p.drop(len(end))
	}
	if p.kinds != stringType {
		value := xmlValue(string(p.value), p.tools.of(p.name).property(p.key), 0)
		p.value, p.kinds = append(p.value[:0], value...), allTypes
	}
	p.endValue()
	p.next = minimax3Param
	return true
}

// xmlValue returns the JSON of a value: an object or an array where it has tags, else what its text
// spells.
func xmlValue(text string, n node, depth int) string {
	if !strings.Contains(text, minimax3Tag) || depth >= maxDepth {
		switch kinds := n.types(); { // an empty list or object has no tags
		case strings.TrimSpace(text) != "" || kinds&stringType != 0:
		case kinds&arrayType != 0:
			return "[]"
		case kinds&objectType != 0:
			return "{}"
		}
		return n.types().value(text)
	}
	type child struct{ name, text string }
	var children []child
	list := n.types()&arrayType != 0
	for i := strings.Index(text, minimax3Tag); i >= 0; i = strings.Index(text, minimax3Tag) {
		text = text[i+len(minimax3Tag):]
		name, rest, ok := strings.Cut(text, ">")
		if !ok || strings.HasPrefix(name, "/") {
			continue
		}
		c := child{name: name}
		c.text, text = element(rest, name)
		children, list = append(children, c), list && name == "item"
	}
	var b strings.Builder
	for i, c := range children {
		if i > 0 {
			b.WriteString(", ")
		}
		if list {
			b.WriteString(xmlValue(c.text, n.element(), depth+1))
		} else {
			b.WriteString(quote(c.name) + ": " + xmlValue(c.text, n.property(c.name), depth+1))
		}
	}
	if list {
		return "[" + b.String() + "]"
	}
	return "{" + b.String() + "}"
}

// element returns what is before the closing tag of name, and what is behind it.
func element(text, name string) (inner, after string) {
	open, end := minimax3Tag+name+">", minimax3Tag+"/"+name+">"
	for i, depth := 0, 1; ; {
		j := strings.Index(text[i:], end)
		if j < 0 {
			return text, ""
		}
		depth += strings.Count(text[i:i+j], open) - 1
		if i += j + len(end); depth <= 0 {
			return text[:i-len(end)], text[i:]
		}
	}
}
