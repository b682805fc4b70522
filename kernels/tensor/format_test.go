package tensor

import "testing"

// TestFormatNames: every format has one name, which is read back; other names are refused.
func TestFormatNames(t *testing.T) {
	for _, name := range Encodings() {
		for _, group := range EncodingOf(name).GroupSizes() {
			f, err := Named(name, group)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := ParseFormat(f.String()); got != f || err != nil {
				t.Errorf("%s is read as %v, %v", f, got, err)
			}
		}
	}
	for _, name := range []string{"", "int4", "int4_", "int4_g16", "int4_g032", "int4_g0", "INT4_g32", "int5_g32", "int4_g128_row"} {
		if f, err := ParseFormat(name); err == nil {
			t.Errorf("%q is read as %s", name, f)
		}
	}
	for name, f := range map[string]Format{"int4_g128": INT4.By(128), "int8_row": INT8.By(0), "as in the file": {}} {
		if f.String() != name {
			t.Errorf("%q, want %q", f, name)
		}
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
