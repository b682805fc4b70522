package serve

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// Arrivals are the gaps between the requests of an open loop.
type Arrivals struct {
	// Kind is poisson (exponential gaps), constant, or gamma.
	Kind string
	// Shape is the shape of gamma gaps: 1 is Poisson, less gives bursts, more is more regular. The
	// gaps' standard deviation is 1/sqrt(Shape) of their mean.
	Shape float64
}

// ArrivalKinds are the values of Arrivals.Kind.
var ArrivalKinds = []string{"poisson", "constant", "gamma"}

// Check returns an error for impossible settings.
func (a Arrivals) Check() error {
	switch {
	case a.Kind == "poisson" || a.Kind == "constant":
		return nil
	case a.Kind != "gamma":
		return fmt.Errorf("arrivals %q: want one of %v", a.Kind, ArrivalKinds)
	case !(a.Shape >= 0.01 && a.Shape <= 1e4):
		return fmt.Errorf("the gaps' shape is %v: want 0.01 to 10000", a.Shape)
	}
	return nil
}

// Gap draws the next gap in seconds for a rate in requests a second.
func (a Arrivals) Gap(r *rand.Rand, rate float64) float64 {
	switch a.Kind {
	case "constant":
		return 1 / rate
	case "gamma":
		return gamma(r, a.Shape) / (a.Shape * rate)
	}
	return r.ExpFloat64() / rate
}

// gamma draws from the gamma distribution of scale 1 (Marsaglia and Tsang, 2000): the cube of a
// normal deviate, accepted or rejected. For a shape below 1 it draws with shape + 1, and scales by
// a power of a uniform deviate.
func gamma(r *rand.Rand, shape float64) float64 {
	if shape < 1 {
		return gamma(r, shape+1) * math.Pow(1-r.Float64(), 1/shape)
	}
	d := shape - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := r.NormFloat64()
		v := 1 + c*x
		if v <= 0 {
			continue
		}
		v = v * v * v
		if math.Log(1-r.Float64()) < x*x/2+d-d*v+d*math.Log(v) {
			return d * v
		}
	}
}
