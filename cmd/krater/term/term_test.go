package term

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"
)

func TestElsewhereOutputIsPlain(t *testing.T) {
	var out bytes.Buffer
	w := Paint(&out, Rule{Red, regexp.MustCompile("FAILED")})
	fmt.Fprint(w, "1 FAILED\n")
	p := NewProgress(&out, 0, nil)
	p.Set("work", Steps, 1, 2)
	fmt.Fprint(p.Beside(&out), "2\n")
	p.End()
	if out.String() != "1 FAILED\n2\n" || p.Bar() {
		t.Errorf("got %q", out.String())
	}
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if Is(f) || Colours(f) {
		t.Error("a file is a terminal")
	}
	t.Setenv("COLUMNS", "33")
	if Width(f) != 33 {
		t.Errorf("width %d", Width(f))
	}
}

func TestPainter(t *testing.T) {
	var out bytes.Buffer
	p := &Painter{w: &out, rules: []Rule{
		{Green, regexp.MustCompile(`^(ok)\s`)},
		{Red, regexp.MustCompile(`FAILED`)},
		{Dim, regexp.MustCompile(`a FAILED.*`)}, // overlaps: the first rule wins
	}}
	for _, part := range []string{"ok  fi", "ne\nok", "ay\na FAILED b\nlast"} {
		if n, err := p.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatal(n, err)
		}
	}
	if want := "\x1b[32mok\x1b[0m  fine\nokay\na \x1b[31mFAILED\x1b[0m b\n"; out.String() != want {
		t.Errorf("got %q", out.String())
	}
}

// clock is a progress with a time of its own; width columns of a terminal, 0: none.
func clock(t *testing.T, out *bytes.Buffer, width int) (p *Progress, told *[]string, pass func(time.Duration)) {
	told = &[]string{}
	p = NewProgress(out, 5*time.Second, func(s State) { *told = append(*told, s.String()) })
	now := time.Unix(100, 0)
	p.now = func() time.Time { return now }
	if width > 0 {
		t.Setenv("COLUMNS", fmt.Sprint(width+1))
		p.w, p.tell, p.every = out, nil, redraw
	}
	return p, told, func(d time.Duration) { now = now.Add(d) }
}

func TestBar(t *testing.T) {
	var out bytes.Buffer
	p, _, pass := clock(t, &out, 79)
	p.Set("convert experts", Bytes, 0, 100e9)
	pass(100 * time.Millisecond)
	p.Set("convert experts", Bytes, 1e6, 100e9)
	if out.Len() > 0 {
		t.Errorf("work that has just begun flickers: %q", out.String())
	}
	pass(10*time.Second - 100*time.Millisecond)
	p.Set("convert experts", Bytes, 25e9, 100e9)
	p.Set("convert experts", Bytes, 26e9, 100e9) // too soon
	pass(time.Second)
	p.Set("convert experts", Bytes, 100e9, 100e9)
	lines := strings.Split(out.String(), "\r")[1:]
	if len(lines) != 2 {
		t.Fatalf("got %q", lines)
	}
	for _, l := range lines {
		if len(l) != 79 {
			t.Errorf("%d columns: %q", len(l), l)
		}
	}
	if !strings.HasPrefix(lines[0], "convert experts [#") || !strings.HasSuffix(lines[0], " 25 %  25.0 GB of 100.0 GB  2.5 GB/s  30s left") || !strings.Contains(lines[1], "##] 100 %  100.0 GB of 100.0 GB") {
		t.Errorf("got %q", lines)
	}
	out.Reset()
	fmt.Fprintln(beside{p, &out}, "a line") // where the bar stood
	p.End()
	if out.String() != "\r"+strings.Repeat(" ", 79)+"\ra line\n" {
		t.Errorf("got %q", out.String())
	}
	p.Close()
	p.Set("convert experts", Bytes, 1, 2)
	if s := p.State(); s.Phase != "" {
		t.Errorf("after the end: %+v", s)
	}
	for width := range 100 {
		if l := (State{Phase: "load", All: 2, Done: 1, PerSecond: 1}).Line(width); len(l) > width {
			t.Errorf("%d columns: %q", width, l)
		}
	}
}

// TestProgressInALog: nothing of what is over soon; a line every five seconds, and one at the end
// with the rate of all.
func TestProgressInALog(t *testing.T) {
	var out bytes.Buffer
	p, told, pass := clock(t, &out, 0)
	for i := range 5 {
		p.Set("check experts", Bytes, int64(i), 4)
		pass(time.Second)
	}
	for i := range 13 {
		p.Set("ppl", Tokens, int64(i*100), 1200)
		pass(time.Second)
	}
	p.End()
	p.End() // as a command and its caller do
	want := []string{"ppl: 42 %, 500 tokens of 1200 tokens, 100 tokens/s, 7s left", "ppl: 83 %, 1000 tokens of 1200 tokens, 100 tokens/s, 2s left", "ppl: 100 %, 1200 tokens of 1200 tokens, 100 tokens/s"}
	if !slices.Equal(*told, want) || out.Len() > 0 {
		t.Errorf("got %q %q, want %q", *told, out.String(), want)
	}
}

// TestRateOfLate: what was fast half a minute ago says nothing of what is left.
func TestRateOfLate(t *testing.T) {
	p, _, pass := clock(t, &bytes.Buffer{}, 0)
	done := int64(0)
	for i := range 60 {
		p.Set("load weights", Bytes, done, 100_000)
		pass(time.Second)
		if done += 1000; i >= 30 {
			done -= 900
		}
	}
	left, ok := p.State().Left()
	if s := p.State(); s.Rate() != "100 B/s" || !ok || left < 11*time.Minute || left > 12*time.Minute {
		t.Errorf("%s, %v left", s.Rate(), left)
	}
	// A build that goes on where another stopped has not done that work in no time.
	p.Set("convert experts", Bytes, 50_000, 100_000)
	pass(time.Second)
	p.Set("convert experts", Bytes, 50_010, 100_000)
	if s := p.State(); s.PerSecond != 10 || s.Share() != 0.5001 {
		t.Errorf("%+v", s)
	}
	p.Set("prepare", Steps, 0, 0)
	if s := p.State(); s.String() != "prepare" || s.Share() != 0 || s.Rate() != "" {
		t.Errorf("%+v", s)
	}
	if _, ok := p.State().Left(); ok {
		t.Error("the end of unmeasured work is known")
	}
}

func TestAmounts(t *testing.T) {
	for _, c := range []struct {
		s    State
		want string
	}{
		{State{Unit: Bytes, Done: 999, All: 2500}, "999 B of 2.5 kB"},
		{State{Unit: Bytes, Done: 3e6, All: 2e12}, "3.0 MB of 2.0 TB"},
		{State{Unit: Steps, Done: 3, All: 15}, "3 of 15"},
		{State{Unit: Seconds, Done: 2, All: 8}, "2 s of 8 s"},
	} {
		if got := c.s.Amounts(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

// BenchmarkSet measures the cost of reporting progress once.
func BenchmarkSet(b *testing.B) {
	p := NewProgress(&bytes.Buffer{}, time.Hour, func(State) {})
	for i := 0; b.Loop(); i++ {
		p.Set("load weights", Bytes, int64(i), 1<<40)
	}
}

func TestShown(t *testing.T) {
	for text, want := range map[string]string{
		"": "",
		"plain, Grüße, 灯塔, 👩‍🚀, \uFFFD": "plain, Grüße, 灯塔, 👩‍🚀, \uFFFD",
		"a\tb\nc":             "a\tb\nc",
		"\x1b[2J\x07a\rb\x7f": `\x1b[2J\x07a\x0db\x7f`,
		"\u009b31m":           `\u009b31m`,
		"\x9b\xff\xe2\x82":    `\x9b\xff\xe2\x82`,
		"\x00":                `\x00`,
	} {
		if got := Shown(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestSafe: characters that are cut between writes come whole.
func TestSafe(t *testing.T) {
	var out bytes.Buffer
	w := &safe{w: &out}
	for _, b := range []byte("灯\x1b塔é") {
		if n, err := w.Write([]byte{b}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	if out.String() != `灯\x1b塔é` {
		t.Errorf("%q", out.String())
	}
	if Safe(&out) != io.Writer(&out) {
		t.Error("what is no terminal gets other bytes")
	}
}

func FuzzShown(f *testing.F) {
	f.Add("a\x1b\u009b\xff")
	f.Fuzz(func(t *testing.T, text string) {
		got := Shown(text)
		for _, r := range got {
			if unicode.IsControl(r) && r != '\n' && r != '\t' {
				t.Fatalf("%q gives %q", text, got)
			}
		}
		if !utf8.ValidString(got) || Shown(got) != got {
			t.Fatalf("%q gives %q", text, got)
		}
	})
}
