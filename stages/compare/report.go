package compare

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
)

// Check is one compared vector.
type Check struct {
	Name     string  `json:"name"`  // the golden's name
	Layer    int     `json:"layer"` // -1: none
	Op       string  `json:"op"`
	Elements int     `json:"elements"`
	MaxAbs   float64 `json:"max_abs"`   // largest |got - want|
	Relative float64 `json:"relative"`  // |got - want| / |want|, both as vectors (L2)
	Allowed  float64 `json:"tolerance"` // for MaxAbs; 0: equal
	Passed   bool    `json:"passed"`
	Detail   string  `json:"detail,omitempty"` // the worst element, or why it failed
}

// Report is the outcome of a comparison.
type Report struct {
	Golden string  `json:"golden"`
	Chunk  int     `json:"chunk"` // prompt rows of a sequence in one batch, 0: no limit
	Batch  int     `json:"batch"` // sequences together
	Checks []Check `json:"checks"`
	Passed int     `json:"passed"`
	Failed int     `json:"failed"`
	// Divergence is where the traced prompt first leaves the tolerance, nil if it does not.
	Divergence *Divergence `json:"divergence,omitempty"`
}

// OK reports whether everything agreed.
func (r *Report) OK() bool { return r.Failed == 0 && r.Passed > 0 }

func (r *Report) add(c Check) {
	if c.Passed {
		r.Passed++
	} else {
		r.Failed++
	}
	r.Checks = append(r.Checks, c)
}

// Text writes a line for each check; the last line is "N passed, M failed".
func (r *Report) Text(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "layer\toperator\telements\tlargest error\trelative\tallowed\t\tvector")
	for _, c := range r.Checks {
		layer, verdict := "-", "ok"
		if c.Layer >= 0 {
			layer = fmt.Sprint(c.Layer)
		}
		if !c.Passed {
			verdict = "FAILED"
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%.2e\t%.2e\t%.0e\t%s\t%s %s\n",
			layer, c.Op, c.Elements, c.MaxAbs, c.Relative, c.Allowed, verdict, c.Name, c.Detail)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if r.Divergence != nil {
		if err := r.Divergence.Text(w); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "%d passed, %d failed\n", r.Passed, r.Failed)
	return err
}

// JSON writes the report as one object.
func (r *Report) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	return e.Encode(r)
}

// floats compares vectors; where names the element's place from its index.
func floats(name string, layer int, op string, got, want []float32, allowed float64) Check {
	c := Check{Name: name, Layer: layer, Op: op, Elements: len(want), Allowed: allowed}
	if len(got) != len(want) {
		c.Detail = fmt.Sprintf("%d elements, the golden has %d", len(got), len(want))
		return c
	}
	var diff, norm float64
	worst := -1
	for i, w := range want {
		d := math.Abs(float64(got[i]) - float64(w))
		if math.IsNaN(d) || math.IsInf(d, 0) {
			// JSON has no NaN: the largest number replaces it.
			c.MaxAbs, c.Relative = math.MaxFloat64, math.MaxFloat64
			c.Detail = fmt.Sprintf("element %d is %v, the golden has %v", i, got[i], w)
			return c
		}
		diff += d * d
		norm += float64(w) * float64(w)
		if worst < 0 || d > c.MaxAbs {
			worst, c.MaxAbs = i, d
		}
	}
	if diff > 0 {
		c.Relative = math.Min(math.Sqrt(diff/norm), math.MaxFloat64)
	}
	c.Passed = c.MaxAbs <= allowed
	if !c.Passed {
		c.Detail = fmt.Sprintf("element %d is %v, the golden has %v", worst, got[worst], want[worst])
	}
	return c
}

// floats returns the check by Options.Relative where that is asked for.
func (c *comparison) floats(name string, layer int, op string, got, want []float32, allowed float64) Check {
	check := floats(name, layer, op, got, want, allowed)
	if r := c.o.Relative; r > 0 && len(got) == len(want) {
		check.Allowed, check.Passed = r, check.Relative <= r
		if check.Passed {
			check.Detail = ""
		}
	}
	return check
}

// sets compares the chosen experts of each token, in any order. MaxAbs is the share of tokens with
// different choices.
func sets(name string, layer int, op string, got, want []int32, k int) Check {
	c := Check{Name: name, Layer: layer, Op: op, Elements: len(want)}
	if len(got) != len(want) || k < 1 {
		c.Detail = fmt.Sprintf("%d ids, the golden has %d", len(got), len(want))
		return c
	}
	wrong := 0
	for t := 0; t+k <= len(want); t += k {
		a, b := slices.Sorted(slices.Values(got[t:t+k])), slices.Sorted(slices.Values(want[t:t+k]))
		if slices.Equal(a, b) {
			continue
		}
		if wrong == 0 {
			c.Detail = fmt.Sprintf("token %d chose %v, the golden %v", t/k, a, b)
		}
		wrong++
	}
	c.MaxAbs = float64(wrong*k) / float64(max(1, len(want)))
	c.Relative, c.Passed = c.MaxAbs, wrong == 0
	return c
}

// ids compares token or expert ids, which must be equal. MaxAbs is the share of unequal ones.
func ids(name string, layer int, op string, got, want []int32) Check {
	c := Check{Name: name, Layer: layer, Op: op, Elements: len(want)}
	if len(got) != len(want) {
		c.Detail = fmt.Sprintf("%d ids, the golden has %d", len(got), len(want))
		return c
	}
	wrong := 0
	for i, w := range want {
		if got[i] == w {
			continue
		}
		if wrong == 0 {
			c.Detail = fmt.Sprintf("id %d is %d, the golden has %d", i, got[i], w)
		}
		wrong++
	}
	if wrong > 0 {
		c.MaxAbs = float64(wrong) / float64(len(want))
		c.Relative = c.MaxAbs
	}
	c.Passed = wrong == 0
	return c
}
