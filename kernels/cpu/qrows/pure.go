package qrows

import (
	"math"
	"unsafe"

	"krater/kernels/cpu/exp"
	"krater/kernels/cpu/level"
)

var pure = Funcs{Quantize: pureQuantize, SiluQuantize: pureSiluQuantize}

func pureQuantize(x *float32, q *int8, scale *float32, bias *int32, groups, steps int) {
	n := Block * steps
	xs, qs := unsafe.Slice(x, groups*n), unsafe.Slice(q, groups*n)
	scales, biases := unsafe.Slice(scale, groups), unsafe.Slice(bias, groups)
	for g := range groups {
		var sum int32
		scales[g], sum = group(qs[g*n:(g+1)*n], xs[g*n:(g+1)*n])
		biases[g] = -8 * sum
	}
}

// leastTop: groups of less are zero; see device.
const leastTop = 0x1p-100

// group quantises one group. Magnitudes are compared as integers, sign cleared: they rise with
// their bits, infinity and NaN above all.
func group(q []int8, x []float32) (scale float32, sum int32) {
	var bits uint32
	for _, v := range x {
		bits = max(bits, math.Float32bits(v)&^(1<<31))
	}
	top := math.Float32frombits(bits)
	if !(top >= leastTop && top <= math.MaxFloat32) {
		clear(q)
		if top < leastTop {
			return 0, 0
		}
		return float32(math.NaN()), 0
	}
	inverse := 127 / top
	for i, v := range x {
		n := int8(math.RoundToEven(float64(float32(v * inverse))))
		q[i] = n
		sum += int32(n)
	}
	return top / 127, sum
}

func pureSiluQuantize(gate, up *float32, q *int8, scale *float32, bias *int32, groups, steps int) {
	exp.At(level.Pure).SiluMul(gate, gate, up, groups*steps*Block)
	pureQuantize(gate, q, scale, bias, groups, steps)
}
