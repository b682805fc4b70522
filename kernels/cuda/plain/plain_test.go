package plain

import (
	"errors"
	"testing"

	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

func mat(dt tensor.DType, rows, cols int) launch.Mat {
	return launch.Mat{At: 4096, DType: dt, Rows: rows, Cols: cols, Stride: cols}
}

func TestLaunches(t *testing.T) {
	var l launch.List
	MatMul(&l, mat(tensor.F32, 5, 7), mat(tensor.BF16, 5, 3), launch.Weight{F: mat(tensor.F32, 7, 3)})
	w13 := launch.Weight{A: launch.Tiles{Layout: tensor.Layout{Format: tensor.INT4.By(32), Rows: 32, Cols: 24, For: tensor.GPU, Joined: true}, Values: 4096, Scales: 8192}}
	FFN(&l, mat(tensor.F32, 3, 24), 4096, mat(tensor.F32, 3, 24), w13, launch.Weight{F: mat(tensor.BF16, 24, 16)}, launch.Extra{})
	want := []struct {
		name         string
		blocks, args int
	}{{"kr_plain_matmul", 5, 16}, {"kr_plain_gate_up", 6, 26}, {"kr_plain_down", 9, 22}}
	if len(l.Ops) != len(want) {
		t.Fatalf("%d launches, want %d", len(l.Ops), len(want))
	}
	for i, w := range want {
		o := &l.Ops[i]
		if o.Kernel.String() != w.name || int(o.Config.Grid.X) != w.blocks || o.Count != w.args || !o.Config.PDL {
			t.Errorf("launch %d: %v with %d blocks, %d arguments; want %v", i, o.Kernel, o.Config.Grid.X, o.Count, w)
		}
	}
	before := len(l.Ops)
	MatMul(&l, mat(tensor.F32, 0, 7), mat(tensor.F32, 0, 3), launch.Weight{F: mat(tensor.F32, 7, 3)})
	if len(l.Ops) != before {
		t.Error("a launch for no rows")
	}
}

func TestRefusals(t *testing.T) {
	w := launch.Weight{F: mat(tensor.F32, 7, 3)}
	x := mat(tensor.F32, 5, 3)
	bank := launch.Bank{Experts: 2, W13: launch.Weight{F: mat(tensor.F32, 8, 3)}, W2: launch.Weight{F: mat(tensor.F32, 3, 4)}}
	for name, f := range map[string]func(l *launch.List){
		"rows":     func(l *launch.List) { MatMul(l, mat(tensor.F32, 4, 7), x, w) },
		"columns":  func(l *launch.List) { MatMul(l, mat(tensor.F32, 5, 6), x, w) },
		"inner":    func(l *launch.List) { MatMul(l, mat(tensor.F32, 5, 7), mat(tensor.F32, 5, 4), w) },
		"type":     func(l *launch.List) { MatMul(l, mat(tensor.I32, 5, 7), x, w) },
		"weights":  func(l *launch.List) { MatMul(l, mat(tensor.F32, 5, 7), x, launch.Weight{F: mat(tensor.I8, 7, 3)}) },
		"ids":      func(l *launch.List) { Experts(l, mat(tensor.F32, 10, 3), 4096, x, bank, mat(tensor.F32, 5, 2)) },
		"ids rows": func(l *launch.List) { Experts(l, mat(tensor.F32, 10, 3), 4096, x, bank, mat(tensor.I32, 4, 2)) },
		"y":        func(l *launch.List) { Experts(l, mat(tensor.F32, 9, 3), 4096, x, bank, mat(tensor.I32, 5, 2)) },
		"width": func(l *launch.List) {
			FFN(l, mat(tensor.F32, 5, 3), 4096, x, w, launch.Weight{F: mat(tensor.F32, 3, 4)}, launch.Extra{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			var l launch.List
			defer func() {
				err, _ := recover().(error)
				if shape := new(device.ShapeError); !errors.As(err, &shape) {
					t.Errorf("got %v, want a shape error", err)
				}
				if len(l.Ops) != 0 {
					t.Error("launched before it refused")
				}
			}()
			f(&l)
		})
	}
}

func TestNoAllocations(t *testing.T) {
	var l launch.List
	x, out, w := mat(tensor.F32, 5, 3), mat(tensor.F32, 5, 7), launch.Weight{F: mat(tensor.F32, 7, 3)}
	n := testing.AllocsPerRun(10, func() {
		l.Reset()
		MatMul(&l, out, x, w)
	})
	if n != 0 {
		t.Errorf("%v allocations a call", n)
	}
}
