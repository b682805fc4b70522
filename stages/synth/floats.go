package synth

import (
	"encoding/binary"
	"math"
	"strings"

	"krater/kernels/tensor"
	"krater/stages/model"
)

// floats is how a tensor is made as bfloat16.
type floats struct {
	rows, cols int // [n] is one row
	key        uint64
	std        float64 // of matrices
	table      *[4096]uint16
	// common gives what every common-th column of a row holds instead; nil: nothing.
	common  func(row, i int) uint16 // i counts these columns
	experts int                     // of a table of the experts of each token; 0: it is none
}

// floats finds the recipe of a tensor.
func (m *Model) floats(t model.TensorSpec) floats {
	f := floats{rows: 1, cols: t.Shape[0], key: m.key(t.Name)}
	if len(t.Shape) == 1 {
		f.table = normals(1, 0.05) // a norm
		switch {
		case t.Norm && m.Config.CentredNorms:
			f.table = normals(0, 0.05)
		case strings.HasSuffix(t.Role, "_bias"):
			f.table = normals(0, 0.1)
		case t.Role == "router_norm": // divided by sqrt(H) where it is used
			root := math.Sqrt(float64(t.Shape[0]))
			f.table = normals(root, 0.05*root)
		case t.Role == "correction":
			f.table = normals(0, 0.02) // of sigmoids
		}
		return f
	}
	f.rows, f.cols = t.Shape[0], t.Shape[1]
	if len(t.Shape) == 3 { // a convolution
		f.cols *= t.Shape[2]
	}
	std := 1 / math.Sqrt(float64(f.cols))
	switch t.Role {
	case "embed":
		std = m.embedStd()
		f.common = m.embedCommon()
	case "head":
		f.common = m.headCommon()
	case "router":
		f.common = m.routerCommon(f.key, f.rows)
	case "o", "down", "expert.down", "shared.down":
		std *= m.outGain()
	case "token_experts":
		f.experts = m.Config.MoE.Experts
	}
	f.std, f.table = std, normals(0, std)
	return f
}

// stripe is how many values are made in one go, about: what a thread takes.
const stripe = 1 << 18

// stripeRows is stripe in rows: a multiple of four, so that a stripe starts with a
// word of the stream.
func (f *floats) stripeRows() int { return max(4, stripe/f.cols&^3) }

// fill writes the rows from..to-1 of the tensor; from is a multiple of four.
func (f *floats) fill(dst []byte, from, to, threads int) {
	step := f.stripeRows()
	if f.rows == 1 {
		fillFloats(dst[:2*f.cols], f.key, 0, f.table)
		return
	}
	spread((to-from+step-1)/step, threads, func(i int) {
		a := from + i*step
		b := min(a+step, to)
		part := dst[2*(a-from)*f.cols : 2*(b-from)*f.cols]
		if f.experts > 0 {
			f.fillExperts(part, a, b)
			return
		}
		fillFloats(part, f.key, uint64(a)*uint64(f.cols)/4, f.table)
		if f.common == nil {
			return
		}
		for row := a; row < b; row++ {
			for c := 0; c < f.cols; c += common {
				binary.LittleEndian.PutUint16(part[2*((row-a)*f.cols+c):], f.common(row, c/common))
			}
		}
	})
}

// fillExperts writes the experts of tokens a to b-1: column c has one of the c-th part of them, all alike likely, so that
// those of a token differ. Numbers of more than 8 bits lose their lowest ones, as bfloat16 has no more.
func (f *floats) fillExperts(dst []byte, a, b int) {
	for i := range (b - a) * f.cols {
		c := i % f.cols
		first, end := c*f.experts/f.cols, (c+1)*f.experts/f.cols
		e := first + int(random(f.key, uint64(a*f.cols+i))%uint64(max(1, end-first)))
		binary.LittleEndian.PutUint16(dst[2*i:], uint16(math.Float32bits(float32(e))>>16))
	}
}

// sizeOf returns the size of a tensor in bytes.
func sizeOf(t model.TensorSpec) int64 {
	n := int64(tensor.BF16.Size())
	for _, d := range t.Shape {
		n *= int64(d)
	}
	return n
}
