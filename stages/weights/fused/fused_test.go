package fused_test

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"testing"

	"krater/kernels/tensor"
	"krater/stages/model"
	"krater/stages/weights"
	"krater/stages/weights/fused"
)

// sizes of the model: experts, hidden size, width.
const experts, hidden, width = 3, 5, 2

// config is a model of one layer whose fused tensors lie in one of the ways that families have.
func config(f ...model.Fused) *model.Config {
	c := &model.Config{Hidden: hidden, Fused: f}
	c.Stack(1, model.Usual(model.Roles{"expert.gate_bias": "b.*.gate", "expert.up_bias": "b.*.up", "expert.down_bias": "b.*.down"}),
		func(int) (model.Mixer, model.FFN) { return nil, model.MoE{Experts: experts, FF: width, Biases: true} })
	return c
}

var (
	inTurn   = []model.FusedPart{{Role: "expert.gate", Step: 2}, {Role: "expert.up", First: 1, Step: 2}}
	inHalves = []model.FusedPart{{Role: "expert.gate", Step: 1}, {Role: "expert.up", First: width, Step: 1}}
	biases   = []model.FusedPart{{Role: "expert.gate_bias", Step: 2}, {Role: "expert.up_bias", First: 1, Step: 2}}
)

// plain is a tensor whose element i is i.
func plain(dt tensor.DType, shape ...int) weights.Tensor {
	n := 1
	for _, d := range shape {
		n *= d
	}
	t := weights.Tensor{DType: dt, Shape: shape}
	for i := range n {
		if v := float32(i); dt == tensor.BF16 {
			t.Data = binary.LittleEndian.AppendUint16(t.Data, tensor.F32ToBF16(v))
		} else {
			t.Data = binary.LittleEndian.AppendUint32(t.Data, math.Float32bits(v))
		}
	}
	return t
}

// coded is plain numbers that a reader has to ask for.
type coded struct{ weights.Tensor }

func (c coded) Encoding() string                         { return "numbers" }
func (c coded) Blocks() ([]byte, bool)                   { return nil, false }
func (c coded) Stored() [][]byte                         { return c.Tensor.Stored() }
func (c coded) Floats(dst []float32, firstRow int) error { return c.Tensor.Floats(dst, firstRow) }

// TestView: row r, column c of a tensor is the element of the fused one that the way says.
func TestView(t *testing.T) {
	for name, x := range map[string]struct {
		fused model.Fused
		whole weights.Tensor
		role  func(e int) string
		at    func(e, row, col int) int
		plain bool // its bytes can be used where they are
	}{
		"gate in turn, transposed": {model.Fused{Name: "f", Parts: inTurn, Transposed: true}, plain(tensor.BF16, experts, hidden, 2*width),
			gate, func(e, r, c int) int { return (e*hidden+c)*2*width + 2*r }, false},
		"up in turn, transposed": {model.Fused{Name: "f", Parts: inTurn, Transposed: true}, plain(tensor.F32, experts, hidden, 2*width),
			up, func(e, r, c int) int { return (e*hidden+c)*2*width + 2*r + 1 }, false},
		"up in halves": {model.Fused{Name: "f", Parts: inHalves}, plain(tensor.BF16, experts, 2*width, hidden),
			up, func(e, r, c int) int { return (e*2*width+width+r)*hidden + c }, true},
		"up in halves, transposed": {model.Fused{Name: "f", Parts: inHalves, Transposed: true}, plain(tensor.BF16, experts, hidden, 2*width),
			up, func(e, r, c int) int { return (e*hidden+c)*2*width + width + r }, false},
		"up in turn": {model.Fused{Name: "f", Parts: inTurn}, plain(tensor.BF16, experts, 2*width, hidden),
			up, func(e, r, c int) int { return (e*2*width+2*r+1)*hidden + c }, false},
		"quantised": {model.Fused{Name: "f", Parts: inTurn, Transposed: true}, weights.Tensor{DType: tensor.F32, Shape: []int{experts, 2 * width, hidden},
			Coded: coded{plain(tensor.F32, experts, 2*width, hidden)}}, gate, func(e, r, c int) int { return (e*2*width+2*r)*hidden + c }, false},
		"bias": {model.Fused{Name: "f", Parts: biases}, plain(tensor.BF16, experts, 2*width),
			upBias, func(e, _, c int) int { return e*2*width + 2*c + 1 }, false},
	} {
		t.Run(name, func(t *testing.T) {
			set, err := fused.View(config(x.fused), weights.Of([]weights.Named{
				{Name: "model.layers.0.f", Tensor: x.whole}, {Name: "other", Tensor: plain(tensor.F32, 5)}}, nil, nil))
			if err != nil {
				t.Fatal(err)
			}
			if n := len(set.Names()); n != experts*len(x.fused.Parts)+1 || set.Bytes() != x.whole.Bytes()+20 {
				t.Errorf("%d tensors of %d bytes: %v", n, set.Bytes(), set.Names())
			}
			for e := range experts {
				p, ok := set.Tensor(x.role(e))
				if !ok {
					t.Fatalf("no %s in %v", x.role(e), set.Names())
				}
				if p.DType != x.whole.DType || (p.Coded == nil) != x.plain {
					t.Errorf("%s as %s, coded %t", x.role(e), p.DType, p.Coded != nil)
				}
				rows, cols := p.Rows()
				for first := range rows {
					got := make([]float32, (rows-first)*cols)
					if err := p.Floats(got, first); err != nil {
						t.Fatal(err)
					}
					for i, v := range got {
						if want := x.at(e, first+i/cols, i%cols); v != float32(want) {
							t.Fatalf("expert %d, row %d, column %d is element %v, want %d", e, first+i/cols, i%cols, v, want)
						}
					}
				}
			}
		})
	}
}

func gate(e int) string   { return expert(e) + "gate_proj.weight" }
func up(e int) string     { return expert(e) + "up_proj.weight" }
func upBias(e int) string { return "model.layers.0.b." + string(rune('0'+e)) + ".up" }
func expert(e int) string { return "model.layers.0.mlp.experts." + string(rune('0'+e)) + "." }

// TestBroken: another shape, an expert that is there twice; without a fused tensor nothing happens.
func TestBroken(t *testing.T) {
	cfg := config(model.Fused{Name: "f", Parts: inTurn, Transposed: true})
	for want, list := range map[error][]weights.Named{
		fused.ErrShape: {{Name: "model.layers.0.f", Tensor: plain(tensor.BF16, experts, 2*width, hidden)}},
		fused.ErrTwice: {{Name: "model.layers.0.f", Tensor: plain(tensor.BF16, experts, hidden, 2*width)}, {Name: up(1), Tensor: plain(tensor.BF16, width, hidden)}},
	} {
		closed := false
		if _, err := fused.View(cfg, weights.Of(list, func() error { closed = true; return nil }, nil)); !errors.Is(err, want) || !closed {
			t.Errorf("%v, closed %t; want %v", err, closed, want)
		}
	}
	same := weights.Of([]weights.Named{{Name: gate(0), Tensor: plain(tensor.BF16, width, hidden)}}, nil, nil)
	if set, err := fused.View(cfg, same); err != nil || set != same || !slices.Equal(set.Names(), []string{gate(0)}) {
		t.Errorf("%v, %v", set.Names(), err)
	}
}

// FuzzView: whatever the shape, no panic, and what is taken can be read.
func FuzzView(f *testing.F) {
	f.Add(uint8(experts), uint8(hidden), uint8(2*width), uint16(2*experts*hidden*2*width), true)
	f.Add(uint8(experts), uint8(2*width), uint8(hidden), uint16(7), false)
	f.Fuzz(func(t *testing.T, a, b, c uint8, bytes uint16, transposed bool) {
		whole := weights.Tensor{DType: tensor.BF16, Shape: []int{int(a), int(b), int(c)}, Data: make([]byte, bytes)}
		set, err := fused.View(config(model.Fused{Name: "f", Parts: inTurn, Transposed: transposed}),
			weights.Of([]weights.Named{{Name: "model.layers.0.f", Tensor: whole}}, nil, nil))
		if err != nil {
			return
		}
		for _, x := range set.All() {
			rows, cols := x.Rows()
			if err := x.Floats(make([]float32, rows*cols), 0); err != nil {
				t.Fatal(err)
			}
		}
	})
}
