package compare

import (
	"slices"
	"strings"
	"testing"

	"krater/stages/weights"
)

// spoil makes a set of weights with a fault in it.
type spoil func(t *testing.T, r *rig) *weights.Set

// reread is w read as [in, out] and written as [out, in].
func reread(w []float32, out, in int) []float32 {
	y := make([]float32, len(w))
	for o := range out {
		for i := range in {
			y[o*in+i] = w[i*out+o]
		}
	}
	return y
}

// transposedWeight spoils every tensor whose name ends so.
func transposedWeight(suffix string) spoil {
	return func(t *testing.T, r *rig) *weights.Set {
		return r.changed(t, func(name string, w []float32, shape []int) []float32 {
			if !strings.HasSuffix(name, suffix) {
				return nil
			}
			return reread(w, shape[0], shape[1])
		})
	}
}

// exchanged has the data of two tensors of every layer swapped.
func exchanged(a, b string) spoil {
	return func(t *testing.T, r *rig) *weights.Set {
		read := Weights(r.set)
		return r.changed(t, func(name string, w []float32, _ []int) []float32 {
			other := ""
			switch {
			case strings.HasSuffix(name, a):
				other = strings.TrimSuffix(name, a) + b
			case strings.HasSuffix(name, b):
				other = strings.TrimSuffix(name, b) + a
			default:
				return nil
			}
			v, err := read(other)
			if err != nil {
				t.Fatal(err)
			}
			return slices.Clone(v)
		})
	}
}

// permuted has the rows of heads of dim values, from at on, put into halves.
func permuted(suffix string, dim, at int) spoil {
	return func(t *testing.T, r *rig) *weights.Set {
		return r.changed(t, func(name string, w []float32, shape []int) []float32 {
			if !strings.HasSuffix(name, suffix) {
				return nil
			}
			in, y, n := shape[1], slices.Clone(w), dim-at
			for head := 0; head < shape[0]; head += dim {
				for i := range n {
					from := 2 * i
					if i >= n/2 {
						from = 2*(i-n/2) + 1
					}
					copy(y[(head+at+i)*in:][:in], w[(head+at+from)*in:])
				}
			}
			return y
		})
	}
}

// without has a tensor of zeros.
func without(suffix string) spoil {
	return func(t *testing.T, r *rig) *weights.Set {
		return r.changed(t, func(name string, w []float32, _ []int) []float32 {
			if !strings.HasSuffix(name, suffix) {
				return nil
			}
			return make([]float32, len(w))
		})
	}
}

// reversedRows has the last dimension of a tensor in the reverse order.
func reversedRows(suffix string) spoil {
	return func(t *testing.T, r *rig) *weights.Set {
		return r.changed(t, func(name string, w []float32, shape []int) []float32 {
			if !strings.HasSuffix(name, suffix) {
				return nil
			}
			for row := range slices.Chunk(w, shape[len(shape)-1]) {
				slices.Reverse(row)
			}
			return w
		})
	}
}

// times has a tensor multiplied.
func times(suffix string, by float32) spoil {
	return func(t *testing.T, r *rig) *weights.Set {
		return r.changed(t, func(name string, w []float32, _ []int) []float32 {
			if !strings.HasSuffix(name, suffix) {
				return nil
			}
			for i := range w {
				w[i] *= by
			}
			return w
		})
	}
}

// exchangedExperts has gate and up of all routed experts swapped.
func exchangedExperts(t *testing.T, r *rig) *weights.Set {
	read := Weights(r.set)
	swap := strings.NewReplacer("gate_proj", "up_proj", "up_proj", "gate_proj")
	return r.changed(t, func(name string, _ []float32, _ []int) []float32 {
		if other := swap.Replace(name); strings.Contains(name, ".experts.") && other != name {
			v, err := read(other)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		return nil
	})
}

// nextRow has each token's row at the token before.
func nextRow(t *testing.T, r *rig) *weights.Set {
	return r.changed(t, func(name string, w []float32, shape []int) []float32 {
		if name != r.cfg.Names().Embed {
			return nil
		}
		return append(slices.Clone(w[shape[1]:]), w[:shape[1]]...)
	})
}

// plusOne has a tensor with 1 added.
func plusOne(suffix string) spoil {
	return func(t *testing.T, r *rig) *weights.Set {
		return r.changed(t, func(name string, w []float32, _ []int) []float32 {
			if !strings.HasSuffix(name, suffix) {
				return nil
			}
			for i := range w {
				w[i]++
			}
			return w
		})
	}
}
