package cpu

import (
	"math/rand/v2"
	"slices"
	"time"
	"unsafe"

	"krater/kernels/cpu/blockdot"
	"krater/kernels/tensor"
)

// The settings of Probe: a matrix that stays in the second-level cache, the numbers of rows, and
// the number of alternating repetitions.
const (
	probeN, probeK = 256, 1024
	probeRounds    = 7
	// probeGain is how much faster the unit must be to be used.
	probeGain = 1.05
)

var probeRows = []int{8, 12, 16, 24, 32}

// Probe measures the number of rows from which the tile unit beats AVX-512 on this CPU, in about 15
// ms, and uses it from then on; without a unit it does nothing. Call it before the device's first
// operator. Its result does not affect the bits of results. If the measurement makes no sense, as
// on a busy machine, the fixed rule for the CPU stays.
func (d *Device) Probe() {
	rule := d.unit
	if rule == (unitUse{}) {
		return
	}
	for _, x := range []struct {
		f    tensor.Format
		from *int
	}{
		{tensor.INT4.By(64), &rule.fine}, {tensor.INT4.By(128), &rule.coarse},
		{tensor.Q4_0.By(tensor.BlockGroup), &rule.blocks[blockdot.Plain]}, {tensor.Q4_K.By(tensor.BlockGroup), &rule.blocks[blockdot.Mins]},
		{tensor.FP8.By(tensor.BlockGroup), &rule.blocks[blockdot.Digits]},
	} {
		if rows, ok := crossover(d.gains(x.f, probeRows)); ok {
			*x.from = rows
		}
	}
	d.unit = rule
}

// crossover finds the first of probeRows from which on the unit is always faster (0: it is at none); ok is
// false when it is at some of them, but not at the most rows.
func crossover(gains []float64) (rows int, ok bool) {
	i := len(gains)
	for i > 0 && gains[i-1] >= probeGain {
		i--
	}
	if i < len(gains) {
		return probeRows[i], true
	}
	return 0, slices.Max(gains) < probeGain
}

// gains measures how many times as fast the unit is, for each number of rows.
func (d *Device) gains(format tensor.Format, rows []int) (gains []float64) {
	f := tensor.Layout{Format: format, Rows: probeN, Cols: probeK}
	most := slices.Max(rows)
	r := rand.New(rand.NewPCG(1, 2))
	values := alignedBytes(f.ValueBytes())
	for i := range values {
		values[i] = byte(r.Uint32())
	}
	scales := alignedBytes(f.ScaleBytes())
	for i := range scales {
		scales[i] = 0x3c // a small number in either byte order
	}
	p := d.product(&f)
	p.w, p.s = unsafe.Pointer(&values[0]), unsafe.Pointer(&scales[0])
	q, sums := alignedBytes(most*(probeK+64)), make([]int32, most*f.Groups())
	scale, out := make([]float32, most*f.Groups()), make([]float32, most*probeN)
	for i := range q {
		q[i] = byte(r.Uint32()) | 1
	}
	in := quantInput{quantRows: &quantRows{
		q: (*int8)(unsafe.Pointer(&q[0])), qStride: probeK + 64, scale: &scale[0], scaleStride: f.Groups(), bias: &sums[0], biasStride: f.Groups(),
		rows: most, k: probeK, group: f.Group,
	}}
	to := quantOutput{base: &out[0], stride: probeN}
	memory := arena{held: &d.scratch, alloc: func(_ []byte, n int) []byte { return alignedBytes(n) }}
	l := &lane{arena: memory, prepared: memory}
	defer func() { d.scratch.Add(-4 * int64(len(l.arena.data)+len(l.prepared.data))) }()
	rule, always := d.unit, unitFrom(1)
	defer func() { d.unit = rule }()
	l.arena.reset(always.scratch(&p, most))
	multiply := func(use unitUse, m int) func() {
		return func() {
			d.unit = use
			p.multiply(d, l, in, to, m, 0, p.tiles())
		}
	}

	for _, m := range rows {
		gains = append(gains, ratio(multiply(unitUse{}, m), multiply(always, m)))
	}
	return gains
}

// ratio returns how many times as long a takes as b: the median of alternating runs.
func ratio(a, b func()) float64 {
	var list [probeRounds]float64
	took := func(f func()) float64 {
		start := time.Now()
		f()
		return float64(time.Since(start))
	}
	took(a) // the first use of the unit on a thread traps
	took(b)
	for i := range list {
		list[i] = took(a) / took(b)
	}
	slices.Sort(list[:])
	return list[probeRounds/2]
}
