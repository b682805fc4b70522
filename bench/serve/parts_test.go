package serve

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"krater/bench/stat"
)

// TestArrivals: gaps have the rate's mean, the spread of their kind, and Poisson's the shape of an
// exponential.
func TestArrivals(t *testing.T) {
	const n, rate = 40000, 4.0
	for _, c := range []struct {
		a    Arrivals
		vary float64 // standard deviation over mean
	}{
		{Arrivals{Kind: "poisson"}, 1}, {Arrivals{Kind: "constant"}, 0}, {Arrivals{Kind: "gamma", Shape: 1}, 1},
		{Arrivals{Kind: "gamma", Shape: 0.25}, 2}, {Arrivals{Kind: "gamma", Shape: 4}, 0.5},
	} {
		if err := c.a.Check(); err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(1, 2))
		var gaps stat.Sample
		sum, squares := 0.0, 0.0
		for range n {
			g := c.a.Gap(r, rate)
			gaps = append(gaps, g)
			sum, squares = sum+g, squares+g*g
		}
		mean := sum / n
		vary := math.Sqrt(max(0, squares/n-mean*mean)) / mean
		if math.Abs(mean*rate-1) > 4*c.vary/math.Sqrt(n)+1e-9 || math.Abs(vary-c.vary) > 0.06*c.vary+1e-6 {
			t.Errorf("%+v: mean %v, spread %v; want %v, %v", c.a, mean, vary, 1/rate, c.vary)
		}
		if c.vary != 1 {
			continue
		}
		for _, q := range []float64{0.1, 0.5, 0.9, 0.99} { // exponential and gamma of shape 1
			if got, want := gaps.Percentile(q), -math.Log(1-q)/rate; math.Abs(got/want-1) > 0.05 {
				t.Errorf("%+v: the %v percentile is %v, want %v", c.a, q, got, want)
			}
		}
	}
	for _, a := range []Arrivals{{}, {Kind: "even"}, {Kind: "gamma"}, {Kind: "gamma", Shape: math.NaN()}} {
		if a.Check() == nil {
			t.Errorf("%+v is taken", a)
		}
	}
}

func TestLengths(t *testing.T) {
	for text, mean := range map[string]float64{"7": 7, "uniform:3:9": 6, "lognormal:161:1.3": 161, "lognormal:338:0.9": 338} {
		l, err := ParseLengths(text)
		if err != nil || l.String() != text {
			t.Fatalf("%q: %v %v", text, l, err)
		}
		r, sum, least, most := rand.New(rand.NewPCG(3, 4)), 0.0, math.MaxInt, 0
		const n = 60000
		for range n {
			v := l.Draw(r)
			sum += float64(v)
			least, most = min(least, v), max(most, v)
		}
		if math.Abs(sum/n/mean-1) > 0.05 || least < 1 {
			t.Errorf("%s: mean %v, least %d", text, sum/n, least)
		}
		if text == "uniform:3:9" && (least != 3 || most != 9) {
			t.Errorf("%s: %d to %d", text, least, most)
		}
	}
	for _, text := range []string{"", "0", "-1", "1.5", "x", "uniform:9:3", "uniform:1", "lognormal:0:1", "lognormal:10:9", "normal:1:1", "1:2", "NaN", "lognormal:NaN:1", "99999999"} {
		if l, err := ParseLengths(text); err == nil {
			t.Errorf("%q is read as %v", text, l)
		}
	}
}

func TestBounds(t *testing.T) {
	b, err := ParseBounds("ttft:500ms,tpot:50ms,e2el:10s")
	if err != nil || b != (Bounds{500 * time.Millisecond, 50 * time.Millisecond, 10 * time.Second}) || b.String() != "ttft:500ms,tpot:50ms,e2el:10s" {
		t.Errorf("%v %v", b, err)
	}
	for _, text := range []string{"ttft", "ttft:1", "x:1s", "ttft:-1s", "ttft:1s,ttft:2s", ","} {
		if _, err := ParseBounds(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

// TestHistogram: percentiles of many values equal the percentiles of the sorted values, to half a
// place, and adding allocates nothing.
func TestHistogram(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	var h Histogram
	var all stat.Sample
	for range 30000 {
		v := math.Exp(-6 + 3*r.NormFloat64())
		h.Add(v, 1)
		all = append(all, v)
	}
	for _, q := range []float64{0.001, 0.1, 0.5, 0.9, 0.95, 0.99, 0.9999, 1} {
		if got, want := h.Percentile(q), all.Percentile(q); math.Abs(got/want-1) > 0.0026 && want > 2*histLeast {
			t.Errorf("%v: %v, want %v", q, got, want)
		}
	}
	if h.Max != slices.Max(all) || h.Min != slices.Min(all) || h.N != len(all) {
		t.Errorf("%v to %v of %d", h.Min, h.Max, h.N)
	}
	if n := testing.AllocsPerRun(100, func() { h.Add(0.01, 3); h.Add(1e9, 1); h.Add(-1, 1) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	var none Histogram
	if none.Percentile(0.5) != 0 || none.Summary() != (Summary{}) {
		t.Error("nothing has figures")
	}
}

func TestDivide(t *testing.T) {
	p := func(bytesTokens ...int) []piece {
		var out []piece
		for i := 0; i < len(bytesTokens); i += 2 {
			out = append(out, piece{bytes: bytesTokens[i], tokens: bytesTokens[i+1]})
		}
		return out
	}
	for _, c := range []struct {
		pieces []piece
		all    int
		want   []int
	}{
		{p(1, 0, 3, 0, 2, 0), 6, []int{1, 3, 2}},
		{p(1, 0, 90, 0, 2, 0), 3, []int{1, 1, 1}},
		{p(1, 0, 90, 0, 2, 0), 5, []int{1, 3, 1}},
		{p(5, 0, 5, 0, 5, 0), 3, []int{1, 1, 1}},
		{p(5, 0, 5, 0, 5, 0), 2, []int{1, 1, 0}}, // a last piece without a token of its own
		{p(5, 2, 0, 1, 5, 3), 7, []int{2, 1, 3}}, // the server tells
		{nil, 3, []int{}},
	} {
		if got := divide(c.pieces, c.all); !slices.Equal(got, c.want) {
			t.Errorf("%v, %d tokens: %v, want %v", c.pieces, c.all, got, c.want)
		}
	}
}

func TestTimeline(t *testing.T) {
	l := timeline{width: 1}
	for i := range 4000 {
		l.add(float64(i)+0.5, 10, 1)
	}
	s := l.seconds(4000)
	if len(s) > timelineMost || len(s) < timelineMost/2 {
		t.Errorf("%d places", len(s))
	}
	for _, x := range s {
		if x.AnswerPS != 10 || x.EndedPS != 1 {
			t.Fatalf("%+v", x)
		}
	}
}

// TestTrend: the slope of a line under noise, teeth and outliers, within its own interval, which
// holds 0 where nothing grows.
func TestTrend(t *testing.T) {
	for _, c := range []struct{ slope, noise float64 }{{0, 5}, {30, 5}, {-20, 2}, {400, 1}} {
		r := rand.New(rand.NewPCG(7, 8))
		held := 0
		const runs = 40
		for range runs {
			var at, v []float64
			for i := range 900 {
				x := 4 * float64(i)
				y := 100 + c.slope*x/3600 + c.noise*r.NormFloat64() + float64(i%17) // a collector's teeth
				if r.IntN(30) == 0 {
					y += 300
				}
				at, v = append(at, x), append(v, y)
			}
			got := fit(at, v)
			if math.Abs(got.Slope-c.slope) > 0.05*math.Abs(c.slope)+2*c.noise {
				t.Errorf("slope %v: %+v", c.slope, got)
			}
			if got.Low <= c.slope && c.slope <= got.High {
				held++
			}
			if got.Points != trendBlocks || math.Abs(got.Hours-1) > 0.01 {
				t.Fatalf("%+v", got)
			}
		}
		if held < runs*85/100 {
			t.Errorf("slope %v: the interval held it in %d of %d runs", c.slope, held, runs)
		}
	}
	if got := fit([]float64{1, 2, 3}, []float64{1, 2, 3}); got.Points != 0 {
		t.Errorf("%+v of three points", got)
	}
}
