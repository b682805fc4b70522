package suspect

import (
	"fmt"
	"slices"

	"krater/stages/oracle"
)

// layer is a layer with its definitions and the case it is looked at for.
type layer struct {
	*oracle.Layer
	c *Case
}

// narrows are the operators that depend on all before them.
var narrows = []string{"attn", "mixer_out", "post_norm", "router_logits"}

func newLayer(c *Case) (*layer, error) {
	t := min(len(c.IDs), max(tokensMin, elementsMax/c.Config.Hidden))
	l, index := &layer{c: c}, c.Layer
	if c.Op == "inv_freq" {
		index = 0 // goldens have one table of frequencies
	}
	var err error
	l.Layer, err = oracle.New(c.Config, c.Weight, c.IDs[:t], index, func(at int, op string) []float64 {
		if v := c.Seen(at, op); v != nil {
			return l.prefix(op, v)
		}
		return nil
	})
	return l, err
}

// path returns the operators up to op that the reference has not been found to agree in.
func (l *layer) path(op string) ([]string, error) {
	end := slices.Index(l.Order, op)
	if end < 0 {
		return nil, fmt.Errorf("%w: %s", oracle.ErrUnknown, op)
	}
	if l.Index < 0 {
		return l.Order[end : end+1], nil
	}
	agreed := func(o string) bool { return l.c.Agreed != nil && l.c.Agreed(o) }
	from := 0
	for i, o := range l.Order[:end] {
		// All that was computed before these went through them; what branches off did not.
		if agreed(o) && slices.Contains(narrows, o) {
			from = i + 1
		}
	}
	return slices.DeleteFunc(slices.Clone(l.Order[from:end+1]), func(o string) bool {
		return o != op && (o == "attn_probs" || agreed(o))
	}), nil
}

// prefix returns the rows of the tokens that are looked at.
func (l *layer) prefix(op string, v []float32) []float64 {
	all, t := len(l.c.IDs), l.T
	switch {
	case len(v)%all != 0: // of another shape: nothing equals it
	case op != "attn_probs" && op != "indexer_scores":
		v = v[:len(v)/all*t]
	default:
		var rows []float32
		for i := 0; i < len(v)/all; i++ {
			if i%all < t {
				rows = append(rows, v[i*all:][:t]...)
			}
		}
		v = rows
	}
	return oracle.Widen(v)
}

// with returns a layer in which op came out as v.
func (l *layer) with(op string, v []float64) *layer { return &layer{l.With(op, v), l.c} }

// maybe returns a tensor that a mistake would read; nil if there is none.
func (l *layer) maybe(name string) []float32 {
	w, err := l.c.Weight(name)
	if err != nil {
		return nil
	}
	return w
}
