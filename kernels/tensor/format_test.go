package tensor

import (
	"strings"
	"testing"
)

// TestNamed: a name and a group size give a format, which has a name of its own.
func TestNamed(t *testing.T) {
	seen := map[string]bool{"": true}
	for _, name := range Encodings() {
		for _, group := range EncodingOf(name).GroupSizes() {
			f, err := Named(name, group)
			if err != nil || f.Name() != name || f.Group != group || seen[f.String()] {
				t.Errorf("%s by %d is %s, %v", name, group, f, err)
			}
			seen[f.String()] = true
		}
	}
	for want, f := range map[string]Format{"int4_g128": INT4.By(128), "int8_row": INT8.By(0), "q8_0": Q8_0.By(32), "as in the file": {}} {
		if f.String() != want {
			t.Errorf("%q, want %q", f, want)
		}
	}
	for _, name := range []string{"", "int5", "INT4"} {
		if f, err := Named(name, 64); err == nil || !strings.Contains(err.Error(), "int4, int8") {
			t.Errorf("%q is %s, %v", name, f, err)
		}
	}
	if f, err := Named("int4", 48); err == nil {
		t.Errorf("groups of 48: %s", f)
	}
}

// TestFormatOf: a group falls to what divides the columns.
func TestFormatOf(t *testing.T) {
	for _, c := range []struct{ group, cols, want int }{
		{128, 256, 128}, {128, 192, 64}, {128, 96, 32}, {64, 352, 32}, {32, 128, 32}, {0, 100, 128}, {0, 352, 352}, {128, 40, 64},
	} {
		l, err := INT4.By(c.group).On(CPU, 16, c.cols)
		if err != nil || l.Group != c.want {
			t.Errorf("groups of %d in %d columns are %d, %v; want %d", c.group, c.cols, l.Group, err, c.want)
		}
	}
	for _, f := range []Format{{}, INT4.By(48), INT8.By(256)} {
		if l, err := f.On(CPU, 16, 256); err == nil {
			t.Errorf("%s became %+v", f, l)
		}
	}
}

// TestNetwork: a GPU has gate and up joined, a CPU has not.
func TestNetwork(t *testing.T) {
	for _, k := range []Kind{CPU, GPU} {
		w13, w2, err := INT4.By(64).Network(k, 128, 64)
		if err != nil {
			t.Fatal(err)
		}
		if w13.Rows != 128 || w13.Cols != 128 || w13.Joined != (k == GPU) || w2.Rows != 128 || w2.Cols != 64 || w2.Joined {
			t.Errorf("%s: %+v, %+v", k, w13, w2)
		}
	}
	if _, _, err := INT4.By(64).Network(GPU, 128, 12); err == nil {
		t.Error("24 rows of gate and up on a GPU")
	}
}
