package scaled

import (
	"fmt"
	"slices"
	"strings"

	"krater/kernels/tensor"
	"krater/stages/model"
	"krater/stages/weights"
)

// What names of tensors end in. Each of the first three has codes, and the ends of what belongs
// to them.
const (
	plainEnd  = ".weight"        // F8_E4M3, I8, or U8 or I8 (with powers of two as scales) with two codes a byte
	packedEnd = ".weight_packed" // I32 of integers, or U8 with two codes a byte
	blocksEnd = "_blocks"        // U8 [.., blocks, 16] with two codes a byte

	scaleEnd      = ".weight_scale"
	inverseEnd    = ".weight_scale_inv" // a factor like the others, in spite of its name
	dividesEnd    = ".weight_global_scale"
	timesEnd      = ".weight_scale_2"
	shapeEnd      = ".weight_shape"
	zeroEnd       = ".weight_zero_point"
	orderEnd      = ".weight_g_idx"
	blockScaleEnd = "_scales"
	powerEnd      = ".scale" // F8_E8M0
)

var ends = []string{packedEnd, blocksEnd, inverseEnd, timesEnd, scaleEnd, dividesEnd, shapeEnd, zeroEnd, orderEnd, blockScaleEnd, powerEnd, plainEnd}

// unused are the ends of names of scales that only quantised activations and KV caches need.
var unused = []string{".input_scale", ".input_global_scale", ".activation_scale", ".output_scale", ".q_scale", ".k_scale", ".v_scale", ".kv_scale"}

// group is the tensors of one matrix by the end of their names.
type group map[string]weights.Tensor

// View presents the quantised matrices of a set as q says. Each is one tensor under its plain name
// in place of its codes, and its scales are no tensors any more. It takes over the memory of set,
// which is empty from then on, and closes it after an error. q nil: set stays as it is.
func View(set *weights.Set, q *model.Quantization) (*weights.Set, error) {
	if q == nil {
		return set, nil
	}
	list, err := join(set, q)
	if err != nil {
		set.Close()
		return nil, err
	}
	return set.View(list), nil
}

func join(set *weights.Set, q *model.Quantization) ([]weights.Named, error) {
	groups := map[string]group{}
	for _, name := range set.Names() {
		if base, end := split(name, q); end != "" {
			t, _ := set.Tensor(name)
			if groups[base] == nil {
				groups[base] = group{}
			}
			groups[base][end] = t
		}
	}
	list := make([]weights.Named, 0, len(set.Names()))
	for _, name := range set.Names() {
		t, _ := set.Tensor(name)
		base, end := split(name, q)
		codes := groups[base].codes()
		switch {
		case slices.ContainsFunc(unused, func(end string) bool { return strings.HasSuffix(name, end) }):
		case end == "", end == plainEnd && codes == "":
			list = append(list, weights.Named{Name: name, Tensor: t})
		case end == codes:
			m, err := groups[base].matrix(end, q)
			if _, twice := set.Tensor(base); twice {
				err = fmt.Errorf("%w: %.100q is there too", ErrStray, base)
			}
			if err != nil {
				return nil, fmt.Errorf("tensor %.100q: %w", name, err)
			}
			if end != blocksEnd {
				base += plainEnd
			}
			list = append(list, weights.Named{Name: base, Tensor: m.tensor()})
		case end == plainEnd, codes == "":
			return nil, fmt.Errorf("tensor %.100q: %w", name, ErrStray)
		}
	}
	return list, nil
}

// split cuts the end of a name; "": it has none of a quantised matrix.
func split(name string, q *model.Quantization) (base, end string) {
	for _, end := range ends {
		base, ok := strings.CutSuffix(name, end)
		if ok && (q.Method == "mxfp4" || end != blocksEnd && end != blockScaleEnd) && (q.Powers || end != powerEnd) {
			return base, end
		}
	}
	return name, ""
}

func (g group) has(end string) bool {
	_, ok := g[end]
	return ok
}

// codes returns the end of the tensor with the codes; "": there is none. A plain weight has none.
func (g group) codes() string {
	for _, end := range []string{packedEnd, blocksEnd} {
		if g.has(end) {
			return end
		}
	}
	switch g[plainEnd].DType {
	case tensor.F8E4M3, tensor.I8, tensor.U8:
		return plainEnd
	}
	return ""
}
