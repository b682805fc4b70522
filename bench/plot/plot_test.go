package plot

import (
	"bytes"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var examples = []Chart{
	{Title: "kernels", Y: "GB/s", Categories: []string{"gemv_int4_g32", "gemv_int8"}, Limits: []Limit{{"READ", 35}},
		Series: []Series{{Name: "1 thread", Y: []float64{27, 31}}, {Name: "2 threads", Y: []float64{33.5, 34.5}}}},
	{Title: "prefill by length", X: "tokens", Y: "tokens/s", Series: []Series{{Name: "prefill", X: []float64{512, 2048, 8192}, Y: []float64{80, 75, 60}}}},
}

// TestWrite: the same bytes every time, all names in the picture, and nothing but the data makes
// the difference.
func TestWrite(t *testing.T) {
	other := append([]Chart{}, examples...)
	other[1].Series = []Series{{Name: "prefill", X: []float64{512, 2048, 8192}, Y: []float64{80, 75, 61}}}
	for _, format := range Formats {
		var a, b, c bytes.Buffer
		for w, charts := range map[*bytes.Buffer][]Chart{&a: examples, &b: examples, &c: other} {
			if err := Write(w, format, charts...); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(a.Bytes(), b.Bytes()) {
			t.Errorf("%s: the same data gave other bytes", format)
		}
		if bytes.Equal(a.Bytes(), c.Bytes()) {
			t.Errorf("%s: other data gave the same bytes", format)
		}
		if format == ".png" {
			picture, err := png.Decode(&a)
			if err != nil {
				t.Fatal(err)
			}
			if size := picture.Bounds().Size(); size.X != 907 || size.Y != 907 {
				t.Errorf("the picture has %v pixels", size)
			}
			continue
		}
		for _, word := range []string{"<svg", "</svg>", "gemv_int4_g32", "gemv_int8", "READ", "1 thread", "2 threads", "prefill by length", "tokens/s"} {
			if !strings.Contains(a.String(), word) {
				t.Errorf("%s is not in the picture", word)
			}
		}
	}
}

// TestDense: lines of many points have no dots; on a logarithmic axis a decade is as wide as the
// next.
func TestDense(t *testing.T) {
	c := Chart{Title: "latency", X: "ms", Y: "%", Dense: true, LogX: true, Series: []Series{{Name: "chat"}}}
	for i := range 300 {
		c.Series[0].X, c.Series[0].Y = append(c.Series[0].X, 0.1*float64(1+i*i)), append(c.Series[0].Y, float64(i)/3)
	}
	size := map[bool]int{}
	for _, dense := range []bool{true, false} {
		c.Dense = dense
		var w bytes.Buffer
		if err := Write(&w, ".svg", c); err != nil {
			t.Fatal(err)
		}
		size[dense] = w.Len()
		for _, word := range []string{">1<", ">10<", ">100<", ">1000<", "latency", "chat"} {
			if !strings.Contains(w.String(), word) {
				t.Errorf("dense %v: %s is not in the picture", dense, word)
			}
		}
	}
	if size[true] > size[false]/2 {
		t.Errorf("%d bytes without dots, %d with", size[true], size[false])
	}
	c.Series[0].X[0] = 0
	if err := Write(&bytes.Buffer{}, ".svg", c); err == nil {
		t.Error("0 has a place on a logarithmic axis")
	}
}

func TestSave(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a.svg", "b.PNG"} {
		path := filepath.Join(dir, name)
		if err := Save(path, examples...); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Size() < 1000 {
			t.Errorf("%s: %v %v", name, info, err)
		}
	}
}

func TestRefusals(t *testing.T) {
	for name, charts := range map[string][]Chart{
		"a.svg": nil,
		"b.svg": {{Title: "nothing"}},
		"c.svg": {{Title: "bars", Categories: []string{"x", "y"}, Series: []Series{{Y: []float64{1}}}}},
		"d.svg": {{Title: "lines", Series: []Series{{X: []float64{1}, Y: []float64{1, 2}}}}},
		"e.gif": examples,
		"f":     examples,
	} {
		if err := Save(filepath.Join(t.TempDir(), name), charts...); err == nil || !strings.Contains(err.Error(), "plot") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Write is Save to a writer; format is one of Formats.
func Write(w io.Writer, format string, charts ...Chart) error {
	return WriteFigures(w, format, figures(charts)...)
}
