package toolcall

import (
	"bytes"
	"slices"
	"strings"
)

// paramForm is how a format writes the parameters of a call, one after the other.
type paramForm struct {
	open, nameEnd string // around a parameter's name
	valueOpen     string // between the name and the value; "": nothing
	close         string // ends the value
	end           string // ends the call
	// lines says that a value stands on lines of its own: one line end before it and one behind it
	// are no part of it.
	lines bool
	// attributes says that what stands before nameEnd is a name in quotes and attributes.
	attributes bool
}

// takeCall begins a call whose parameters follow at p.buf[at:].
func (p *Parser) takeCall(name string, at int, form *paramForm) {
	if !p.begin(name, "") {
		return
	}
	p.drop(at)
	p.params = form
	p.args.byte('{')
	p.next = nextParam
}

// nextParam takes the name of a parameter, or the end of the call. It leaves out what is between.
func nextParam(p *Parser) bool {
	f := p.params
	n, which := p.find([]string{f.open, f.end})
	p.drop(n)
	switch which {
	case -1:
		return false
	case 1:
		p.drop(len(f.end))
		p.endCall()
		return true
	}
	at := len(f.open)
	n = bytes.Index(p.buf[at:], []byte(f.nameEnd))
	if n < 0 || n > maxKey {
		if n > maxKey || p.ending || len(p.buf) > maxKey+len(f.open) {
			p.drop(at) // no name
			return true
		}
		return false
	}
	head, end := string(p.buf[at:at+n]), at+n+len(f.nameEnd)
	if f.valueOpen != "" {
		rest := p.buf[end+spaces(p.buf[end:]):]
		if len(rest) < len(f.valueOpen) && f.valueOpen[:len(rest)] == string(rest) && !p.ending && len(p.buf) < maxHead {
			return false
		}
		if end = len(p.buf) - len(rest); bytes.HasPrefix(rest, []byte(f.valueOpen)) {
			end += len(f.valueOpen)
		}
	}
	p.drop(end)
	p.beginParam(head)
	return true
}

// beginParam writes a parameter's name and chooses how its value is read.
func (p *Parser) beginParam(head string) {
	kinds := types(0)
	p.key = strings.TrimSpace(head)
	if p.params.attributes {
		p.key, kinds = attributes(head)
	}
	if kinds == 0 {
		kinds = p.tools.typesOf(p.name, p.key)
	}
	p.writeKey(p.key)
	p.value, p.kinds = p.value[:0], kinds
	p.next = paramValue
	if kinds == stringType {
		p.args.beginRaw()
	}
	if p.params.lines {
		p.next = firstLine
	}
}

// writeKey writes the name of the next member of the arguments.
func (p *Parser) writeKey(key string) {
	if p.args.want == wantNext {
		p.args.text(", ")
	}
	p.args.beginRaw()
	p.args.text(key)
	p.args.endRaw()
	p.args.text(": ")
	p.emit(Arguments, p.args.take())
}

// attributes reads name="NAME" string="true", whose first word was the format's.
func attributes(head string) (name string, kinds types) {
	head = strings.TrimSpace(head)
	name = strings.Trim(head, `"'`)
	if len(head) > 1 && (head[0] == '"' || head[0] == '\'') {
		if n := strings.IndexByte(head[1:], head[0]); n >= 0 {
			name, head = head[1:1+n], head[2+n:]
		}
	}
	switch {
	case strings.Contains(head, `string="true"`):
		kinds = stringType
	case strings.Contains(head, `string="false"`):
		kinds = allTypes &^ stringType
	}
	return name, kinds
}

// firstLine leaves out the line end before a value.
func firstLine(p *Parser) bool {
	if len(p.buf) == 0 || p.buf[0] == '\r' && len(p.buf) < 2 && !p.ending {
		return false
	}
	if p.buf[0] == '\r' && len(p.buf) > 1 && p.buf[1] == '\n' {
		p.drop(1)
	}
	if p.buf[0] == '\n' {
		p.drop(1)
	}
	p.next = paramValue
	return true
}

// paramValue takes a value up to its end. A string is written as it arrives; another waits, because
// its type decides what it is.
func paramValue(p *Parser) bool {
	f := p.params
	n, which := p.find([]string{f.close, f.end})
	text := n
	if f.lines && (which >= 0 || !p.ending) { // the last line end is part of the value if more follows
		if text > 0 && p.buf[text-1] == '\n' {
			if text--; text > 0 && p.buf[text-1] == '\r' {
				text--
			}
		} else if text > 0 && p.buf[text-1] == '\r' && which < 0 {
			text--
		}
	}
	p.writeValue(p.buf[:text])
	if which < 0 {
		p.drop(text)
		return false
	}
	p.drop(n)
	if which == 0 {
		p.drop(len(f.close))
	}
	p.endValue()
	p.next = nextParam
	return true
}

// writeValue adds to a value.
func (p *Parser) writeValue(text []byte) {
	if p.kinds != stringType {
		if len(p.value)+len(text) <= maxArguments {
			p.value = append(p.value, text...)
		}
		return
	}
	p.args.text(string(text))
	if p.args.full() {
		p.args.finish()
	}
	p.emit(Arguments, p.args.take())
}

// endValue completes a value.
func (p *Parser) endValue() {
	if p.kinds == stringType {
		p.args.endRaw()
	} else {
		p.args.text(p.kinds.value(string(p.value)))
		if p.args.mode == inBare {
			p.args.endBare()
		}
	}
	p.value = p.value[:0]
	p.kinds = 0
	p.emit(Arguments, p.args.take())
}

// The forms of the formats with tags.
var (
	coderForm   = &paramForm{open: "<parameter=", nameEnd: ">", close: "</parameter>", end: "</function>", lines: true}
	glmForm     = &paramForm{open: "<arg_key>", nameEnd: "</arg_key>", valueOpen: "<arg_value>", close: "</arg_value>", end: hermesClose}
	minimaxForm = &paramForm{open: "<parameter name=", nameEnd: ">", close: "</parameter>", end: "</invoke>", attributes: true}
	dsmlForm    = &paramForm{open: "<｜DSML｜parameter name=", nameEnd: ">", close: "</｜DSML｜parameter>", end: "</｜DSML｜invoke>", attributes: true}
)

const (
	coderOpen   = "<function="
	minimaxOpen = "<invoke name="
	dsmlOpen    = "<｜DSML｜invoke name="
)

// named reads the name of a tool at p.buf[at:] up to a mark, and returns where what follows begins.
func (p *Parser) named(at int, end string) (name string, next int, v verdict) {
	n := bytes.Index(p.buf[at:], []byte(end))
	if n < 0 {
		if p.ending || len(p.buf) > at+maxKey {
			return "", 0, wrong
		}
		return "", 0, more
	}
	name = strings.Trim(strings.TrimSpace(string(p.buf[at:at+n])), `"'`)
	if n > maxKey || !toolName(name) {
		return "", 0, wrong
	}
	return name, at + n + len(end), found
}

// tagCall takes a call that begins with a mark and a name.
func (p *Parser) tagCall(mark string, at int, form *paramForm) bool {
	name, next, v := p.named(at, ">")
	switch v {
	case wrong:
		p.literal(mark)
	case found:
		p.takeCall(name, next, form)
	}
	return v != more
}

// coderCall takes a call as Qwen3-Coder and Qwen3.5 write it. The mark around it may be missing.
func coderCall(p *Parser) bool {
	if bytes.HasPrefix(p.buf, []byte(coderOpen)) {
		return p.tagCall(coderOpen, len(coderOpen), coderForm)
	}
	at := len(hermesOpen) + spaces(p.buf[len(hermesOpen):])
	rest := p.buf[at:]
	switch {
	case bytes.HasPrefix(rest, []byte(coderOpen)):
		return p.tagCall(hermesOpen, at+len(coderOpen), coderForm)
	case len(rest) < len(coderOpen) && coderOpen[:len(rest)] == string(rest) && !p.ending:
		return false
	}
	p.literal(hermesOpen)
	return true
}

// glmCall takes a call as GLM-4.5 and later write it: <tool_call>, a name, and pairs of arg_key and
// arg_value.
func glmCall(p *Parser) bool {
	at := len(hermesOpen) + spaces(p.buf[len(hermesOpen):])
	n := bytes.IndexAny(p.buf[at:], " \t\r\n<")
	if n < 0 {
		n = len(p.buf) - at
	}
	name := string(p.buf[at : at+n])
	next := at + n
	next += spaces(p.buf[next:])
	rest := string(p.buf[next:])
	full, partial := false, false
	for _, mark := range []string{glmForm.open, glmForm.end} {
		full = full || strings.HasPrefix(rest, mark)
		partial = partial || strings.HasPrefix(mark, rest)
	}
	switch {
	case n > 0 && !toolName(name) || next > maxHead:
	case full && !p.known(name) && !slices.Contains(p.f.inner, glmForm.open): // prose, in another format
	case full && n > 0:
		p.takeCall(name, next, glmForm)
		return true
	case partial && !p.ending:
		return false
	}
	p.literal(hermesOpen)
	return true
}

// minimaxCall takes a call as MiniMax-M2 writes it, dsmlCall as DeepSeek-V3.2 and V4 do.
func minimaxCall(p *Parser) bool { return p.tagCall(minimaxOpen, len(minimaxOpen), minimaxForm) }

func dsmlCall(p *Parser) bool { return p.tagCall(dsmlOpen, len(dsmlOpen), dsmlForm) }
