package plot

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"gonum.org/v1/plot"
)

// labels returns the labels of an axis that are in its range, in order.
func labels(t *testing.T, a plot.Axis) (list []string) {
	t.Helper()
	last := math.Inf(-1)
	for _, x := range a.Tick.Marker.Ticks(a.Min, a.Max) {
		if x.Label == "" || x.Value < a.Min || x.Value > a.Max {
			continue
		}
		if v, err := strconv.ParseFloat(x.Label, 64); err != nil || math.Abs(v-x.Value) > 1e-6*math.Abs(x.Value) {
			t.Errorf("%q stands at %v", x.Label, x.Value)
		}
		if x.Value <= last {
			t.Errorf("%q does not stand behind %v", x.Label, last)
		}
		list, last = append(list, x.Label), x.Value
	}
	return list
}

// TestLabels: both axes of numbers have three labels or more, and not too many, whatever is drawn.
func TestLabels(t *testing.T) {
	tiny, huge := 3e-9, 7e11
	for _, c := range []struct {
		x, y  []float64
		log   bool
		wantX string // "": any
	}{
		{x: []float64{1}, y: []float64{0}},
		{x: []float64{0}, y: []float64{0.25}},
		{x: []float64{0}, y: []float64{0}, wantX: "[0 0.2 0.4 0.6 0.8 1.0]"},
		{x: []float64{1, 2}, y: []float64{0.25, 0.249}, wantX: "[0 0.5 1.0 1.5 2.0]"},
		{x: []float64{512, 2048, 8192}, y: []float64{80, 75, 60}, wantX: "[512 2048 8192]"},
		{x: []float64{1, 2, 4, 8, 512}, y: []float64{1, 2, 3, 4, 5}},
		{x: []float64{3, 3}, y: []float64{2, 2}},
		{x: []float64{tiny, 2 * tiny}, y: []float64{tiny, tiny}},
		{x: []float64{huge, 2 * huge}, y: []float64{huge, 3 * huge}},
		{x: []float64{1, 2}, y: []float64{-5, -3}},
		{x: []float64{5e-324, 1e-310}, y: []float64{1e-310, 0}},
		{x: []float64{0.2, 29.7}, y: []float64{1e300, 0}},
		{log: true, x: []float64{12}, y: []float64{50}},
		{log: true, x: []float64{12, 12}, y: []float64{0, 100}},
		{log: true, x: []float64{2.1, 2.4}, y: []float64{0, 100}},
		{log: true, x: []float64{1.5, 4}, y: []float64{0, 100}, wantX: "[2 3 4]"},
		{log: true, x: []float64{15, 95}, y: []float64{0, 100}},
		{log: true, x: []float64{95, 105}, y: []float64{0, 100}},
		{log: true, x: []float64{1, 30}, y: []float64{0, 100}, wantX: "[1 2 5 10 20]"},
		{log: true, x: []float64{0.5, 700}, y: []float64{0, 100}, wantX: "[1 10 100]"},
		{log: true, x: []float64{1e-6, 1e9}, y: []float64{0, 100}},
		{log: true, x: []float64{999.9, 1000.1}, y: []float64{0, 100}},
	} {
		for _, dense := range []bool{true, false} {
			chart := Chart{Title: "times", Dense: dense, LogX: c.log, Series: []Series{{Name: "a", X: c.x, Y: c.y}}}
			p, err := chart.plot()
			if err != nil {
				t.Fatal(err)
			}
			if p.X.Min > c.x[0] || p.X.Max < c.x[len(c.x)-1] {
				t.Errorf("%v lies outside of %v to %v", c.x, p.X.Min, p.X.Max)
			}
			x, y := labels(t, p.X), labels(t, p.Y)
			if len(x) < 3 || len(x) > 20 || len(y) < 3 || len(y) > 20 {
				t.Errorf("x %v, y %v, log %v, dense %v: the labels are %v and %v", c.x, c.y, c.log, dense, x, y)
			}
			if got := fmt.Sprint(x); !dense && c.wantX != "" && got != c.wantX {
				t.Errorf("x %v: the labels are %v, want %v", c.x, got, c.wantX)
			}
			if err := Write(&bytes.Buffer{}, ".svg", chart); err != nil {
				t.Error(err)
			}
		}
	}
	for _, y := range [][]float64{{0}, {0.2478}, {tiny, 0}, {huge, 1, 2}, {-1, 0.5}} {
		chart := Chart{Title: "bars", Categories: []string{"a", "b", "c"}[:len(y)], Series: []Series{{Name: "a", Y: y}}}
		p, err := chart.plot()
		if err != nil {
			t.Fatal(err)
		}
		if got := labels(t, p.Y); len(got) < 3 || len(got) > 20 {
			t.Errorf("bars of %v: the labels are %v", y, got)
		}
	}
}

// TestOnePoint: a series of one point has a marker, on a chart of lines of many points too.
func TestOnePoint(t *testing.T) {
	for _, logX := range []bool{true, false} {
		size := map[bool]int{}
		for _, dense := range []bool{true, false} {
			var w bytes.Buffer
			c := Chart{Title: "throughput", Dense: dense, LogX: logX, Series: []Series{{Name: "a", X: []float64{2048}, Y: []float64{900}}}}
			if err := Write(&w, ".svg", c); err != nil {
				t.Fatal(err)
			}
			size[dense] = strings.Count(w.String(), "A") // an arc: part of a circle
		}
		if size[false] == 0 || size[true] != size[false] {
			t.Errorf("log %v: %d arcs, %d where lines have markers", logX, size[true], size[false])
		}
	}
}
