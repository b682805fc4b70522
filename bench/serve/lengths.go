package serve

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
)

// lengthMax bounds every length, in tokens.
const lengthMax = 1 << 20

// Lengths is a distribution of numbers of tokens, as a flag's value:
//
//	128              always 128
//	uniform:16:256   16 to 256, each as likely
//	lognormal:161:1.3  mean 161, standard deviation of the logarithm 1.3
type Lengths struct {
	kind string
	a, b float64
}

// ParseLengths reads the forms above.
func ParseLengths(text string) (Lengths, error) {
	kind, rest, named := strings.Cut(text, ":")
	if !named {
		kind, rest = "fixed", text
	}
	wrong := fmt.Errorf("length %q: want a number of tokens, uniform:LEAST:MOST or lognormal:MEAN:SIGMA", text)
	var v []float64
	for field := range strings.SplitSeq(rest, ":") {
		x, err := strconv.ParseFloat(field, 64)
		if err != nil || !(x >= 0 && x <= lengthMax) {
			return Lengths{}, wrong
		}
		v = append(v, x)
	}
	whole := func(x float64) bool { return x >= 1 && x == math.Trunc(x) }
	switch {
	case kind == "fixed" && len(v) == 1 && whole(v[0]):
		return Lengths{kind, v[0], v[0]}, nil
	case kind == "uniform" && len(v) == 2 && whole(v[0]) && whole(v[1]) && v[0] <= v[1]:
		return Lengths{kind, v[0], v[1]}, nil
	case kind == "lognormal" && len(v) == 2 && v[0] >= 1 && v[1] <= 4:
		return Lengths{kind, v[0], v[1]}, nil
	}
	return Lengths{}, wrong
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *Lengths) UnmarshalText(text []byte) (err error) {
	*l, err = ParseLengths(string(text))
	return err
}

// MarshalText implements encoding.TextMarshaler.
func (l Lengths) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// String returns the flag's value again.
func (l Lengths) String() string {
	if l.kind == "fixed" {
		return strconv.FormatFloat(l.a, 'f', -1, 64)
	}
	return fmt.Sprintf("%s:%v:%v", l.kind, l.a, l.b)
}

// Draw returns a number of tokens, at least 1.
func (l Lengths) Draw(r *rand.Rand) int {
	switch l.kind {
	case "uniform":
		return int(l.a) + r.IntN(int(l.b-l.a)+1)
	case "lognormal":
		// The mean of a lognormal is exp(mu + sigma^2/2).
		mu := math.Log(l.a) - l.b*l.b/2
		return max(1, int(min(lengthMax, math.Round(math.Exp(mu+l.b*r.NormFloat64())))))
	}
	return int(l.a)
}
