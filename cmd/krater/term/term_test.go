package term

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestElsewhereOutputIsPlain(t *testing.T) {
	var out bytes.Buffer
	w := Paint(&out, Rule{Red, regexp.MustCompile("FAILED")})
	fmt.Fprint(w, "1 FAILED\n")
	bar := NewBar(&out, "work", func(n int64) string { return fmt.Sprint(n) })
	bar.Set(1, 2)
	bar.Clear()
	if out.String() != "1 FAILED\n" || bar.Shown() {
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

func TestBar(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(100, 0)
	b := &Bar{w: &out, on: true, label: "convert", unit: func(n int64) string { return fmt.Sprint(n) }, start: now, now: func() time.Time { return now }}
	t.Setenv("COLUMNS", "61")
	b.Set(0, 100)
	now = now.Add(10 * time.Second)
	b.Set(25, 100)
	b.Set(26, 100) // too soon
	now = now.Add(time.Second)
	b.Set(100, 100)
	lines := strings.Split(out.String(), "\r")[1:]
	if len(lines) != 3 {
		t.Fatalf("got %q", lines)
	}
	for _, l := range lines {
		if len(l) != 60 {
			t.Errorf("%d columns: %q", len(l), l)
		}
	}
	if !strings.Contains(lines[1], "###") || !strings.HasSuffix(lines[1], "25 of 100  30s left") || !strings.HasPrefix(lines[2], "convert [####") {
		t.Errorf("got %q", lines)
	}
	out.Reset()
	b.Clear()
	if out.String() != "\r"+strings.Repeat(" ", 60)+"\r" {
		t.Errorf("got %q", out.String())
	}
	if l := b.line(1, 2, 12, now); len(l) != 12 {
		t.Errorf("got %q", l)
	}
}
