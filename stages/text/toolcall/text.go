package toolcall

import "fmt"

// beginRaw starts a string whose characters stand for themselves, up to endRaw.
func (o *object) beginRaw() { o.begin(inRaw) }

func (o *object) endRaw() {
	if o.mode == inRaw {
		o.endString()
	}
}

// character writes a part of a string.
func (o *object) character(s string) {
	if o.isKey {
		if len(o.token) < maxKey {
			o.token = append(o.token, s...)
		}
		return
	}
	o.writeString(s)
}

func (o *object) rawByte(c byte) {
	switch {
	case c == '"' || c == '\\':
		o.character(string([]byte{'\\', c}))
	case c < 0x20:
		o.character(control(c))
	default:
		o.character(string([]byte{c}))
	}
}

// control returns a control character's escape.
func control(c byte) string {
	switch c {
	case '\n':
		return `\n`
	case '\r':
		return `\r`
	case '\t':
		return `\t`
	}
	return fmt.Sprintf(`\u%04x`, c)
}

func (o *object) stringByte(c byte) {
	switch {
	case len(o.esc) > 0:
		o.escape(c)
	case c == '\\':
		o.esc = append(o.esc, c)
	case c == '"':
		o.endString()
	default:
		o.endHigh()
		o.rawByte(c)
	}
}

// escape takes a byte of an escape.
func (o *object) escape(c byte) {
	if len(o.esc) == 1 {
		switch c {
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			o.esc = o.esc[:0]
			o.endHigh()
			o.character(string([]byte{'\\', c}))
		case 'u':
			o.esc = append(o.esc, c)
		case '\'':
			o.esc = o.esc[:0]
			o.stringByte(c)
		default:
			o.wrongEscape(c)
		}
		return
	}
	if c|0x20 < 'a' && (c < '0' || c > '9') || c|0x20 > 'f' {
		o.wrongEscape(c)
		return
	}
	if o.esc = append(o.esc, c); len(o.esc) < 6 {
		return
	}
	o.codeUnit()
}

// wrongEscape takes the backslash for itself.
func (o *object) wrongEscape(c byte) {
	o.endHigh()
	o.character(`\` + string(o.esc))
	o.esc = o.esc[:0]
	o.stringByte(c)
}

// codeUnit ends an escape of four digits. A high surrogate waits for its low one.
func (o *object) codeUnit() {
	digits := o.esc[2:]
	second := digits[1] | 0x20
	surrogate := digits[0]|0x20 == 'd' && second >= '8'
	low := surrogate && second >= 'c'
	switch {
	case surrogate && !low:
		o.endHigh()
		o.high = append(o.high, o.esc...)
	case low && len(o.high) == 0:
		o.character(`\ufffd`)
	case low:
		o.character(string(o.high) + string(o.esc))
		o.high = o.high[:0]
	default:
		o.endHigh()
		o.character(string(o.esc))
	}
	o.esc = o.esc[:0]
}

// endHigh replaces a high surrogate that no low one follows.
func (o *object) endHigh() {
	if len(o.high) > 0 {
		o.high = o.high[:0]
		o.character(`\ufffd`)
	}
}

func (o *object) endString() {
	o.esc = o.esc[:0]
	o.endHigh()
	o.mode = outside
	if o.isKey {
		o.key()
		return
	}
	o.write('"')
	o.valueEnd()
}
