package tensor

import "testing"

// cpuShapes cover odd sizes and every group.
var cpuShapes = []Layout{
	{Format: INT4.By(32), Rows: 1, Cols: 32}, {Format: INT4.By(64), Rows: 16, Cols: 64}, {Format: INT4.By(32), Rows: 17, Cols: 96},
	{Format: INT8.By(128), Rows: 33, Cols: 128}, {Format: INT4.By(64), Rows: 5, Cols: 40}, {Format: INT8.By(32), Rows: 16, Cols: 100},
	{Format: INT8.By(352), Rows: 40, Cols: 352}, {Format: INT3.By(32), Rows: 1, Cols: 1}, {Format: INT3.By(32), Rows: 17, Cols: 95},
	{Format: INT3.By(64), Rows: 33, Cols: 128}, {Format: INT3.By(128), Rows: 16, Cols: 256},
}

// TestTilesLine fixes the layout itself: kernels and files depend on it.
func TestTilesLine(t *testing.T) {
	f := Layout{Format: INT4.By(32), Rows: 16, Cols: 32}
	m := NewMatrix(f.Format, f.Rows, f.Cols)
	m.Values[3*32+13] = 5 // row 3, column 13: line 1, byte 3*4+1, high nibble
	values, _ := packed(f, m)
	if got := values[64+13]; got != 0xd8 {
		t.Errorf("INT4 byte %#x, want 0xd8", got)
	}
	f.Encoding, m.Encoding = INT8, INT8
	values, _ = packed(f, m)
	if got := values[3*64+3*4+1]; got != 133 {
		t.Errorf("INT8 byte %d, want 133", got)
	}
}

func TestTilesCheck(t *testing.T) {
	for _, f := range []Layout{
		{}, {Rows: 1, Cols: 32}, {Format: INT4.By(32), Rows: 16, Cols: 32, Joined: true}, {Format: INT4.By(16), Rows: 1, Cols: 32}, {Format: INT4.By(64), Rows: 1, Cols: 32},
		{Format: INT4.By(0), Rows: 1, Cols: 32}, {Format: INT8.By(64), Rows: 1, Cols: 96}, {Format: INT4.By(32), Rows: -1, Cols: 32},
	} {
		if f.Check() == nil {
			t.Errorf("%+v passed", f)
		}
	}
}
