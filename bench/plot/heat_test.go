package plot

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"math"
	"slices"
	"strings"
	"testing"
)

// matrix returns a heat of the given size whose values rise from 0.
func matrix(rows, columns int) *Heat {
	h := &Heat{Title: "experts by heat", X: "expert", Y: "layer"}
	for r := range rows {
		h.Rows = append(h.Rows, fmt.Sprint(r+1))
		h.Values = append(h.Values, make([]float64, columns))
		for i := range h.Values[r] {
			h.Values[r][i] = 4 * float64(r*columns+i) / float64(rows*columns-1)
		}
	}
	return h
}

func drawn(t *testing.T, f ...Figure) image.Image {
	t.Helper()
	var b bytes.Buffer
	if err := WriteFigures(&b, ".png", f...); err != nil {
		t.Fatal(err)
	}
	picture, err := png.Decode(&b)
	if err != nil {
		t.Fatal(err)
	}
	return picture
}

// TestHeatCells: every cell of a picture has the colour of its value, in the order of rows from the
// top and of columns from the left, and nothing else is between them.
func TestHeatCells(t *testing.T) {
	for _, size := range [][2]int{{1, 8}, {6, 32}, {26, 64}} {
		h := matrix(size[0], size[1])
		want := map[color.RGBA]bool{}
		for _, row := range h.Values {
			for _, v := range row {
				want[heatColor(v, h.top())] = true
			}
		}
		picture := drawn(t, h)
		// The matrix begins at the first grey pixel (the cell of 0) and ends before the scale,
		// whose grey is lower.
		at, to := area(picture)
		cell := image.Pt(to.X-at.X, to.Y-at.Y)
		for r, row := range h.Values {
			for i, v := range row {
				x := at.X + int((float64(i)+0.5)*float64(cell.X)/float64(size[1]))
				y := at.Y + int((float64(r)+0.5)*float64(cell.Y)/float64(size[0]))
				if got, want := color.RGBAModel.Convert(picture.At(x, y)), heatColor(v, h.top()); got != want {
					t.Fatalf("%v: row %d, column %d is %v, want %v", size, r, i, got, want)
				}
			}
		}
		// Along a row no pixel is lighter than both its neighbours: no seams.
		y := at.Y + cell.Y/(2*size[0])
		for x := at.X + 1; x < to.X-1; x++ {
			light := func(x int) int { c := color.GrayModel.Convert(picture.At(x, y)).(color.Gray); return int(c.Y) }
			if l := light(x); l > light(x-1)+8 && l > light(x+1)+8 {
				t.Errorf("%v: a seam at %d, %d", size, x, y)
			}
		}
	}
}

// area finds the matrix in a picture of one heat: what is neither white nor of the axes, left of
// the scale.
func area(p image.Image) (from, to image.Point) {
	grey := func(x, y int) bool { return color.RGBAModel.Convert(p.At(x, y)) == neverColor }
	b := p.Bounds()
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			if grey(x, y) && grey(x+1, y+1) && grey(x+2, y+2) {
				from = image.Pt(x, y)
				white := func(x, y int) bool {
					c := color.RGBAModel.Convert(p.At(x, y)).(color.RGBA)
					return c.R == 0xff && c.G == 0xff && c.B == 0xff
				}
				to = from
				for !white(to.X, from.Y+1) {
					to.X++
				}
				for !white(from.X+1, to.Y) {
					to.Y++
				}
				return from, to
			}
		}
	}
	return
}

// TestHeatScale: the scale grows with what is to be shown, by powers of two up to a bound, its
// middle is even, and more is always another colour.
func TestHeatScale(t *testing.T) {
	for largest, want := range map[float64]float64{0: 4, 1: 4, 4: 4, 4.1: 8, 31: 32, 64: 64, 1000: 64} {
		if got := (&Heat{Values: [][]float64{{0, largest}}}).top(); got != want {
			t.Errorf("up to %v: a scale to %v, want %v", largest, got, want)
		}
	}
	if heatColor(1, 8) != diverging[5] || heatColor(8, 8) != diverging[10] || heatColor(1.0/8, 8) != diverging[0] ||
		heatColor(100, 8) != diverging[10] || heatColor(1e-9, 8) != diverging[0] || heatColor(0, 8) != neverColor {
		t.Error("the ends or the middle of the scale have other colours")
	}
	before := heatColor(1.0/64, 64)
	for v := 1.0 / 64 * 1.1; v < 64; v *= 1.1 {
		c := heatColor(v, 64)
		if c == before || math.Signbit(v-1) != (c.B > c.R) {
			t.Errorf("%v: %v after %v", v, c, before)
		}
		before = c
	}
}

// TestFigures: names of rows, legend and scale are in the picture, few enough to be read, and the
// same data gives the same bytes.
func TestFigures(t *testing.T) {
	curves := &Curves{Title: "skew", X: "experts", Y: "rows", Main: Curve{"all layers", []float64{0, 70, 100}}}
	for i := range 58 {
		curves.Lines = append(curves.Lines, Curve{fmt.Sprintf("line %d.", i), []float64{0, 50 + float64(i)/2, 100}})
	}
	var a, b bytes.Buffer
	for _, w := range []*bytes.Buffer{&a, &b} {
		if err := WriteFigures(w, ".svg", matrix(58, 256), curves, &examples[0]); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(a.Bytes(), b.Bytes()) {
		t.Error("the same data gave other bytes")
	}
	text := a.String()
	for _, word := range []string{"experts by heat", "never", "even", "4 x", "1/4", "240", "57", "skew", "line 0.", "line 57.", "all layers", "gemv_int8"} {
		if !strings.Contains(text, ">"+word+"<") {
			t.Errorf("%s is not in the picture", word)
		}
	}
	if n := strings.Count(text, ">line "); n != namesMost {
		t.Errorf("the legend names %d lines, want %d", n, namesMost)
	}
	if got := len(steps(58, 31, func(int) string { return "" })); got != 29 {
		t.Errorf("%d ticks for 58 rows", got)
	}
	small, large := drawn(t, matrix(2, 8)).Bounds().Dy(), drawn(t, matrix(60, 8)).Bounds().Dy()
	if small >= large || large > 900 {
		t.Errorf("2 rows are %d pixels high, 60 rows %d", small, large)
	}
}

func TestFigureRefusals(t *testing.T) {
	for name, f := range map[string]Figure{
		"no rows":       &Heat{},
		"no names":      &Heat{Values: [][]float64{{1}}},
		"no columns":    &Heat{Rows: []string{"1"}, Values: [][]float64{{}}},
		"uneven rows":   &Heat{Rows: []string{"1", "2"}, Values: [][]float64{{1}, {1, 2}}},
		"a negative":    &Heat{Rows: []string{"1"}, Values: [][]float64{{-1}}},
		"not a number":  &Heat{Rows: []string{"1"}, Values: [][]float64{{math.NaN()}}},
		"a short curve": &Curves{Lines: []Curve{{"x", []float64{1}}}},
		"a short main":  &Curves{Main: Curve{"x", []float64{1}}},
	} {
		if err := WriteFigures(&bytes.Buffer{}, ".png", f); err == nil {
			t.Errorf("%s was drawn", name)
		}
	}
	if named := namedLines(3); len(named) != 3 {
		t.Errorf("%v", named)
	}
	if got := slices.Max([]int{len(namedLines(8)), len(namedLines(1000))}); got != namesMost {
		t.Errorf("%d names", got)
	}
}
