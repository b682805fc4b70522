package toolcall

import (
	"encoding/json/jsontext"
	"unicode/utf8"
)

// Limits of the arguments of one call. What exceeds them is left out.
const (
	maxDepth     = 48 // of objects and arrays
	maxKey       = 4 << 10
	maxScalar    = 64 << 10
	maxArguments = 8 << 20
	maxGap       = 256 // bytes of white space between two tokens
)

// expect names the tokens that may come next in an object.
type expect uint8

const (
	wantValue expect = iota
	wantKey
	wantColon
	wantNext
)

// mode is the kind of token that an object is within.
type mode uint8

const (
	outside  mode = iota
	inString      // JSON
	inRaw         // characters as they are, see beginRaw
	inBare        // a number, a literal, or a word that should have had quotes
)

// object writes one JSON object from text that should be one. It passes valid JSON through
// unchanged, and repairs everything else: missing commas, colons, brackets and quotes, trailing
// commas, control characters and wrong escapes in strings, lone surrogates, Python's literals. Of
// two members with one name it keeps the first. So what it wrote, once it is finished, is always
// valid JSON.
//
// The text may arrive in pieces of any size. A string comes out as it arrives, up to an escape that
// is not complete; a key, a number or a literal when it is complete.
type object struct {
	out   []byte // written and not taken
	total int    // bytes written so far

	stack []container
	over  int // containers open beyond maxDepth
	want  expect
	mode  mode
	done  bool

	gap   []byte // white space, and a comma, before the next token
	token []byte // a key or a bare word
	isKey bool
	esc   []byte // the beginning of an escape
	high  []byte // an escaped high surrogate
	mute  int    // the depth of the object whose member is left out; 0: none
}

type container struct {
	array bool
	keys  map[string]bool // of an object
}

// take returns what was written since the last call.
func (o *object) take() string {
	s := string(o.out)
	o.out = o.out[:0]
	return s
}

func (o *object) write(b ...byte) {
	if o.mute == 0 && o.over == 0 {
		o.out = append(o.out, b...)
		o.total += len(b)
	}
}

func (o *object) writeString(s string) {
	if o.mute == 0 && o.over == 0 {
		o.out = append(o.out, s...)
		o.total += len(s)
	}
}

// full reports whether the object has reached its largest size.
func (o *object) full() bool { return o.total >= maxArguments }

// quoted reports whether the next byte belongs to a string.
func (o *object) quoted() bool { return o.mode == inString || o.mode == inRaw }

// text adds text.
func (o *object) text(s string) {
	for i := range len(s) {
		o.byte(s[i])
	}
}

// byte adds one byte. Behind the end of the object it does nothing.
func (o *object) byte(c byte) {
	switch {
	case o.done:
	case o.mode == inString:
		o.stringByte(c)
	case o.mode == inRaw:
		o.rawByte(c)
	case o.mode == inBare:
		if !ends(c) {
			if len(o.token) < maxScalar {
				o.token = append(o.token, c)
			}
			return
		}
		o.endBare()
		o.byte(c)
	default:
		o.structure(c)
	}
}

// ends reports whether c ends a bare word.
func ends(c byte) bool {
	switch c {
	case ' ', '\t', '\r', '\n', ',', ':', ']', '}', '[', '{', '"':
		return true
	}
	return false
}

// structure takes a byte between two tokens.
func (o *object) structure(c byte) {
	switch c {
	case ' ', '\t', '\r', '\n':
		if len(o.stack) > 0 && len(o.gap) < maxGap {
			o.gap = append(o.gap, c)
		}
	case '{', '[':
		o.open(c)
	case '}', ']':
		o.close()
	case ',':
		o.comma()
	case ':':
		if o.want == wantColon {
			o.colon()
		}
	case '"':
		o.begin(inString)
	default:
		o.begin(inBare)
		o.token = append(o.token[:0], c)
	}
}

func (o *object) top() *container { return &o.stack[len(o.stack)-1] }

func (o *object) colon() {
	o.flushGap()
	o.write(':')
	o.want = wantValue
}

func (o *object) comma() {
	if len(o.stack) == 0 || o.over > 0 {
		return
	}
	if o.want == wantColon || o.want == wantValue && !o.top().array {
		o.null()
	}
	if o.want == wantNext {
		o.gap = append(o.gap, ',')
		o.afterComma()
	}
}

// null writes the value that is missing.
func (o *object) null() {
	if o.want == wantColon {
		o.colon()
	}
	o.flushGap()
	o.writeString("null")
	o.valueEnd()
}

func (o *object) afterComma() {
	if o.want = wantKey; o.top().array {
		o.want = wantValue
	}
}

// place makes room for a token: it writes the comma or the colon that is missing.
func (o *object) place() {
	switch {
	case o.want == wantNext:
		o.gap = append(o.gap, ',')
		o.afterComma()
	case o.want == wantColon:
		o.colon()
	}
}

func (o *object) flushGap() {
	o.write(o.gap...)
	o.gap = o.gap[:0]
}

// begin starts a string or a bare word.
func (o *object) begin(m mode) {
	if len(o.stack) == 0 {
		return // only an object may be at the top
	}
	o.mode = m
	if o.over > 0 {
		o.isKey = false
		return
	}
	o.place()
	o.token = o.token[:0]
	if o.isKey = o.want == wantKey; o.isKey {
		return
	}
	o.flushGap()
	if m != inBare {
		o.write('"')
	}
}

// key ends the name of a member; o.token holds the text between its quotes. A name that the object
// has already silences its member.
func (o *object) key() {
	o.isKey = false
	if !utf8.Valid(o.token) { // it was cut at maxKey
		o.token = []byte("?")
	}
	quoted := append(append([]byte{'"'}, o.token...), '"')
	name := string(quoted)
	if plain, err := jsontext.AppendUnquote(nil, quoted); err == nil {
		name = string(plain)
	} else {
		quoted = []byte(`"?"`)
	}
	o.want = wantColon
	if c := o.top(); c.keys[name] && o.mute == 0 {
		o.mute, o.gap = len(o.stack), o.gap[:0]
	} else if o.mute == 0 {
		c.keys[name] = true
	}
	o.flushGap()
	o.write(quoted...)
}

// endBare ends a number, a literal or a word.
func (o *object) endBare() {
	o.mode = outside
	if o.over > 0 {
		return
	}
	value := literal(string(o.token))
	if !o.isKey {
		o.writeString(value)
		o.valueEnd()
		return
	}
	if value[0] != '"' {
		value = quote(string(o.token))
	}
	o.token = append(o.token[:0], value[1:len(value)-1]...)
	o.key()
}

// quote returns s as a JSON string; what is not UTF-8 becomes U+FFFD.
func quote(s string) string {
	quoted, _ := jsontext.AppendQuote(nil, s)
	return string(quoted)
}

// literal returns the JSON value of a bare word, which is not empty.
func literal(word string) string {
	switch n := len(word); word {
	case "True":
		return "true"
	case "False":
		return "false"
	case "None":
		return "null"
	default:
		switch {
		case n > 1 && word[0] == '\'' && word[n-1] == '\'':
			return quote(word[1 : n-1])
		case jsontext.Value(word).IsValid():
			return word
		}
	}
	return quote(word)
}

func (o *object) open(c byte) {
	switch {
	case len(o.stack) == 0:
		if c == '[' {
			return
		}
	case o.over > 0:
		o.over++
		return
	default:
		if o.place(); o.want == wantKey { // a member without a name
			o.token = o.token[:0]
			o.key()
			o.colon()
		}
		o.flushGap()
	}
	if len(o.stack) >= maxDepth {
		o.writeString("null")
		o.over = 1
		return
	}
	o.write(c)
	o.stack = append(o.stack, container{array: c == '[', keys: map[string]bool{}})
	if o.want = wantKey; c == '[' {
		o.want = wantValue
	}
}

// close ends the innermost object or array, whichever bracket came.
func (o *object) close() {
	if len(o.stack) == 0 {
		return
	}
	if o.over > 0 {
		if o.over--; o.over == 0 {
			o.valueEnd()
		}
		return
	}
	if o.want == wantColon || o.want == wantValue && !o.top().array {
		o.null()
	}
	for _, c := range o.gap { // but not a comma
		if c != ',' {
			o.write(c)
		}
	}
	o.gap = o.gap[:0]
	if o.top().array {
		o.write(']')
	} else {
		o.write('}')
	}
	o.stack = o.stack[:len(o.stack)-1]
	if o.done = len(o.stack) == 0; !o.done {
		o.valueEnd()
	}
}

// valueEnd notes that a value is complete.
func (o *object) valueEnd() {
	o.want = wantNext
	if o.mute == len(o.stack) {
		o.mute = 0
		o.gap = o.gap[:0]
	}
}

// finish ends the object wherever it is.
func (o *object) finish() {
	if o.mode == inBare {
		o.endBare()
	} else if o.quoted() {
		o.endString()
	}
	for o.over > 0 {
		o.close()
	}
	if o.done {
		return
	}
	if len(o.stack) == 0 {
		o.open('{')
	}
	for !o.done {
		o.close()
	}
}
