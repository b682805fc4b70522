package plot

import (
	"bytes"
	"image/png"
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

// TestWrite: the same bytes every time, all names in the picture, and nothing
// but the data makes the difference.
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
