package template

import (
	"fmt"
	"strings"
	"time"
)

// strftimeNow is transformers' strftime_now: the local time in a strftime format, names in English.
func strftimeNow(r *run, a args) Value {
	f := a.or(0, "format", Undefined())
	if !f.IsString() {
		panic(faultf("strftime() argument 1 must be str, not %s", typeName(f)))
	}
	return r.str(strftime(r.now(), plain(f.AsString())))
}

// layouts are the directives that Go's time package can write.
var layouts = map[byte]string{
	'A': "Monday", 'B': "January", 'H': "15", 'I': "03", 'M': "04", 'S': "05", 'Y': "2006", 'Z': "MST",
	'a': "Mon", 'b': "Jan", 'h': "Jan", 'd': "02", 'e': "_2", 'j': "002", 'm': "01", 'p': "PM",
	'y': "06", 'z': "-0700", 'D': "01/02/06", 'F': "2006-01-02", 'R': "15:04", 'T': "15:04:05", 'X': "15:04:05",
	'c': "Mon Jan _2 15:04:05 2006", 'x': "01/02/06",
}

func strftime(t time.Time, format string) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		bare := format[i] == '-' && i+1 < len(format) // no padding, as glibc
		if bare {
			i++
		}
		s := directive(t, format[i])
		if bare {
			if s = strings.TrimLeft(s, "0 "); s == "" {
				s = "0"
			}
		}
		b.WriteString(s)
	}
	return b.String()
}

func directive(t time.Time, c byte) string {
	switch c {
	case '%':
		return "%"
	case 'n':
		return "\n"
	case 't':
		return "\t"
	case 'f':
		return fmt.Sprintf("%06d", t.Nanosecond()/1000)
	case 's':
		return fmt.Sprint(t.Unix())
	case 'w':
		return fmt.Sprint(int(t.Weekday()))
	case 'u':
		return fmt.Sprint((int(t.Weekday())+6)%7 + 1)
	}
	if layout := layouts[c]; layout != "" {
		return t.Format(layout)
	}
	return "%" + string(rune(c))
}
