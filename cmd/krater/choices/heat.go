package choices

import (
	"fmt"
	"io"
	"strings"

	"krater/bench/plot"
	"krater/scheduler/heat"
)

// HeatReport is a map and what it was counted on.
type HeatReport struct {
	Model string `json:"model"`
	heat.Report
}

// Text prints the skew of every layer as a table.
func (r *HeatReport) Text(w io.Writer) error {
	b := &strings.Builder{}
	fmt.Fprintf(b, "%s: %d tokens, %d layers of %d experts, %d per token\n\n", r.Model, r.Seen, len(r.Layers), r.Experts, r.TopK)
	fmt.Fprintf(b, "%7s  %29s  %9s  %17s\n", "", "% of rows at the hottest", "", "entropy")
	fmt.Fprintf(b, "%7s  %5s  %6s  %6s  %6s  %9s  %5s  %10s\n", "layer", "one", "10 %", "25 %", "50 %", "used", "bits", "of even's")
	row := func(name string, s heat.Skew) {
		fmt.Fprintf(b, "%7s  %5.1f  %6.1f  %6.1f  %6.1f  %9s  %5.2f  %10.3f\n", name,
			100*s.Hottest, 100*s.Share10, 100*s.Share25, 100*s.Share50, fmt.Sprintf("%d/%d", s.Used, s.Experts), s.Entropy, s.Evenness)
	}
	for _, l := range r.Layers {
		row(fmt.Sprint(l.Layer), l.Skew)
	}
	row("all", r.Whole)
	if len(r.Layers) > 1 {
		fmt.Fprintf(b, "\nall: the hottest of the %d experts of all layers; every layer has the same weight\n", r.Whole.Experts)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// curvePoints is the number of points drawn of the curve of all experts.
const curvePoints = 400

// Figures draws a map: layers by experts, and the skew of each layer.
func (r *HeatReport) Figures(m *heat.Map) []plot.Figure {
	of := fmt.Sprintf("%s, %d tokens", r.Model, r.Seen)
	h := &plot.Heat{Title: "Rows at each expert, as a multiple of an even share: " + of, X: "expert", Y: "layer"}
	c := &plot.Curves{Title: "Share of rows at the hottest experts: " + of, X: "hottest experts, % of all", Y: "rows at them, % of all"}
	for _, l := range r.Layers {
		h.Rows = append(h.Rows, fmt.Sprint(l.Layer))
		var sum uint64
		for _, n := range l.Counts {
			sum += n
		}
		values := make([]float64, len(l.Counts))
		for e, n := range l.Counts {
			values[e] = float64(n) * float64(len(l.Counts)) / float64(max(1, sum))
		}
		h.Values = append(h.Values, values)
		c.Lines = append(c.Lines, curve(fmt.Sprintf("layer %d", l.Layer), m.Curve(l.Layer), l.Experts))
	}
	if len(r.Layers) > 1 {
		c.Main = curve("all layers", m.Whole(), curvePoints)
	}
	return []plot.Figure{h, c}
}

// curve returns the curve of a map in percent, with the given number of points after the first.
func curve(name string, c heat.Curve, points int) plot.Curve {
	out := plot.Curve{Name: name, Y: make([]float64, points+1)}
	for i := range out.Y {
		out.Y[i] = 100 * c.Share(float64(i)/float64(points))
	}
	return out
}
