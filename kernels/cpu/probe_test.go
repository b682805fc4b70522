package cpu

import "testing"

// TestCrossover: the unit is used from where it is faster with all more rows, and a measurement that makes
// no sense is told.
func TestCrossover(t *testing.T) {
	for _, x := range []struct {
		gains []float64
		rows  int
		ok    bool
	}{
		{[]float64{1.2, 1.2, 1.2, 1.2, 1.2}, 8, true},
		{[]float64{0.7, 1.0, 1.2, 1.3, 1.9}, 16, true},
		{[]float64{0.7, 1.1, 1.1, 0.9, 1.1}, 32, true},
		{[]float64{0.7, 0.8, 1.0, 1.0, 1.04}, 0, true},
		{[]float64{0.7, 1.2, 1.3, 1.5, 0.6}, 0, false},
	} {
		if rows, ok := crossover(x.gains); rows != x.rows || ok != x.ok {
			t.Errorf("%v: from %d rows on, %v", x.gains, rows, ok)
		}
	}
}
