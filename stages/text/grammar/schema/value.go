package schema

import (
	"bytes"
	"encoding/json/jsontext"
	"errors"
	"math/big"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// value is a JSON value of a schema.
type value struct {
	id      int
	kind    byte     // { [ " 0 t f n
	text    string   // of a string, or of a number as it is written
	names   []string // of an object's members
	items   []*value // their values, or those of an array
	index   map[string]int
	parent  *value
	at      string // its name or index there
	checked bool
}

// parse reads a schema.
func parse(text []byte) (*value, error) {
	if len(text) > MaxBytes {
		return nil, &Error{Reason: "it has more than " + strconv.Itoa(MaxBytes) + " bytes"}
	}
	p := &parser{d: jsontext.NewDecoder(bytes.NewReader(text))}
	v, err := p.value(nil, "", 0)
	if err == nil {
		if _, end := p.d.ReadToken(); end == nil {
			err = errors.New("something follows it")
		}
	}
	if err != nil {
		if own, ok := errors.AsType[*Error](err); ok {
			return nil, own
		}
		return nil, &Error{Reason: "it is not JSON: " + clip(err.Error())}
	}
	return v, nil
}

type parser struct {
	d *jsontext.Decoder
	n int
}

func (p *parser) value(parent *value, at string, depth int) (*value, error) {
	if p.n++; p.n > maxValues || depth > maxDepth {
		return nil, &Error{Reason: "it is too large or too deep"}
	}
	v := &value{id: p.n, parent: parent, at: at}
	t, err := p.d.ReadToken()
	if err != nil {
		return nil, err
	}
	switch v.kind = byte(t.Kind()); v.kind {
	case '"', '0':
		v.text = t.String()
	case '[':
		for p.d.PeekKind() != ']' {
			one, err := p.value(v, strconv.Itoa(len(v.items)), depth+1)
			if err != nil {
				return nil, err
			}
			v.items = append(v.items, one)
		}
		_, err = p.d.ReadToken()
	case '{':
		v.index = map[string]int{}
		for p.d.PeekKind() != '}' {
			name, err := p.d.ReadToken()
			if err != nil {
				return nil, err
			}
			key := name.String()
			one, err := p.value(v, key, depth+1)
			if err != nil {
				return nil, err
			}
			v.index[key] = len(v.items)
			v.names, v.items = append(v.names, key), append(v.items, one)
		}
		_, err = p.d.ReadToken()
	}
	return v, err
}

// member returns an object's member, nil for none.
func (v *value) member(name string) *value {
	if i, ok := v.index[name]; ok {
		return v.items[i]
	}
	return nil
}

// pointer returns the JSON pointer of a value.
func (v *value) pointer() string {
	var parts []string
	for ; v.parent != nil; v = v.parent {
		parts = append(parts, strings.NewReplacer("~", "~0", "/", "~1").Replace(clip(v.at)))
	}
	var b strings.Builder
	for _, p := range slices.Backward(parts) {
		b.WriteString("/" + p)
	}
	return b.String()
}

// resolve finds the schema that a reference names: one of the same document.
func (c *compiler) resolve(ref *value) *value {
	if ref.kind != '"' {
		c.fail(ref, "it must be a string")
		return nil
	}
	if v := c.targets[ref.text]; v != nil {
		return v
	}
	path, ok := strings.CutPrefix(ref.text, "#")
	if !ok {
		if id := c.root.member("$id"); id != nil && id.text != "" {
			path, ok = strings.CutPrefix(ref.text, strings.TrimSuffix(id.text, "#"))
			path = strings.TrimPrefix(path, "#")
		}
	}
	if !ok {
		c.fail(ref, "a reference to another document, %q, is not supported", clip(ref.text))
		return nil
	}
	if plain, err := url.PathUnescape(path); err == nil {
		path = plain
	}
	v := c.root
	switch {
	case path != "" && path[0] != '/':
		v = c.root.anchor(path)
	case path != "":
		for part := range strings.SplitSeq(path[1:], "/") {
			part = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
			if v.kind == '[' {
				if i, err := strconv.Atoi(part); err == nil && i >= 0 && i < len(v.items) {
					v = v.items[i]
					continue
				}
			}
			if v = v.member(part); v == nil {
				break
			}
		}
	}
	if v == nil {
		c.fail(ref, "there is no %q", clip(ref.text))
		return nil
	}
	c.targets[ref.text] = v
	return v
}

// anchor finds the schema with a name.
func (v *value) anchor(name string) *value {
	for i, one := range v.items {
		if v.kind == '{' && v.names[i] == "$anchor" && one.text == name {
			return v
		}
		if found := one.anchor(name); found != nil {
			return found
		}
	}
	return nil
}

// count reads a keyword that is a whole number of 0 or more; none if it is absent.
func (c *compiler) count(s *value, keyword string, none int) int {
	v := s.member(keyword)
	if v == nil {
		return none
	}
	n := c.number(v)
	if n == nil || !n.IsInt() || n.Sign() < 0 {
		c.fail(v, "it must be a whole number of 0 or more")
		return none
	}
	if n.Cmp(big.NewRat(1<<30, 1)) > 0 {
		return 1 << 30
	}
	return int(n.Num().Int64())
}

// number returns a number's value.
func (c *compiler) number(v *value) *big.Rat {
	if v.kind == '0' {
		if n := rational(v.text); n != nil {
			return n
		}
	}
	c.fail(v, "it must be a number of at most %d digits", maxDigits)
	return nil
}

// maxDigits bounds the digits of a number, written without an exponent.
const maxDigits = 400

// rational reads a JSON number; nil if it is too long.
func rational(text string) *big.Rat {
	if len(text) > maxDigits {
		return nil
	}
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		if e, err := strconv.Atoi(text[i+1:]); err != nil || e > maxDigits || e < -maxDigits {
			return nil
		}
	}
	n, ok := new(big.Rat).SetString(text)
	if !ok {
		return nil
	}
	return n
}

// same reports whether two JSON values are equal.
func (v *value) same(w *value) bool {
	if v.kind != w.kind || len(v.items) != len(w.items) {
		return false
	}
	switch v.kind {
	case '0':
		a, b := rational(v.text), rational(w.text)
		return v.text == w.text || a != nil && b != nil && a.Cmp(b) == 0
	case '"':
		return v.text == w.text
	case '{':
		for i, name := range v.names {
			if other := w.member(name); other == nil || !v.items[i].same(other) {
				return false
			}
		}
		return true
	}
	return slices.EqualFunc(v.items, w.items, (*value).same)
}
