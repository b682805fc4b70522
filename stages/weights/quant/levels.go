package quant

import "krater/kernels/tensor"

// levelRange says of an encoding what the search of scales has to know.
type levelRange struct {
	min, max float64 // of the levels
	// steps is the number of steps from one integer to the next. Borders between levels lie
	// shift below the middle of two steps: with 2 and 0.5 at multiples of a half.
	steps, shift float64
	// grids are the scales to try, the extreme weight divided by each point.
	grids []grid
	// exacts are the values of the extreme weight for which a scale without error is looked for.
	exacts []float64
}

// grid is from, from + step, ...: an even number of points.
type grid struct {
	from, step float64
	points     int
}

// Grids of the search. A scale is the extreme weight divided by d: above the
// largest value it clips the extreme, below it leaves values unused. INT4 and INT3 reach
// further below zero than above, so both signs of the scale are tried: with one
// the extreme becomes the largest value, with the other (negative points) the smallest. With these
// steps the squared error of normal and heavy-tailed groups of 32 in INT4 is 1.0007 times the
// least possible; steps of 0.25 give 1.00002, steps of 1 give 1.011.
func rangeOf(e *tensor.Encoding) levelRange {
	least, most := e.Range()
	l := levelRange{min: float64(least), max: float64(most), steps: 1}
	switch e {
	case tensor.INT3:
		l.steps, l.shift = 2, 0.5 // not all integers
		l.grids = []grid{{9, 1, 12}, {-12, -1, 14}}
		for _, v := range e.Levels() {
			if v != 0 {
				l.exacts = append(l.exacts, float64(v))
			}
		}
	case tensor.INT4:
		l.grids = []grid{{5.5, 0.5, 8}, {-6.5, -0.5, 8}}
		for k := 8.0; k > 0; k-- {
			l.exacts = append(l.exacts, k, -k)
		}
	default:
		l.grids = []grid{{100, 2, 18}}
		for k := 127.0; k >= 96; k-- {
			l.exacts = append(l.exacts, k)
		}
	}
	return l
}
