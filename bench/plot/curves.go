package plot

import (
	"fmt"
	"image/color"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Curves are lines from (0, 0) to (100, 100), both in percent: the share of a whole that its
// largest parts make up. A dashed diagonal is the line of equal parts.
type Curves struct {
	Title, X, Y string
	Lines       []Curve // the colours show their order
	Main        Curve   // drawn over them in black; may be absent
}

// Curve is one line.
type Curve struct {
	Name string
	Y    []float64 // percent, at equal distances from 0 to 100 of X
}

// namesMost is how many lines the legend names. Of more lines, it names this many, evenly spread.
const namesMost = 7

func (c *Curves) size() vg.Length { return height }

func (c *Curves) name() string { return c.Title }

func (c *Curves) draw(canvas draw.Canvas) error {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = c.Title, c.X, c.Y
	p.Title.Padding = 2 * vg.Millimeter
	p.Legend.Top, p.Legend.Left = false, false
	p.Legend.Padding = vg.Millimeter
	p.Legend.YOffs, p.Legend.XOffs = 3*vg.Millimeter, -3*vg.Millimeter
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.Gray{0xdd}, color.Gray{0xdd}
	p.Add(grid)
	even, err := lineOf(Curve{Name: "even", Y: []float64{0, 100}})
	if err != nil {
		return err
	}
	even.Color, even.Width, even.Dashes = color.Gray{0x77}, vg.Points(1), []vg.Length{vg.Points(5), vg.Points(3)}
	p.Add(even)
	named := namedLines(len(c.Lines))
	for i, x := range c.Lines {
		l, err := lineOf(x)
		if err != nil {
			return err
		}
		l.Color, l.Width = between(sequential, float64(i)/float64(max(1, len(c.Lines)-1))), vg.Points(1.2)
		p.Add(l)
		if named[i] {
			p.Legend.Add(x.Name, l)
		}
	}
	if len(c.Main.Y) > 0 {
		l, err := lineOf(c.Main)
		if err != nil {
			return err
		}
		l.Color, l.Width = color.Black, vg.Points(2.4)
		p.Add(l)
		p.Legend.Add(c.Main.Name, l)
	}
	p.Legend.Add("even", even)
	var ticks plot.ConstantTicks
	for n := 0; n <= 100; n += 10 {
		ticks = append(ticks, plot.Tick{Value: float64(n), Label: strconv.Itoa(n)})
	}
	p.X.Tick.Marker, p.Y.Tick.Marker = ticks, ticks
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, 100, 0, 100
	p.Draw(canvas)
	return nil
}

// lineOf makes a plotter's line of a curve.
func lineOf(c Curve) (*plotter.Line, error) {
	if len(c.Y) < 2 {
		return nil, fmt.Errorf("curve %q has %d points", c.Name, len(c.Y))
	}
	points := make(plotter.XYs, len(c.Y))
	for i, y := range c.Y {
		points[i].X, points[i].Y = 100*float64(i)/float64(len(c.Y)-1), y
	}
	return plotter.NewLine(points)
}

// namedLines returns the indices of the lines, of n, that the legend names.
func namedLines(n int) map[int]bool {
	named := map[int]bool{}
	for i := range min(n, namesMost) {
		if n <= namesMost {
			named[i] = true
			continue
		}
		named[i*(n-1)/(namesMost-1)] = true
	}
	return named
}

// sequential goes from dark to light, its lightness with it (five of matplotlib's viridis, without
// the yellow that does not show on white).
var sequential = []color.RGBA{
	{0x44, 0x01, 0x54, 0xff}, {0x3b, 0x52, 0x8b, 0xff}, {0x21, 0x91, 0x8c, 0xff}, {0x5e, 0xc9, 0x62, 0xff}, {0xb5, 0xde, 0x2b, 0xff},
}
