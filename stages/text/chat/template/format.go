package template

import (
	"strconv"
	"strings"
)

// percent is Python's s % values, for the conversions s, r, d, i, f, x and %%, with flags, width
// and precision.
func percent(r *run, s string, values Value) Value {
	list := []Value{values}
	if values.IsList() && isTuple(values) {
		list = values.AsList().Items
	}
	w := viewOf(s)
	var b strings.Builder
	at := 0
	for {
		i := strings.IndexByte(w.text[at:], '%')
		if i < 0 {
			break
		}
		b.WriteString(w.cut(at, at+i))
		at += i + 1
		end := at + len(w.text[at:]) - len(strings.TrimLeft(w.text[at:], "#0- +0123456789."))
		if end == len(w.text) {
			panic(faultf("incomplete format"))
		}
		flags, verb := w.text[at:end], w.text[end]
		at = end + 1
		if verb == '%' {
			b.WriteByte('%')
			continue
		}
		if len(list) == 0 {
			panic(faultf("not enough arguments for format string"))
		}
		text := r.conversion(verb, flags, list[0])
		list = list[1:]
		b.WriteString(text)
		if b.Len() > r.widest {
			r.made(b.Len())
			return empty
		}
	}
	if mapping := values.IsUndefined() || values.IsDict() || values.IsList() && !isTuple(values); len(list) > 0 && !mapping {
		panic(faultf("not all arguments converted during string formatting"))
	}
	b.WriteString(w.cut(at, len(w.text)))
	return r.str(b.String())
}

// conversion formats one value.
func (r *run) conversion(verb byte, flags string, v Value) string {
	width, precision, hasPrecision := strings.Cut(strings.TrimLeft(flags, "#0- +"), ".")
	n, _ := strconv.Atoi("0" + width)
	prec, _ := strconv.Atoi("0" + precision)
	if n > 1000 || prec > 300 {
		panic(faultf("format width or precision too large"))
	}
	var text string
	switch verb {
	case 's':
		text = r.printed(v)
	case 'r':
		var b strings.Builder
		r.repr(&b, v, 0)
		text = b.String()
	case 'd', 'i', 'x':
		if !number(v) {
			panic(faultf("%%%c format: a real number is required, not %s", verb, typeName(v)))
		}
		whole, ok := integer(v)
		if !ok {
			whole = int64(v.AsFloat())
		}
		base := 10
		if verb == 'x' {
			base = 16
		}
		text = strconv.FormatInt(whole, base)
	case 'f':
		if !number(v) {
			panic(faultf("must be real number, not %s", typeName(v)))
		}
		if !hasPrecision {
			prec = 6
		}
		text = strconv.FormatFloat(float(v), 'f', prec, 64)
	default:
		panic(faultf("unsupported format character '%c'", verb))
	}
	if hasPrecision && (verb == 's' || verb == 'r') {
		w := viewOf(text)
		text = w.cut(0, byteOffset(w.text, prec))
	}
	return padded(text, flags[:len(flags)-len(strings.TrimLeft(flags, "#0- +"))], n, verb)
}

func padded(text, flags string, width int, verb byte) string {
	numeric := verb != 's' && verb != 'r'
	sign := ""
	if numeric {
		if rest, negative := strings.CutPrefix(text, "-"); negative {
			sign, text = "-", rest
		} else if strings.Contains(flags, "+") {
			sign = "+"
		} else if strings.Contains(flags, " ") {
			sign = " "
		}
	}
	w := viewOf(text)
	n := max(0, width-len([]rune(w.text))-len(sign))
	switch {
	case strings.Contains(flags, "-"):
		return sign + text + strings.Repeat(" ", n)
	case numeric && strings.Contains(flags, "0"):
		return sign + strings.Repeat("0", n) + text
	}
	return strings.Repeat(" ", n) + sign + text
}

// formatMethod is str.format, for fields without a format specification: {}, {0}, {name}.
func formatMethod(r *run, v Value, a args) Value {
	w := viewOf(v.AsString())
	var b strings.Builder
	auto, at := 0, 0
	for at < len(w.text) {
		i := strings.IndexAny(w.text[at:], "{}")
		if i < 0 {
			break
		}
		b.WriteString(w.cut(at, at+i))
		at += i
		if at+1 < len(w.text) && w.text[at+1] == w.text[at] {
			b.WriteString(w.cut(at, at+1))
			at += 2
			continue
		}
		end := strings.IndexByte(w.text[at:], '}')
		if w.text[at] == '}' || end < 0 {
			panic(faultf("Single '%c' encountered in format string", w.text[at]))
		}
		name := w.text[at+1 : at+end]
		at += end + 1
		n, err := strconv.Atoi(name)
		if name == "" {
			n, err = auto, nil
			auto++
		}
		arg, ok := a.kw.Get(name)
		if err == nil && n >= 0 {
			if ok = n < len(a.pos); ok {
				arg = a.pos[n]
			}
		}
		if !ok {
			panic(faultf("format field {%s} is not supported or has no argument", name))
		}
		b.WriteString(r.printed(arg))
		if b.Len() > r.widest {
			r.made(b.Len())
			return empty
		}
	}
	b.WriteString(w.cut(at, len(w.text)))
	return r.str(b.String())
}
