package delta

import "unsafe"

var pure = Funcs{Known: pureKnown, Step: pureStep, StepNext: pureStepNext, Conv: pureConv}

// row is row i of the state.
func (t *Tile) row(i int) []float32 {
	return unsafe.Slice((*float32)(unsafe.Add(unsafe.Pointer(t.S), i*t.Stride)), t.Width)
}

func pureKnown(t *Tile) { t.product(t.Known, t.K) }

// product is out = k times the state.
func (t *Tile) product(out, k *float32) {
	sum := unsafe.Slice(out, t.Width)
	clear(sum)
	for i, f := range unsafe.Slice(k, t.Rows) {
		for c, s := range t.row(i) {
			sum[c] += f * s
		}
	}
}

func pureStep(t *Tile) {
	change, v := unsafe.Slice(t.Out, t.Width), unsafe.Slice(t.V, t.Width)
	for c, known := range unsafe.Slice(t.Known, t.Width) {
		change[c] = (v[c] - t.Decay*known) * t.Strength
	}
	for i, k := range unsafe.Slice(t.K, t.Rows) {
		s := t.row(i)
		decay := *(*float32)(unsafe.Add(unsafe.Pointer(t.Decays), i*t.DecayStep))
		for c, d := range change {
			s[c] = decay*s[c] + k*d
		}
	}
	t.product(t.Out, t.Q)
}

func pureStepNext(t *Tile) {
	pureStep(t)
	t.product(t.Known, t.Next)
}

func pureConv(out *float32, x **float32, w *float32, stride, taps, n int) {
	sum := unsafe.Slice(out, n)
	clear(sum)
	for i, p := range unsafe.Slice(x, taps) {
		row := unsafe.Slice((*float32)(unsafe.Add(unsafe.Pointer(w), i*stride)), n)
		for c, v := range unsafe.Slice(p, n) {
			sum[c] += row[c] * v
		}
	}
}
