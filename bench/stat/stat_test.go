package stat

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestPercentiles(t *testing.T) {
	for _, c := range []struct {
		sample Sample
		want   Summary
	}{
		{nil, Summary{}},
		{Sample{7}, Summary{1, 7, 7, 7, 7, 7}},
		{Sample{4, 1, 3, 2}, Summary{4, 1, 2, 4, 4, 4}},
		{hundred(), Summary{100, 1, 50, 90, 99, 100}},
	} {
		before := slices.Clone(c.sample)
		if got := c.sample.Summary(); got != c.want {
			t.Errorf("%v: %+v, want %+v", c.sample, got, c.want)
		}
		if c.sample.Median() != c.want.P50 || c.sample.Percentile(0) != c.want.Min || c.sample.Percentile(1) != c.want.Max {
			t.Errorf("%v: median %v", c.sample, c.sample.Median())
		}
		if !slices.Equal(before, c.sample) {
			t.Errorf("%v: the sample was sorted in place", before)
		}
	}
}

// hundred is 1..100 in another order.
func hundred() Sample {
	var s Sample
	for i := range 100 {
		s = append(s, float64(i*37%100+1))
	}
	return s
}

func TestBlocks(t *testing.T) {
	s := Sample{1, 3, 5, 7, 9}
	if got := s.Blocks(2); !slices.Equal(got, Sample{2, 6}) {
		t.Errorf("%v", got)
	}
	if got := s.Blocks(6); got != nil {
		t.Errorf("%v", got)
	}
	if got := s.Map(func(v float64) float64 { return 1 / v })[2]; got != 0.2 {
		t.Errorf("%v", got)
	}
}

func TestRound(t *testing.T) {
	for _, c := range []struct {
		v, want float64
		digits  int
	}{{0, 0, 3}, {1234.5, 1230, 3}, {-0.0012345, -0.00123, 3}, {99.96, 100, 3}, {1, 1, 4}, {Ratio(1, 0), 0, 3}} {
		if got := Round(c.v, c.digits); got != c.want {
			t.Errorf("%v to %d digits is %v, want %v", c.v, c.digits, got, c.want)
		}
	}
}

func TestSeries(t *testing.T) {
	var s Series
	for i, state := range []string{"two", "", "", "two", ""} {
		s.Add(float64(10 * i))
		s.Add(float64(10*i + 1))
		s.Mark(state)
	}
	if got := s.States(); !slices.Equal(got, []string{"", "two"}) {
		t.Errorf("%q", got)
	}
	if got := s.In("two"); !slices.Equal(got, Sample{0, 1, 30, 31}) {
		t.Errorf("%v", got)
	}
	s.Add(99)
	if got := s.In(""); len(got) != 6 {
		t.Errorf("%v: a value without a look at the machine has a state", got)
	}
	if got := s.In("three"); got != nil || len(s.Values) != 11 {
		t.Errorf("%v", got)
	}
}

func TestTable(t *testing.T) {
	table := Table{Title: "Speeds", Columns: []string{"kernel", "threads", "GB/s", "note"}}
	table.Add("plain | read", 1, 31.25, nil)
	table.Add("gemv", 12, 0.0123, "a \u00b5s")
	var text, mark strings.Builder
	if err := table.Text(&text); err != nil {
		t.Fatal(err)
	}
	if err := table.Markdown(&mark); err != nil {
		t.Fatal(err)
	}
	want := "Speeds\n" +
		"kernel        threads   GB/s  note\n" +
		"plain | read        1   31.2\n" +
		"gemv               12  0.012  a \u00b5s\n"
	if text.String() != want {
		t.Errorf("got\n%swant\n%s", text.String(), want)
	}
	want = "Speeds\n\n| kernel | threads | GB/s | note |\n| --- | --: | --: | --- |\n" +
		"| plain \\| read | 1 | 31.2 |  |\n| gemv | 12 | 0.012 | a \u00b5s |\n"
	if mark.String() != want {
		t.Errorf("got\n%swant\n%s", mark.String(), want)
	}
}

// TestWrap: a long title is broken into lines of 100 columns and keeps its words.
func TestWrap(t *testing.T) {
	long := "Decode, 128 threads, level amx: 1234.5 MB a step, memory read 480 GB/s (turns)" + strings.Repeat("; two cores 60 %: 14,200 tokens/s, 0.93 of 470 GB/s", 4)
	var b strings.Builder
	if err := (&Table{Title: long, Columns: []string{"a"}, Rows: [][]any{{1}}}).Text(&b); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(strings.Fields(b.String()), " "); got != long+" a 1" {
		t.Errorf("got %q", got)
	}
	for line := range strings.Lines(b.String()) {
		if n := utf8.RuneCountInString(line) - 1; n > 100 {
			t.Errorf("%d columns: %q", n, line)
		}
	}
	for text, want := range map[string]string{"": "", "one": "one", strings.Repeat("x", 200): strings.Repeat("x", 200), strings.Repeat("é", 98) + " a b": strings.Repeat("é", 98) + " a\n  b"} {
		if got := Wrap(text); got != want {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0.00", 1234.6: "1235", 99.96: "100", 12.34: "12.3", 9.996: "10.0", 1.234: "1.23", -0.5: "-0.50", 0.01234: "0.012", 0.0001234: "0.00012"} {
		if got := Number(v); got != want {
			t.Errorf("%v: %q, want %q", v, got, want)
		}
	}
}
