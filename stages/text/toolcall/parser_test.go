package toolcall

import (
	"encoding/json/jsontext"
	"reflect"
	"strings"
	"testing"
)

// reader joins events as a client does.
type reader struct {
	t                 testing.TB
	reasoning, answer string
	calls             []call
	open              bool
}

func (r *reader) take(events []Event) {
	r.t.Helper()
	for _, e := range events {
		if r.open != (e.Kind == Arguments || e.Kind == End) {
			r.t.Fatalf("event %d %q while a call is open: %v", e.Kind, e.Text, r.open)
		}
		switch e.Kind {
		case Text:
			r.answer += e.Text
		case Reasoning:
			r.reasoning += e.Text
		case Call:
			r.open = true
			r.calls = append(r.calls, call{Name: e.Text, ID: e.ID})
		case Arguments:
			r.calls[len(r.calls)-1].Args += e.Text
		case End:
			r.open = false
		}
	}
}

func parser(s *sample) *Parser {
	o := Options{Tools: testTools, Inside: s.Inside, Hermes: s.Hermes, Special: func(m string) bool { return strings.HasPrefix(m, "<|") }}
	if s.NoTools {
		o.Tools = nil
	}
	return Detect(s.Sign).New(o)
}

// read takes a text apart that arrives in these pieces.
func read(t testing.TB, s *sample, pieces ...string) *reader {
	t.Helper()
	p, r := parser(s), &reader{t: t}
	for _, piece := range pieces {
		r.take(p.Push(piece))
	}
	r.take(p.Flush())
	if r.open {
		t.Fatal("a call is still open")
	}
	for _, c := range r.calls {
		if v := jsontext.Value(c.Args); v.Kind() != '{' || !v.IsValid() {
			t.Fatalf("arguments are no JSON object: %q", c.Args)
		}
	}
	r.t = nil
	return r
}

func TestSamples(t *testing.T) {
	for i := range samples {
		s := &samples[i]
		t.Run(s.Name, func(t *testing.T) {
			r := read(t, s, s.Text)
			if r.reasoning != s.Reasoning || r.answer != s.Answer || !reflect.DeepEqual(r.calls, s.Calls) {
				t.Errorf("got reasoning %q, answer %q, calls\n%q\nwant reasoning %q, answer %q, calls\n%q", r.reasoning, r.answer, r.calls, s.Reasoning, s.Answer, s.Calls)
			}
		})
	}
}

// TestSplits cuts every sample at every byte, and into single bytes. Every beginning of a sample
// must give the same in both ways, too.
func TestSplits(t *testing.T) {
	for i := range samples {
		s := &samples[i]
		whole, bytes := read(t, s, s.Text), strings.Split(s.Text, "")
		for i := range len(s.Text) {
			if got := read(t, s, s.Text[:i], s.Text[i:]); !reflect.DeepEqual(got, whole) {
				t.Fatalf("%s, cut at %+v|%+v:\n%+v\nwant\n%+v", s.Name, s.Text[:i], s.Text[i:], got, whole)
			}
		}
		if got := read(t, s, bytes...); !reflect.DeepEqual(got, whole) {
			t.Fatalf("%s, cut into characters:\n%+v\nwant\n%+v", s.Name, got, whole)
		}
		for i := range bytes {
			a, b := read(t, s, strings.Join(bytes[:i], "")), read(t, s, bytes[:i]...)
			if !reflect.DeepEqual(a, b) {
				t.Fatalf("%s, the first %d characters: %+v, cut into characters: %+v", s.Name, i, a, b)
			}
		}
	}
}

// singleBytes cuts a text into bytes.
func singleBytes(s string) []string {
	out := make([]string, len(s))
	for i := range len(s) {
		out[i] = s[i : i+1]
	}
	return out
}

func FuzzParser(f *testing.F) {
	for i := range samples {
		f.Add(uint8(i), samples[i].Text, uint16(len(samples[i].Text)/2))
	}
	f.Fuzz(func(t *testing.T, which uint8, text string, cut uint16) {
		if len(text) > 1<<12 {
			t.Skip()
		}
		text = strings.ToValidUTF8(text, "")
		s := &samples[int(which)%len(samples)]
		n := min(int(cut), len(text))
		whole := read(t, s, text)
		for _, pieces := range [][]string{{text[:n], text[n:]}, singleBytes(text)} {
			if got := read(t, s, pieces...); !reflect.DeepEqual(got, whole) {
				t.Fatalf("%+v in pieces: %+v, whole: %+v", text, got, whole)
			}
		}
		if !strings.Contains(text, "<") && !strings.ContainsAny(text, "[]{}") && !s.Inside && s.Sign != harmonyChannel {
			if whole.answer != text {
				t.Fatalf("%q became %q", text, whole.answer)
			}
		}
	})
}

// BenchmarkPush takes a long answer with reasoning, text and a call apart, four characters a time, as a
// token brings them.
func BenchmarkPush(b *testing.B) {
	s := &sample{Sign: "<think><tool_call>", Text: "<think>" + strings.Repeat("Is it so? ", 200) + "</think>" + strings.Repeat("It is <b>so</b>. ", 200) +
		`<tool_call>{"name":"now","arguments":{"a":"` + strings.Repeat(`x \n y`, 300) + `"}}</tool_call>`}
	var pieces []string
	for text := s.Text; text != ""; {
		n := min(4, len(text))
		pieces = append(pieces, text[:n])
		text = text[n:]
	}
	b.ReportAllocs()
	for b.Loop() {
		p := parser(s)
		for _, piece := range pieces {
			p.Push(piece)
		}
		p.Flush()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(pieces)), "ns/token")
}
