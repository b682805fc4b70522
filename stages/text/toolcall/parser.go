// Package toolcall takes a chat model's text apart while it arrives: into the answer, the reasoning
// before it, and calls of tools. Each family of models writes these in a format of its own, which
// its chat template shows; Detect finds the format by the markers in the template's text.
//
// What a Parser returns does not depend on how the text was cut. It withholds text only as long as
// that could be part of a marker, and gives it out at the end. The arguments of a call always join
// to a JSON object; see object.
package toolcall

import (
	"bytes"
	"slices"
)

// Kind says what an Event is.
type Kind uint8

// The kinds of events.
const (
	Text      Kind = iota // a part of the answer
	Reasoning             // a part of the reasoning
	Call                  // a call begins; Text is the name of the tool
	Arguments             // a part of the call's arguments, which join to a JSON object
	End                   // the call's arguments are complete
)

// Event is one step of an answer. Between a Call and its End there are only Arguments, at least one.
type Event struct {
	Kind Kind
	Text string
	ID   string // of a Call: the id that the model gave it, if it did
}

// Limits of an answer. What exceeds them is text.
const (
	MaxCalls  = 128
	maxHead   = 64 << 10 // bytes of a call before its tool is known
	maxSpace  = 64       // bytes of white space held back at a border
	maxHeader = 1 << 10  // bytes of a header of harmony
)

// Options describe one answer.
type Options struct {
	// Tools are the tools that the model may call, in the chat-completions shape. nil: none, and
	// what looks like a call is text.
	Tools []byte
	// Single takes only the first call. Over reports when a second one begins.
	Single bool
	// Inside says that the prompt ends within reasoning.
	Inside bool
	// Hermes also takes calls in the Hermes form, whatever the format: the prompt asked for it.
	Hermes bool
	// Special reports whether a text is that of a control token. Such a marker in a wrong place is
	// left out, where another is text. nil: none is.
	Special func(string) bool
}

// state is a step of a parser. It takes what it can from the beginning of p.buf, and reports
// whether to continue: it took something, or p.next is another state. At the end of the answer
// (p.ending) it must take all.
type state func(p *Parser) bool

// Parser takes one answer apart. It is not safe for concurrent use.
type Parser struct {
	o      Options
	f      Format
	tools  tools
	buf    []byte // arrived and not taken
	events []Event
	next   state
	ending bool
	over   bool
	calls  int

	gap      []byte // white space and borders of calls: text if no call follows
	trim     bool   // white space is left out until something else comes
	thinking bool
	name     string     // the tool of the open call
	args     object     // of it
	params   *paramForm // the form of its parameters
	key      string     // the parameter whose value comes
	kinds    types      // its types
	value    []byte     // its text, where its type is not a string's
	stops    []string   // end the call
	skipping skipper

	wrote    [End + 1]bool // of harmony: a message of the kind came
	separate bool          // a line goes before the next one

	openers []string // begin a call
	borders []string // stand around calls
	strays  []string // control tokens without meaning where text is
	marks   []string // all of them
	ends    []string // of reasoning, then the strays
}

// New starts an answer in the format.
func (f Format) New(o Options) *Parser {
	p := &Parser{o: o, f: f, trim: true, next: start}
	if f.harmony {
		p.next = harmonyHeader
	}
	if o.Tools != nil {
		p.tools = readTools(o.Tools)
		p.openers, p.borders = slices.Clone(f.openers), slices.Clone(f.borders)
		if o.Hermes && !slices.Contains(p.openers, hermesOpen) {
			p.openers, p.borders = append(p.openers, hermesOpen), append(p.borders, hermesClose)
		}
	}
	for _, m := range f.Markers() {
		if o.Special != nil && o.Special(m) && !slices.Contains(p.openers, m) && !slices.Contains(p.borders, m) {
			p.strays = append(p.strays, m)
		}
	}
	p.marks = slices.Concat(p.openers, p.borders, p.strays)
	for _, t := range f.think {
		p.ends = append(p.ends, t.end)
	}
	p.ends = append(p.ends, p.strays...)
	if o.Inside {
		p.next, p.thinking = reasonBegin, true
	}
	return p
}

// Push takes the next piece of the text. The events are valid until the next call.
func (p *Parser) Push(text string) []Event {
	p.events = p.events[:0]
	p.buf = append(p.buf, text...)
	p.run()
	return p.events
}

// Flush ends the answer: it gives out what was held back, and completes an open call.
func (p *Parser) Flush() []Event {
	p.events = p.events[:0]
	p.ending = true
	p.run()
	if p.name != "" {
		p.endCall()
	}
	p.gapEnd()
	p.thinking = false
	return p.events
}

func (p *Parser) run() {
	for !p.over && p.next(p) {
	}
}

// Reasoning reports whether the text so far ends within reasoning.
func (p *Parser) Reasoning() bool { return p.thinking }

// Over reports that the answer should end here: see Options.Single.
func (p *Parser) Over() bool { return p.over }

// drop takes n bytes of the buffer.
func (p *Parser) drop(n int) {
	p.buf = p.buf[:copy(p.buf, p.buf[n:])]
}

// emit adds an event, or to the last one.
func (p *Parser) emit(k Kind, text string) {
	if text == "" {
		return
	}
	if n := len(p.events); n > 0 && p.events[n-1].Kind == k {
		p.events[n-1].Text += text
		return
	}
	p.events = append(p.events, Event{Kind: k, Text: text})
}

func space(c byte) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' }

// spaces returns how many bytes of white space b begins with.
func spaces(b []byte) int {
	n := 0
	for n < len(b) && space(b[n]) {
		n++
	}
	return n
}

// kind is that of the text now.
func (p *Parser) kind() Kind {
	if p.thinking {
		return Reasoning
	}
	return Text
}

// text gives out a part of the answer or of the reasoning. White space at its end waits for what
// comes next, and white space at its beginning is left out.
func (p *Parser) text(s []byte) {
	if p.trim {
		s = s[spaces(s):]
	}
	if len(s) == 0 {
		return
	}
	p.trim = false
	body := len(s)
	for body > 0 && space(s[body-1]) {
		body--
	}
	if body > 0 {
		p.emit(p.kind(), string(p.gap)+string(s[:body]))
		p.gap = p.gap[:0]
	}
	p.hold(s[body:])
}

// hold adds to the gap, of which only so much is held that it stays small.
func (p *Parser) hold(s []byte) {
	p.gap = append(p.gap, s...)
	if n := len(p.gap) - maxSpace; n > 0 {
		p.emit(p.kind(), string(p.gap[:n]))
		p.gap = p.gap[:copy(p.gap, p.gap[n:])]
	}
}

// gapEnd gives out the gap where no call or border follows.
func (p *Parser) gapEnd() {
	if !p.trim && !p.thinking {
		p.emit(p.kind(), string(p.gap))
	}
	p.gap = p.gap[:0]
}

// find returns where the first of the marks begins in the buffer and which it is, the longest of
// several. Without one, n is how many bytes can be no part of one, and which is -1.
func (p *Parser) find(marks []string) (n, which int) {
	for n = range p.buf {
		partial := false
		which = -1
		for i, m := range marks {
			if m[0] != p.buf[n] {
				continue
			}
			switch rest := p.buf[n:]; {
			case len(rest) >= len(m):
				if string(rest[:len(m)]) == m && (which < 0 || len(m) > len(marks[which])) {
					which = i
				}
			case !p.ending && string(rest) == m[:len(rest)]:
				partial = true
			}
		}
		if partial {
			return n, -1 // also where a shorter mark fits: the longer one decides
		}
		if which >= 0 {
			return n, which
		}
	}
	return len(p.buf), -1
}

// start waits for the first character of the answer, which may begin reasoning.
func start(p *Parser) bool {
	n := spaces(p.buf)
	rest := p.buf[n:]
	switch {
	case n > maxSpace: // no model begins so
	case len(rest) == 0 && !p.ending:
		return false
	default:
		switch open := p.opens(rest); {
		case open < 0:
			return false
		case open > 0:
			p.drop(n + open)
			p.thinking, p.next = true, reason
			return true
		}
	}
	p.trim = false
	p.hold(p.buf[:n])
	p.drop(n)
	p.answerNext()
	return true
}

// opens returns the length of the marker that begins reasoning at the start of b, 0 if there is
// none, or -1 if b is too short to tell.
func (p *Parser) opens(b []byte) int {
	for _, t := range p.f.think {
		if bytes.HasPrefix(b, []byte(t.begin)) {
			return len(t.begin)
		}
		if !p.ending && len(b) < len(t.begin) && t.begin[:len(b)] == string(b) {
			return -1
		}
	}
	return 0
}

// answerNext continues with the answer, which may be nothing but a call.
func (p *Parser) answerNext() {
	if p.next = answer; p.f.bare && p.tools != nil {
		p.next = bareCall
	}
}

// reasonBegin is start of an answer whose prompt has opened the reasoning. Some models open it again.
func reasonBegin(p *Parser) bool {
	if n := spaces(p.buf); n <= maxSpace {
		open := p.opens(p.buf[n:])
		if open < 0 {
			return false
		}
		if open > 0 {
			p.drop(n + open)
		}
	}
	p.next = reason
	return true
}

// reason takes reasoning up to its end.
func reason(p *Parser) bool {
	n, which := p.find(p.ends)
	p.text(p.buf[:n])
	p.drop(n)
	if which < 0 {
		return false
	}
	p.drop(len(p.ends[which]))
	if which < len(p.f.think) {
		p.gap = p.gap[:0]
		p.thinking, p.trim = false, true
		p.answerNext()
	}
	return true
}

// answer takes text up to a call.
func answer(p *Parser) bool {
	n, which := p.find(p.marks)
	p.text(p.buf[:n])
	p.drop(n)
	if which < 0 {
		return false
	}
	mark := p.marks[which]
	switch {
	case which < len(p.openers):
		if p.calls >= MaxCalls {
			p.literal(mark)
			return true
		}
		p.next = p.f.call
		if mark == hermesOpen {
			p.next = hermesCall
		}
		return true
	case which < len(p.openers)+len(p.borders):
		if !p.special(mark) && (!p.trim || p.calls == 0) {
			p.trim = false
			p.hold([]byte(mark))
		}
	}
	p.drop(len(mark))
	return true
}

func (p *Parser) special(mark string) bool { return p.o.Special != nil && p.o.Special(mark) }

// literal takes a marker from the buffer that turned out to be text.
func (p *Parser) literal(mark string) {
	if p.next = answer; p.special(mark) {
		p.drop(len(mark))
		return
	}
	p.trim = false
	p.emit(Text, string(p.gap)+mark)
	p.gap = p.gap[:0]
	p.drop(len(mark))
}

// begin opens a call, whose arguments follow. It reports false where there may be none.
func (p *Parser) begin(name, id string) bool {
	if p.o.Single && p.calls > 0 {
		p.over = true
		return false
	}
	p.calls++
	p.gap = p.gap[:0]
	p.name, p.args = name, object{}
	p.events = append(p.events, Event{Kind: Call, Text: name, ID: id})
	return true
}

// endCall completes the arguments and the call.
func (p *Parser) endCall() {
	p.args.finish()
	p.emit(Arguments, p.args.take())
	p.events = append(p.events, Event{Kind: End})
	p.name, p.args, p.trim = "", object{}, true
	p.next = answer
}
