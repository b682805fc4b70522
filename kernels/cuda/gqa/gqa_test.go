package gqa

import (
	"errors"
	"testing"

	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

func TestPlainRefuses(t *testing.T) {
	mat := func(dt tensor.DType, rows, cols int) launch.Mat {
		return launch.Mat{At: 4096, DType: dt, Rows: rows, Cols: cols, Stride: cols}
	}
	p := device.GQA{Heads: 4, KVHeads: 2, HeadDim: 8, Scale: 1, BlockTokens: 16}
	out, q, table := mat(tensor.F32, 3, 32), mat(tensor.BF16, 3, 32), mat(tensor.I32, 1, 16)
	kv := launch.KV{Mat: mat(tensor.BF16, 64, 32)}
	var l launch.List
	Plain(&l, out, q, kv, launch.Mat{}, table, true, p)
	if len(l.Ops) != 1 || l.Ops[0].Count != 25 || l.Ops[0].Config.Grid != (launch.Dim{X: 4, Y: 3}) {
		t.Fatalf("%+v", l.Ops)
	}
	for name, f := range map[string]func(){
		"heads":  func() { p := p; p.KVHeads = 3; Plain(&l, out, q, kv, launch.Mat{}, table, true, p) },
		"out":    func() { Plain(&l, out.RowRange(0, 2), q, kv, launch.Mat{}, table, true, p) },
		"cache":  func() { p := p; p.KVHeads = 1; Plain(&l, out, q, kv, launch.Mat{}, table, true, p) },
		"scales": func() { kv := kv; kv.DType = tensor.I8; Plain(&l, out, q, kv, launch.Mat{}, table, true, p) },
		"type":   func() { kv := kv; kv.DType = tensor.F16; Plain(&l, out, q, kv, launch.Mat{}, table, true, p) },
		"table":  func() { Plain(&l, out, q, kv, launch.Mat{}, q, true, p) },
		"rows":   func() { q := q; q.DType = tensor.I8; Plain(&l, out, q, kv, launch.Mat{}, table, true, p) },
	} {
		func() {
			defer func() {
				var e *device.ShapeError
				if err, ok := recover().(error); !ok || !errors.As(err, &e) {
					t.Errorf("%s: no ShapeError", name)
				}
			}()
			f()
		}()
	}
}
