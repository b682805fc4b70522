package toolcall

import (
	"bytes"
	"encoding/json/jsontext"
	"slices"
	"strings"
)

// jsonBody takes a call's arguments, a JSON object, up to its end or to one of p.stops, which count
// outside of strings only.
func jsonBody(p *Parser) bool {
	i, ended := 0, false
	for ; i < len(p.buf) && !p.args.done; i++ {
		if !p.args.quoted() {
			n, partial := p.stopAt(i)
			if partial {
				break
			}
			if ended = n > 0; ended {
				break
			}
		}
		p.args.byte(p.buf[i])
		if p.args.full() {
			p.args.finish()
		}
	}
	p.drop(i)
	p.emit(Arguments, p.args.take())
	if p.args.done || ended {
		after := p.skipping.after
		p.endCall()
		p.next = after
		return true
	}
	return false
}

// stopAt returns the length of the stop that begins at the buffer's byte i, 0 if none does. partial
// says that the buffer ends before this is certain.
func (p *Parser) stopAt(i int) (n int, partial bool) {
	for _, stop := range p.stops {
		switch rest := p.buf[i:]; {
		case rest[0] != stop[0]:
		case bytes.HasPrefix(rest, []byte(stop)):
			return len(stop), false
		case !p.ending && len(rest) < len(stop) && stop[:len(rest)] == string(rest):
			partial = true
		}
	}
	return 0, partial
}

// skipper reads past the rest of an object.
type skipper struct {
	depth           int
	quoted, escaped bool
	after           state // follows the arguments
}

// restOfObject leaves out what follows the arguments in the object around them.
func restOfObject(p *Parser) bool {
	s := &p.skipping
	for i, c := range p.buf {
		if s.depth == 0 {
			p.drop(i)
			p.next = tail
			return true
		}
		if !s.quoted {
			n, partial := p.stopAt(i)
			if n > 0 {
				p.drop(i)
				p.next = tail
				return true
			}
			if partial {
				p.drop(i)
				return false
			}
		}
		s.byte(c)
	}
	p.drop(len(p.buf))
	if s.depth == 0 {
		p.next = tail
		return true
	}
	return false
}

func (s *skipper) byte(c byte) {
	switch {
	case s.escaped:
		s.escaped = false
	case s.quoted && c == '\\':
		s.escaped = true
	case c == '"':
		s.quoted = !s.quoted
	case s.quoted:
	case c == '{' || c == '[':
		s.depth++
	case c == '}' || c == ']':
		s.depth--
	}
}

// tail leaves out what a model writes between the arguments and the end of the call: white space,
// brackets too many, the end of a fence.
func tail(p *Parser) bool {
	for i, c := range p.buf {
		n, partial := p.stopAt(i)
		switch {
		case n > 0:
			p.drop(i + n)
			p.next = p.f.between
			return true
		case partial:
			p.drop(i)
			return false
		case !space(c) && strings.IndexByte("}]),;`", c) < 0:
			p.drop(i)
			p.next = p.f.between
			return true
		}
	}
	p.drop(len(p.buf))
	return false
}

// head is the beginning of a call in the form of a JSON object with a name and arguments.
type head struct {
	name, id string
	// at is where the arguments begin, or, if they are complete or there are none, where what
	// follows them does. depth is how many objects are open there.
	at, depth int
	// args are complete arguments; nil: they begin at at.
	args []byte
}

// verdict is the result of a reader of a call's beginning.
type verdict uint8

const (
	more  verdict = iota // the buffer ends too early
	wrong                // it is no call
	found
)

// readHead reads the beginning of a call at b, which begins with "{". strict allows no other
// members than those of calls.
func readHead(b []byte, strict bool) (head, verdict) {
	h := head{depth: 1}
	for i := 1; ; {
		i += spaces(b[i:])
		if i >= len(b) {
			return h, more
		}
		switch b[i] {
		case ',':
			i++
			continue
		case '}':
			i++
			if h.depth--; h.depth > 0 {
				continue
			}
			if h.at = i; h.name == "" {
				return h, wrong
			}
			if h.args == nil {
				h.args = []byte("{}")
			}
			return h, found
		case '"':
		default:
			return h, wrong
		}
		key, next, v := member(b, i)
		if v != found {
			return h, v
		}
		if i = next; i >= len(b) {
			return h, more
		}
		done, v := h.member(b, key, &i, strict)
		if done || v != found {
			return h, v
		}
	}
}

// member reads a name and its colon, and returns where the value begins.
func member(b []byte, i int) (key string, next int, v verdict) {
	end, v := scanString(b, i)
	if v != found {
		return "", 0, v
	}
	key = unquote(b[i:end])
	end += spaces(b[end:])
	if end >= len(b) {
		return "", 0, more
	}
	if b[end] != ':' {
		return "", 0, wrong
	}
	end++
	return key, end + spaces(b[end:]), found
}

// member takes one member's value at b[*i] and moves on. done says that the arguments begin.
func (h *head) member(b []byte, key string, i *int, strict bool) (done bool, v verdict) {
	switch {
	case key == "function" && b[*i] == '{':
		if h.depth++; h.depth > maxRefs {
			return false, wrong
		}
		*i++
		return false, found
	case key == "arguments" || key == "parameters":
		if h.name != "" && b[*i] == '{' {
			h.at = *i
			return true, found
		}
	case key == "name" || key == "function" || key == "id" || key == "type":
		if b[*i] != '"' {
			return false, wrong
		}
	case strict:
		return false, wrong
	}
	end, v := scanValue(b, *i)
	if v != found {
		return false, v
	}
	value := b[*i:end]
	*i = end
	switch key {
	case "name", "function":
		if h.name = unquote(value); !toolName(h.name) {
			return false, wrong
		}
	case "id":
		h.id = unquote(value)
	case "arguments", "parameters":
		if value[0] == '"' { // some models write the object as a string
			value = []byte(unquote(value))
		}
		h.args = append([]byte{}, value...)
		if h.name != "" {
			h.at = end
			return true, found
		}
	}
	return false, found
}

// toolName reports whether s may be the name of a tool.
func toolName(s string) bool {
	return s != "" && len(s) <= 256 && strings.IndexFunc(s, func(r rune) bool {
		return r <= ' ' || strings.ContainsRune(`"'<>{}[]\|`, r)
	}) < 0
}

func unquote(b []byte) string {
	s, _ := jsontext.AppendUnquote(nil, b) // of a wrong string, what is right of it
	return string(s)
}

// scanString returns the end of the JSON string at b[i].
func scanString(b []byte, i int) (int, verdict) {
	for j := i + 1; j < len(b); j++ {
		switch b[j] {
		case '\\':
			j++
		case '"':
			return j + 1, found
		}
	}
	return 0, more
}

// scanValue returns the end of the JSON value at b[i], which it does not check.
func scanValue(b []byte, i int) (int, verdict) {
	switch b[i] {
	case '"':
		return scanString(b, i)
	case '{', '[':
		var s skipper
		for j := i; j < len(b); j++ {
			if s.byte(b[j]); s.depth == 0 {
				return j + 1, found
			}
		}
		return 0, more
	case ',', ':', '}', ']':
		return 0, wrong
	}
	for j := i; j < len(b); j++ {
		if ends(b[j]) {
			return j, found
		}
	}
	return 0, more
}

// jsonCall takes a call of the JSON form that begins at p.buf[at]. It returns wrong if there is
// none; then nothing is taken.
func (p *Parser) jsonCall(at int, strict bool, stops ...string) verdict {
	h, v := readHead(p.buf[at:], strict)
	if v == more && (p.ending || len(p.buf) > maxHead) || strict && v == found && !p.known(h.name) {
		v = wrong
	}
	if v != found || !p.begin(h.name, h.id) {
		return v
	}
	p.drop(at + h.at)
	p.stops = stops
	p.skipping = skipper{depth: h.depth, after: restOfObject}
	p.next = jsonBody
	if h.args != nil {
		p.args.text(string(bytes.TrimSpace(h.args)))
		p.endCall()
		p.next = restOfObject
	}
	return found
}

func (p *Parser) known(name string) bool {
	_, ok := p.tools[name]
	return ok
}

// hermesOpen and hermesClose stand around a call in the Hermes form, a JSON object with name and
// arguments (NousResearch's Hermes, Qwen2.5, Qwen3).
const (
	hermesOpen  = "<tool_call>"
	hermesClose = "</tool_call>"
)

// hermesCall takes a call in the Hermes form; the two other forms that begin alike are tried too.
func hermesCall(p *Parser) bool {
	at := len(hermesOpen)
	at += spaces(p.buf[at:])
	switch {
	case at == len(p.buf):
		if p.ending || at > maxHead {
			p.literal(hermesOpen)
			return true
		}
		return false
	case p.buf[at] == '{':
		v := p.jsonCall(at, false, hermesClose)
		if v == wrong {
			p.literal(hermesOpen)
		}
		return v != more
	case slices.Contains(p.f.openers, coderOpen):
		return coderCall(p)
	}
	return glmCall(p)
}

// bareCall takes a call that is the whole answer, without a marker around it (Llama 3).
func bareCall(p *Parser) bool {
	at := spaces(p.buf)
	if at == len(p.buf) && !p.ending && at <= maxSpace {
		return false
	}
	if at < len(p.buf) && p.buf[at] == '{' {
		v := p.jsonCall(at, true)
		if v == wrong {
			p.next = answer
		}
		return v != more
	}
	p.next = answer
	return true
}

// pythonTag begins a call of Llama 3.1 and later, which is a JSON object.
const pythonTag = "<|python_tag|>"

func llamaCall(p *Parser) bool {
	at := len(pythonTag) + spaces(p.buf[len(pythonTag):])
	if at == len(p.buf) && !p.ending && at <= maxHead {
		return false
	}
	if at < len(p.buf) && p.buf[at] == '{' {
		v := p.jsonCall(at, false)
		if v == wrong {
			p.literal(pythonTag)
		}
		return v != more
	}
	p.literal(pythonTag)
	return true
}
