package toolcall

import (
	"bytes"
	"strings"

	"krater/stages/text/grammar"
	jsonschema "krater/stages/text/grammar/schema"
)

// The markers of DeepSeek-V2.5, V3, R1 and V3.1.
const (
	deepseekOpen  = "<｜tool▁call▁begin｜>"
	deepseekSep   = "<｜tool▁sep｜>"
	deepseekClose = "<｜tool▁call▁end｜>"
	deepseekEnd   = "<｜tool▁calls▁end｜>"
)

// marked begins a call whose arguments, a JSON object, follow at p.buf[at:] up to one of the stops.
func (p *Parser) marked(name, id string, at int, stops ...string) {
	if !p.begin(name, id) {
		return
	}
	p.drop(at)
	p.stops, p.skipping = stops, skipper{after: tail}
	p.next = jsonBody
}

// upTo returns what is between p.buf[at:] and a mark.
func (p *Parser) upTo(at int, mark string) (text string, next int, v verdict) {
	n := bytes.Index(p.buf[at:], []byte(mark))
	switch {
	case n >= 0 && n <= maxKey:
		return strings.TrimSpace(string(p.buf[at : at+n])), at + n + len(mark), found
	case n >= 0 || p.ending || len(p.buf) > at+maxKey+len(mark):
		return "", 0, wrong
	}
	return "", 0, more
}

// deepseekCall takes NAME<sep>{...} (V3.1), or function<sep>NAME, a line end and a fence around the
// object (V3 and before).
func deepseekCall(p *Parser) bool {
	name, next, v := p.upTo(len(deepseekOpen), deepseekSep)
	if v == found && name == "function" {
		at := next + spaces(p.buf[next:])
		switch {
		case at == len(p.buf) && !p.ending && at < maxHead:
			return false
		case at < len(p.buf) && p.buf[at] != '{':
			name, next, v = p.upTo(at, "\n")
		}
	}
	if v == found && !toolName(name) {
		v = wrong
	}
	switch v {
	case wrong:
		p.literal(deepseekOpen)
	case found:
		p.marked(name, "", next, deepseekClose, deepseekEnd)
	}
	return v != more
}

// The markers of Kimi K2 and K2.5.
const (
	kimiOpen  = "<|tool_call_begin|>"
	kimiArgs  = "<|tool_call_argument_begin|>"
	kimiClose = "<|tool_call_end|>"
	kimiEnd   = "<|tool_calls_section_end|>"
)

// kimiCall takes a call with the id "functions.NAME:NUMBER".
func kimiCall(p *Parser) bool {
	id, next, v := p.upTo(len(kimiOpen), kimiArgs)
	name := strings.TrimPrefix(id, "functions.")
	if n := strings.LastIndexByte(name, ':'); n >= 0 {
		name = name[:n]
	}
	if v == found && !toolName(name) {
		v = wrong
	}
	switch v {
	case wrong:
		p.literal(kimiOpen)
	case found:
		p.marked(name, id, next, kimiClose, kimiEnd)
	}
	return v != more
}

// The markers of Mistral's models.
const (
	mistralOpen = "[TOOL_CALLS]"
	mistralID   = "[CALL_ID]"
	mistralArgs = "[ARGS]"
)

// mistralCall takes a list of JSON objects, or a name, perhaps an id, and a JSON object.
func mistralCall(p *Parser) bool {
	at := len(mistralOpen)
	at += spaces(p.buf[at:])
	v := wrong
	switch {
	case at == len(p.buf):
		if !p.ending && at < maxHead {
			return false
		}
	case p.buf[at] == '[':
		at++
		if at += spaces(p.buf[at:]); at == len(p.buf) && !p.ending && at < maxHead {
			return false
		}
		if at < len(p.buf) && p.buf[at] == '{' {
			v = p.jsonCall(at, false)
		}
	default:
		v = p.mistralNamed(at)
	}
	if v == wrong {
		p.literal(mistralOpen)
	}
	return v != more
}

func (p *Parser) mistralNamed(at int) verdict {
	brace, next, v := p.upTo(at, "{")
	if v != found {
		return v
	}
	name, _, _ := strings.Cut(brace, mistralArgs)
	name, id, _ := strings.Cut(name, mistralID)
	if name = strings.TrimSpace(name); !toolName(name) {
		return wrong
	}
	p.marked(name, strings.TrimSpace(id), next-1)
	return found
}

// The markers of Gemma 4.
const (
	gemmaOpen  = "<|tool_call>"
	gemmaClose = "<tool_call|>"
	gemmaQuote = `<|"|>`
)

// gemmaNotation is how Gemma 4 writes values. Its template sorts the members of objects, in declarations and in calls.
func gemmaNotation(s *Speaker) *jsonschema.Notation {
	around := func(open, end string) [2]*grammar.Expr {
		return [2]*grammar.Expr{grammar.Text(open), grammar.Text(end)}
	}
	return &jsonschema.Notation{
		Quote: s.Spell(gemmaQuote), Stop: gemmaQuote, Object: around("{", "}"), Array: around("[", "]"), Comma: grammar.Text(","), Sorted: true,
		Member: func(name, value *grammar.Expr) *grammar.Expr { return grammar.Seq(name, grammar.Text(":"), value) },
		Item:   func(value *grammar.Expr) *grammar.Expr { return value },
	}
}

// gemmaCall takes call:NAME{...}.
func gemmaCall(p *Parser) bool {
	name, next, v := p.upTo(len(gemmaOpen), "{")
	if v == found {
		var ok bool
		if name, ok = strings.CutPrefix(name, "call:"); !ok || !toolName(name) {
			v = wrong
		}
	}
	switch {
	case v == wrong:
		p.literal(gemmaOpen)
	case v == found && p.begin(name, ""):
		p.drop(next - 1)
		p.stops, p.skipping = []string{gemmaClose}, skipper{after: tail}
		p.next = gemmaBody
	}
	return v != more
}

// gemmaBody takes an object whose names have no quotes, and whose strings have quotes of their own
// and no escapes.
func gemmaBody(p *Parser) bool {
	quotes := []string{gemmaQuote}
	i, ended := 0, false
	for i < len(p.buf) && !p.args.done && !ended {
		marks := p.stops
		p.stops = quotes
		n, wait := p.stopAt(i)
		p.stops = marks
		if !p.args.quoted() && n == 0 && !wait {
			var stop int
			stop, wait = p.stopAt(i)
			ended = stop > 0
		}
		switch {
		case wait:
			p.drop(i)
			p.emit(Arguments, p.args.take())
			return false
		case ended:
		case n > 0 && p.args.mode == inRaw:
			p.args.endRaw()
			i += n
		case n > 0 && p.args.mode != inString:
			if p.args.mode == inBare {
				p.args.endBare()
			}
			p.args.beginRaw()
			i += n
		default:
			p.args.byte(p.buf[i])
			if i++; p.args.full() {
				p.args.finish()
			}
		}
	}
	p.drop(i)
	p.emit(Arguments, p.args.take())
	if p.args.done || ended {
		p.endCall()
		p.next = tail
		return true
	}
	return false
}
