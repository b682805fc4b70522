// Package ref is the reference for every fast operator of a device: plain Go, one function per
// operator, over dense row-major float32 slices, with float64 inside. It is never optimised. The
// caller widens weights and cache rows stored as BF16, which is exact. Shapes, paged caches,
// integer formats and places of rounding follow the operator list in kernels/device.
//
// stages/oracle defines the operators of a model a second time, in float64 and without caches or
// formats: what a model means does not depend on devices. The two share nothing, so that models
// which run on these operators and agree with it and with the goldens test both.
package ref

import (
	"math"

	"krater/kernels/device"
)

// GatherRows copies row ids[i] of table [V, width] to row i of out.
func GatherRows(out, table []float32, ids []int32, width int) {
	for i, id := range ids {
		copy(out[i*width:(i+1)*width], table[int(id)*width:])
	}
}

// StoreRows copies row i of src [T, width] to row slots[i] of cache.
func StoreRows(cache, src []float32, slots []int32, width int) {
	for i, slot := range slots {
		copy(cache[int(slot)*width:(int(slot)+1)*width], src[i*width:])
	}
}

// Add adds delta to x.
func Add(x, delta []float32) {
	for i := range x {
		x[i] += delta[i]
	}
}

// AddBias adds b to every row of x [T, len(b)].
func AddBias(x, b []float32) {
	for i := range x {
		x[i] += b[i%len(b)]
	}
}

// GateRows multiplies every row of out [T, n] by sigmoid(x * w), of its row of x [T, len(w)].
func GateRows(out, x, w []float32, n int) {
	for r := 0; r*n < len(out); r++ {
		factor := 1 / (1 + math.Exp(-dot(x[r*len(w):(r+1)*len(w)], w)))
		for i, v := range out[r*n : (r+1)*n] {
			out[r*n+i] = float32(float64(v) * factor)
		}
	}
}

// RMSNorm is x / sqrt(mean(x^2) + eps) * w for every row of width len(w).
func RMSNorm(out, x, w []float32, eps float32) {
	h := len(w)
	for r := 0; r*h < len(x); r++ {
		row := x[r*h : (r+1)*h]
		var sum float64
		for _, v := range row {
			sum += float64(v) * float64(v)
		}
		scale := 1 / math.Sqrt(sum/float64(h)+float64(eps))
		for i, v := range row {
			out[r*h+i] = float32(float64(v) * scale * float64(w[i]))
		}
	}
}

// AddRMSNorm adds delta to x, then norms x into out.
func AddRMSNorm(out, x, delta, w []float32, eps float32) {
	Add(x, delta)
	RMSNorm(out, x, w, eps)
}

// HeadNorm is RMSNorm over each head of x [T, heads*d] in place; w [d].
func HeadNorm(x, w []float32, eps float32) { RMSNorm(x, x, w, eps) }

// MatMul is out [m, n] = x [m, k] * transposed w [n, k].
func MatMul(out, x, w []float32, m, n, k int) {
	for i := range m {
		for j := range n {
			out[i*n+j] = float32(dot(x[i*k:(i+1)*k], w[j*k:(j+1)*k]))
		}
	}
}

func dot(a, b []float32) float64 {
	var sum float64
	for i := range a {
		sum += float64(a[i]) * float64(b[i])
	}
	return sum
}

// Rope turns the pairs of x [T, cols] in place by the angles of each row's position; row p of table
// holds Dim/2 pairs (cos, sin).
func Rope(x []float32, cols int, positions []int32, table []float32, p device.Rope) {
	for r, pos := range positions {
		angles := table[int(pos)*p.Dim : (int(pos)+1)*p.Dim]
		for h := range p.Heads {
			head := x[r*cols+h*p.HeadDim+p.Offset:]
			for i := range p.Dim / 2 {
				a, b := 2*i, 2*i+1
				if !p.Interleaved {
					a, b = i, i+p.Dim/2
				}
				c, s := float64(angles[2*i]), float64(angles[2*i+1])
				if p.Back {
					s = -s
				}
				u, v := float64(head[a]), float64(head[b])
				head[a] = float32(u*c - v*s)
				head[b] = float32(v*c + u*s)
			}
		}
	}
}

// Activate is x = act(x, up), element by element.
func Activate(x, up []float32, act device.Activation) {
	for i, g := range x {
		x[i] = float32(act.Of(float64(g), float64(up[i])))
	}
}

// Scale multiplies x by factor.
func Scale(x []float32, factor float32) {
	for i := range x {
		x[i] *= factor
	}
}

// Softcap is x = limit * tanh(x / limit).
func Softcap(x []float32, limit float32) {
	for i, v := range x {
		x[i] = float32(float64(limit) * math.Tanh(float64(v)/float64(limit)))
	}
}

// Silu is x * sigmoid(x).
func Silu(x float64) float64 { return x / (1 + math.Exp(-x)) }

// Expert is one SwiGLU network with weights widened to float32.
type Expert struct {
	Gate []float32 // [F, H]
	Up   []float32 // [F, H]
	Down []float32 // [H, F]
	Extra
}

// Extra holds biases and activation: see device.Extra.
type Extra struct {
	Act device.Activation
	B13 []float32 // [2F] or nil
	B2  []float32 // [H] or nil
}

// activate is the middle value i of f, of gate and up without their biases.
func (e *Extra) activate(g, u float64, i, f int) float64 {
	if e.B13 != nil {
		g, u = g+float64(e.B13[i]), u+float64(e.B13[f+i])
	}
	return e.Act.Of(g, u)
}

// add adds the bias of the results to rows of y.
func (e *Extra) add(y []float32) {
	if e.B2 != nil {
		AddBias(y, e.B2)
	}
}

// FFN is down(silu(gate x) * up x), or with the activation and biases of e.Extra, for every row of x [T, h].
func FFN(out, x []float32, e Expert, h int) {
	f := len(e.Gate) / h
	mid := make([]float32, f)
	for r := 0; r*h < len(x); r++ {
		row := x[r*h : (r+1)*h]
		for i := range mid {
			w := func(m []float32) float64 { return dot(row, m[i*h:(i+1)*h]) }
			mid[i] = float32(e.activate(w(e.Gate), w(e.Up), i, f))
		}
		MatMul(out[r*h:(r+1)*h], mid, e.Down, 1, h, f)
	}
	e.add(out[:len(x)])
}

// Experts runs every assignment a = token*topK + rank through its expert; the result is row a of y
// [T*topK, h].
func Experts(y, x []float32, bank []Expert, work []device.ExpertRows, topK, h int) {
	for _, item := range work {
		for _, a := range item.Assign {
			token := int(a) / topK
			FFN(y[int(a)*h:(int(a)+1)*h], x[token*h:(token+1)*h], bank[item.Expert], h)
		}
	}
}

// WeightedSum is base (nil: zero) plus the topK rows of y [T*topK, h] that belong to each token,
// weighted.
func WeightedSum(out, y, weights, base []float32, topK, h int) {
	for t := 0; t*h < len(out); t++ {
		for i := range h {
			var sum float64
			if base != nil {
				sum = float64(base[t*h+i])
			}
			for k := range topK {
				sum += float64(weights[t*topK+k]) * float64(y[(t*topK+k)*h+i])
			}
			out[t*h+i] = float32(sum)
		}
	}
}

// WeightedSumOf is WeightedSum without base of the rows whose ids [T*topK] are not below 0, in
// float32: a product is rounded, then added.
func WeightedSumOf(out, y, weights []float32, ids []int32, topK, h int) {
	for t := 0; t*h < len(out); t++ {
		for i := range h {
			sum := float32(0)
			for k := t * topK; k < (t+1)*topK; k++ {
				if ids[k] >= 0 {
					sum += float32(weights[k] * y[k*h+i])
				}
			}
			out[t*h+i] = sum
		}
	}
}
