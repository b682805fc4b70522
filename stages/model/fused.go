package model

import "slices"

// Fused is a tensor of the files with a matrix or vector of every routed expert of a layer:
// [experts, out, in] or [experts, out].
type Fused struct {
	Name  string // without the layer's prefix
	Parts []FusedPart
	// Transposed says that plain numbers are stored as [experts, in, out]. Quantised matrices never are.
	Transposed bool
}

// FusedPart is a tensor within a fused one: its row i for an expert is row First + i*Step of the fused
// tensor's rows for the expert, counted along out.
type FusedPart struct {
	Role        string
	First, Step int
}

// FusedTensor is a fused tensor of one layer.
type FusedTensor struct {
	Fused
	Experts int
	Out, In int // of the whole tensor for one expert; In 0: a vector
	Pieces  []Piece
}

// Piece is the tensor of an expert.
type Piece struct {
	Name   string
	Shape  []int
	Expert int
	FusedPart
}

// FusedTensors returns, by name, the tensors that files may have in place of the tensors of experts, including
// those of the draft layer.
func (c *Config) FusedTensors() map[string]FusedTensor {
	all, layers := map[string]FusedTensor{}, c.Layers
	if c.Draft != nil {
		layers = append(slices.Clip(layers), c.Draft.Layer)
	}
	for i := range layers {
		l := &layers[i]
		n := l.FFN.Routed()
		if n == 0 {
			continue
		}
		tensors := l.FFN.Tensors(c.Hidden)
		for k := range c.Fused {
			f := FusedTensor{Fused: c.Fused[k], Experts: n}
			for e := range n {
				for _, p := range f.Parts {
					at := slices.IndexFunc(tensors, func(t TensorSpec) bool { return t.Role == p.Role })
					shape := tensors[at].Shape
					f.Pieces = append(f.Pieces, Piece{l.Expert(p.Role, e), shape, e, p})
					if e > 0 {
						continue
					}
					if f.Out += shape[0]; len(shape) > 1 {
						f.In = shape[1]
					}
				}
			}
			all[l.Prefix+f.Name] = f
		}
	}
	return all
}
