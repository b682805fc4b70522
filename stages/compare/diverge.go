package compare

import (
	"errors"
	"fmt"
	"io"
	"math"
	"text/tabwriter"

	"krater/stages/compare/suspect"
	"krater/stages/oracle"
)

// Stats describe a vector: enough to see quickly whether two are similar.
type Stats struct {
	Mean    float64   `json:"mean"`
	AbsMean float64   `json:"abs_mean"`
	Min     float64   `json:"min"`
	Max     float64   `json:"max"`
	First   []float32 `json:"first"` // the first five elements
}

// Divergence is the first operator, in the order of the computation, that leaves the tolerance, and
// what would explain it.
type Divergence struct {
	Name   string  `json:"name"` // of the Check
	Layer  int     `json:"layer"`
	Op     string  `json:"op"`
	Token  int     `json:"token"` // the first one that differs, -1: unknown
	Engine Stats   `json:"engine"`
	Golden Stats   `json:"golden"`
	Cosine float64 `json:"cosine"` // of the angle between both
	suspect.Finding
	Note string `json:"note,omitempty"` // why nothing, or not everything, was tried
}

// statsOf describes v; values that are not numbers count as 0, since JSON has none.
func statsOf(v []float32) Stats {
	s := Stats{First: make([]float32, 0, 5)}
	for i, x := range v {
		f := float64(x)
		if math.IsNaN(f) || math.IsInf(f, 0) {
			f = 0
		}
		if i < 5 {
			s.First = append(s.First, float32(f))
		}
		if i == 0 {
			s.Min, s.Max = f, f
		}
		s.Mean += f / float64(len(v))
		s.AbsMean += math.Abs(f) / float64(len(v))
		s.Min, s.Max = min(s.Min, f), max(s.Max, f)
	}
	return s
}

// cosine of the angle between two vectors, 0 where there is none.
func cosine(a, b []float32) float64 {
	if len(a) != len(b) {
		return 0
	}
	c := dot(a, b) / math.Sqrt(dot(a, a)*dot(b, b))
	if math.IsNaN(c) {
		return 0
	}
	return c
}

// diverge looks for the first check of the traced prompt that failed, and for what explains it.
func (c *comparison) diverge(p *Prompt, seen *capture) {
	var first *Check
	for i := range c.report.Checks {
		if !c.report.Checks[i].Passed {
			first = &c.report.Checks[i]
			break
		}
	}
	if first == nil {
		return
	}
	op := first.Op
	if op == "logits_f64" {
		op = "logits"
	}
	got, want := c.engine(seen, first.Layer, op), c.wants[first.Name]
	d := &Divergence{Name: first.Name, Layer: first.Layer, Op: op, Token: firstToken(got, want, len(p.IDs), first), Engine: statsOf(got), Golden: statsOf(want), Cosine: cosine(got, want)}
	c.report.Divergence = d
	var err error
	d.Finding, err = suspect.Find(&suspect.Case{
		Config: c.cfg, Weight: c.weight, IDs: p.IDs, Layer: first.Layer, Op: op, Want: want,
		Seen:   func(layer int, op string) []float32 { return c.engine(seen, layer, op) },
		Agreed: func(op string) bool { return c.agreed(first.Layer, op) },
	})
	if op == "router_ids" && c.o.Relative > 0 && len(d.Suspects) == 0 {
		d.Note = "where two experts' scores are closer than the rounding, another choice is no mistake"
	}
	if err != nil {
		d.Note = "not all mistakes could be tried: " + err.Error()
		if errors.Is(err, oracle.ErrUnknown) {
			d.Note = "no mistakes are known for this operator"
		}
	}
}

// engine returns what the probe saw of an operator at every position, nil if it did not.
func (c *comparison) engine(seen *capture, layer int, op string) []float32 {
	switch op {
	case "inv_freq":
		return c.frequencies("")
	case "logits":
		return c.logits
	}
	k := key{layer, op}
	if seen.complete(k) != nil {
		return nil
	}
	if v := seen.i32[k]; v != nil {
		return numbers(v)
	}
	return seen.f32[k]
}

// agreed reports whether the golden has an operator of a layer and it passed.
func (c *comparison) agreed(layer int, op string) bool {
	for i := range c.report.Checks {
		if k := &c.report.Checks[i]; k.Layer == layer && k.Op == op {
			return k.Passed
		}
	}
	return false
}

// firstToken returns the first of n tokens whose values differ by more than is allowed.
func firstToken(got, want []float32, n int, k *Check) int {
	if len(got) != len(want) || n == 0 || len(want)%n != 0 || k.Op == "attn_probs" || k.Op == "inv_freq" {
		return -1
	}
	width := len(want) / n
	for i := range want {
		if d := math.Abs(float64(got[i]) - float64(want[i])); !(d <= k.Allowed) {
			return i / width
		}
	}
	return -1
}

// dot returns the sum of a[i]*b[i] over a, in float64.
func dot(a, b []float32) float64 {
	var sum float64
	for i, x := range a {
		sum += float64(x) * float64(b[i])
	}
	return sum
}

// numbers are ids as values.
func numbers(ids []int32) []float32 {
	out := make([]float32, len(ids))
	for i, id := range ids {
		out[i] = float32(id)
	}
	return out
}

// Text writes the divergence for a reader.
func (d *Divergence) Text(w io.Writer) error {
	place := "outside the layers"
	if d.Layer >= 0 {
		place = fmt.Sprintf("of layer %d", d.Layer)
	}
	fmt.Fprintf(w, "\nThe first operator that differs: %s %s (%s)", d.Op, place, d.Name)
	if d.Token > 0 {
		fmt.Fprintf(w, ", from token %d on", d.Token)
	}
	fmt.Fprint(w, "\n\n")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\tmean\tmean |x|\tmin\tmax\tfirst five")
	for _, s := range []struct {
		who string
		Stats
	}{{"engine", d.Engine}, {"golden", d.Golden}} {
		fmt.Fprintf(t, "%s\t%.4g\t%.4g\t%.4g\t%.4g\t%.4g\n", s.who, s.Mean, s.AbsMean, s.Min, s.Max, s.First)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "cosine %.6f\n\n", d.Cosine)
	switch {
	case d.Own != "":
		fmt.Fprintf(w, "The engine does not get %s from its own inputs as the config and the files say: the fault is in the engine.\n", d.Own)
	case d.Tried > 0:
		fmt.Fprintln(w, "The engine agrees with the config and the files; the reference does not.")
	}
	if len(d.Suspects) == 0 && d.Tried > 0 {
		fmt.Fprintf(w, "None of %d mistakes that were tried explains it.\n", d.Tried)
	}
	for i, s := range d.Suspects {
		lead := "Suspect"
		if i > 0 {
			lead = "     or"
		}
		fmt.Fprintf(w, "%s: %s\n", lead, s)
	}
	if d.Note != "" {
		fmt.Fprintf(w, "(%s)\n", d.Note)
	}
	_, err := fmt.Fprintln(w)
	return err
}
