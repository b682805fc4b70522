package template

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"encoding/json/jsontext"
)

// Bounds of the JSON that Decode takes.
const (
	MaxLevels = 64        // of nesting
	MaxValues = 1_000_000 // strings, numbers, literals, arrays and objects
)

// Decode reads one JSON value; objects keep the order of their members. Duplicate members, invalid
// UTF-8, lone surrogates and trailing bytes are errors. Integers beyond 64 bits keep their digits.
func Decode(data []byte) (Value, error) {
	d := decoder{json: jsontext.NewDecoder(bytes.NewReader(data)), left: MaxValues}
	v, err := d.value(MaxLevels)
	if err == nil {
		if _, err = d.json.ReadToken(); errors.Is(err, io.EOF) {
			return v, nil
		}
		if err == nil {
			err = errors.New("data after the value")
		}
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("no value")
	}
	return None(), errors.New(strings.TrimPrefix(err.Error(), "jsontext: "))
}

type decoder struct {
	json *jsontext.Decoder
	left int // values that may still come
}

func (d *decoder) value(levels int) (Value, error) {
	if d.left--; d.left < 0 {
		return None(), fmt.Errorf("more than %d values", MaxValues)
	}
	t, err := d.json.ReadToken()
	if err != nil {
		return None(), err
	}
	switch t.Kind() {
	case 't', 'f':
		return NewBool(t.Bool()), nil
	case '"':
		return NewString(t.String()), nil
	case '0':
		return decodeNumber(t.String()), nil
	case '[', '{':
		if levels == 0 {
			return None(), fmt.Errorf("nested deeper than %d levels", MaxLevels)
		}
		if t.Kind() == '[' {
			return d.array(levels - 1)
		}
		return d.object(levels - 1)
	}
	return None(), nil // null; the decoder lets nothing else through
}

func (d *decoder) array(levels int) (Value, error) {
	var list []Value
	for d.json.PeekKind() != ']' {
		v, err := d.value(levels)
		if err != nil {
			return v, err
		}
		list = append(list, v)
	}
	_, err := d.json.ReadToken()
	return NewList(list), err
}

func (d *decoder) object(levels int) (Value, error) {
	v := NewDict()
	for d.json.PeekKind() != '}' {
		name, err := d.json.ReadToken()
		if err != nil {
			return v, err
		}
		k := name.String()
		member, err := d.value(levels)
		if err != nil {
			return v, err
		}
		v.AsDict().Set(k, member)
	}
	_, err := d.json.ReadToken()
	return v, err
}

func decodeNumber(s string) Value {
	if !strings.ContainsAny(s, ".eE") {
		if n, err := strconv.ParseInt(s, 10, 64); err == nil {
			return NewInt(n)
		}
		return Value{digits(s)}
	}
	f, _ := strconv.ParseFloat(s, 64) // out of range: infinite, as in Python
	return NewFloat(f)
}

// jsonStyle is the options of json.dumps.
type jsonStyle struct {
	ascii, sorted bool
	pad           *string
	item, key     string // separators
}

// toJSON returns the filter tojson of transformers: json.dumps with ensure_ascii off.
func toJSON(r *run, a args) Value {
	s := jsonStyle{ascii: a.truth(1, "ensure_ascii", false), sorted: a.truth(4, "sort_keys", false), item: ", ", key: ": "}
	switch ind := a.or(2, "indent", None()); {
	case ind.IsString():
		pad := ind.AsString()
		s.pad, s.item = &pad, ","
	case !ind.IsNone():
		n, ok := integer(ind)
		if !ok {
			panic(faultf("indent must be an integer or a string"))
		}
		pad := strings.Repeat(" ", int(min(max(n, 0), 100)))
		s.pad, s.item = &pad, ","
	}
	if sep := a.or(3, "separators", None()); !sep.IsNone() {
		pair, _ := items(sep)
		if len(pair) != 2 || !pair[0].IsString() || !pair[1].IsString() {
			panic(faultf("separators must be two strings"))
		}
		s.item, s.key = pair[0].AsString(), pair[1].AsString()
	}
	var b strings.Builder
	s.write(r, &b, a.pos[0], 0)
	return r.str(b.String())
}

// ToJSON writes a value as tojson does; it must hold nothing but JSON.
func ToJSON(v Value) (string, error) {
	var b strings.Builder
	r := &run{steps: DefaultSteps, widest: DefaultOutput, memory: DefaultOutput}
	err := caught(func() { jsonStyle{item: ", ", key: ": "}.write(r, &b, v, 0) })
	return b.String(), err
}

func (s jsonStyle) write(r *run, b *strings.Builder, v Value, depth int) {
	r.spend(1 + weight(v))
	if depth > maxNesting {
		panic(faultf("tojson: nested too deeply"))
	}
	if b.Len() > r.widest {
		r.made(b.Len())
	}
	switch {
	case v.IsNone():
		b.WriteString("null")
	case v.IsBool():
		b.WriteString(strconv.FormatBool(v.AsBool()))
	case v.IsInt():
		b.WriteString(strconv.FormatInt(v.AsInt(), 10))
	case v.IsFloat():
		b.WriteString(jsonFloat(v.AsFloat()))
	case v.IsString():
		s.string(b, v.AsString())
	case v.IsList():
		b.WriteByte('[')
		for i, item := range v.AsList().Items {
			s.next(b, i, depth+1)
			s.write(r, b, item, depth+1)
		}
		s.end(b, v.AsList().Len(), depth, ']')
	case v.IsDict():
		s.object(r, b, v.AsDict(), depth)
	default:
		n, ok := v.v.(digits)
		if !ok {
			panic(faultf("Object of type %s is not JSON serializable", typeName(v)))
		}
		b.WriteString(string(n))
	}
}

func (s jsonStyle) object(r *run, b *strings.Builder, d *Dict, depth int) {
	keys := d.Keys
	if s.sorted {
		keys = slices.Sorted(slices.Values(keys))
	}
	b.WriteByte('{')
	for i, k := range keys {
		s.next(b, i, depth+1)
		s.string(b, d.key(k))
		b.WriteString(s.key)
		s.write(r, b, d.Data[k], depth+1)
	}
	s.end(b, len(keys), depth, '}')
}

// next begins item i of a list or an object.
func (s jsonStyle) next(b *strings.Builder, i, depth int) {
	if i > 0 {
		b.WriteString(s.item)
	}
	s.line(b, depth)
}

func (s jsonStyle) line(b *strings.Builder, depth int) {
	if s.pad != nil {
		b.WriteByte('\n')
		b.WriteString(strings.Repeat(*s.pad, depth))
	}
}

func (s jsonStyle) end(b *strings.Builder, n, depth int, bracket byte) {
	if n > 0 {
		s.line(b, depth)
	}
	b.WriteByte(bracket)
}

func jsonFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	return reprFloat(f)
}

// string writes a JSON string; marks pass through, outside of the escapes.
func (s jsonStyle) string(b *strings.Builder, text string) {
	b.WriteByte('"')
	b.WriteString(mapParts(text, s.escape))
	b.WriteByte('"')
}

var jsonEscapes = strings.NewReplacer(jsonPairs()...)

func jsonPairs() []string {
	pairs := []string{`"`, `\"`, `\`, `\\`, "\b", `\b`, "\f", `\f`, "\n", `\n`, "\r", `\r`, "\t", `\t`}
	for c := range rune(0x20) {
		if !strings.ContainsRune("\b\f\n\r\t", c) {
			pairs = append(pairs, string(c), fmt.Sprintf(`\u%04x`, c))
		}
	}
	return pairs
}

func (s jsonStyle) escape(text string) string {
	text = jsonEscapes.Replace(text)
	if !s.ascii {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		switch {
		case r < 0x7f:
			b.WriteByte(byte(r))
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		}
	}
	return b.String()
}
