// Package plot draws the figures of benchmarks and heat maps as SVG or PNG: grouped bars, lines,
// coloured matrices, curves. The same data gives the same bytes.
package plot

import (
	"fmt"
	"image/color"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Chart is the data of one figure. With Categories it has bars: a group for each category, and in
// it a bar for each series. Without, it has lines with points. Dense leaves out points and ticks,
// which would merge on lines of many values.
type Chart struct {
	Title      string   `json:"title"`
	X          string   `json:"x,omitempty"`
	Y          string   `json:"y"`
	Categories []string `json:"categories,omitempty"`
	Series     []Series `json:"series"`
	Limits     []Limit  `json:"limits,omitempty"`
	Dense      bool     `json:"dense,omitempty"`
	LogX       bool     `json:"log_x,omitempty"` // of lines: the X axis is logarithmic; all of X is above 0
}

// Series is one colour. Y has a value for each category, or for each X.
type Series struct {
	Name string    `json:"name"`
	X    []float64 `json:"x,omitempty"`
	Y    []float64 `json:"y"`
}

// Limit is a reference level: a dashed line.
type Limit struct {
	Name string  `json:"name"`
	Y    float64 `json:"y"`
}

const (
	width  = 24 * vg.Centimeter
	height = 12 * vg.Centimeter // of one chart
	margin = 4 * vg.Millimeter  // around each
	axis   = 2 * vg.Centimeter  // what the Y axis takes of the width, roughly
	dpi    = 96
)

// Formats are the endings of files that Save can write.
var Formats = []string{".svg", ".png"}

// CheckPath reports, before a long measurement, whether Save can write a file of this name.
func CheckPath(path string) error {
	for _, f := range Formats {
		if strings.EqualFold(filepath.Ext(path), f) {
			return nil
		}
	}
	return fmt.Errorf("plot: %s: want a file that ends in %s", path, strings.Join(Formats, " or "))
}

// Save draws charts one below the other into a file, by its ending.
func Save(path string, charts ...Chart) error { return SaveFigures(path, figures(charts)...) }

func figures(charts []Chart) []Figure {
	list := make([]Figure, len(charts))
	for i := range charts {
		list[i] = &charts[i]
	}
	return list
}

func (c *Chart) size() vg.Length { return height }

func (c *Chart) name() string { return c.Title }

func (c *Chart) draw(canvas draw.Canvas) error {
	p, err := c.plot()
	if err != nil {
		return err
	}
	p.Draw(canvas)
	return nil
}

// palette has colours that most colour-blind readers can distinguish (Okabe and Ito, 2008).
var palette = []color.RGBA{
	{0x00, 0x72, 0xb2, 0xff}, {0xe6, 0x9f, 0x00, 0xff}, {0x00, 0x9e, 0x73, 0xff}, {0xcc, 0x79, 0xa7, 0xff},
	{0x56, 0xb4, 0xe9, 0xff}, {0xd5, 0x5e, 0x00, 0xff}, {0xf0, 0xe4, 0x42, 0xff}, {0x44, 0x44, 0x44, 0xff},
}

// valueMost and spanLeast bound the range of an axis: 1e-300 counts as 0.
const (
	valueMost = 1e300
	spanLeast = 1e-300
)

// check returns an error for data that does not fit together.
func (c *Chart) check() error {
	if len(c.Series) == 0 {
		return fmt.Errorf("no series")
	}
	for _, s := range c.Series {
		if c.LogX && slices.ContainsFunc(s.X, func(x float64) bool { return x <= 0 }) {
			return fmt.Errorf("series %q: a logarithmic axis has no place for 0 and less", s.Name)
		}
	}
	for _, s := range c.Series {
		for _, v := range slices.Concat(s.X, s.Y) {
			if !(math.Abs(v) <= valueMost) {
				return fmt.Errorf("series %q: %v cannot be drawn", s.Name, v)
			}
		}
		want := len(s.X)
		if len(c.Categories) > 0 {
			want = len(c.Categories)
		}
		if len(s.Y) != want || want == 0 {
			return fmt.Errorf("series %q has %d values for %d places", s.Name, len(s.Y), want)
		}
	}
	return nil
}

func (c *Chart) plot() (*plot.Plot, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = c.Title, c.X, c.Y
	p.Title.Padding = vg.Millimeter * 2
	p.Legend.Top = true
	p.Legend.Padding = vg.Millimeter
	grid := plotter.NewGrid()
	grid.Vertical.Width = 0
	grid.Horizontal.Color = color.Gray{0xdd}
	p.Add(grid)
	fill := c.lines
	if len(c.Categories) > 0 {
		fill = c.bars
	}
	if err := fill(p); err != nil {
		return nil, err
	}
	c.limits(p)
	if p.Y.Min, p.Y.Max = min(0, p.Y.Min), max(0, p.Y.Max); p.Y.Max-p.Y.Min < spanLeast {
		p.Y.Max = 1
	}
	p.Y.Tick.Marker = ticks{}
	p.Y.Max *= 1 + 0.07*float64(1+len(c.Series)+len(c.Limits)) // room for the legend
	return p, nil
}

func (c *Chart) bars(p *plot.Plot) error {
	n := len(c.Series)
	each := 0.8 * (width - axis) / vg.Length(n*len(c.Categories))
	for i, s := range c.Series {
		bars, err := plotter.NewBarChart(plotter.Values(s.Y), each)
		if err != nil {
			return err
		}
		bars.Color, bars.LineStyle.Width = palette[i%len(palette)], 0
		bars.Offset = each * (vg.Length(i) - vg.Length(n-1)/2)
		p.Add(bars)
		p.Legend.Add(s.Name, bars)
	}
	p.NominalX(c.Categories...)
	p.X.Min, p.X.Max = -0.5, float64(len(c.Categories))-0.5
	if len(c.Categories) > 6 {
		p.X.Tick.Label.Rotation = 0.5
		p.X.Tick.Label.XAlign, p.X.Tick.Label.YAlign = draw.XRight, draw.YCenter
	}
	return nil
}

func (c *Chart) lines(p *plot.Plot) error {
	x := ticks{log: c.LogX}
	for i, s := range c.Series {
		points := make(plotter.XYs, len(s.X))
		for j := range points {
			points[j].X, points[j].Y = s.X[j], s.Y[j]
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return err
		}
		line.Color, line.Width = palette[i%len(palette)], vg.Points(1.5)
		if c.Dense && len(points) > 1 {
			p.Add(line)
			p.Legend.Add(s.Name, line)
			continue
		}
		dots.Color, dots.Shape, dots.Radius = line.Color, draw.CircleGlyph{}, vg.Points(3)
		p.Add(line, dots)
		p.Legend.Add(s.Name, line, dots)
		if !c.Dense {
			x.at = append(x.at, s.X...)
		}
	}
	p.X.Tick.Marker = x
	switch one := p.X.Min == p.X.Max; { // all points have the same X, which becomes the middle
	case c.LogX && one:
		p.X.Scale, p.X.Min, p.X.Max = plot.LogScale{}, p.X.Min/2, p.X.Max*2
	case c.LogX:
		p.X.Scale, p.X.Max = plot.LogScale{}, max(p.X.Max, p.X.Min*1.03)
	case p.X.Max < spanLeast:
		p.X.Min, p.X.Max = 0, 1
	case one:
		p.X.Min, p.X.Max = 0, p.X.Max*2
	default:
		p.X.Min, p.X.Max = 0, p.X.Max*1.03
	}
	return nil
}

func (c *Chart) limits(p *plot.Plot) {
	for i, l := range c.Limits {
		f := plotter.NewFunction(func(float64) float64 { return l.Y })
		f.Samples = 2
		f.Color, f.Width = palette[i%len(palette)], vg.Points(1.5)
		f.Dashes = []vg.Length{vg.Points(5), vg.Points(3)}
		p.Add(f)
		p.Legend.Add(l.Name, f)
		p.Y.Max = max(p.Y.Max, l.Y)
	}
}
