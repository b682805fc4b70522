package plot

import (
	"fmt"
	"image/color"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Heat is a matrix drawn in colours, in multiples of an even share. 1 is the pale middle of the
// scale, more is red, less is blue, and nothing is grey.
type Heat struct {
	Title  string
	X, Y   string      // names of columns and rows
	Rows   []string    // their names, from the top
	Values [][]float64 // [rows][columns], 0 or more; columns are numbered from 0
}

// Sizes of a matrix. A cell keeps at least three pixels' height, and few rows do not make a band.
const (
	cellLeast  = 3 * vg.Millimeter
	cellMost   = 11 * vg.Millimeter
	cellsLeast = 30 * vg.Millimeter // of all rows: leaves room for the words at the scale
	cellsAimed = 12 * vg.Centimeter // of all rows
	heatFrame  = 27 * vg.Millimeter // title, axis and margins above and below
	scaleWidth = 24 * vg.Millimeter // of the scale at the right, with its words
)

// Bounds of a scale: its upper end is a power of two.
const (
	scaleLeast = 4
	scaleMost  = 64
)

func (h *Heat) size() vg.Length {
	n := vg.Length(max(1, len(h.Rows)))
	return heatFrame + max(cellsLeast, n*min(max(cellsAimed/n, cellLeast), cellMost))
}

func (h *Heat) name() string { return h.Title }

func (h *Heat) check() error {
	if len(h.Values) == 0 || len(h.Values) != len(h.Rows) {
		return fmt.Errorf("%d rows with %d names", len(h.Values), len(h.Rows))
	}
	for i, row := range h.Values {
		if len(row) == 0 || len(row) != len(h.Values[0]) {
			return fmt.Errorf("row %s has %d columns, the first %d", h.Rows[i], len(row), len(h.Values[0]))
		}
		for _, v := range row {
			if !(v >= 0) || math.IsInf(v, 0) {
				return fmt.Errorf("row %s: %v", h.Rows[i], v)
			}
		}
	}
	return nil
}

// top returns the upper end of the scale; the lower one is as far from 1.
func (h *Heat) top() float64 {
	top := float64(scaleLeast)
	for _, row := range h.Values {
		for _, v := range row {
			for top < v && top < scaleMost {
				top *= 2
			}
		}
	}
	return top
}

func (h *Heat) draw(c draw.Canvas) error {
	if err := h.check(); err != nil {
		return err
	}
	rows, columns := len(h.Values), len(h.Values[0])
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = h.Title, h.X, h.Y
	p.Title.Padding = 2 * vg.Millimeter
	p.X.Padding, p.Y.Padding = 0, 0
	p.X.Min, p.X.Max = -0.5, float64(columns)-0.5
	p.Y.Min, p.Y.Max = -0.5, float64(rows)-0.5
	p.X.Tick.Marker = steps(columns, 17, strconv.Itoa)
	p.Y.Tick.Marker = flipped(rows, steps(rows, 31, func(i int) string { return h.Rows[i] }))
	top := h.top()
	p.Add(cells{h.Values, top})
	left := draw.Crop(c, 0, -scaleWidth, 0, 0)
	p.Draw(left)
	data := p.DataCanvas(left)
	at := vg.Rectangle{
		Min: vg.Point{X: data.Max.X + 6*vg.Millimeter, Y: data.Min.Y},
		Max: vg.Point{X: data.Max.X + 10*vg.Millimeter, Y: data.Max.Y},
	}
	scale(c, at, top, p.Y.Tick.Label)
	return nil
}

// steps returns ticks at every n-th of count places, at most most of them; n is 1, 2, 4, ...
func steps(count, most int, label func(int) string) plot.ConstantTicks {
	n := 1
	for (count+n-1)/n > most {
		n *= 2
	}
	var ticks plot.ConstantTicks
	for i := 0; i < count; i += n {
		ticks = append(ticks, plot.Tick{Value: float64(i), Label: label(i)})
	}
	return ticks
}

// flipped turns ticks upside down: place 0 is at the top.
func flipped(count int, ticks plot.ConstantTicks) plot.ConstantTicks {
	for i := range ticks {
		ticks[i].Value = float64(count-1) - ticks[i].Value
	}
	return ticks
}

// cells is the matrix as a plotter.
type cells struct {
	values [][]float64
	top    float64
}

// seam is how far a cell extends below those to its right and below, which cover it, so that no
// background shows where they share a pixel.
const seam = vg.Length(1)

// Plot implements plot.Plotter.
func (x cells) Plot(c draw.Canvas, p *plot.Plot) {
	atX, atY := p.Transforms(&c)
	rows, columns := len(x.values), len(x.values[0])
	right, bottom := atX(float64(columns)-0.5), atY(-0.5)
	for r, row := range x.values {
		high, low := atY(float64(rows-r)-0.5), max(bottom, atY(float64(rows-r)-1.5)-seam)
		for i, v := range row {
			fill(c, heatColor(v, x.top), vg.Rectangle{Min: vg.Point{X: atX(float64(i) - 0.5), Y: low}, Max: vg.Point{X: min(right, atX(float64(i)+0.5)+seam), Y: high}})
		}
	}
}

func fill(c draw.Canvas, of color.Color, r vg.Rectangle) {
	c.SetColor(of)
	c.Fill(r.Path())
}

// scale draws the meaning of the colours next to a matrix, from little at the bottom to much at the
// top.
func scale(c draw.Canvas, r vg.Rectangle, top float64, font text.Style) {
	font.XAlign, font.YAlign, font.Rotation = draw.XLeft, draw.YCenter, 0
	words := func(y vg.Length, s string) { c.FillText(font, vg.Point{X: r.Max.X + 1.5*vg.Millimeter, Y: y}, s) }
	never := min(4*vg.Millimeter, (r.Max.Y-r.Min.Y)/6)
	fill(c, neverColor, vg.Rectangle{Min: r.Min, Max: vg.Point{X: r.Max.X, Y: r.Min.Y + never}})
	words(r.Min.Y+never/2, "never")
	low := r.Min.Y + never + 2.5*vg.Millimeter
	const parts = 128
	for i := range parts {
		y, end := low+(r.Max.Y-low)*vg.Length(i)/parts, low+(r.Max.Y-low)*vg.Length(min(i+2, parts))/parts
		v := math.Exp2(math.Log2(top) * (2*(float64(i)+0.5)/parts - 1))
		fill(c, heatColor(v, top), vg.Rectangle{Min: vg.Point{X: r.Min.X, Y: y}, Max: vg.Point{X: r.Max.X, Y: end}})
	}
	powers := int(math.Log2(top))
	each := 1
	for need := font.Height("8") * 1.3; (r.Max.Y-low)/vg.Length(2*powers)*vg.Length(each) < need && each < powers; {
		each++
	}
	line := draw.LineStyle{Color: color.Black, Width: vg.Points(0.5)}
	for n := -powers; n <= powers; n++ {
		if n%each != 0 {
			continue
		}
		y := low + (r.Max.Y-low)*vg.Length(n+powers)/vg.Length(2*powers)
		c.StrokeLine2(line, r.Max.X, y, r.Max.X+vg.Millimeter, y)
		switch {
		case n == 0:
			words(y, "even")
		case n < 0:
			words(y, fmt.Sprintf("1/%d", 1<<-n))
		default:
			words(y, fmt.Sprintf("%d x", 1<<n))
		}
	}
}

// neverColor is the colour of 0.
var neverColor = color.RGBA{0x8c, 0x8c, 0x8c, 0xff}

// diverging goes from little over even to much. Most colour-blind readers can read it
// (ColorBrewer's RdBu with 11 colours, reversed).
var diverging = []color.RGBA{
	{0x05, 0x30, 0x61, 0xff}, {0x21, 0x66, 0xac, 0xff}, {0x43, 0x93, 0xc3, 0xff}, {0x92, 0xc5, 0xde, 0xff}, {0xd1, 0xe5, 0xf0, 0xff},
	{0xf7, 0xf7, 0xf7, 0xff}, {0xfd, 0xdb, 0xc7, 0xff}, {0xf4, 0xa5, 0x82, 0xff}, {0xd6, 0x60, 0x4d, 0xff}, {0xb2, 0x18, 0x2b, 0xff},
	{0x67, 0x00, 0x1f, 0xff},
}

// heatColor returns the colour of v times an even share on a scale from 1/top to top.
func heatColor(v, top float64) color.RGBA {
	if v == 0 {
		return neverColor
	}
	return between(diverging, (math.Log2(v)/math.Log2(top)+1)/2)
}

// between returns the interpolated colour at a position, 0 to 1, in a list of colours.
func between(colors []color.RGBA, at float64) color.RGBA {
	at = min(max(at, 0), 1) * float64(len(colors)-1)
	i := min(int(at), len(colors)-2)
	part := at - float64(i)
	mix := func(a, b uint8) uint8 { return uint8(math.Round(float64(a) + part*(float64(b)-float64(a)))) }
	a, b := colors[i], colors[i+1]
	return color.RGBA{mix(a.R, b.R), mix(a.G, b.G), mix(a.B, b.B), 0xff}
}
